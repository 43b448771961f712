// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: which daemon reads a ring, full rings, rings that `max_agents` and `owners` leave out, and untrusted
//! names.

use crate::support::pdu::Link;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{self, Home, PMDANIXL, needs_root, wait_for};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe};
use pmdanixl::shm;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

/// Exit status and output of `--check`, with the state file of the home's daemon.
fn check(home: &Home) -> (Option<i32>, String) {
    let mut check = Command::new(PMDANIXL);
    check.args(["--check", "-c"]).arg(home.conf());
    let output = support::output(check.env("PCP_RUN_DIR", home.path("run")));
    (output.status.code(), support::text(&output))
}

/// Line of `--check` about a ring.
fn line<'a>(said: &'a str, agent: &str) -> &'a str {
    let name = format!("{agent}: ring ");
    let line = said.lines().find(|line| line.contains(&name));
    line.unwrap_or_else(|| panic!("{agent}: {said}"))
}

/// Creates a ring of 16 slots with so many events.
fn ring(home: &Home, name: &str, events: u64) -> RingWriter {
    let mut ring = home.new_ring(name, 16);
    (0..events).for_each(|_| assert!(ring.push(Kind::TxBytes, 1)));
    ring
}

/// Starts the daemon of a home, and waits until these agents are instances.
fn start(home: &Home, agents: &[&str]) -> Link {
    let mut link = Link::open(home);
    wait_for("the agents are instances", || {
        let states = link.values("agent.state").expect("an answer");
        states.keys().eq(agents.iter()).then_some(())
    });
    link
}

#[test]
fn ring_is_drained_by_one_daemon_and_read_by_others() {
    needs_root();
    let homes = [Home::new(), Home::new(), Home::new()];
    let _ring = ring(&homes[0], "agent", 1);
    let rings = homes[0].rings();
    for (home, setting) in homes.iter().zip(["", "", "observe = true"]) {
        home.configure(&format!("[nixl]\ntelemetry_dir = {rings:?}\n{setting}\n"));
    }
    let links = homes.each_ref().map(|home| start(home, &["agent"]));
    let [drains, waits, observes] = links.each_ref().map(Link::pid);
    let readers = [waits, observes];
    for home in &homes {
        let (status, said) = check(home);
        let line = line(&said, "agent");
        let mut named: Vec<String> = readers
            .iter()
            .map(|pid| format!(", read by pid {pid}"))
            .collect();
        named.push(format!(", drained by pid {drains}"));
        assert!(
            named.iter().all(|reader| line.contains(reader)),
            "{named:?}\n{said}"
        );
        let count = [", drained by", ", read by"].map(|verb| line.matches(verb).count());
        assert_eq!((count, status), ([1, readers.len()], Some(0)), "{said}");
    }
}

#[test]
fn full_ring_is_a_problem_and_without_a_daemon_a_warning() {
    needs_root();
    let home = Home::new();
    let mut writer = ring(&home, "agent", 14);
    assert!(!check(&home).1.contains("full: "), "{}", check(&home).1);
    assert!(writer.push(Kind::TxBytes, 1));
    let (status, said) = check(&home);
    let unread = ", full: its agent has filled it, and NIXL drops events until pmdanixl drains it";
    let about = line(&said, "agent");
    assert!(
        about.starts_with("  warning: agent: ring v4, 16 slots, 15 pending, written by pid ")
            && about.ends_with(unread),
        "{said}"
    );
    assert!(status == Some(0) && said.contains(" 0 problems"), "{said}");
    home.set("observe = true");
    let link = start(&home, &["agent"]);
    let (status, said) = check(&home);
    let observed = format!(
        ", read by pid {}, full: NIXL drops events; remove observe, or start what is to drain it, not drained or counted, since observe is on",
        link.pid()
    );
    let about = line(&said, "agent");
    assert!(
        about.starts_with("  problem: agent: ") && about.ends_with(&observed),
        "{said}"
    );
    assert!(status == Some(1) && said.contains(" 1 problem"), "{said}");
    assert!(
        home.log()
            .contains("Warning: agent agent: its ring was full, and NIXL may have dropped events"),
        "{}",
        home.log()
    );
    assert!(link.end().success());
    // Another program drains it, and too slowly.
    home.set("");
    let file = File::options()
        .read(true)
        .write(true)
        .open(home.ring("agent"));
    let file = file.expect("there");
    assert!(shm::lock(&file).expect("there are locks"));
    let (status, said) = check(&home);
    let slow = ", drained by the process that has it locked, full: NIXL drops events; raise NIXL_TELEMETRY_BUFFER_SIZE";
    let about = line(&said, "agent");
    assert!(
        about.starts_with("  problem: agent: ") && about.ends_with(slow),
        "{said}"
    );
    assert_eq!(status, Some(1), "{said}");
}

#[test]
fn rings_beyond_max_agents_are_a_problem() {
    let home = Home::new();
    let _rings = ["a", "b", "c", "d"].map(|name| ring(&home, name, 1));
    home.set("max_agents = 4");
    let (status, said) = check(&home);
    assert!(status == Some(0) && !said.contains("need room"), "{said}");
    home.set("max_agents = 2");
    let (status, said) = check(&home);
    let problem = "problem: 4 rings and stores need room, and max_agents (2) is reached, so that some are not read; raise max_agents in nixl.conf\n";
    assert!(status == Some(1) && said.contains(problem), "{said}");
}

#[test]
fn few_descriptors_leave_room_and_reasons_for_100_rings() {
    const LIMIT: &str = "ulimit -n 64 && exec \"$0\" \"$@\"";
    const ROOM: usize = 64 - 32 - 2;
    let home = Home::new();
    let names: Vec<String> = (100..200).map(|number| number.to_string()).collect();
    let rings = names.iter().map(|name| ring(&home, name, 1));
    let _rings: Vec<RingWriter> = rings.collect();
    let mut limited = Command::new("sh");
    limited.args(["-c", LIMIT, PMDANIXL]);
    let mut link = Link::start(&home, limited).expect("it starts");
    wait_for("as many rings are attached as there is room for", || {
        let values = link.values("transfer.tx_bytes").ok()?;
        (values.len() == ROOM).then_some(())
    });
    let why = "rejected: the limit of open files leaves room for 30 agents, which is reached; raise the limit of open files of pmcd's service (LimitNOFILE)";
    let limit = "max_agents is 4096, but only 64 files may be open; at most 30 rings and stores are attached";
    let log = wait_for("the reasons are logged", || {
        let log = std::fs::read_to_string(home.path("nixl.log")).ok()?;
        log.contains(why).then_some(log)
    });
    let attached = log.lines().filter(|line| line.contains(": ring v4, 16"));
    assert_eq!(attached.count(), ROOM, "{log}");
    assert!(log.contains(limit), "{log}");
    // What may be opened beside the rings is enough: the id file, process scans.
    assert!(!log.contains("EMFILE"), "{log}");
    // The limit of --check itself is another.
    let (status, said) = check(&home);
    let problem = "problem: 100 rings and stores need room, and the limit of open files leaves room for 30 agents";
    let warning = format!("warning: {limit}");
    assert!(
        status == Some(1) && said.contains(problem) && said.contains(&warning),
        "{said}"
    );
    assert!(link.end().success());
}

#[test]
fn ring_of_a_user_outside_owners_is_a_problem_if_it_is_the_only_one() {
    needs_root();
    let home = Home::new();
    home.set("owners = [4242]");
    std::fs::write(home.ring("notes"), "no ring").expect("written");
    let (status, said) = check(&home);
    assert!(
        status == Some(0) && said.contains("note: no ring or store is found: "),
        "{said}"
    );
    let _ring = ring(&home, "other", 1);
    let (status, said) = check(&home);
    let problem = "problem: owners in nixl.conf leaves out all rings and stores that are found (1); add their users to it, or remove it\n";
    assert!(status == Some(1) && said.contains(problem), "{said}");
    let _own = ring(&home, "own", 1);
    chown(home.ring("own"), Some(4242), None).expect("root");
    let (status, said) = check(&home);
    assert!(status == Some(0) && !said.contains(problem), "{said}");
}

#[test]
fn check_is_not_ended_by_a_signal_of_a_lease_or_limit() {
    let home = Home::new();
    // The lines of 64 files do not fit into the pipe, so that the check waits for this test while it gets the signals.
    (0..64).for_each(|number| {
        fs::write(home.ring(format!("file-{number:02}")), [0; 64]).expect("room")
    });
    let mut check = Command::new(PMDANIXL);
    check.args(["--check", "-c"]).arg(home.conf());
    let (reader, writer) = pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("a small pipe");
    let mut child = check
        .env("PCP_RUN_DIR", home.path("run"))
        .stdout(writer)
        .spawn()
        .expect("it starts");
    drop(check);
    wait_for("the check waits for its reader", || {
        let waits = fs::read_to_string(format!("/proc/{}/syscall", child.id())).ok()?;
        // The number of write(2) depends on the machine; its first argument does not.
        (waits.split(' ').nth(1) == Some("0x1")).then_some(())
    });
    let pid = Pid::from_raw(child.id().try_into().expect("a pid"));
    for signal in [Signal::SIGIO, Signal::SIGXFSZ, Signal::SIGBUS] {
        kill(pid, signal).expect("it runs");
    }
    let said = io::read_to_string(File::from(reader)).expect("UTF-8");
    let status = child.wait().expect("our child");
    assert!(
        status.code().is_some() && said.contains("file-63: rejected"),
        "{status}\n{said}"
    );
}

#[test]
fn processes_that_are_not_visible_have_a_cause_and_a_remedy() {
    needs_root();
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let note = |within: &str| {
        let within: Vec<String> = within.split_whitespace().map(str::to_owned).collect();
        let mut check = support::command_within(&within, PMDANIXL);
        let said = support::text(&support::output(
            check.args(["--check", "-c"]).arg(home.conf()),
        ));
        let mut lines = said.lines();
        let note = lines.find_map(|line| {
            line.strip_prefix("note: not all processes can be examined for NIXL: ")
        });
        note.unwrap_or_default().to_owned()
    };
    let mut of_another_user = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "sleep", "1000"])
        .spawn()
        .expect("it starts");
    wait_for("it has changed its user", || {
        let process = fs::metadata(format!("/proc/{}", of_another_user.id())).ok()?;
        (process.uid() == 65534).then_some(())
    });
    let expected = [
        (
            "unshare --pid --fork --mount-proc",
            "those outside of this container ",
            "--pid=host)",
        ),
        (
            "setpriv --reuid=65534 --clear-groups",
            "those of other users may not be read; ",
            "run as root",
        ),
        // CAP_PERFMON and CAP_SYS_ADMIN are enough for newer kernels.
        (
            "setpriv --bounding-set=-sys_ptrace,-perfmon,-sys_admin --",
            "some may not be read without CAP_SYS_PTRACE; ",
            "--cap-add SYS_PTRACE)",
        ),
    ];
    let notes = expected.map(|(within, _, _)| note(within));
    let with_all_rights = note("");
    of_another_user.kill().expect("it runs");
    of_another_user.wait().expect("our child");
    for ((within, cause, remedy), note) in expected.iter().zip(notes) {
        assert!(
            note.starts_with(cause) && note.ends_with(remedy),
            "{within}: {note}"
        );
    }
    if support::sees_all_processes() {
        assert_eq!(with_all_rights, "");
    }
}

#[test]
fn check_escapes_names_and_quotes_those_like_a_problem() {
    let home = Home::new();
    let pods = home.path("pods");
    fs::create_dir_all(pods.join("x\u{1b}[2J\nproblem: y\u{202e}z\u{3164}")).expect("made");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = [{:?}, {:?}]\n",
        home.rings(),
        pods.join("*")
    ));
    let names = ["problem", "problem:", "a\u{3164}", "b\u{202e}", "problems"];
    let _rings = names.map(|name| ring(&home, name, 0));
    let (status, said) = check(&home);
    let is_text = |c: char| c == '\n' || !(c.is_control() || "\u{202e}\u{3164}".contains(c));
    assert!(said.chars().all(is_text), "{said:?}");
    let pods = pods.display();
    for line in [
        &format!(r#"directory "{pods}/x\u{{1b}}[2J\nproblem: y\u{{202e}}z\u{{3164}}""#),
        r#"  "problem": ring v4"#,
        r#"  "problem:": ring v4"#,
        r#"  "a\u{3164}": ring v4"#,
        r#"  "b\u{202e}": ring v4"#,
        "  problems: ring v4",
    ] {
        assert!(said.contains(&format!("\n{line}")), "{line}\n{said}");
    }
    let mut lines = said.lines();
    let is_problem = |line: &str| line.trim_start().starts_with("problem:");
    assert!(status == Some(0) && !lines.any(is_problem), "{said}");
}
