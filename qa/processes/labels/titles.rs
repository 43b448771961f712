// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels of processes that set their own titles: through the test kit, and with a real pmcd.

use super::{SECRET, contents, expected, first_labels, holds, own_user};
use crate::support::kit::{Core, LONG, push_to};
use crate::support::titled::Titled;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, run, wait_for};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Python code that maps the ring of its first argument. After a line of input, it sets a title like setproctitle(3):
/// over its arguments and the environment after them.
const TITLED: &str = "
import ctypes, mmap, sys
file = open(sys.argv[1], 'r+b')
ring = mmap.mmap(file.fileno(), 0)
file.close()
# The fields after the name; the first of them is number 3 (proc_pid_stat(5)).
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
fn process_title_keeps_labels() {
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
    let mut run_for = |seconds: u64| {
        core.tick(1, Duration::from_millis(seconds * 1000 + 5), LONG);
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        let labels = is_instance.then(|| core.labels("agent"));
        labels.unwrap_or_default()
    };
    let has = |labels: &Map<String, Value>, name: &str, value: &str| {
        labels.get(name).is_some_and(|label| label == value)
    };
    wait_for("the environment is known", || {
        let labels = run_for(0);
        (has(&labels, "local_rank", "7") && labels.get("gpu") == Some(&5.into())).then_some(())
    });
    let stdin = process.stdin.as_mut().expect("piped");
    stdin.write_all(b"now\n").expect("it reads");
    says("titled");
    wait_for("a later process scan shows the title", || {
        let labels = run_for(61);
        assert!(
            has(&labels, "local_rank", "7") && labels.get("gpu") == Some(&5.into()),
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
    // Variables of the server, which are not those of the workers.
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
        // A prefix for titles without the name of the engine.
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
