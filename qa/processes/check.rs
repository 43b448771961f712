// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check` and the daemon agree about each process: user, command, version and backends of NIXL, RDMA devices,
//! telemetry, and whether its sockets can be read.

mod rdma;

use super::labels::delay::stall;
use crate::support::fleet::is_possible;
use crate::support::other_user::{STRANGER, VICTIM, open_to_all};
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, PMDANIXL, command_within, leave_out, output, run, soon, text};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

const NOBODY: u32 = 65_534;
/// Package of the newest NIXL. `pip install --target` has any directory in place of `site-packages`.
const NEW: Option<(&str, &str)> = Some(("site-packages", "1.5.1"));
/// What is known of a process that uses NIXL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    version: Option<String>,
    backends: String,
    /// RDMA devices that it has open, if its sockets can be read.
    devices: Option<u64>,
    /// User and command, if it has a ring.
    of_agent: Option<(String, String)>,
    /// Name of the process, if it has a ring.
    name: Option<String>,
    /// Number of its agents.
    agents: u64,
}

/// Files that NIXL maps: libnixl of a Python package, if it is in one, and these backends. The package is given by the
/// directory of all packages and its version.
fn libraries(home: &Home, package: Option<(&str, &str)>, backends: &[&str]) -> Vec<PathBuf> {
    let directory = match package {
        Some((packages, version)) => {
            let packages = home.path(packages);
            fs::create_dir_all(packages.join(format!("nixl_cu12-{version}.dist-info")))
                .expect("made");
            packages.join(".nixl_cu12.mesonpy.libs")
        }
        None => home.path("lib"),
    };
    fs::create_dir_all(&directory).expect("made");
    let backends = backends.iter().map(|name| format!("libplugin_{name}.so"));
    let names = ["libnixl.so".to_owned()].into_iter().chain(backends);
    let paths = names.map(|name| directory.join(name));
    let paths = Vec::from_iter(paths);
    for path in &paths {
        fs::write(path, [0; 4096]).expect("written");
    }
    paths
}

/// Makes a ring of a user with one event. Returns its path.
fn ring(home: &Home, name: &str, uid: u32) -> PathBuf {
    let mut ring = RingWriter::create(&home.ring(name), Layout::V4, 64).expect("room");
    assert!(ring.push(Kind::TxBytes, 1));
    chown(home.ring(name), Some(uid), None).expect("root");
    home.ring(name)
}

/// What `--check` says of all processes that use NIXL.
fn of_check(said: &str) -> BTreeMap<u32, Known> {
    let (before, after) =
        { said.split_once("processes that use NIXL: version, backends, RDMA devices:\n") }
            .unwrap_or_else(|| panic!("{said}"));
    let mut all = BTreeMap::new();
    let mut last = None;
    for line in after.lines().take_while(|line| line.starts_with("  ")) {
        if line.starts_with("    ") {
            if line.contains("its sockets cannot be read") {
                let known: &mut Known = all.get_mut(&last.expect("a process")).expect("there");
                assert_eq!(known.devices.take(), None, "{said}");
            }
            continue;
        }
        // For example "  pid 7 (python3) user root: NIXL 1.5.1, backends UCX, 0 of 1 RDMA devices open".
        let (pid, rest) = line
            .trim_start_matches("  pid ")
            .split_once(" (")
            .expect("a pid");
        let (command, rest) = rest.split_once(") user ").expect("a command");
        let (user, rest) = rest.split_once(": NIXL ").expect("a user");
        let (version, rest) = rest.split_once(", backends ").expect("a version");
        let (backends, devices) = match rest.split_once(", ") {
            Some((backends, rest)) => (backends, rest.split_once(" of 1 RDMA devices open")),
            None => (rest, None),
        };
        let pid: u32 = pid.parse().expect("a number");
        let listed = format!("  pid {pid} ({command}) user {user}: ");
        let is_silent = before.contains(&format!("\n{listed}"));
        let written = before.split_once(&format!("written by pid {pid} ("));
        assert_eq!(is_silent, written.is_none(), "{said}");
        let name = written.map(|(_, rest)| {
            let (name, rest) = rest.split_once(") user ").expect("a name");
            assert!(rest.starts_with(user), "{said}");
            name.to_owned()
        });
        let known = Known {
            version: Some(version.to_owned()).filter(|version| version != "of unknown version"),
            backends: backends.to_owned(),
            devices: devices.map(|(count, _)| count.parse().expect("a number")),
            of_agent: name.as_ref().map(|_| (user.to_owned(), command.to_owned())),
            agents: name.is_some().into(),
            name,
        };
        all.insert(pid, known);
        last = Some(pid);
    }
    all
}

/// What the daemon says of all processes that use NIXL.
fn of_daemon(link: &mut Link) -> BTreeMap<u32, Known> {
    let mut texts = |name: &str| link.texts(name).expect("an answer");
    let [versions, backends] =
        ["nixl_version", "backends"].map(|name| texts(&format!("process.{name}")));
    let [users, commands] = ["user", "command"].map(|name| texts(&format!("agent.{name}")));
    let mut values = |name: &str| link.values(name).expect("an answer");
    let [devices, agents] =
        ["rdma_devices", "agents"].map(|name| values(&format!("process.{name}")));
    let writers = values("agent.pid");
    let process = |(instance, backends): (String, String)| {
        let (pid, name) = instance.split_once(' ').expect("a pid and a name");
        let pid: u32 = pid.parse().expect("a pid");
        let agent = writers
            .iter()
            .find(|(_, writer)| **writer == u64::from(pid));
        let text = |texts: &BTreeMap<String, String>, agent: &str| {
            let text = texts.get(agent).cloned();
            text.unwrap_or_default()
        };
        let known = Known {
            version: versions.get(&instance).cloned(),
            backends,
            devices: devices.get(&instance).copied(),
            of_agent: agent.map(|(agent, _)| (text(&users, agent), text(&commands, agent))),
            name: agent.map(|_| name.to_owned()),
            agents: agents.get(&instance).copied().unwrap_or_default(),
        };
        (pid, known)
    };
    backends.into_iter().map(process).collect()
}

#[test]
fn check_and_daemon_say_the_same_of_each_process() {
    if !is_possible() {
        return;
    }
    // In the mount namespace of this test.
    let device = "mount -t tmpfs sys /sys/class && mkdir -p /sys/class/infiniband/mlx5_0";
    run(Command::new("sh").args(["-ec", device]));
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    let new = libraries(&home, NEW, &["UCX"]);
    let old = libraries(&home, Some(("target", "0.10.1")), &["POSIX", "UCX"]);
    let unknown = libraries(&home, None, &["GDS"]);
    let start = |uid: u32, files: &[PathBuf]| {
        let mut process = Process::with_files(&[], files);
        process.run(&format!("become({uid})"));
        process
    };
    let mut peer = Process::peer();
    let to = format!("'127.0.0.1', {}", peer.number("serve()"));
    let with_ring = |files: &[PathBuf], ring| [files, &[ring]].concat();
    let mut agent = start(0, &with_ring(&new, ring(&home, "agent", 0)));
    agent.run(&format!("all = connect({to}, 3); send(all, 1000)"));
    let mut titled = start(VICTIM, &with_ring(&old, ring(&home, "titled", VICTIM)));
    titled.run("set_title(b'VLLM::Worker_TP1')");
    let mut renamed = start(NOBODY, &with_ring(&unknown, ring(&home, "renamed", NOBODY)));
    renamed.run("LIBC.prctl(PR_SET_NAME, b'pt_main_thread')");
    let mut silent = start(STRANGER, &unknown);
    silent.run(&format!("one = connect({to})"));
    let mut silent_titled = start(VICTIM, &new);
    silent_titled.run("set_title(b'VLLM::EngineCore')");
    let devices = "mount -t tmpfs dev /dev
        mkdir /dev/infiniband
        touch /dev/infiniband/uverbs0
        exec \"$@\"";
    let within = ["unshare", "--mount", "sh", "-ec", devices, "sh"];
    let within = within.map(str::to_owned);
    let mut rdma = Process::with_files(&within, &new);
    rdma.run(&format!(
        "become({STRANGER}); file = open('/dev/infiniband/uverbs0')"
    ));
    let all = [&agent, &titled, &renamed, &silent, &silent_titled, &rdma];
    let mut pids = all.map(Process::pid);
    pids.sort_unstable();
    let expected = agrees(&home, &[]);
    assert!(expected.keys().eq(&pids), "{expected:?}");
    // The sample has each of the cases.
    let known = |process: &Process| &expected[&process.pid()];
    let of_agent = |user: &str, command: &str| Some((user.to_owned(), command.to_owned()));
    let of_root = of_agent("root", "python3 process.py");
    assert_eq!(known(&agent).of_agent, of_root);
    let of_victim = of_agent(&VICTIM.to_string(), "VLLM::Worker_TP1");
    assert_eq!(known(&titled).of_agent, of_victim);
    assert_eq!(known(&renamed).name.as_deref(), Some("pt_main_thread"));
    let versions = [&agent, &titled, &silent].map(|process| known(process).version.as_deref());
    assert_eq!(versions, [Some("1.5.1"), Some("0.10.1"), None]);
    let devices = [&agent, &rdma].map(|process| known(process).devices);
    assert_eq!(devices, [Some(0), Some(1)]);

    // As with Yama: maps may be read, and sockets may not.
    let deny = ["strace", "-f", "-qq", "-e", "trace=pidfd_getfd", "-o"];
    let deny = deny.map(str::to_owned).into_iter();
    let deny = deny.chain([home.path("trace").display().to_string()]);
    let deny = deny.chain(["-e", "inject=pidfd_getfd:error=EPERM"].map(str::to_owned));
    let deny = Vec::from_iter(deny);
    if !output(&mut command_within(&deny, "true")).status.success() {
        leave_out("strace(1) cannot trace here");
    }
    let without_sockets = agrees(&home, &deny);
    let mut expected = expected;
    for process in [&agent, &silent] {
        expected.get_mut(&process.pid()).expect("there").devices = None;
    }
    assert_eq!(without_sockets, expected);
    let why = format!(
        "process {} (python3): its sockets cannot be read: ",
        agent.pid()
    );
    assert!(home.log().contains(&why), "{}", home.log());
}

/// The newest process is read first.
#[test]
fn check_examines_all_others_beside_a_process_that_blocks() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    let library = libraries(&home, NEW, &["UCX"]);
    let mut silent = Process::with_files(&[], &library);
    silent.run(&format!("become({VICTIM})"));
    let _blocks = stall(&home, &library, 1, None, 1);
    let mut check = Command::new(PMDANIXL);
    let said = text(&output(check.args(["--check", "-c"]).arg(home.conf())));
    assert!(
        said.contains("does not answer a read of its memory"),
        "{said}"
    );
    assert!(of_check(&said).contains_key(&silent.pid()), "{said}");
}

/// Runs `--check`, and the daemon until it says the same, both with a command prefix. Returns what they say.
fn agrees(home: &Home, within: &[String]) -> BTreeMap<u32, Known> {
    let mut link = Link::start(home, command_within(within, PMDANIXL)).expect("it starts");
    let mut check = command_within(within, PMDANIXL);
    let said = text(&output(check.args(["--check", "-c"]).arg(home.conf())));
    let expected = of_check(&said);
    let mut found = BTreeMap::new();
    let is_same = soon(|| {
        found = of_daemon(&mut link);
        (found == expected).then_some(())
    });
    assert!(is_same.is_some(), "{expected:#?}\n{found:#?}\n{said}");
    link.end();
    expected
}
