// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes with a NIXL backend mapped and no telemetry here: `pmdanixl --check` must list them with the cause (real
//! NIXL).

mod count;

use crate::support::{Home, Nixl, needs_root, project};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Python code that imports NIXL 1.5.1.
const IMPORT: &str = "import sys\n\
    sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
    import workload\n\
    api, _ = workload.load_api()\n";
/// Python code that makes an agent.
const AGENT: &str = "agent = api.nixl_agent('quiet', api.nixl_agent_config(backends=['UCX']))\n";
/// Python code that overwrites the command line with a title, and the start of the environment with NULs, like
/// setproctitle.
const TITLE: &str = "import ctypes\n\
    stat = open('/proc/self/stat').read().rsplit(') ')[1].split()\n\
    args, args_end, env, env_end = (int(number) for number in stat[45:49])\n\
    ctypes.memset(args, 0, args_end - args)\n\
    ctypes.memmove(args, b'VLLM::Worker_TP0', 16)\n\
    ctypes.memset(env, 0, min(200, env_end - env))\n";
/// Python code that waits for the end of standard input.
const LIVE: &str = "import os\n\
    print('ready', os.getpid(), flush=True)\n\
    sys.stdin.read()\n";

/// Process that waits until its standard input is closed.
struct Agent {
    child: Child,
    pid: u32,
}

impl Agent {
    /// Starts an agent of real NIXL with these variables of NIXL and no others.
    fn start(home: &Home, variables: &[(&str, &str)]) -> Self {
        let python = Nixl::new("1.5.1", &home.rings()).python();
        let mut command = Command::new(python);
        command.args(["-c", &[IMPORT, AGENT, LIVE].concat()]);
        Self::run(home, command, variables)
    }

    /// Runs a command with the path of the workload as an argument, and waits until it is ready.
    fn run(home: &Home, mut command: Command, variables: &[(&str, &str)]) -> Self {
        command.arg(project("qa/nixl"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NIXL_TELEMETRY")) {
            command.env_remove(name);
        }
        command.env("UCX_POSIX_DIR", home.dir());
        command.envs(variables.iter().copied());
        Self::ready(command)
    }

    /// Starts a command, and waits until it prints `ready`.
    fn ready(mut command: Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        let pid = lines.find_map(|line| line.strip_prefix("ready ")?.parse().ok());
        let pid = pid.expect("it is ready");
        Self { child, pid }
    }

    /// Cause that `--check` gives for this process.
    fn cause(&self, said: &str) -> Option<String> {
        cause(self.pid, said)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Cause that `--check` gives for a process, or `None` if it does not list the process as one without telemetry.
fn cause(pid: u32, said: &str) -> Option<String> {
    let (_, listed) = said.split_once("without telemetry here:\n")?;
    let pid = format!("  pid {pid} (");
    let mut lines = listed.lines().take_while(|line| line.starts_with(' '));
    let line = lines.find(|line| line.starts_with(&pid));
    line.and_then(|line| Some(line.split_once(" user ")?.1.split_once(": ")?.1.to_owned()))
}

#[test]
fn check_lists_agents_without_telemetry_and_the_cause() {
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
    let cause = |agent: &Agent| {
        agent
            .cause(&said)
            .unwrap_or_else(|| panic!("not listed: {said}"))
    };
    assert_eq!(
        cause(&off),
        "NIXL_TELEMETRY_ENABLE is not set: set it to y, which vLLM with NIXL 1.4 or later does not need; NIXL_TELEMETRY_DIR is not set: set it to a directory of telemetry_dir"
    );
    assert_eq!(
        cause(&elsewhere),
        format!(
            "NIXL_TELEMETRY_DIR is {there:?}, which is not scanned: add it to telemetry_dir in nixl.conf"
        )
    );
    let why = cause(&exported);
    assert!(
        why.starts_with("NIXL_TELEMETRY_EXPORTER is \"prometheus\": set it to BUFFER"),
        "{why}"
    );
    assert_eq!(seen.cause(&said), None, "it has a ring: {said}");
    let (_, transports) =
        { said.split_once("processes that use NIXL: version, backends, RDMA devices:\n") }
            .expect("a list");
    for process in [&off, &seen] {
        let line = format!("  pid {} (", process.pid);
        let line = { transports.lines() }.find(|other| other.starts_with(&line));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("NIXL 1.5.1, backends UCX"), "{line}");
    }
    assert!(said.contains("  quiet: ring v4, 4096 slots, "), "{said}");
    assert!(said.contains("processes without telemetry\n"), "{said}");
}

#[test]
fn check_skips_importers_and_lists_children_of_agents() {
    let home = Home::new();
    let here = home.rings().display().to_string();
    let on = [
        ("NIXL_TELEMETRY_ENABLE", "y"),
        ("NIXL_TELEMETRY_DIR", &*here),
    ];
    let python = Nixl::new("1.5.1", &home.rings()).python();
    let mut command = Command::new(&python);
    command.args(["-c", &[IMPORT, LIVE].concat()]);
    let importer = Agent::run(&home, command, &[]);
    // A forked child has the backend and the ring of its parent mapped.
    let forks = "import os, signal\n\
                 child = os.fork()\n\
                 if not child: signal.pause()\n\
                 import atexit; atexit.register(os.kill, child, signal.SIGKILL)\n\
                 open(sys.argv[2], 'w').write(str(child))\n";
    let noted = home.path("child");
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new("/bin/sh");
        // The name of the file comes after that of the workload.
        command.args(["-c", "exec \"$0\" -c \"$1\" \"$3\" \"$2\""]);
        command
            .arg(&python)
            .arg([IMPORT, AGENT, forks, LIVE].concat());
        command.arg(&noted);
        let agent = Agent::run(&home, command, variables);
        let child = std::fs::read_to_string(&noted).expect("written");
        (agent, child.parse::<u32>().expect("a pid"))
    };
    let (silent, child_of_silent) = start(&[]);
    let (seen, child_of_seen) = start(&on);
    let (status, said) = home.check();
    assert_eq!(status, 0, "{said}");
    assert_eq!(importer.cause(&said), None, "it has no backend: {said}");
    assert!(silent.cause(&said).is_some(), "{said}");
    assert!(cause(child_of_silent, &said).is_some(), "{said}");
    assert_eq!(seen.cause(&said), None, "{said}");
    assert_eq!(cause(child_of_seen, &said), None, "{said}");
}

#[test]
fn check_shows_the_parent_environment_behind_a_title() {
    let home = Home::new();
    let other = home.path("other");
    std::fs::create_dir(&other).expect("made");
    let there = other.display().to_string();
    let python = Nixl::new("1.5.1", &home.rings()).python();
    // Not the last command: the shell would exec(3) it.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "\"$0\" -c \"$1\" \"$2\"; exit"]);
    command
        .arg(python)
        .arg([IMPORT, AGENT, TITLE, LIVE].concat());
    let agent = Agent::run(&home, command, &[("NIXL_TELEMETRY_DIR", &there)]);
    let shell = agent.child.id();
    let environ = std::fs::read(format!("/proc/{}/environ", agent.pid)).expect("ours");
    assert!(
        environ.starts_with(&[0; 100]),
        "the environment is overwritten"
    );
    let (status, said) = home.check();
    assert_eq!(status, 0, "{said}");
    let cause = agent.cause(&said).expect("listed");
    let hidden =
        format!("its environment cannot be read; that of its ancestor, pid {shell}, says: ");
    let advice = cause
        .strip_prefix(&hidden)
        .unwrap_or_else(|| panic!("{cause}"));
    assert_eq!(
        advice,
        format!(
            "NIXL_TELEMETRY_ENABLE is not set: set it to y, which vLLM with NIXL 1.4 or later does not need; NIXL_TELEMETRY_DIR is {there:?}, which is not scanned: add it to telemetry_dir in nixl.conf"
        )
    );
}

#[test]
fn check_lists_agent_with_a_directory_in_its_container() {
    needs_root();
    let home = Home::new();
    let inside = home.path("inside");
    std::fs::create_dir(&inside).expect("made");
    let inside = inside.display().to_string();
    home.set(&format!("multiproc_dir = {inside:?}"));
    let python = Nixl::new("1.5.1", &home.rings()).python();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount -t tmpfs nixl \"$NIXL_TELEMETRY_DIR\"; exec \"$0\" -c \"$1\" \"$2\"");
    command.arg(python).arg([IMPORT, AGENT, LIVE].concat());
    let variables = [
        ("NIXL_TELEMETRY_ENABLE", "y"),
        ("NIXL_TELEMETRY_DIR", &*inside),
    ];
    let agent = Agent::run(&home, command, &variables);
    let (status, said) = home.check();
    assert_eq!(status, 0, "{said}");
    assert_eq!(
        agent.cause(&said).as_deref(),
        Some(
            "it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)"
        ),
        "{said}"
    );
}

/// Files with the names of NIXL's libraries.
fn libraries(path: impl Fn(&str) -> PathBuf) -> [PathBuf; 2] {
    ["libnixl.so", "libplugin_UCX.so"].map(|name| {
        let path = path(name);
        std::fs::write(&path, [0; 4096]).expect("written");
        path
    })
}

#[test]
fn check_shows_no_arguments_and_no_other_variables() {
    const SECRET: &str = "hf-Zq7wXr2Lk9";
    let home = Home::new();
    let libraries = libraries(|name| home.path(name));
    let script = "import mmap, os, sys\n\
                  files = [open(name, 'r+b') for name in sys.argv[2:]]\n\
                  mapped = [mmap.mmap(file.fileno(), 0) for file in files]\n\
                  print('ready', os.getpid(), flush=True)\n\
                  sys.stdin.read()\n";
    let program = home.path("serve.py");
    std::fs::write(&program, script).expect("written");
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(&program).arg(SECRET).args(&libraries);
        command.env("HF_TOKEN", SECRET).env("SECRET", SECRET);
        command.envs(variables.iter().copied());
        Agent::ready(command)
    };
    // `--check` prints only the four variables of an environment.
    let plain = start(&[]);
    let elsewhere = start(&[("NIXL_TELEMETRY_DIR", "/none/such")]);
    // The environment of an ancestor is used here.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "\"$0\" -c \"$1\" \"$2\" \"$3\" \"$4\"; exit"]);
    command.arg("/usr/bin/python3");
    let (maps, waits) = script.split_at(script.find("print(").expect("there"));
    command.arg(maps.to_owned() + TITLE + waits);
    command.arg(SECRET).args(&libraries);
    let titled = Agent::ready({
        command.env("HF_TOKEN", SECRET);
        command
    });
    let said = home.check().1;
    for process in [&plain, &elsewhere, &titled] {
        assert!(process.cause(&said).is_some(), "{said}");
    }
    let line = format!("  pid {} (python3 serve.py) user ", plain.pid);
    assert!(said.contains(&line), "{said}");
    let cause = elsewhere.cause(&said).expect("listed");
    assert!(cause.contains("/none/such"), "{cause}");
    let cause = titled.cause(&said).expect("listed");
    assert!(cause.contains("that of its ancestor, pid "), "{cause}");
    assert!(
        !said.contains(SECRET) && !said.contains("HF_TOKEN"),
        "{said}"
    );
}

/// Port that is free now. qa/run gives the tests a separate network if it can.
fn port() -> u16 {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    free.local_addr().expect("bound").port()
}
