//! The facts behind the labels of an agent's instance: who it is, as users of containers, pods, engines and batch systems know
//! it. Each is there or not; none is guessed.
//!
//! Those of the file ([`Facts::of_file`]) are known as soon as it is found. Those of the process that writes it
//! ([`Facts::of_process`]) are found by the survey of /proc: to read a command line or an environment waits for the memory of a
//! stranger's process.

pub mod cgroup;
pub mod command;
pub mod engine;
pub mod environ;
pub mod gpu;
mod inherited;
pub mod kubelet;
pub mod names;
pub mod pods;
pub mod server;
pub mod telemetry;

pub use engine::Engine;
pub use server::Role;

use crate::producer::writer::{Stat, Writer};
use cgroup::Cgroup;
use command::{CommandLine, MAX_CMDLINE};
use environ::Environ;
use inherited::Asked;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use server::Server;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is read of its control groups, in bytes; under cgroup v1 there are about 13 lines with a path each.
const CGROUP: u64 = 64 << 10;
/// What goes by of its environment, in bytes.
const ENVIRON: u64 = 256 << 10;
/// The longest name of a user that is shown, in bytes (LOGIN_NAME_MAX of Linux).
const USER: usize = 256;

/// What is known of an agent, its name apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Name of the file's owner; the number of one that has no name.
    pub user: Option<String>,
    /// Which of the host's processes of one job it is, as the launcher counted them.
    pub local_rank: Option<String>,
    /// Number of the agent within its process; only a store tells.
    pub agent_instance: Option<u64>,
    /// What its host is called in its own eyes; only a store tells.
    pub nixl_hostname: Option<String>,
    /// 64 hexadecimal digits.
    pub container_id: Option<String>,
    /// A UUID, or 32 hexadecimal digits.
    pub pod_uid: Option<String>,
    /// What the pod is called; only the kubelet's directories tell.
    pub pod: Option<String>,
    /// The namespace of Kubernetes that it is in; likewise.
    pub namespace: Option<String>,
    /// The inference engine that made the agent.
    pub engine: Option<Engine>,
    /// The GPUs of the process: numbers or UUIDs, with commas between them.
    pub gpu: Option<String>,
    /// A decimal number.
    pub slurm_job_id: Option<String>,
    /// Which of the engine's ranks the process is, from its title: `TP0`, `DP1_TP0`.
    pub rank: Option<String>,
    /// What the engine's server does in disaggregated inference.
    pub role: Option<Role>,
    /// HTTP port of the engine's server.
    pub port: Option<u16>,
    /// Title or program of the process, without arguments; not a label.
    pub command: Option<String>,
}

/// What is read of a process's memory, which can block.
#[derive(Debug)]
struct Sources {
    cmdline: Vec<u8>,
    /// `None`: it cannot be read.
    environ: Option<Environ>,
}

impl Sources {
    /// Reads them where /proc shows the process; a command line that cannot be read is empty.
    fn read(shown_at: &str) -> Self {
        let open = |file| File::open(format!("{shown_at}/{file}"));
        let environ = open("environ").and_then(|file| Environ::read(file.take(ENVIRON)));
        Self {
            cmdline: content(open("cmdline"), MAX_CMDLINE),
            environ: environ.ok(),
        }
    }
}

/// The first bytes of a file; none if it cannot be read.
fn content(file: io::Result<File>, limit: u64) -> Vec<u8> {
    let mut content = Vec::new();
    let read = file.and_then(|file| file.take(limit).read_to_end(&mut content));
    read.map(|_| content).unwrap_or_default()
}

impl Facts {
    /// What a file tells by its owner, its name and its directory.
    #[must_use]
    pub fn of_file(user: Option<&str>, name: &OsStr, directory: &Path) -> Self {
        Self {
            user: user.filter(|user| user.len() <= USER).map(str::to_owned),
            pod_uid: kubelet::pod_uid(directory),
            engine: names::engine(name.as_bytes()),
            ..Self::default()
        }
    }

    /// What /proc tells of a process, as far as it may be read; `None` if that process is gone, and what was read may be
    /// another's that got its id. Blocks for as long as the process likes. Where the process has overwritten what it was started
    /// with, its ancestors are read; each only if `may_read` returns true, since that blocks as well.
    #[must_use]
    pub fn of_process(process: Writer, may_read: &mut dyn FnMut(Writer) -> bool) -> Option<Self> {
        let shown_at = Stat::of(process.pid).ok()?.shown_at(process.pid)?;
        let Sources { cmdline, environ } = Sources::read(&shown_at);
        let cgroup = File::open(format!("{shown_at}/cgroup"));
        let cgroup = Cgroup::parse(&content(cgroup, CGROUP));
        let is_overwritten = environ
            .as_ref()
            .is_none_or(|environ| environ.is_overwritten);
        let environ = environ.unwrap_or_default();
        // The environment says which GPUs are its own; it may have others open, to see what there is.
        let gpu = environ.gpu.clone();
        let gpu = gpu.or_else(|| gpu::of_open_files(&shown_at));
        let line = CommandLine::parse(&cmdline);
        let line = line.as_ref();
        let engine = line.and_then(Engine::of);
        let server = line.and_then(|line| Server::of(line, &environ));
        // The groups are the system's; an environment is passed on to whatever is started from a job.
        let slurm_job_id = cgroup.slurm_job_id.or(environ.slurm_job_id);
        let asked = Asked {
            job: slurm_job_id.is_none() && is_overwritten,
            server: line.is_some() && server.is_none(),
            engine,
        };
        let inherited = inherited::ask(process, asked, may_read);
        let server = server.or(inherited.server).unwrap_or_default();
        let facts = Self {
            user: None,
            local_rank: environ.local_rank,
            agent_instance: None,
            nixl_hostname: None,
            container_id: cgroup.container_id,
            pod_uid: cgroup.pod_uid,
            pod: None,
            namespace: None,
            engine: engine.or(inherited.engine),
            gpu,
            slurm_job_id: slurm_job_id.or(inherited.slurm_job_id),
            rank: line.and_then(CommandLine::rank),
            role: server.role,
            port: server.port,
            command: line.and_then(CommandLine::shown),
        };
        Writer::of(process.pid)
            .is_ok_and(|now| now == process)
            .then_some(facts)
    }

    /// These facts, and where they leave a gap, weaker ones. A file's are stronger than a process's: the kubelet names a
    /// volume's directory, and one process may hold agents of several engines.
    #[must_use]
    pub fn merge(self, weaker: &Self) -> Self {
        let or = |strong: Option<String>, weak: &Option<String>| strong.or_else(|| weak.clone());
        Self {
            user: or(self.user, &weaker.user),
            local_rank: or(self.local_rank, &weaker.local_rank),
            agent_instance: self.agent_instance.or(weaker.agent_instance),
            nixl_hostname: or(self.nixl_hostname, &weaker.nixl_hostname),
            container_id: or(self.container_id, &weaker.container_id),
            pod_uid: or(self.pod_uid, &weaker.pod_uid),
            pod: or(self.pod, &weaker.pod),
            namespace: or(self.namespace, &weaker.namespace),
            engine: self.engine.or(weaker.engine),
            gpu: or(self.gpu, &weaker.gpu),
            slurm_job_id: or(self.slurm_job_id, &weaker.slurm_job_id),
            rank: or(self.rank, &weaker.rank),
            role: self.role.or(weaker.role),
            port: self.port.or(weaker.port),
            command: or(self.command, &weaker.command),
        }
    }

    /// The labels of an agent's instance: a JSON object of strings, with what is known. `raw_name` is the file's name as it is
    /// (bytes that are no UTF-8 become U+FFFD), `source` says where the numbers come from.
    #[must_use]
    pub fn labels(&self, raw_name: &OsStr, source: &str) -> Value {
        let raw_name = raw_name.to_string_lossy();
        let instance = self.agent_instance.map(|instance| instance.to_string());
        let port = self.port.map(|port| port.to_string());
        let labels = [
            ("nixl_agent", Some(&*raw_name)),
            ("source", Some(source)),
            ("user", self.user.as_deref()),
            ("local_rank", self.local_rank.as_deref()),
            ("agent_instance", instance.as_deref()),
            ("nixl_hostname", self.nixl_hostname.as_deref()),
            ("container_id", self.container_id.as_deref()),
            ("pod_uid", self.pod_uid.as_deref()),
            ("pod", self.pod.as_deref()),
            ("namespace", self.namespace.as_deref()),
            ("engine", self.engine.map(Engine::name)),
            ("gpu", self.gpu.as_deref()),
            ("slurm_job_id", self.slurm_job_id.as_deref()),
            ("rank", self.rank.as_deref()),
            ("role", self.role.map(Role::name)),
            ("port", port.as_deref()),
        ];
        let known = labels
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value?))));
        Value::Object(known.collect::<Map<_, _>>())
    }
}

/// A decimal number up to `max`, as text in its only form.
fn number(text: &[u8], max: u64) -> Option<String> {
    let is_digits = text.iter().all(u8::is_ascii_digit);
    let is_padded = text.len() > 1 && text.starts_with(b"0");
    let text = std::str::from_utf8(text).ok()?;
    let value: u64 = text.parse().ok()?;
    (is_digits && !is_padded && value <= max).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn all() -> Facts {
        Facts {
            user: Some("dynamo".into()),
            local_rank: Some("3".into()),
            agent_instance: Some(1),
            nixl_hostname: Some("node-1".into()),
            container_id: Some("9".repeat(64)),
            pod_uid: Some(POD.into()),
            pod: Some("vllm-0".into()),
            namespace: Some("inference".into()),
            engine: Some(Engine::Vllm),
            gpu: Some("0,3".into()),
            slurm_job_id: Some("4711".into()),
            rank: Some("DP1_TP3".into()),
            role: Some(Role::Prefill),
            port: Some(8100),
            command: Some("VLLM::Worker_DP1_TP3".into()),
        }
    }

    /// A process that sleeps, with variables of ours.
    fn sleeper() -> (Child, Writer) {
        let child = Command::new("sleep")
            .arg("600")
            .env_clear()
            .envs([("LOCAL_RANK", "5"), ("HF_TOKEN", "secret")])
            .envs([("SLURM_JOB_ID", "4711"), ("PATH", "/usr/bin:/bin")])
            .env("CUDA_VISIBLE_DEVICES", "2,3")
            .spawn()
            .expect("it starts");
        let writer = Writer::of(child.id()).expect("it runs");
        (child, writer)
    }

    #[test]
    fn a_file_tells_its_user_its_pod_and_its_engine() {
        let directory = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/t");
        let facts = Facts::of_file(
            Some("root"),
            OsStr::new("kvbm-worker-0"),
            Path::new(&directory),
        );
        let expected = Facts {
            user: Some("root".into()),
            pod_uid: Some(POD.into()),
            engine: Some(Engine::Kvbm),
            ..Facts::default()
        };
        assert_eq!(facts, expected);
        let facts = Facts::of_file(None, OsStr::new("a"), Path::new("/var/tmp"));
        assert_eq!(facts, Facts::default());
    }

    #[test]
    fn a_process_tells_its_rank_its_job_and_its_gpus_and_nothing_else_of_its_environment() {
        let (mut child, writer) = sleeper();
        let end = Instant::now() + Duration::from_secs(120);
        // While the kernel sets its program up, its environment is empty.
        let facts = loop {
            let facts = Facts::of_process(writer, &mut |_| true).expect("it runs");
            if facts.local_rank.is_some() || Instant::now() > end {
                break facts;
            }
        };
        assert_eq!(facts.local_rank.as_deref(), Some("5"));
        assert_eq!(facts.slurm_job_id.as_deref(), Some("4711"));
        assert_eq!(facts.gpu.as_deref(), Some("2,3"));
        assert!(!format!("{facts:?}").contains("secret"));
        assert_eq!((facts.user, facts.engine), (None, None));
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    #[test]
    fn a_process_that_is_gone_or_has_another_start_tells_nothing() {
        let (mut child, writer) = sleeper();
        let earlier = Writer {
            start: writer.start - 1,
            ..writer
        };
        assert_eq!(Facts::of_process(earlier, &mut |_| true), None);
        child.kill().expect("it runs");
        child.wait().expect("our child");
        assert_eq!(Facts::of_process(writer, &mut |_| true), None);
    }

    #[test]
    fn weaker_facts_fill_gaps_only() {
        let strong = Facts {
            engine: Some(Engine::Kvbm),
            user: Some("root".into()),
            ..Facts::default()
        };
        let expected = Facts {
            engine: Some(Engine::Kvbm),
            user: Some("root".into()),
            ..all()
        };
        assert_eq!(strong.merge(&all()), expected);
        assert_eq!(Facts::default().merge(&all()), all());
        assert_eq!(all().merge(&Facts::default()), all());
    }

    #[test]
    fn labels_are_what_is_known() {
        let labels = Facts::default().labels(OsStr::new("a b"), "ring");
        assert_eq!(
            labels,
            serde_json::json!({ "nixl_agent": "a b", "source": "ring" })
        );
        let labels = all().labels(OsStr::new("a"), "ring");
        assert_eq!(
            labels,
            serde_json::json!({
                "nixl_agent": "a", "source": "ring", "user": "dynamo", "local_rank": "3", "agent_instance": "1",
                "nixl_hostname": "node-1", "container_id": "9".repeat(64),
                "pod_uid": POD, "pod": "vllm-0", "namespace": "inference", "engine": "vllm", "gpu": "0,3", "slurm_job_id": "4711",
                "rank": "DP1_TP3", "role": "prefill", "port": "8100",
            })
        );
    }

    #[test]
    fn labels_are_far_within_pcp_s_limits_whatever_a_name_holds() {
        let facts = Facts {
            user: Some("\u{1}".repeat(USER)),
            ..all()
        };
        for byte in [1, b'"', 0xff] {
            let name = [byte; 255];
            let labels = facts.labels(OsStr::from_bytes(&name), "ring");
            assert!(labels.to_string().len() < 65_535 / 8, "{labels}");
            for (name, value) in labels.as_object().expect("an object") {
                assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'));
                assert!(value.is_string());
            }
        }
    }

    #[test]
    fn a_number_has_one_form() {
        for text in ["0", "7", "65535"] {
            assert_eq!(number(text.as_bytes(), 65_535).as_deref(), Some(text));
        }
        for text in ["", "00", "07", "+7", "-7", " 7", "7 ", "65536", "7a", "٣"] {
            assert_eq!(number(text.as_bytes(), 65_535), None, "{text}");
        }
    }
}
