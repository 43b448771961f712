// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels of agents with a real pmcd: complete in the first answer, without secrets, and without process facts if so
//! configured.

mod buckets;
mod changes;
mod cost;
pub mod delay;
mod pods;
mod processes;
mod roles;
mod titles;

use crate::support::kit::layers::own_container;
use crate::support::kit::{Core, LONG};
use crate::support::pdu::Link;
use crate::support::sample::Sample;
use crate::support::{self, Home, PMDANIXL, Pmcd, TX_BYTES, example, wait_for};
use nix::unistd::{Uid, User};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SECRET: &str = "hf-Zq7wXr2Lk9";
/// Options for a few transfers of an agent that then lives on.
const A_FEW: &str = "--rate 0 --transfers 30 --size 3000 --read-every 0 --linger 600";

/// Command with a rank, a job and a secret in its environment.
fn worker(program: impl AsRef<std::ffi::OsStr>, rank: u32) -> Command {
    let mut command = Command::new(program);
    command
        .env("LOCAL_RANK", rank.to_string())
        .env("SLURM_JOB_ID", "4711")
        .env("HF_TOKEN", SECRET);
    command
}

/// CPU time of the PMDA so far, in microseconds.
fn cpu_time(link: &mut Link) -> u64 {
    let values = link.values("control.cpu_time").expect("an answer");
    values.values().next().copied().expect("a value")
}

/// Name of the user of this process.
fn own_user() -> String {
    let user = User::from_uid(Uid::current()).expect("asked");
    user.expect("this one").name
}

/// Expected labels of an agent: those given, and those of this process that a child inherits.
fn expected(labels: &[(&str, &str)]) -> Map<String, Value> {
    let [container_id, pod_uid] = own_container();
    let of_all = [
        ("telemetry", Some("ring".to_owned())),
        ("container_id", container_id),
        ("pod_uid", pod_uid),
    ];
    let of_all = of_all
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let given = labels
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    let all = of_all.chain(given);
    let all = all.map(|(name, value)| (name.to_owned(), value.into()));
    let uid = ("uid".to_owned(), Uid::current().as_raw().into());
    all.chain([uid]).collect()
}

/// Removes the labels of the host.
fn own_labels(mut labels: Map<String, Value>) -> Map<String, Value> {
    let of_host = [
        "agent",
        "hostname",
        "machineid",
        "domainname",
        "groupid",
        "userid",
        "platform",
    ];
    labels.retain(|name, _| !of_host.contains(&name.as_str()));
    labels
}

/// Fetches labels without a pause until an instance exists. Returns its labels in that answer.
fn first_labels(pmcd: &Pmcd, name: &str) -> Map<String, Value> {
    let end = Instant::now() + support::PATIENCE;
    loop {
        if let Some(labels) = pmcd.labels(TX_BYTES).remove(name) {
            return own_labels(labels);
        }
        assert!(Instant::now() < end, "{name} was not published");
    }
}

/// Paths and bytes of all files below a directory.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let kind = entry.file_type().expect("asked");
        if kind.is_dir() {
            found.extend(contents(&entry.path()));
        } else if kind.is_file() {
            found.push((
                entry.path().display().to_string(),
                fs::read(entry.path()).expect("ours"),
            ));
        }
    }
    found
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[test]
#[ignore = "requires /proc to answer within a second"]
fn labels_are_complete_when_an_instance_first_appears() {
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::set_permissions(home.rings(), PermissionsExt::from_mode(0o1777)).expect("ours");
    let pmcd = Pmcd::start(&home);
    let mut agents = Vec::new();
    let user = own_user();
    // The engine of `vllm serve` is recognised by the name of the program.
    let vllm = home.path("vllm");
    symlink(example("producer"), &vllm).expect("linked");
    for rank in 0..4 {
        let name = format!("5c0d7a1e-vllm-{rank}");
        agents.push(Sample::start_as(
            worker(&vllm, rank),
            &home.rings(),
            &name,
            A_FEW,
        ));
        let labels = [
            ("nixl_agent", &*name),
            ("user", &user),
            ("engine", "vllm"),
            ("local_rank", &rank.to_string()),
            ("slurm_job_id", "4711"),
        ];
        assert_eq!(first_labels(&pmcd, &name), expected(&labels));
    }
    // A process with a title, an agent name with more information, and an unknown process.
    for (name, title, engine, rank) in [
        (
            "scheduler",
            "sglang::scheduler_TP1",
            Some("sglang"),
            Some("TP1"),
        ),
        (
            "kvbm-worker-3",
            "VLLM::Worker_TP0",
            Some("kvbm"),
            Some("TP0"),
        ),
        ("just \"one\"", "python3", None, None),
    ] {
        let mut command = Command::new(example("producer"));
        command
            .arg0(title)
            .env_remove("SLURM_JOB_ID")
            .env_remove("LOCAL_RANK");
        agents.push(Sample::start_as(command, &home.rings(), name, A_FEW));
        let mut labels = vec![("nixl_agent", name), ("user", &*user)];
        labels.extend(engine.map(|engine| ("engine", engine)));
        labels.extend(rank.map(|rank| ("rank", rank)));
        let instance = name.replace('"', "%22").replace(' ', "%20");
        assert_eq!(first_labels(&pmcd, &instance), expected(&labels));
    }
    // A process of another user.
    let producer = home.path("producer");
    fs::copy(example("producer"), &producer).expect("copied");
    let mut command = worker("setpriv", 1);
    command
        .args(["--reuid=65534", "--clear-groups"])
        .arg(&producer);
    agents.push(Sample::start_as(command, &home.rings(), "theirs", A_FEW));
    let labels = first_labels(&pmcd, "theirs");
    assert_eq!(
        [&labels["user"], &labels["uid"], &labels["local_rank"]],
        [&Value::from("nobody"), &65534.into(), &"1".into()]
    );
}

/// Waits until an agent has mapped its ring, so that a process scan finds it.
fn wait_until_mapped(agent: &Sample, ring: &Path) {
    wait_for("the agent has mapped its ring", || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", agent.pid())).expect("it runs");
        maps.contains(ring.to_str()?).then_some(())
    });
}

#[test]
fn agent_is_published_after_its_labels_are_known() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let user = own_user();
    let names = [0, 1, 2, 3].map(|rank| (rank, format!("5c0d7a1e-vllm-{rank}")));
    let mut right = BTreeMap::new();
    let _agents = names.clone().map(|(rank, name)| {
        let mut command = worker(example("producer"), rank);
        command.arg0(format!("VLLM::Worker_TP{rank}"));
        let labels = [
            ("nixl_agent", &*name),
            ("user", &user),
            ("engine", "vllm"),
            ("rank", &format!("TP{rank}")),
            ("local_rank", &rank.to_string()),
            ("slurm_job_id", "4711"),
        ];
        right.insert(name.clone(), expected(&labels));
        let agent = Sample::start_as(command, &rings, &name, A_FEW);
        wait_until_mapped(&agent, &core.path(&name));
        agent
    });
    // Agents wait for labels for a second of the test clock. That is minutes here, since other load delays the
    // observer.
    let mut seen = BTreeMap::new();
    wait_for("all are instances", || {
        core.tick(1, Duration::from_micros(50), LONG);
        core.tidy();
        for name in core.instances().into_keys() {
            let labels = core.labels(&name);
            seen.entry(name).or_insert(labels);
        }
        (seen.len() == right.len()).then_some(())
    });
    assert_eq!(seen, right);
    for (rank, name) in &names {
        let text = |metric| core.text(metric, name);
        assert_eq!(text("agent.server").as_deref(), Some("vllm"));
        assert_eq!(text("agent.rank"), Some(format!("TP{rank}")));
    }
}

#[test]
fn agent_without_events_is_live_from_the_first_answer() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let command = Command::new(example("producer"));
    // At this rate, the first transfer is due in months.
    let agent = Sample::start_as(command, &rings, "agent", "--rate 0.0000001");
    wait_until_mapped(&agent, &core.path("agent"));
    wait_for("the agent is an instance", || {
        core.advance(Duration::from_millis(2));
        core.scan();
        core.drain();
        core.tidy();
        (!core.instances().is_empty()).then_some(())
    });
    assert_eq!(core.status("agent"), "live");
}

#[test]
fn other_environment_variables_are_stored_nowhere() {
    let home = Home::new();
    let mut command = worker(example("producer"), 2);
    command
        .env("LOCAL_RANKED", SECRET)
        .env("A_LOCAL_RANK", SECRET);
    let agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    let mut daemon = Command::new(PMDANIXL);
    daemon.args(["-D", "appl0"]).stderr(Stdio::null());
    let mut link = Link::start(&home, daemon).expect("it starts");
    wait_for("the pid is known", || {
        let pids = link.fetch(&["agent.pid"]).expect("an answer").remove(0);
        pids.values()
            .any(|&pid| pid == u64::from(agent.pid()))
            .then_some(())
    });
    wait_for("the id is saved", || {
        let cache = fs::read_to_string(home.path("var/config/pmda/39.0")).unwrap_or_default();
        cache.contains(" agent").then_some(())
    });
    agent.kill();
    wait_for("debug messages are logged", || {
        home.log().contains("Debug: ").then_some(())
    });
    link.end();
    let files = contents(&home.path("."));
    let state = files
        .iter()
        .find(|(path, _)| path.ends_with("run/nixl/state"));
    let (_, state) = state.expect("a state file");
    // The state file has the process facts.
    assert!(holds(state, "4711") && holds(state, "agent"));
    for (path, bytes) in &files {
        assert!(!holds(bytes, SECRET) && !holds(bytes, "HF_TOKEN"), "{path}");
    }
}
