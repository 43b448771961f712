//! Processes that use NIXL and whose telemetry is not found: `pmdanixl --check` names them, with what is missing (real NIXL), and
//! `nixl.agents.silent` counts them.

mod support;
#[path = "support/world.rs"]
#[allow(clippy::duplicate_mod, reason = "it stands on its own elsewhere")]
mod world;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::writer::{self, Layout, RingWriter};
use support::{Home, Nixl, Pmcd, project, sees_all_processes, wait_for};
use world::{LONG, World};

/// NIXL with an agent that lives until its standard input is closed.
struct Agent(Child);

impl Agent {
    /// Starts it with these variables and no others of NIXL's, and waits until it is there.
    fn start(home: &Home, variables: &[(&str, &str)]) -> Self {
        let script = "import sys\n\
                      sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
                      import workload\n\
                      api, _ = workload.load_api()\n\
                      agent = api.nixl_agent('quiet', api.nixl_agent_config(backends=['UCX']))\n\
                      print('ready', flush=True)\n\
                      sys.stdin.read()\n";
        let mut command = Command::new(Nixl::new("1.5.1", &home.rings()).python());
        command.args(["-c", script]).arg(project("qa/nixl"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NIXL_TELEMETRY")) {
            command.env_remove(name);
        }
        command.env("UCX_POSIX_DIR", home.dir());
        command.envs(variables.iter().copied());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut agent = Self(child.expect("Python starts"));
        let said = BufReader::new(agent.0.stdout.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "NIXL makes an agent");
        agent
    }

    /// What `--check` says of it.
    fn told(&self, said: &str) -> Option<String> {
        let pid = format!("  pid {} (", self.0.id());
        let line = said.lines().find(|line| line.starts_with(&pid));
        line.and_then(|line| Some(line.split_once(" user ")?.1.split_once(": ")?.1.to_owned()))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn check_names_who_uses_nixl_without_telemetry_here_and_what_is_missing() {
    let home = Home::new();
    let other = home.path("other");
    std::fs::create_dir(&other).expect("made");
    let [here, there] = [home.rings(), other].map(|path| path.display().to_string());
    let on = ("NIXL_TELEMETRY_ENABLE", "y");
    let off = Agent::start(&home, &[]);
    let elsewhere = Agent::start(&home, &[on, ("NIXL_TELEMETRY_DIR", &there)]);
    let exported = Agent::start(
        &home,
        &[
            on,
            ("NIXL_TELEMETRY_DIR", &here),
            ("NIXL_TELEMETRY_EXPORTER", "prometheus"),
            ("NIXL_TELEMETRY_PROMETHEUS_LOCAL", "y"),
            ("NIXL_TELEMETRY_PROMETHEUS_PORT", &port().to_string()),
        ],
    );
    let seen = Agent::start(&home, &[on, ("NIXL_TELEMETRY_DIR", &here)]);
    let (status, said) = home.check();
    assert_eq!(status, 0, "{said}");
    let told = |agent: &Agent| {
        agent
            .told(&said)
            .unwrap_or_else(|| panic!("it is told: {said}"))
    };
    assert_eq!(
        told(&off),
        "NIXL_TELEMETRY_ENABLE is not set: set it to y; NIXL_TELEMETRY_DIR is not set: set it to a directory of telemetry_dir"
    );
    assert_eq!(
        told(&elsewhere),
        format!(
            "NIXL_TELEMETRY_DIR is {there:?}, which is not looked through: add it to telemetry_dir in nixl.conf"
        )
    );
    let why = told(&exported);
    assert!(
        why.starts_with("NIXL_TELEMETRY_EXPORTER is \"prometheus\": set it to BUFFER"),
        "{why}"
    );
    assert_eq!(seen.told(&said), None, "its ring is found: {said}");
    assert!(said.contains("  quiet: ring v4, 4096 events, "), "{said}");
    assert!(said.contains("processes without telemetry\n"), "{said}");
}

#[test]
fn check_finds_a_process_whose_first_thread_has_ended() {
    let home = Home::new();
    let library = home.path("libnixl.so");
    std::fs::write(&library, [0; 4096]).expect("written");
    drop(RingWriter::create(&home.ring("headless"), Layout::V4, 64).expect("a ring"));
    let script = "import ctypes, mmap, sys, threading\n\
                  files = [open(name, 'r+b') for name in sys.argv[1:]]\n\
                  mapped = [mmap.mmap(file.fileno(), 0) for file in files]\n\
                  threading.Thread(target=sys.stdin.read).start()\n\
                  print('ready', flush=True)\n\
                  ctypes.CDLL(None).pthread_exit(None)\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(&library);
    // More than there is in the environment of most.
    for name in ["A_1", "A_2", "A_3"] {
        command.env(name, "x".repeat(100 << 10));
    }
    command.env("NIXL_TELEMETRY_ENABLE", "n");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = Agent(child.expect("Python starts"));
    let mut line = String::new();
    let mut said = BufReader::new(process.0.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("it says that it is there");
    let pid = process.0.id();
    wait_for("its first thread ends", || {
        let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
        maps.is_empty().then_some(())
    });
    let (_, said) = home.check();
    let told = process.told(&said);
    let why = "NIXL_TELEMETRY_ENABLE is \"n\": set it to y";
    assert!(told.is_some_and(|told| told.starts_with(why)), "{said}");
    // One that has a ring is seen to have it.
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-c", script])
        .arg(&library)
        .arg(home.ring("headless"));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let process = Agent(child.expect("Python starts"));
    let pid = process.0.id();
    wait_for("its first thread ends", || {
        let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
        maps.is_empty().then_some(())
    });
    let (_, said) = home.check();
    let ring = said.lines().find(|line| line.contains("headless: ring"));
    let is_its = |line: &str| line.contains(&format!("pid {pid} "));
    assert!(ring.is_some_and(is_its), "{said}");
}

/// One that is free now; the test has a network of its own, as far as it may.
fn port() -> u16 {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    free.local_addr().expect("bound").port()
}

/// A process that has these files mapped.
fn mapper(files: &[&Path]) -> Agent {
    let script = "import mmap, sys\n\
                  files = [open(name, 'r+b') for name in sys.argv[1:]]\n\
                  mapped = [mmap.mmap(file.fileno(), 0) for file in files]\n\
                  print('ready', flush=True)\n\
                  sys.stdin.read()\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).args(files);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = Agent(child.expect("Python starts"));
    let mut said = BufReader::new(process.0.stdout.take().expect("piped"));
    said.read_line(&mut String::new()).expect("it is ready");
    process
}

#[test]
fn who_uses_nixl_and_has_no_file_that_is_read_is_counted_once_a_minute() {
    let mut world = World::new(|config| config.proc_facts = true);
    let library = world.path("libnixl.so");
    std::fs::write(&library, [0; 4096]).expect("written");
    drop(world.ring("heard"));
    let ring = world.path("heard");
    let [silent, heard] = [&[&*library][..], &[&*library, &*ring]].map(mapper);
    let mut look = |seconds| {
        world.now += Duration::from_secs(seconds);
        world.tick(1, Duration::ZERO, LONG);
        world.agents.tidy(world.now, Instant::now() + LONG);
        let found = world.agents.silent()?;
        let is_found = |agent: &Agent| found.iter().any(|user| user.pid == agent.0.id());
        Some([is_found(&silent), is_found(&heard)])
    };
    if !sees_all_processes() {
        // Nobody knows whether there are others.
        (0..200).for_each(|_| assert_eq!(look(61), None));
        return;
    }
    wait_for("who has only the library is found", || {
        (look(61) == Some([true, false])).then_some(())
    });
    // None comes in between: a look through all processes takes its time.
    let surveys = world.agents.effort().surveys;
    for _ in 0..50 {
        world.now += Duration::from_secs(1);
        world.agents.tidy(world.now, Instant::now() + LONG);
    }
    assert!(world.agents.effort().surveys <= surveys + 1);
    let gone = silent.0.id();
    drop(silent);
    wait_for("who has ended is not counted", || {
        world.now += Duration::from_secs(61);
        world.agents.tidy(world.now, Instant::now() + LONG);
        let found = world.agents.silent()?;
        found.iter().all(|user| user.pid != gone).then_some(())
    });
}

#[test]
fn how_many_they_are_is_a_value_where_all_processes_can_be_seen() {
    let home = Home::new();
    let library = home.path("libnixl.so");
    std::fs::write(&library, [0; 4096]).expect("written");
    let _process = mapper(&[&library]);
    let pmcd = Pmcd::start(&home);
    let value = || pmcd.values("nixl.agents.silent").remove("");
    if sees_all_processes() {
        let silent = wait_for("they are counted", value);
        assert!(silent >= 1, "{silent}");
    }
    pmcd.configure(&home, "proc_facts = false");
    assert_eq!(value(), None, "nobody is looked at");
}
