//! What strangers call their processes, groups, variables and files: `/proc/PID/{cgroup,cmdline,environ}` and agents' names.

use pmdanixl::producer::facts::cgroup::Cgroup;
use pmdanixl::producer::facts::command::{CommandLine, MAX_RANK, MAX_SHOWN};
use pmdanixl::producer::facts::environ::Environ;
use pmdanixl::producer::facts::server::Server;
use pmdanixl::producer::facts::{Engine, Facts, kubelet, names};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The input is each of them.
pub fn run(input: &[u8]) {
    let cgroup = Cgroup::parse(input);
    if let Some(id) = &cgroup.container_id {
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(occurs(id, input), "{id}");
    }
    if let Some(job) = &cgroup.slurm_job_id {
        assert!(job.parse::<u32>().is_ok() && occurs(&format!("/job_{job}"), input));
    }

    let environ = Environ::read(input).expect("memory can be read");
    for (name, value, max) in [
        ("LOCAL_RANK", &environ.local_rank, 65_535),
        ("SLURM_JOB_ID", &environ.slurm_job_id, u64::from(u32::MAX)),
    ] {
        let Some(value) = value else { continue };
        assert!(value.parse::<u64>().is_ok_and(|value| value <= max));
        assert!(occurs(&format!("{name}={value}\0"), input));
    }
    // What stands in front changes nothing, wherever reads end.
    let more = [b"SECRET=".as_slice(), &[b'x'; 4090], b"\0", input].concat();
    let known = |environ: &Environ| {
        let Environ {
            local_rank,
            slurm_job_id,
            gpu,
            ..
        } = environ.clone();
        let of_server = (environ.lmcache_role, environ.system_port);
        (local_rank, slurm_job_id, gpu, of_server)
    };
    let behind = Environ::read(&*more).expect("memory can be read");
    assert_eq!(known(&behind), known(&environ));

    // Arguments of a program do not say what it is.
    for program in ["bash", "python3\0ask.py", "python3\0-c\0pass", "python3\0-"] {
        let line = [program.as_bytes(), b"\0", input].concat();
        assert_eq!(Engine::of_command_line(&line), None, "{line:?}");
    }

    let line = CommandLine::parse(input);
    let server = line.as_ref().and_then(|line| Server::of(line, &environ));
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

    let facts = Facts {
        rank,
        role: server.role,
        port: server.port,
        command,
        local_rank: environ.local_rank,
        container_id: cgroup.container_id,
        slurm_job_id: cgroup.slurm_job_id,
        engine: Engine::of_command_line(input),
        pod_uid: cgroup.pod_uid,
        ..Facts::default()
    };
    // A file's name is this long at most.
    let name = OsStr::from_bytes(&input[..input.len().min(255)]);
    let directory = Path::new(OsStr::from_bytes(input));
    // A file's, without its user, who would be looked up for each input.
    let of_file = Facts {
        pod_uid: kubelet::pod_uid(directory),
        engine: names::engine(name.as_bytes()),
        ..Facts::default()
    };
    let facts = of_file.merge(&facts);
    if let Some(uid) = &facts.pod_uid {
        assert_eq!(kubelet::uid(uid.as_bytes()).as_ref(), Some(uid));
    }
    let labels = facts.labels(name, "ring").to_string();
    assert!(labels.len() < 4096, "{labels}");
}

fn occurs(text: &str, input: &[u8]) -> bool {
    input
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}
