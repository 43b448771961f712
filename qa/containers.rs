//! Agents in containers: mount namespaces with directories that the host does not see, behind a real pmcd.

#[path = "support/store_writer.rs"]
mod store_writer;
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use store_writer::{StoreWriter, Who};
use support::container::{Container, Group, sends};
use support::pdu::Link;
use support::serve::Server;
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, Nixl, PMDANIXL, Pmcd, TX_BYTES, example, output, run, text, wait_for};

const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

/// A home, and a directory in it for containers to mount something on.
fn home(settings: &str) -> (Home, PathBuf) {
    let home = Home::new();
    home.set(settings);
    let dir = home.path("inside");
    fs::create_dir(&dir).expect("made");
    (home, dir)
}

/// The path of each agent's file, by instance.
fn paths(pmcd: &Pmcd) -> BTreeMap<String, String> {
    let shown = run(pmcd.tool("pminfo").args(["-f", "nixl.agent.path"]));
    let lines = shown
        .lines()
        .filter_map(|line| line.split_once("\"] value "));
    lines
        .map(|(inst, value)| {
            let name = inst.split_once(" or \"").expect("an instance").1;
            (name.to_owned(), value.trim_matches('"').to_owned())
        })
        .collect()
}

/// Whether a process has something open or mapped that lies in a directory of that name.
fn holds(pid: u32, dir: &Path) -> bool {
    let dir = dir.to_str().expect("UTF-8");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let mut open = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    open.any(|path| path.to_string_lossy().contains(dir)) || maps.contains(dir)
}

/// Waits until pmdanixl has begun and ended so many more looks for containers.
fn looked(pmcd: &Pmcd, times: u64) {
    let looks = || pmcd.values("nixl.control.container_looks")[""];
    // One may be under way.
    let enough = looks() + times + 1;
    wait_for("looks through /proc", || (looks() >= enough).then_some(()));
}

/// A command in a mount namespace of its own, with a file system in memory on a directory.
fn with_tmpfs(command: &Command, dir: &Path) -> Command {
    let script = format!(
        "mount -t tmpfs nixl {} && exec \"$0\" \"$@\"",
        dir.display()
    );
    let mut wrapped = Command::new("unshare");
    wrapped
        .env_remove("NIXL_TELEMETRY_DIR")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    wrapped
}

#[test]
fn a_store_of_real_nixl_in_a_private_directory_is_read() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("");
    home.configure("[nixl]\ntelemetry_dir = []\ncontainers = true\nretain = \"2s\"\n");
    let mut command = Nixl::new("1.5.1", &dir).command(&["--serve"]);
    command
        .env_remove("NIXL_TELEMETRY_DIR")
        .env("NIXL_TELEMETRY_EXPORTER", "prometheus_mp")
        .env("NIXL_TELEMETRY_MULTIPROC_DIR", &dir);
    let mut agents = Server::of(with_tmpfs(&command, &dir));
    let pmcd = Pmcd::start(&home);
    agents.start("--transfers 6 --size 4096 --read-every 0 --prefix inside --keep");
    let [sent, _] = agents.done().expect("it goes on");
    pmcd.becomes(&[("inside-A", 6 * 4096), ("inside-B", 0)]);
    assert_eq!(sent["tx_requests"], 6);
    let shown = pmcd.shown(&["nixl.agent.source", "nixl.agent.path"]);
    let said = format!("{shown:?}");
    assert!(said.contains("store") && said.contains("/proc/"), "{said}");
    assert_eq!(
        fs::read_dir(&dir).expect("there").count(),
        0,
        "the host sees none"
    );
    // Its last values stay, and then it leaves.
    agents.kill();
    wait_for("its agents leave", || {
        pmcd.values(TX_BYTES).is_empty().then_some(())
    });
}

#[test]
fn an_agent_whose_directory_is_private_is_counted_exactly_and_only_if_that_is_switched_on() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true\nretain = \"2s\"");
    let container = Container::with_tmpfs(&dir, "worker", 4242);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker", 4242)]);
    let pid = container.pid();
    let at = format!("/proc/{pid}/root{}/worker", dir.display());
    assert_eq!(paths(&pmcd), [("worker".to_owned(), at.clone())].into());
    assert!(fs::metadata(&at).is_ok(), "it is there for an operator");
    assert_eq!(pmcd.values("nixl.agent.pid")["worker"], u64::from(pid));
    let (code, said) = home.check();
    let expected = format!(
        "+/inside (/proc/{pid}/root{})\n  worker: ring v4",
        dir.display()
    );
    let expected = expected.trim_start_matches('+');
    assert!(code == 0 && said.contains(expected), "{said}");
    assert!(!said.contains("cannot be looked at"), "{said}");
    assert!(pmcd.values("nixl.control.container_looks")[""] > 0);
    // A configuration that is read again leaves it as it is; one that switches that off lets it go.
    let set = |containers: &str| {
        let rings = home.rings();
        let text = format!("[nixl]\ntelemetry_dir = {rings:?}\nretain = \"2s\"\n{containers}\n");
        fs::write(pmcd.path("etc/nixl/nixl.conf"), text).expect("written");
        run(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    };
    set("containers = true");
    assert_eq!(pmcd.values("nixl.ring.capacity").len(), 1);
    assert!(holds(pmcd.pmda_pid(), &dir));
    set("containers = false");
    wait_for("nothing of it is open", || {
        (!holds(pmcd.pmda_pid(), &dir)).then_some(())
    });
    pmcd.becomes(&[]);
    set("");
    let other = Container::with_tmpfs(&dir, "other", 1);
    // As long as it takes to be found where that is on: six seconds of drains.
    let drains = || pmcd.values("nixl.control.drains")[""];
    let enough = drains() + 120;
    wait_for("drains", || (drains() >= enough).then_some(()));
    assert_eq!(pmcd.values(TX_BYTES), BTreeMap::new());
    set("containers = true");
    pmcd.becomes(&[("other", 1), ("worker", 4242)]);
    drop(other);
}

#[test]
fn when_a_container_ends_its_agents_exit_and_its_file_system_can_be_unmounted() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true\nretain = \"3s\"");
    let pmcd = Pmcd::start(&home);
    let container = Container::with_tmpfs(&dir, "worker", 10);
    pmcd.becomes(&[("worker", 10)]);
    // Something else lives on in the namespace.
    let pid = container.pid().to_string();
    let mut sleeper = Command::new("nsenter")
        .args(["-m", "-r", "-t", &pid, "sleep", "600"])
        .spawn()
        .expect("nsenter(1) is there");
    wait_for("it is in the namespace", || {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        (namespace(&sleeper.id().to_string()) == namespace(&pid)).then_some(())
    });
    let unmount = format!("umount {}", dir.display());
    assert!(!container.run(&unmount).0, "a file of it is mapped");
    drop(container);
    let sleeping = sleeper.id().to_string();
    wait_for("it can be unmounted", || {
        let mut command = Command::new("nsenter");
        let done = output(command.args(["-m", "-r", "-t", &sleeping, "sh", "-c", &unmount]));
        done.status.success().then_some(())
    });
    assert!(!holds(pmcd.pmda_pid(), &dir));
    pmcd.becomes(&[]);
    let log = pmcd.log();
    assert!(log.contains("its processes have ended"), "{log}");
    assert!(log.contains("agent worker: has exited"), "{log}");
    sleeper.kill().expect("it runs");
    sleeper.wait().expect("our child");
}

/// In a container: a copy of a store, of its process, to whose first counter a signal adds 15 before its end.
const LAST_WORD: &str = r#"
import mmap, os, signal, struct, sys
directory, store = sys.argv[1:3]
path = f"{directory}/nixl.{os.getpid()}.1795272511000000000.0.mmap"
with open(path, "w+b") as file:
    file.write(open(store, "rb").read())
    file.flush()
    words = mmap.mmap(file.fileno(), 0)
words[16:24] = struct.pack("<Q", os.getpid())
def end(*_):
    at = 94 * 8
    counted, = struct.unpack("<Q", words[at:at + 8])
    words[at:at + 8] = struct.pack("<Q", counted + 15)
    words[24:32] = struct.pack("<Q", struct.unpack("<Q", words[24:32])[0] + 1)
    os._exit(0)
signal.signal(signal.SIGUSR1, end)
while True:
    signal.pause()
"#;

#[test]
fn what_a_store_came_to_before_its_container_ended_is_counted() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true\nretain = \"1h\"");
    let store = StoreWriter::create(&home.path("."), &Who::named("inside")).expect("a store");
    store.add(store_writer::TX_BYTES, 10);
    let script = home.path("last_word.py");
    fs::write(&script, LAST_WORD).expect("written");
    let shown = dir.display();
    let prepare = format!(
        "mount -t tmpfs nixl {shown}; export NIXL_TELEMETRY_MULTIPROC_DIR={shown}; \
         IN='/usr/bin/python3 {} {shown} {}'",
        script.display(),
        store.path().display()
    );
    let mut container = Container::start("/nowhere", &prepare, "");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("inside", 10)]);
    // It is not asked while it stands still: pmcd would take it for dead.
    let pid = |pid: u32| Pid::from_raw(pid.try_into().expect("a process"));
    let pmda = pid(pmcd.pmda_pid());
    kill(pmda, Signal::SIGSTOP).expect("it runs");
    kill(pid(container.pid()), Signal::SIGUSR1).expect("it runs");
    let ended = container.child.wait().expect("our child");
    kill(pmda, Signal::SIGCONT).expect("it runs");
    assert!(ended.success(), "{ended}");
    pmcd.becomes(&[("inside", 25)]);
    wait_for("its file system is let go", || {
        (!holds(pmcd.pmda_pid(), &dir)).then_some(())
    });
    assert_eq!(pmcd.values(TX_BYTES)["inside"], 25);
}

#[test]
fn a_link_is_followed_in_the_containers_root_and_a_link_of_the_kernels_is_not() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true");
    // The container has the host's files, but for an /etc of its own, and a link to that.
    let root = dir.display();
    let prepare = format!(
        "mount --rbind / {root}; mount -t tmpfs nixl {root}/etc; mkdir {root}/etc/links; \
         ln -s /etc {root}/etc/links/dir; IN='chroot {root}'"
    );
    let args = sends(Path::new("/etc"), "inside", 7);
    let container = Container::start("/etc/links/dir", &prepare, &args);
    // Another says that its telemetry is wherever it happens to be.
    let magic = home.path("magic");
    fs::create_dir(&magic).expect("made");
    let prepare = format!("mount -t tmpfs nixl {0}; cd {0}", magic.display());
    let _magic = Container::start(
        "/proc/self/cwd",
        &prepare,
        &sends(Path::new("."), "magic", 8),
    );
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("inside", 7)]);
    let refused = format!(
        "/proc/{}/root/proc/self/cwd: cannot be opened: ELOOP",
        _magic.pid()
    );
    wait_for("that is said", || {
        pmcd.log().contains(&refused).then_some(())
    });
    // Of the host's /etc each file would be refused.
    assert_eq!(pmcd.values("nixl.control.files.refused")[""], 1, "links");
    let (_, said) = home.check();
    let listed = format!(
        "(/proc/{}/root/etc/links/dir)\n  inside: ring v4",
        container.pid()
    );
    assert!(said.contains(&listed), "{said}");
    assert!(
        said.contains(&refused) && !said.contains("passwd"),
        "{said}"
    );
    pmcd.becomes(&[("inside", 7)]);
}

#[test]
fn a_directory_that_is_replaced_by_a_link_between_two_looks_is_followed_inside_only() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true");
    let shown = dir.to_str().expect("UTF-8");
    let (ring, outside) = (dir.join("ring"), home.path("outside"));
    // The host has a directory of that name as well, with a ring in it that is none of the container's.
    fs::create_dir(&outside).expect("made");
    let mut hosts = RingWriter::create(&outside.join("hosts"), Layout::V4, 64).expect("a ring");
    hosts.push(Kind::TxBytes, 100);
    let prepare = format!(
        "mount -t tmpfs nixl {shown}; mount -t tmpfs nixl {}; mkdir {}",
        outside.display(),
        ring.display()
    );
    let ring = ring.to_str().expect("UTF-8");
    let container = Container::start(ring, &prepare, &sends(Path::new(ring), "first", 1));
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("first", 1)]);
    let out = outside.display();
    let moved =
        format!("mv {ring} {ring}.old && cp {ring}.old/first {out}/odd && ln -s {out} {ring}");
    let (done, said) = container.run(&moved);
    assert!(done, "{said}");
    // What stands there now has none of its rings, so that it is not looked through; the one that is known goes on.
    looked(&pmcd, 2);
    pmcd.becomes(&[("first", 1)]);
    // A second agent that goes where the link leads.
    let second = container.start_beside(ring, &sends(Path::new(ring), "second", 20));
    wait_for("it is found", || {
        let values = pmcd.values(TX_BYTES);
        (values.get("second") == Some(&20) && values["first"] == 1).then_some(())
    });
    // The first one is followed as long as it is there, though its directory has no name any more.
    looked(&pmcd, 1);
    assert_eq!(pmcd.values("nixl.ring.capacity").len(), 2);
    assert!(!pmcd.values(TX_BYTES).contains_key("hosts"));
    assert_eq!(hosts.pending(), 1);
    drop(second);
}

#[test]
fn two_containers_with_the_same_directory_and_agent_are_two_instances_that_keep_their_names() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true\nretain = \"1h\"");
    let container = "9".repeat(64);
    let Some(group) = Group::make(&[&format!("pod{POD}"), &container]) else {
        eprintln!("left out: no control group can be made here");
        return;
    };
    let in_pod = |bytes| Container::with(&dir, &group.enter(), "worker", bytes);
    let pmcd = Pmcd::start(&home);
    let other = Container::with_tmpfs(&dir, "worker", 1000);
    pmcd.becomes(&[("worker", 1000)]);
    let pod = in_pod(1);
    let name = format!("worker@{POD}");
    pmcd.becomes(&[("worker", 1000), (&name, 1)]);
    let pids = pmcd.values("nixl.agent.pid");
    assert_eq!(pids[&name], u64::from(pod.pid()), "{pids:?}");
    let labels = run(pmcd.tool("pminfo").args(["-l", TX_BYTES]));
    assert!(
        labels.contains(&format!("\"pod_uid\":\"{POD}\"")),
        "{labels}"
    );
    assert!(
        labels.contains(&format!("\"container_id\":\"{container}\"")),
        "{labels}"
    );
    let ids = run(pmcd.tool("pmprobe").args(["-i", TX_BYTES]));
    // The container is started anew, with an empty directory.
    drop(pod);
    wait_for("it is let go", || {
        pmcd.log()
            .contains("its processes have ended")
            .then_some(())
    });
    let pod = in_pod(20);
    pmcd.becomes(&[("worker", 1000), (&name, 21)]);
    assert_eq!(run(pmcd.tool("pmprobe").args(["-i", TX_BYTES])), ids);
    // A second container of the pod: that cannot be told from the first by what lasts.
    let second = in_pod(300);
    let all = wait_for("it is a third", || {
        let values = pmcd.values(TX_BYTES);
        (values.len() == 3).then_some(values)
    });
    assert_eq!(all.values().sum::<u64>(), 1000 + 21 + 300, "{all:?}");
    assert_eq!(all[&name], 21);
    // And so after the daemon has been started anew.
    pmcd.stop();
    let pmcd = Pmcd::start_with(&home, "again", |dir| {
        let state = home.path("pcp/run/nixl");
        fs::create_dir_all(dir.join("run")).expect("made");
        run(Command::new("cp")
            .arg("-r")
            .arg(&state)
            .arg(dir.join("run")));
    });
    wait_for("all are there again", || {
        (pmcd.values(TX_BYTES) == all).then_some(())
    });
    drop((pod, second, other));
}

#[test]
fn an_agent_is_found_whose_process_has_overwritten_its_environment_and_on_an_overlay() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true");
    // As an engine's worker under a title, in a container whose first process has the environment that it was started with.
    let shown = dir.to_str().expect("UTF-8");
    let prepare = format!(
        "mount -t tmpfs nixl {shown}; cd {shown}; mkdir lower upper work top; \
         mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work nixl top; \
         (exec sleep 20) & cd /; IN='env -u NIXL_TELEMETRY_DIR'"
    );
    let top = dir.join("top");
    let args = sends(&top, "worker", 12);
    let container = Container::start(&format!("{shown}/./top/"), &prepare, &args);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker", 12)]);
    assert_eq!(
        pmcd.values("nixl.agent.pid")["worker"],
        u64::from(container.pid())
    );
    // An overlay grants a lease on a file that is mapped, which must not be taken for the agent's end.
    looked(&pmcd, 1);
    assert_eq!(pmcd.values("nixl.agents.live")[""], 1);
}

#[test]
fn a_volume_of_the_hosts_is_looked_through_once_where_the_host_sees_it() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true");
    let prepare = format!("mount --bind {} {}", home.rings().display(), dir.display());
    let shown = dir.to_str().expect("UTF-8");
    fs::write(home.ring("notes"), "no ring").expect("written");
    let container = Container::start(shown, &prepare, &sends(&dir, "worker", 9));
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker", 9)]);
    let found = format!("\"/proc/{}/root{shown}\"", container.pid());
    wait_for("that directory is found", || {
        pmcd.log().contains(&found).then_some(())
    });
    looked(&pmcd, 1);
    let path = home.ring("worker").display().to_string();
    assert_eq!(paths(&pmcd), [("worker".to_owned(), path)].into());
    assert_eq!(pmcd.values("nixl.control.files.refused")[""], 1);
}

#[test]
fn as_another_user_with_the_capabilities_that_it_keeps_it_finds_them() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("user = \"nobody\"\ncontainers = true");
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let _container = Container::with_tmpfs(&dir, "worker", 5);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker", 5)]);
    let log = pmcd.log();
    let expected = "runs as user nobody with CAP_DAC_OVERRIDE, CAP_LEASE, CAP_SYS_PTRACE";
    assert!(log.contains(expected), "{log}");
    assert!(!log.contains("cannot be looked at"), "{log}");
}

#[test]
fn where_it_may_look_at_no_process_it_does_all_else_and_says_so() {
    if !support::is_alone() {
        return;
    }
    let settings = "user = \"nobody\"\nowners = [\"nobody\"]\ncontainers = true";
    let (home, dir) = home(settings);
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let _container = Container::with_tmpfs(&dir, "worker", 5);
    let mut ring = RingWriter::create(&home.ring("theirs"), Layout::V4, 64).expect("a ring");
    std::os::unix::fs::chown(home.ring("theirs"), Some(65_534), Some(65_534)).expect("root");
    ring.push(Kind::TxBytes, 3);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("theirs", 3)]);
    wait_for("that is said", || {
        let said = "processes cannot be looked at";
        pmcd.log().contains(said).then_some(())
    });
    let (code, said) = home.check();
    assert!(
        said.contains("processes cannot be looked at, and may have telemetry"),
        "{said}"
    );
    assert_eq!(code, 0, "{said}");
    ring.push(Kind::TxBytes, 4);
    pmcd.becomes(&[("theirs", 7)]);
    let log = pmcd.log();
    assert!(
        log.contains("processes cannot be looked at") && !log.contains("Error"),
        "{log}"
    );
}

#[test]
fn whoever_has_a_user_namespace_of_his_own_is_not_looked_into() {
    if !support::is_alone() {
        return;
    }
    if !output(Command::new("unshare").args(["--user", "true"]))
        .status
        .success()
    {
        eprintln!("left out: no user namespace is to be had here, as below a chroot(2)");
        return;
    }
    let (home, dir) = home("containers = true");
    let shown = dir.display();
    let script = format!(
        "mount -t tmpfs nixl {shown}; exec {} {}",
        example("producer").display(),
        sends(&dir, "worker", 5)
    );
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .env("NIXL_TELEMETRY_DIR", &dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let container = Container {
        child: child.expect("unshare(1) is there"),
    };
    let pmcd = Pmcd::start(&home);
    let refused = format!("{shown}: its container has a user namespace of its own");
    wait_for("that is said", || {
        pmcd.log().contains(&refused).then_some(())
    });
    assert_eq!(pmcd.values(TX_BYTES), BTreeMap::new());
    drop(container);
}

#[test]
fn without_openat2_no_container_is_looked_into_and_that_is_said() {
    if !support::is_alone() {
        return;
    }
    let (home, dir) = home("containers = true");
    let _container = Container::with_tmpfs(&dir, "worker", 5);
    let command = || {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-e", "trace=openat2", "-o"])
            .arg(home.path("strace"))
            .args(["-e", "inject=openat2:error=ENOSYS", PMDANIXL]);
        command
    };
    let output = output(command().args(["--check", "-c"]).arg(home.conf()));
    let said = text(&output);
    let expected = "problem: containers are not looked into: openat2(2) is not to be had (ENOSYS";
    assert!(
        said.contains(expected) && !said.contains("worker"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1), "{said}");
    // The daemon does all else.
    let mut ring = RingWriter::create(&home.ring("here"), Layout::V4, 16).expect("a ring");
    assert!(ring.push(Kind::TxBytes, 7));
    let mut link = Link::start(&home, command()).expect("it starts");
    let mut looks = 0;
    wait_for("what is here is counted", || {
        let values = link.values("transfer.tx_bytes").expect("an answer");
        assert!(!values.contains_key("worker"), "{values:?}");
        looks += usize::from(values.get("here") == Some(&7));
        (looks > 50).then_some(())
    });
    let log = home.log();
    assert!(
        log.contains("containers are not looked into: openat2(2) is not to be had"),
        "{log}"
    );
    assert!(link.end().success());
}
