// SPDX-License-Identifier: GPL-2.0-or-later

//! Facts of a process that writes, and of its ancestors.
//!
//! vLLM's and SGLang's workers write a title over their command line and their environment. Role and port then come
//! from the nearest ancestor that is the server of the engine. The Slurm job comes from the nearest ancestor with an
//! intact environment. All ranks share these. LOCAL_RANK and CUDA_VISIBLE_DEVICES of a parent do not apply to a worker.
//!
//! | variable | set by | label |
//! | --- | --- | --- |
//! | `LOCAL_RANK` | torchrun; NIXL's own exporter takes the rank from it, unless NIXL_TELEMETRY_RANK_ENV names another variable | local_rank |
//! | `SLURM_JOB_ID` | Slurm | slurm_job_id |
//! | `CUDA_VISIBLE_DEVICES` | the launcher of a process for some of a host's GPUs | gpu, gpus, uuid, uuids |
//! | `LMCACHE_PD_ROLE` | the configuration of LMCache | role |
//! | `DYN_SYSTEM_PORT` | the launcher of a Dynamo worker | port |
//!
//! NIXL_TELEMETRY_RANK_ENV is not followed, since the process could then name a variable with a secret. SLURM_LOCALID
//! is not the rank of an agent: it is equal for all workers of an engine that Slurm starts as one task.

use crate::procfs::ancestors;
use crate::procfs::facts::cgroup::Cgroup;
use crate::procfs::facts::command::{CommandLine, MAX_CMDLINE};
use crate::procfs::facts::environ::Environ;
use crate::procfs::facts::labels::{self, Facts};
use crate::procfs::facts::server::{EngineServer, LMCACHE_ROLE, SYSTEM_PORT};
use crate::procfs::facts::{engine, gpu};
use crate::procfs::process::ProcessId;
use crate::procfs::process_dir::ProcessDir;

const LOCAL_RANK: &str = "LOCAL_RANK";
const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const NAMES: [&str; 5] = [
    LOCAL_RANK,
    SLURM_JOB_ID,
    CUDA_VISIBLE_DEVICES,
    LMCACHE_ROLE,
    SYSTEM_PORT,
];
/// Limit of /proc/PID/cgroup, in bytes. Under cgroup v1 it has about 13 lines with a path each.
const MAX_CGROUP: u64 = 64 << 10;

/// Command line and environment of a process. Reading them from its memory can block.
struct StartData {
    /// `None`: it cannot be read, or the process has no command line.
    line: Option<CommandLine>,
    /// `None`: it cannot be read, or it is overwritten with a title.
    environ: Option<Environ>,
}

impl StartData {
    fn read(process: &ProcessDir) -> Self {
        let line = process.read("cmdline", MAX_CMDLINE).unwrap_or_default();
        Self {
            line: CommandLine::parse(&line),
            environ: Environ::of(process, &NAMES).ok(),
        }
    }
}

/// Facts that all ranks of a server share. `Some(None)`: it is certain that there is none.
struct SharedFacts {
    /// Engine of the process, from its own command line. A server of another engine does not count.
    engine: Option<&'static str>,
    job: Option<Option<String>>,
    server: Option<Option<EngineServer>>,
}

impl SharedFacts {
    /// Adds the facts of the process or of its next ancestor.
    fn add(&mut self, start: &StartData) {
        if let (None, Some(environ)) = (&self.job, &start.environ) {
            let job = environ.get(SLURM_JOB_ID).and_then(|job| job.parse().ok());
            let job = job.filter(|&job: &u32| job != 0);
            self.job = Some(job.map(|job| job.to_string()));
        }
        let server = start.line.as_ref();
        let server = server.and_then(|line| EngineServer::of(line, start.environ.as_ref()));
        if let (None, Some(server)) = (self.server, server) {
            let is_same_engine = self.engine.is_none_or(|engine| engine == server.engine);
            self.server = Some(is_same_engine.then_some(server));
        }
    }
}

impl Facts {
    /// Reads the facts of a process from /proc. Returns `None` if the process has ended, since some may be missing. May
    /// block without end. Ancestors are read if they can have missing facts, up to the first one for which `may_read`
    /// returns false.
    #[must_use]
    pub fn of_process(
        process: &ProcessDir,
        may_read: &mut dyn FnMut(ProcessId) -> bool,
    ) -> Option<Self> {
        let start = StartData::read(process);
        let cgroup = process.read("cgroup", MAX_CGROUP).unwrap_or_default();
        let cgroup = Cgroup::parse(&String::from_utf8_lossy(&cgroup));
        let line = start.line.as_ref();
        let own = |name| start.environ.as_ref().and_then(|environ| environ.get(name));
        let local_rank = own(LOCAL_RANK).and_then(|rank| rank.parse::<u16>().ok());
        let engine = line.and_then(engine::of);
        let mut shared = SharedFacts {
            engine,
            // The control group is stronger than the environment, which any process started from a job inherits.
            job: cgroup.slurm_job_id.map(Some),
            server: line.is_none().then_some(None),
        };
        shared.add(&start);
        for ancestor in ancestors::of(process) {
            let is_known = shared.job.is_some() && shared.server.is_some();
            if is_known || !may_read(ancestor.id()) {
                break;
            }
            let start = StartData::read(&ancestor);
            if start.line.is_none() || !ancestor.is_running() {
                break;
            }
            shared.add(&start);
        }
        let server = shared.server.flatten();
        // The environment comes first, since a process may open other GPUs only to list them.
        let gpu = own(CUDA_VISIBLE_DEVICES).and_then(gpu::of_list);
        let mut facts = Self::default();
        facts.set("local_rank", local_rank);
        facts.set("container_id", cgroup.container_id);
        facts.set("pod_uid", cgroup.pod_uid);
        facts.set("engine", engine.or(server.map(|server| server.engine)));
        facts.set(
            labels::GPU_LIST,
            gpu.or_else(|| gpu::of_open_files(process)),
        );
        facts.set("slurm_job_id", shared.job.flatten());
        facts.set("rank", line.and_then(CommandLine::rank));
        facts.set("role", server.and_then(|server| server.role));
        facts.set("port", server.and_then(|server| server.port));
        facts.set("command", line.and_then(CommandLine::shown));
        process.stat().is_ok().then_some(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    const SERVER: &[u8] = b"vllm\0serve\0m\0--port\x008100\0";

    /// Starts a process that sleeps, with an environment for the tests.
    fn sleeper() -> (Child, ProcessId) {
        let child = Command::new("sleep")
            .arg("600")
            .env_clear()
            .envs([("LOCAL_RANK", "5"), ("HF_TOKEN", "secret")])
            .envs([("SLURM_JOB_ID", "4711"), ("PATH", "/usr/bin:/bin")])
            .env("CUDA_VISIBLE_DEVICES", "2,3")
            .spawn()
            .expect("it starts");
        let writer = ProcessId::of(child.id()).expect("it runs");
        (child, writer)
    }

    /// Returns the job and the server of a process of this engine, from its ancestors, the nearest first. Each has a
    /// command line and an environment.
    fn job_and_server(
        engine: Option<&'static str>,
        ancestors: &[(&[u8], Option<&[u8]>)],
    ) -> (Option<String>, Option<EngineServer>) {
        let mut shared = SharedFacts {
            engine,
            job: None,
            server: None,
        };
        for (cmdline, environ) in ancestors {
            let environ = environ.and_then(|text| Environ::read(text, &NAMES).ok());
            shared.add(&StartData {
                line: CommandLine::parse(cmdline),
                environ,
            });
        }
        (shared.job.flatten(), shared.server.flatten())
    }

    #[test]
    fn unreadable_environment_leaves_the_job_to_the_next_ancestor() {
        let job = &b"SLURM_JOB_ID=4711\0"[..];
        for hidden in [None, Some(&b"\0\0\0\0"[..])] {
            let found = job_and_server(None, &[(SERVER, hidden), (b"srun\0", Some(job))]);
            assert_eq!(found.0.as_deref(), Some("4711"), "{hidden:?}");
        }
        // A readable environment without a job means that there is no job.
        for none in [&b"A=b\0"[..], b"SLURM_JOB_ID=0\0", b"SLURM_JOB_ID=x\0"] {
            let found = job_and_server(None, &[(SERVER, Some(none)), (b"srun\0", Some(job))]);
            assert_eq!(found.0, None);
        }
    }

    #[test]
    fn engine_of_the_server_is_the_engine() {
        let core = &b"prefill-a::EngineCore\0\0\0"[..];
        let lmcache = &b"LMCACHE_PD_ROLE=sender\0"[..];
        let (_, found) = job_and_server(None, &[(core, Some(b"\0\0")), (SERVER, Some(lmcache))]);
        let server = EngineServer {
            engine: "vllm",
            role: Some("prefill"),
            port: Some(8100),
        };
        assert_eq!(found, Some(server));
        assert_eq!(job_and_server(Some("sglang"), &[(SERVER, None)]).1, None);
    }

    #[test]
    fn process_facts_are_rank_job_and_gpus_without_secrets() {
        let (mut child, writer) = sleeper();
        let end = Instant::now() + Duration::from_secs(120);
        let writer = ProcessDir::of(writer).expect("it runs");
        // During execve(2) the environment is empty.
        let facts = loop {
            let facts = Facts::of_process(&writer, &mut |_| true).expect("it runs");
            if facts.get("local_rank").is_some() || Instant::now() > end {
                break facts;
            }
        };
        for (name, value) in [
            ("local_rank", Some("5")),
            ("slurm_job_id", Some("4711")),
            (labels::GPU_LIST, Some("2,3")),
            ("user", None),
            ("engine", None),
        ] {
            assert_eq!(facts.get(name), value);
        }
        assert!(!format!("{facts:?}").contains("secret"));
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    #[test]
    fn ended_process_has_no_facts() {
        let (mut child, writer) = sleeper();
        let writer = ProcessDir::of(writer).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("our child");
        assert_eq!(Facts::of_process(&writer, &mut |_| true), None);
    }
}
