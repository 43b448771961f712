//! Who an agent is, in the labels of its instances: from the first moment on, over a restart of all, and for Prometheus.

use crate::support::kill::{kill_process, wait_for_orphans};
use crate::support::kit::layers::own_container;
use crate::support::kit::{Core, LONG, push_to};
use crate::support::pdu::Link;
use crate::support::pmproxy::Pmproxy;
use crate::support::sample::Sample;
use crate::support::titled::Titled;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, PMDANIXL, Pmcd, TX_BYTES, example, run, wait_for};
use nix::unistd::{Uid, User};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SECRET: &str = "hf-Zq7wXr2Lk9";
/// A few transfers, and then it lives on.
const A_FEW: &str = "--rate 0 --transfers 30 --size 3000 --read-every 0 --linger 600";
const POD: &str = "0f3c2b1a-1111-2222-3333-444455556666";

/// A command with a rank, a job and a secret in its environment.
fn worker(program: impl AsRef<std::ffi::OsStr>, rank: u32) -> Command {
    let mut command = Command::new(program);
    command
        .env("LOCAL_RANK", rank.to_string())
        .env("SLURM_JOB_ID", "4711")
        .env("HF_TOKEN", SECRET);
    command
}

/// The name of the user that this runs as.
fn own_user() -> String {
    let user = User::from_uid(Uid::current()).expect("asked");
    user.expect("this one").name
}

/// The labels that an agent must have: those given, and what this process has as its child has it.
fn expected(labels: &[(&str, &str)]) -> Map<String, Value> {
    let [container_id, pod_uid] = own_container();
    let of_all = [
        ("source", Some("ring".to_owned())),
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
    all.map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

/// Without the labels that all metrics of this host have.
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

/// Asks without a pause until an instance is there, and says what labels it has then.
fn first_labels(pmcd: &Pmcd, name: &str) -> Map<String, Value> {
    let end = Instant::now() + support::PATIENCE;
    loop {
        if let Some(labels) = pmcd.labels(TX_BYTES).remove(name) {
            return own_labels(labels);
        }
        assert!(Instant::now() < end, "{name} never came");
    }
}

/// All files below a directory, as they are.
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
fn labels_are_right_when_an_instance_is_seen_first() {
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::set_permissions(home.rings(), PermissionsExt::from_mode(0o1777)).expect("ours");
    let pmcd = Pmcd::start(&home);
    let mut agents = Vec::new();
    let user = own_user();
    // As `vllm serve` is found on its command line, by the program's name.
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
    // A title that a process gave itself; a name that tells more; and one of which nothing is known.
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
    // Another user's.
    let producer = home.path("producer");
    fs::copy(example("producer"), &producer).expect("copied");
    let mut command = worker("setpriv", 1);
    command
        .args(["--reuid=65534", "--clear-groups"])
        .arg(&producer);
    agents.push(Sample::start_as(command, &home.rings(), "theirs", A_FEW));
    let labels = first_labels(&pmcd, "theirs");
    assert_eq!(
        (&labels["user"], &labels["local_rank"]),
        (&"nobody".into(), &"1".into())
    );
}

#[test]
fn an_agent_is_no_instance_before_it_is_known_who_it_is() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let user = own_user();
    let names = [0, 1, 2, 3].map(|rank| (rank, format!("5c0d7a1e-vllm-{rank}")));
    let mut right = BTreeMap::new();
    let _agents = names.map(|(rank, name)| {
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
        Sample::start_as(command, &rings, &name, A_FEW)
    });
    // Its patience passes while the test ticks, so that whoever holds the machine up holds both up.
    let mut seen = BTreeMap::new();
    wait_for("all are instances", || {
        core.tick(1, Duration::from_millis(2), LONG);
        core.tidy();
        for name in core.instances().into_keys() {
            let labels = core.labels(&name);
            seen.entry(name).or_insert(labels);
        }
        (seen.len() == right.len()).then_some(())
    });
    assert_eq!(seen, right);
}

#[test]
fn an_agent_that_has_written_nothing_yet_is_live_from_the_first_answer_on() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let command = Command::new(example("producer"));
    // The first transfer is due in months.
    let agent = Sample::start_as(command, &rings, "agent", "--rate 0.0000001");
    wait_for("it has its ring", || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", agent.pid())).expect("it runs");
        let ring = core.path("agent");
        maps.contains(ring.to_str()?).then_some(())
    });
    wait_for("it is an instance", || {
        core.advance(Duration::from_millis(2));
        core.scan();
        core.drain();
        core.reveal();
        (!core.instances().is_empty()).then_some(())
    });
    assert_eq!(core.status("agent"), "live");
}

#[test]
fn labels_outlive_the_agent_and_a_kill_of_all() {
    let home = Home::new();
    let mut pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 5);
    command.arg0("VLLM::Worker_TP5");
    let agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    let user = own_user();
    let right = expected(&[
        ("nixl_agent", "agent"),
        ("user", &user),
        ("engine", "vllm"),
        ("rank", "TP5"),
        ("local_rank", "5"),
        ("slurm_job_id", "4711"),
    ]);
    wait_for("it is known who it is, and all is counted", || {
        let labels = pmcd.labels(TX_BYTES).remove("agent").map(own_labels);
        let is_known = labels.as_ref() == Some(&right);
        (is_known && pmcd.values(TX_BYTES)["agent"] == 30 * 3000).then_some(())
    });
    for agent in [Some(agent), None] {
        let pmda = pmcd.pmda_pid();
        kill_process(pmda);
        pmcd.kill();
        wait_for_orphans(&pmcd.path("log"));
        // The second time nobody can be asked any more who that was.
        drop(agent);
        pmcd.start_anew();
        pmcd.wait_until_it_answers();
        assert_ne!(pmcd.pmda_pid(), pmda);
        let first = pmcd.labels(TX_BYTES).remove("agent").map(own_labels);
        assert_eq!(first.as_ref(), Some(&right), "in the first answer");
        assert_eq!(pmcd.values(TX_BYTES)["agent"], 30 * 3000);
    }
}

#[test]
fn the_pod_is_told_by_the_directory_of_its_volume_also_where_proc_is_not_asked() {
    for proc_facts in [true, false] {
        let home = Home::new();
        let pods = home.path("kubelet/pods");
        let volume = pods.join(POD).join("volumes/kubernetes.io~empty-dir/nixl");
        fs::create_dir_all(&volume).expect("made");
        let logs = home.path("logs");
        fs::create_dir_all(logs.join(format!("inference_kvbm-0_{POD}"))).expect("made");
        home.configure(&format!(
            "[nixl]\nproc_facts = {proc_facts}\npod_logs = {logs:?}\n\
             telemetry_dir = \"{}/*/volumes/kubernetes.io~empty-dir/nixl\"\n",
            pods.display()
        ));
        let pmcd = Pmcd::start(&home);
        let command = worker(example("producer"), 0);
        let _agent = Sample::start_as(command, &volume, "kvbm-worker-0", A_FEW);
        let labels = first_labels(&pmcd, "kvbm-worker-0");
        assert_eq!(
            (&labels["pod_uid"], &labels["engine"]),
            (&POD.into(), &"kvbm".into())
        );
        assert_eq!(labels["nixl_agent"], "kvbm-worker-0");
        // Only the process tells that.
        if proc_facts {
            wait_for("the process is asked", || {
                let labels = pmcd.labels(TX_BYTES).remove("kvbm-worker-0")?;
                let told = ["local_rank", "pod", "namespace"].map(|name| labels.get(name));
                let expected = ["0", "kvbm-0", "inference"].map(Value::from);
                (told == expected.each_ref().map(Some)).then_some(())
            });
        } else {
            for name in ["local_rank", "pod", "namespace"] {
                assert!(!labels.contains_key(name), "{labels:?}");
            }
        }
    }
}

#[test]
fn the_second_agent_of_a_name_is_called_by_the_uid_of_its_pod() {
    let home = Home::new();
    let pods = home.path("kubelet/pods");
    let other = POD.replace('2', "f");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = \"{}/*/volumes/kubernetes.io~empty-dir/nixl\"\n",
        pods.display()
    ));
    let _rings = [POD, &other].map(|uid| {
        let volume = pods.join(uid).join("volumes/kubernetes.io~empty-dir/nixl");
        fs::create_dir_all(&volume).expect("made");
        let mut ring = RingWriter::create(&volume.join("worker-0"), Layout::V4, 16);
        ring.as_mut().expect("a ring").push(Kind::TxBytes, 1);
        ring
    });
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker-0", 1), (&format!("worker-0@{other}"), 1)]);
}

#[test]
fn what_else_is_in_an_environment_is_nowhere() {
    let home = Home::new();
    let mut command = worker(example("producer"), 2);
    command
        .env("LOCAL_RANKED", SECRET)
        .env("A_LOCAL_RANK", SECRET);
    let agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    let mut daemon = Command::new(PMDANIXL);
    daemon.args(["-D", "appl0"]).stderr(Stdio::null());
    let mut link = Link::start(&home, daemon).expect("it starts");
    wait_for("its process is known", || {
        let pids = link.fetch(&["agent.pid"]).expect("an answer").remove(0);
        pids.values()
            .any(|&pid| pid == u64::from(agent.pid()))
            .then_some(())
    });
    wait_for("it is in the files", || {
        let cache = fs::read_to_string(home.path("var/config/pmda/39.0")).unwrap_or_default();
        cache.contains(" agent").then_some(())
    });
    agent.kill();
    wait_for("the log says more than usual", || {
        home.log().contains("Debug: ").then_some(())
    });
    link.end();
    let files = contents(&home.path("."));
    let state = files
        .iter()
        .find(|(path, _)| path.ends_with("run/nixl/state"));
    let (_, state) = state.expect("a state file");
    // What is known of the process is in there.
    assert!(holds(state, "4711") && holds(state, "agent"));
    for (path, bytes) in &files {
        assert!(!holds(bytes, SECRET) && !holds(bytes, "HF_TOKEN"), "{path}");
    }
}

#[test]
fn buckets_have_the_labels_of_their_agent_and_their_bounds() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let [one, _two] = ["one", "two"]
        .map(|name| Sample::start_as(worker(example("producer"), 1), &home.rings(), name, A_FEW));
    let all = [("one".to_owned(), 90_000), ("two".to_owned(), 90_000)];
    wait_for("both are counted", || {
        (pmcd.values(TX_BYTES) == BTreeMap::from(all.clone())).then_some(())
    });
    for (metric, buckets, lowest, highest) in [
        ("nixl.latency.xfer_time.buckets", 19, "10", "10000000"),
        ("nixl.latency.post_time.buckets", 19, "10", "10000000"),
        ("nixl.size.buckets", 13, "2048", "8589934592"),
        ("nixl.bandwidth.buckets", 21, "1000000", "524288000000"),
    ] {
        assert_eq!(pmcd.count(metric), 2 * buckets, "{metric}");
        let labels = pmcd.labels(metric);
        assert_eq!(labels.len(), 2 * usize::try_from(buckets).expect("a few"));
        let of = pmcd.labels(TX_BYTES);
        for (instance, labels) in &labels {
            let (agent, range) = instance.split_once("::").expect("agent::low-high");
            let (lower, upper) = range.split_once('-').expect("low-high");
            let mut expected = of[agent].clone();
            expected.insert("lower_bound".into(), lower.into());
            let upper = if upper == "inf" { "+Inf" } else { upper };
            expected.insert("upper_bound".into(), upper.into());
            assert_eq!(labels, &expected, "{metric} {instance}");
        }
        for edge in [format!("one::0-{lowest}"), format!("two::{highest}-inf")] {
            assert!(labels.contains_key(&edge), "{metric}: {edge}");
        }
        let counted: u64 = pmcd.values(metric).values().sum();
        assert_eq!(counted, 60, "{metric}: each transfer in one of them");
    }
    // As Prometheus has it: the last has all.
    let labels = pmcd.labels("nixl.latency.xfer_time.bucket");
    for (instance, value) in pmcd.values("nixl.latency.xfer_time.bucket") {
        let (_, bound) = instance.split_once("::le-").expect("agent::le-high");
        let le = &labels[&instance]["le"];
        assert_eq!(le, if bound == "inf" { "+Inf" } else { bound });
        assert!(bound != "inf" || value == 30, "{instance}: {value}");
        assert!(!labels[&instance].contains_key("upper_bound"));
    }
    assert_eq!(labels.len(), 2 * 19);
    for metric in [
        TX_BYTES,
        "nixl.agent.state",
        "nixl.latency.xfer_time.p99",
        "nixl.bandwidth.p10",
    ] {
        assert_eq!(pmcd.count(metric), 2, "{metric}");
    }
    drop(one);
}

#[test]
fn a_scrape_by_prometheus_has_the_labels_and_the_values_of_a_histogram() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 7);
    command.arg0("VLLM::Worker_TP7");
    let _agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    wait_for("it is counted", || {
        (pmcd.values(TX_BYTES).get("agent") == Some(&90_000)).then_some(())
    });
    let shown = pmcd.values("nixl.size.buckets");
    let proxy = Pmproxy::start(&home, &pmcd);
    let scrape = wait_for("pmproxy answers", || {
        let body = proxy.get("/metrics?names=nixl.size.buckets,nixl.transfer.tx_bytes")?;
        body.contains("nixl_size_buckets{").then_some(body)
    });
    let mut buckets = BTreeMap::new();
    for line in scrape
        .lines()
        .filter(|line| line.starts_with("nixl_size_buckets{"))
    {
        for label in [
            "nixl_agent=\"agent\"",
            "engine=\"vllm\"",
            "local_rank=\"7\"",
            "slurm_job_id=\"4711\"",
            "source=\"ring\"",
            "lower_bound=\"",
            "upper_bound=\"",
        ] {
            assert!(line.contains(label), "{label}: {line}");
        }
        let (_, name) = line.split_once("instname=\"").expect("its name");
        let (name, _) = name.split_once('"').expect("its end");
        let value = line
            .split("} ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let value: u64 = value.expect("a value").parse().expect("a number");
        buckets.insert(name.to_owned(), value);
    }
    assert_eq!(buckets, shown, "{scrape}");
    assert_eq!(buckets["agent::2048-8192"], 30);
    let bytes = scrape
        .lines()
        .find(|line| line.starts_with("nixl_transfer_tx_bytes{"));
    let bytes = bytes.expect("the counter");
    assert!(
        bytes.contains("engine=\"vllm\"") && bytes.contains("} 90000"),
        "{bytes}"
    );
    assert!(!scrape.contains(SECRET));
}

#[test]
fn a_look_for_others_takes_no_label_away() {
    let mut core = Core::new("proc_facts = true");
    // It is never silent, so that /proc is not asked about it again.
    let rings = core.rings();
    let mut command = Command::new(example("producer"));
    command.args(["--capacity", "64"]);
    let _agent = Sample::start_as(command, &rings, "agent", "--rate 0");
    let mut look = |seconds| {
        core.advance(Duration::from_secs(seconds));
        core.scan();
        core.drain();
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        let labels = is_instance.then(|| core.labels("agent"));
        (labels, core.process_scans())
    };
    let user = own_user();
    let has_user = |labels: &Option<Map<String, Value>>| {
        let labels = labels.as_ref();
        labels.is_some_and(|labels| labels.get("user").is_some_and(|name| *name == *user))
    };
    let (_, surveys) = wait_for("it is known whose it is", || {
        Some(look(1)).filter(|(labels, _)| has_user(labels))
    });
    // Once a minute, for those that use NIXL without telemetry.
    wait_for("two more looks", || {
        let (labels, now) = look(61);
        assert!(has_user(&labels), "{labels:?}");
        (now >= surveys + 2).then_some(())
    });
}

#[test]
fn an_agent_that_is_started_anew_keeps_its_labels_until_it_has_its_own() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let user = own_user();
    let start = |rank| {
        let mut command = worker(example("producer"), rank);
        command.arg0(format!("VLLM::Worker_TP{rank}"));
        Sample::start_as(command, &rings, "5c0d7a1e-vllm-0", A_FEW)
    };
    let mut look = || {
        core.tick(1, Duration::from_millis(2), LONG);
        core.tidy();
        let instance = core.instances().into_keys().next()?;
        let starts = core.value("agent.starts", &instance);
        let owner = core.text("agent.user", &instance);
        Some((core.labels(&instance), owner, starts))
    };
    let before = start(1);
    let (first, owner, starts) = wait_for("it is an instance", &mut look);
    assert_eq!(
        (&first["local_rank"], owner.as_deref()),
        (&"1".into(), Some(&*user))
    );
    before.kill();
    let _after = start(2);
    wait_for("the second one's labels are there", || {
        let (labels, owner, now) = look().expect("it stays an instance");
        for name in ["nixl_agent", "user", "engine", "slurm_job_id"] {
            assert_eq!(labels.get(name), first.get(name), "{name}");
        }
        assert_eq!(owner.as_deref(), Some(&*user));
        (now > starts && labels["local_rank"] == "2").then_some(())
    });
}

/// Has the ring of its first argument mapped, and when told to gives itself a title as setproctitle(3) does: over its arguments,
/// and the environment behind them.
const TITLED: &str = "
import ctypes, mmap, sys
file = open(sys.argv[1], 'r+b')
ring = mmap.mmap(file.fileno(), 0)
file.close()
# The fields behind the name, of which the first is the third (proc_pid_stat(5)).
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
arg_start, arg_end, env_start, env_end = (int(stat[field - 3]) for field in range(48, 52))
print('ready', flush=True)
sys.stdin.readline()
ctypes.memset(env_start, 0, env_end - env_start)
ctypes.memset(arg_start, 0, arg_end - arg_start)
title = b'VLLM::Worker_TP0'
ctypes.memmove(arg_start, title, len(title))
print('titled', flush=True)
sys.stdin.readline()
";

#[test]
fn a_title_that_a_process_gives_itself_takes_no_label_away() {
    let mut core = Core::new("proc_facts = true");
    drop(push_to(core.ring("agent"), 1));
    let mut process = Command::new("/usr/bin/python3");
    process.args(["-c", TITLED]).arg(core.path("agent"));
    process
        .env("LOCAL_RANK", "7")
        .env("CUDA_VISIBLE_DEVICES", "5");
    let process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = process.expect("Python starts");
    let mut said = BufReader::new(process.stdout.take().expect("piped"));
    let mut says = |what: &str| {
        let mut line = String::new();
        said.read_line(&mut line).expect("it runs");
        assert_eq!(line.trim_end(), what);
    };
    says("ready");
    let mut look = |seconds: u64| {
        core.tick(1, Duration::from_millis(seconds * 1000 + 5), LONG);
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        let labels = is_instance.then(|| core.labels("agent"));
        labels.unwrap_or_default()
    };
    let has = |labels: &Map<String, Value>, name: &str, value: &str| {
        labels.get(name).is_some_and(|label| label == value)
    };
    wait_for("its environment is known", || {
        let labels = look(0);
        (has(&labels, "local_rank", "7") && has(&labels, "gpu", "5")).then_some(())
    });
    let stdin = process.stdin.as_mut().expect("piped");
    stdin.write_all(b"now\n").expect("it reads");
    says("titled");
    wait_for("/proc is asked again, and shows the title", || {
        let labels = look(61);
        assert!(
            has(&labels, "local_rank", "7") && has(&labels, "gpu", "5"),
            "{labels:?}"
        );
        has(&labels, "engine", "vllm").then_some(())
    });
    drop(process.stdin.take());
    process.wait().expect("it ends");
}

#[test]
fn titled_workers_get_rank_role_port_and_job_labels() {
    let home = Home::new();
    let secret = ("HF_TOKEN", SECRET);
    // The server's, not the workers'.
    let of_server = [("LOCAL_RANK", "0"), ("CUDA_VISIBLE_DEVICES", "0,1"), secret];
    let start = |port: &str, role: &str, job: &str, names: &[&str]| {
        let rings = names.iter().map(|name| {
            let ring = RingWriter::create(&home.ring(name), Layout::V4, 16);
            ring.expect("a ring").push(Kind::TxBytes, 1);
            home.ring(name)
        });
        let rings: Vec<_> = rings.collect();
        let transfer = format!(r#"{{"kv_connector": "NixlConnector", "kv_role": "{role}"}}"#);
        let arguments = ["serve", "m", "--port", port, "--api-key", SECRET];
        let arguments = [&arguments[..], &["--kv-transfer-config", &transfer]].concat();
        // Titles that do not name the engine.
        let prefix = ("VLLM_PROCESS_NAME_PREFIX", "decode-a");
        let prefix = (role == "kv_consumer").then_some(prefix);
        let variables = [&of_server[..], &[("SLURM_JOB_ID", job)], prefix.as_slice()].concat();
        Titled::start(&home.path("."), &arguments, &variables, &rings, 0)
    };
    let _servers = [
        start("8100", "kv_producer", "4711", &["uuid-a", "uuid-b"]),
        start("8200", "kv_consumer", "4712", &["uuid-c"]),
    ];
    let pmcd = Pmcd::start(&home);
    let user = own_user();
    for (name, rank, role, port, job) in [
        ("uuid-a", "TP0", "prefill", "8100", "4711"),
        ("uuid-b", "TP1", "prefill", "8100", "4711"),
        ("uuid-c", "TP0", "decode", "8200", "4712"),
    ] {
        let labels = [
            ("nixl_agent", name),
            ("user", &*user),
            ("engine", "vllm"),
            ("rank", rank),
            ("role", role),
            ("port", port),
            ("slurm_job_id", job),
        ];
        assert_eq!(first_labels(&pmcd, name), expected(&labels));
    }
    let shown = run(pmcd.tool("pminfo").args(["-f", "nixl.agent.command"]));
    for (instance, command) in [
        ("uuid-a", "VLLM::Worker_TP0"),
        ("uuid-b", "VLLM::Worker_TP1"),
        ("uuid-c", "decode-a::Worker_TP0"),
    ] {
        let line = format!("or \"{instance}\"] value \"{command}\"");
        assert!(shown.contains(&line), "{shown}");
    }
    for (path, bytes) in contents(&home.path(".")) {
        assert!(!holds(&bytes, SECRET), "{path}");
    }
}

#[test]
fn what_proc_tells_goes_and_comes_with_the_configuration_also_of_a_busy_agent() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let mut command = worker(example("producer"), 3);
    command.arg0("VLLM::Worker_TP3");
    let _agent = Sample::start_as(command, &rings, "agent", "--rate 100");
    let has_rank = |core: &mut Core| {
        core.tick(1, Duration::from_millis(2), LONG);
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        is_instance && core.labels("agent").contains_key("local_rank")
    };
    for told in [true, false, true] {
        core.configure(&format!("proc_facts = {told}"));
        wait_for("its labels are those that are told", || {
            (has_rank(&mut core) == told).then_some(())
        });
    }
}

#[test]
fn what_proc_told_is_not_told_any_more_after_a_restart_either() {
    let home = Home::new();
    let mut pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 3);
    command.arg0("VLLM::Worker_TP3");
    let _agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    let becomes = |pmcd: &Pmcd, told: bool| {
        wait_for("its labels are those that are told", || {
            let labels = pmcd.labels(TX_BYTES);
            let agent = labels.get("agent")?;
            (agent.contains_key("slurm_job_id") == told).then_some(())
        });
    };
    becomes(&pmcd, true);
    pmcd.configure(&home, "proc_facts = false");
    becomes(&pmcd, false);
    pmcd.terminate();
    let state = pmcd.path("run/nixl/state");
    let pmcd = Pmcd::start_with(&home, "again", |dir| {
        fs::create_dir_all(dir.join("run/nixl")).expect("made");
        fs::copy(state, dir.join("run/nixl/state")).expect("copied");
    });
    let labels = pmcd.labels(TX_BYTES);
    assert!(!labels["agent"].contains_key("slurm_job_id"), "{labels:?}");
}
