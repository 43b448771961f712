// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: names that untrusted users choose for processes, groups, variables and files, in
//! `/proc/PID/{cgroup,cmdline,environ}` and in agent names.

use pmdanixl::procfs::facts::cgroup::Cgroup;
use pmdanixl::procfs::facts::command::{CommandLine, MAX_RANK, MAX_SHOWN};
use pmdanixl::procfs::facts::environ::Environ;
use pmdanixl::procfs::facts::server::{EngineServer, LMCACHE_ROLE, SYSTEM_PORT};
use pmdanixl::procfs::facts::{Facts, engine, kubelet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The input is one part for each of these.
pub fn run(input: &[u8]) {
    let cgroup = Cgroup::parse(&String::from_utf8_lossy(input));
    if let Some(id) = &cgroup.container_id {
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(occurs(id, input), "{id}");
    }
    if let Some(job) = &cgroup.slurm_job_id {
        assert!(job.parse::<u32>().is_ok() && occurs(job, input));
    }

    let names = ["LOCAL_RANK", LMCACHE_ROLE, SYSTEM_PORT];
    let read = Environ::read(input, &names);
    let environ = read.as_ref().ok().cloned().unwrap_or_default();
    for name in names {
        // Bytes that are not UTF-8 become U+FFFD.
        if let Some(value) = environ
            .get(name)
            .filter(|value| !value.contains('\u{fffd}'))
        {
            assert!(occurs(&format!("{name}={value}"), input));
        }
    }
    // Variables before the known ones change nothing.
    let more = [b"SECRET=".as_slice(), &[b'x'; 4090], b"\0", input].concat();
    let behind = Environ::read(&*more, &names).expect("memory can be read");
    for name in names.iter().filter(|_| read.is_ok()) {
        assert_eq!(behind.get(name), environ.get(name));
    }

    // The arguments of a program do not change its kind.
    for program in ["bash", "python3\0ask.py", "python3\0-c\0pass", "python3\0-"] {
        let line = [program.as_bytes(), b"\0", input].concat();
        let parsed = CommandLine::parse(&line).expect("a program");
        assert_eq!(engine::of(&parsed), None, "{line:?}");
    }

    let line = CommandLine::parse(input);
    let server = line
        .as_ref()
        .and_then(|line| EngineServer::of(line, Some(&environ)));
    let server = server.unwrap_or_default();
    assert_ne!(server.port, Some(0));
    let rank = line.as_ref().and_then(CommandLine::rank);
    if let Some(rank) = &rank {
        assert!(rank.len() <= MAX_RANK && occurs(&format!("_{rank}"), input));
    }
    let command = line.as_ref().and_then(CommandLine::shown);
    if let Some(command) = &command {
        assert!(command.len() <= MAX_SHOWN && !command.contains(char::is_control));
    }

    let mut facts = Facts::default();
    facts.set("rank", rank);
    facts.set("role", server.role);
    facts.set("port", server.port);
    facts.set("command", command);
    facts.set("container_id", cgroup.container_id);
    facts.set("slurm_job_id", cgroup.slurm_job_id);
    facts.set("engine", line.as_ref().and_then(engine::of));
    facts.set("pod_uid", cgroup.pod_uid);
    // The length limit of a file name.
    let name = OsStr::from_bytes(&input[..input.len().min(255)]);
    let directory = Path::new(OsStr::from_bytes(input));
    let facts = Facts::of_file(None, name, directory).merge(&facts);
    if let Some(uid) = facts.get("pod_uid") {
        assert_eq!(kubelet::uid(uid).as_deref(), Some(uid));
    }
    let labels = facts.labels(name, u32::MAX, "ring").to_string();
    assert!(labels.len() < 4096, "{labels}");
}

fn occurs(text: &str, input: &[u8]) -> bool {
    input
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}
