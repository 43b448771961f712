// SPDX-License-Identifier: GPL-2.0-or-later

//! Users that only a name service knows, and name services that do not answer. A getent(1) of the test stands for them,
//! earlier on the daemon's PATH.

use crate::support::pdu::{Link, Sent};
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, PMDANIXL, needs_root, run, wait_for};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

/// User id of `dirk`, whom the name service of the test knows.
const DIRK: u32 = 4242;

/// A home with a name service that knows `dirk`, and that does not answer while the file `hangs` exists. The file
/// `asked` has the keys of all look-ups.
fn home(settings: &str) -> Home {
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    home.set(settings);
    let (dir, bin) = (home.path("."), home.path("bin"));
    let script = format!(
        "#!/bin/sh
cd '{}'
echo \"$*\" >>asked
[ ! -e hangs ] || exec sleep 600
case \" $* \" in
*dirk*|*{DIRK}*) echo 'dirk:x:{DIRK}:{DIRK}::/:/bin/sh' ;;
*) exit 2 ;;
esac
",
        dir.display()
    );
    fs::create_dir(&bin).expect("made");
    let getent = bin.join("getent");
    fs::write(&getent, script).expect("written");
    fs::set_permissions(&getent, PermissionsExt::from_mode(0o755)).expect("ours");
    fs::write(home.path("asked"), "").expect("written");
    fs::set_permissions(home.path("asked"), PermissionsExt::from_mode(0o666)).expect("ours");
    home
}

fn hang(home: &Home) {
    fs::write(home.path("hangs"), "").expect("written");
}

fn asked(home: &Home) -> String {
    fs::read_to_string(home.path("asked")).expect("there")
}

fn log(home: &Home) -> String {
    fs::read_to_string(home.path("nixl.log")).unwrap_or_default()
}

fn start(home: &Home) -> Link {
    let mut daemon = Command::new(PMDANIXL);
    let path = std::env::var("PATH").expect("set");
    daemon.env("PATH", format!("{}:{path}", home.path("bin").display()));
    Link::start(home, daemon).expect("it starts")
}

/// Reloads. Returns true if the configuration is accepted.
fn reload(home: &Home, link: &mut Link, settings: &str) -> bool {
    home.set(settings);
    link.be_user(0).expect("sent");
    link.store(&[("control.reload", Sent::Numbers(vec![1]))])
        .is_ok()
}

/// Makes a ring of `dirk` with an event.
fn ring(home: &Home, name: &str) -> RingWriter {
    let mut ring = home.new_ring(name, 16);
    assert!(ring.push(Kind::TxBytes, 1));
    chown(home.ring(name), Some(DIRK), Some(DIRK)).expect("root");
    ring
}

/// Waits until these agents are instances.
fn appear(link: &mut Link, names: &[&str]) {
    wait_for("the agents are instances", || {
        let values = link.sent();
        values.keys().eq(names.iter()).then_some(())
    });
}

/// Waits until an agent has this user.
fn is_of(link: &mut Link, agent: &str, user: &str) {
    wait_for("the agent has its user", || {
        let users = link.texts("agent.user").expect("an answer");
        (users.get(agent)? == user).then_some(())
    });
}

/// A field of /proc/PID/status.
fn status(link: &Link, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", link.pid())).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.expect(field).trim().replace('\t', " ")
}

#[test]
fn names_of_owners_come_from_the_name_service() {
    needs_root();
    let home = home("");
    let _ring = ring(&home, "a");
    let mut link = start(&home);
    appear(&mut link, &["a"]);
    is_of(&mut link, "a", "dirk");
    assert_eq!(asked(&home).trim(), format!("-- passwd {DIRK}"));
}

#[test]
fn name_service_that_hangs_delays_no_agent() {
    needs_root();
    let home = home("");
    hang(&home);
    let _first = ring(&home, "a");
    let mut link = start(&home);
    appear(&mut link, &["a"]);
    is_of(&mut link, "a", &DIRK.to_string());
    let others = ["b", "c", "d", "e", "f"];
    let _others = others.map(|name| {
        let ring = ring(&home, name);
        is_of(&mut link, name, &DIRK.to_string());
        ring
    });
    // It is asked again after a pause, and not for each agent.
    let asked = asked(&home);
    assert!(asked.lines().count() < others.len(), "{asked}");
    let children = format!("/proc/{0}/task/{0}/children", link.pid());
    wait_for("the look-up is killed", || {
        let children = fs::read_to_string(&children).expect("it runs");
        let names = children.split(' ').filter_map(|pid| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (comm.trim() == "sleep").then_some(())
        });
        (names.count() == 0).then_some(())
    });
}

/// Module of nsswitch.conf(5) that answers nothing about a user.
const HANGING_MODULE: &str = "#include <nss.h>
#include <pwd.h>
#include <unistd.h>
static enum nss_status hang(void) { sleep(600); return NSS_STATUS_UNAVAIL; }
enum nss_status _nss_hang_getpwuid_r(uid_t uid, struct passwd *user, char *text, size_t len, int *error) { return hang(); }
enum nss_status _nss_hang_getpwnam_r(const char *name, struct passwd *user, char *text, size_t len, int *error) { return hang(); }
";

#[test]
fn module_of_the_name_services_that_hangs_delays_no_reload_and_no_label() {
    needs_root();
    let home = Home::new();
    home.set("");
    let source = home.path("module.c");
    fs::write(&source, HANGING_MODULE).expect("written");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&home.path("libnss_hang.so.2"), &source]));
    fs::write(home.path("nsswitch.conf"), "passwd: files hang\n").expect("written");
    let mut daemon = Command::new("unshare");
    let mount = "mount --bind \"$1\" /etc/nsswitch.conf && shift && exec \"$@\"";
    daemon.args(["--mount", "sh", "-c", mount, "sh"]);
    daemon.arg(home.path("nsswitch.conf")).arg(PMDANIXL);
    daemon.env("LD_LIBRARY_PATH", home.path("."));
    let _ring = ring(&home, "a");
    let mut link = Link::start(&home, daemon).expect("it starts");
    appear(&mut link, &["a"]);
    is_of(&mut link, "a", &DIRK.to_string());
    assert!(reload(&home, &mut link, &format!("owners = [{DIRK}]")));
    appear(&mut link, &["a"]);
}

#[test]
fn configuration_asks_no_name_service() {
    needs_root();
    let settings = format!("user = {DIRK}\nowners = [{DIRK}, \"root\"]");
    let home = home(&settings);
    hang(&home);
    let _ring = ring(&home, "a");
    let mut link = start(&home);
    appear(&mut link, &["a"]);
    for (field, count) in [("Uid:", 4), ("Gid:", 4), ("Groups:", 1)] {
        assert_eq!(
            status(&link, field),
            vec![DIRK.to_string(); count].join(" ")
        );
    }
    assert!(!reload(&home, &mut link, "owners = [\"dirk\"]"));
    let why = "owners = [\"dirk\"]: user \"dirk\" is not in /etc/passwd; in place of the name write the number that `id -u dirk` prints";
    assert!(log(&home).contains(why), "{}", log(&home));
    assert!(!asked(&home).contains("dirk"), "{}", asked(&home));
    appear(&mut link, &["a"]);
}

#[test]
fn local_user_needs_no_answer() {
    needs_root();
    let home = home("user = \"nobody\"\nowners = [\"root\", 4242]");
    hang(&home);
    let _ring = ring(&home, "a");
    let mut link = start(&home);
    appear(&mut link, &["a"]);
    let nobody = fs::read_to_string("/etc/passwd").expect("there");
    let nobody = nobody.lines().find_map(|line| line.strip_prefix("nobody:"));
    let uid = nobody
        .and_then(|line| line.split(':').nth(1))
        .expect("there");
    assert_eq!(status(&link, "Uid:"), [uid; 4].join(" "));
    // The look-up of the ring's owner, which hangs, ends with the daemon.
    assert!(link.end().success());
}
