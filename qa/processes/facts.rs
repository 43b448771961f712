// SPDX-License-Identifier: GPL-2.0-or-later

//! Process facts of the writer of a ring from real process scans, and how long they are used.

use crate::support::titled::Titled;
use crate::support::{self, example, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::fstat;
use nix::unistd::Pid;
use pmdanixl::base::file::FileFacts;
use pmdanixl::observer::client::ObserverHandle;
use pmdanixl::observer::group::Group;
use pmdanixl::observer::protocol::{Found, Request, RequestKind, Response};
use pmdanixl::procfs::facts::labels::{self, Facts};
use pmdanixl::procfs::liveness::Liveness;
use pmdanixl::procfs::process::ProcessId;
use pmdanixl::procfs::process_dir::ProcessDir;
use pmdanixl::procfs::process_scan::scanned::ScannedProcess;
use pmdanixl::procfs::process_scan::{ProcessScan, ScanRequest};
use pmdanixl::rights::privilege::of_reader;
use pmdanixl::shm::LeaseKind;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts an agent that looks like a worker of vLLM with a rank from a launcher. It writes until it is killed.
fn agent(dir: &Path) -> Child {
    Command::new(example("producer"))
        .arg0("VLLM::Worker_TP3")
        .arg("--dir")
        .arg(dir)
        .args(["--name", "agent", "--capacity", "64", "--on-full", "drop"])
        .env("LOCAL_RANK", "3")
        .env("HF_TOKEN", "secret")
        .env_remove("SLURM_JOB_ID")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Runs a process scan for these files. It also lists the processes with `inodes` mapped.
fn scan(files: &[FileFacts], inodes: &[u64]) -> ProcessScan {
    let all = files.iter().map(|file| file.id.ino);
    let request = ScanRequest {
        with_facts: all.clone().collect(),
        inodes: Some(all.chain(inodes.iter().copied()).collect()),
        ..ScanRequest::default()
    };
    let mut observer =
        ObserverHandle::start(Path::new(support::PMDANIXL), &of_reader()).expect("it starts");
    observer.send(&Request::Scan(request.clone()));
    let files = files.iter().map(|file| (file.id, *file)).collect();
    let mut scan = ProcessScan::of(files, request);
    wait_for("the scan ends", || {
        let mut end = None;
        for response in observer.receive(Duration::from_secs(1)) {
            match response {
                Response::Found(Found::Scanned(process)) => scan.add(process),
                Response::Done(RequestKind::Scan, done) => end = Some(done),
                _ => {}
            }
        }
        end
    });
    scan
}

fn facts_of(file: &File) -> FileFacts {
    FileFacts::new(&fstat(file).expect("open"))
}

#[test]
fn process_facts_stay_until_another_writer_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let path: PathBuf = dir.path().join("agent");
    let mut agent = agent(dir.path());
    let writer = ProcessId::of(agent.id()).expect("it runs");
    let file = wait_for("a ring", || File::open(&path).ok());
    // The agent maps the file after it has made it.
    let file_facts = wait_for("the writer is found", || {
        let facts = facts_of(&file);
        scan(&[facts], &[]).facts.get(&writer).map(|_| facts)
    });
    let mut liveness = Liveness::new(&file, &file_facts, LeaseKind::Exclusive, Instant::now());
    assert_eq!(liveness.facts(), None);
    let ask = |liveness: &mut Liveness| {
        liveness.begin_process_scan(true);
        let process_scan = scan(&[facts_of(&file)], &[]);
        liveness.end_process_scan(&process_scan, &file_facts, &path);
    };

    ask(&mut liveness);
    assert_eq!(liveness.writer(), Some(writer));
    let facts = liveness.facts().cloned().expect("facts of the writer");
    assert_eq!(facts.get("engine"), Some("vllm"));
    assert_eq!(facts.get("local_rank"), Some("3"));
    assert_eq!(facts.get("user"), None, "the user is that of the file");
    assert!(!format!("{facts:?}").contains("secret"));
    // This process is in the same container, if any.
    let own = ProcessDir::open(std::process::id()).expect("this one");
    let own = Facts::of_process(&own, &mut |_| false).expect("it runs");
    assert_eq!(facts.get("container_id"), own.get("container_id"));

    agent.kill().expect("it runs");
    agent.wait().expect("our child");
    // A process scan for other files does not change the facts.
    let for_others = scan(&[], &[file_facts.id.ino]);
    liveness.end_process_scan(&for_others, &file_facts, &path);
    assert_eq!(liveness.writer(), Some(writer));
    assert_eq!(liveness.facts(), Some(&facts));
    ask(&mut liveness);
    assert_eq!(liveness.writer(), None);
    assert_eq!(liveness.facts(), Some(&facts), "the facts stay");
    liveness.producer_restarted();
    assert_eq!(liveness.facts(), None, "the writer may be another process");
}

#[test]
fn facts_are_of_processes_with_a_file_that_was_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut agent = agent(dir.path());
    let writer = ProcessId::of(agent.id()).expect("it runs");
    let file = wait_for("a ring", || File::open(dir.path().join("agent")).ok());
    wait_for("the writer is found", || {
        scan(&[facts_of(&file)], &[]).facts.get(&writer).map(drop)
    });
    let ino = facts_of(&file).id.ino;
    assert_eq!(scan(&[], &[ino]).facts.get(&writer), None);
    let mut other = facts_of(&file);
    other.id.ino += 1;
    assert_eq!(scan(&[other], &[ino]).facts.get(&writer), None);
    agent.kill().expect("it runs");
    agent.wait().expect("our child");
}

#[test]
fn gpus_of_a_process_are_its_open_device_files() {
    support::needs_root();
    // A private /dev, invisible to other processes.
    let script = "mount -t tmpfs tmpfs /dev && touch /dev/nvidia10 /dev/nvidia3 /dev/nvidiactl && \
                  exec sleep 600 3</dev/nvidia10 4</dev/nvidia3 5</dev/nvidiactl 6</dev/nvidia3";
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let facts = || Facts::of_process(&ProcessDir::open(child.id()).ok()?, &mut |_| false);
    let gpus = wait_for("the device files are open", || {
        facts()?
            .get(labels::GPU_LIST)
            .filter(|gpus| gpus.contains(','))
            .map(str::to_owned)
    });
    assert_eq!(gpus, "3,10");
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

#[test]
fn ancestor_is_announced_before_it_is_read() {
    support::needs_root();
    let dir = tempfile::tempdir().expect("a directory");
    let ring = dir.path().join("ring");
    std::fs::write(&ring, [0; 4096]).expect("written");
    let job = [("SLURM_JOB_ID", "4711")];
    let arguments = ["serve", "m", "--port", "8100"];
    let server = Titled::start(dir.path(), &arguments, &job, std::slice::from_ref(&ring), 0);
    let [vllm, core, worker] = *server.pids() else {
        panic!("{:?}", server.pids());
    };
    let [vllm, core, worker] = [vllm, core, worker].map(|pid| ProcessId::of(pid).expect("it runs"));
    // If a read in /proc blocks, the stalled process is the one that was announced last.
    let inode = facts_of(&File::open(&ring).expect("ours")).id.ino;
    let request = ScanRequest {
        inodes: Some([inode].into()),
        with_facts: [inode].into(),
        ..ScanRequest::default()
    };
    let mut announced = Vec::new();
    let mut may_read = |process| {
        announced.push(process);
        true
    };
    let read = ScannedProcess::read(worker.pid, &request, &mut may_read).expect("it runs");
    let facts = read.facts.expect("the worker has the ring");
    assert_eq!(
        (facts.get("port"), facts.get("rank")),
        (Some("8100"), Some("TP0"))
    );
    assert_eq!(announced[..3], [worker, core, vllm]);

    // An ancestor that must not be read hides the ancestors above it.
    let worker = ProcessDir::of(worker).expect("it runs");
    for (forbidden, role_and_job) in [(core, 0), (vllm, 1)] {
        let mut asked = Vec::new();
        let facts = Facts::of_process(&worker, &mut |ancestor| {
            asked.push(ancestor);
            ancestor != forbidden
        });
        let facts = facts.expect("it runs");
        assert_eq!((facts.get("port"), facts.get("slurm_job_id")), (None, None));
        assert_eq!(asked[role_and_job], forbidden);
        assert_eq!(asked.len(), role_and_job + 1);
        assert_eq!(facts.get("rank"), Some("TP0"));
    }
}

#[test]
fn ancestor_of_another_user_is_not_read() {
    support::needs_root();
    let dir = tempfile::tempdir().expect("a directory");
    let job = [("SLURM_JOB_ID", "4711"), ("LOCAL_RANK", "0")];
    let arguments = ["serve", "m", "--kv_transfer_config.kv_role", "kv_producer"];
    let facts_as = |uid| {
        let server = Titled::start(dir.path(), &arguments, &job, &[PathBuf::new()], uid);
        let worker = ProcessDir::open(server.pids()[2]).expect("it runs");
        let mut asked = 0;
        let facts = Facts::of_process(&worker, &mut |_| {
            asked += 1;
            true
        });
        (facts.expect("it runs"), asked)
    };
    let (facts, asked) = facts_as(0);
    assert_eq!(
        (facts.get("role"), facts.get("port")),
        (Some("prefill"), None)
    );
    assert_eq!(facts.get("slurm_job_id"), Some("4711"));
    assert_eq!((facts.get("local_rank"), asked), (None, 2));
    let (facts, asked) = facts_as(65534);
    assert_eq!(
        (facts.get("role"), facts.get("slurm_job_id"), asked),
        (None, None, 0)
    );
    assert_eq!(facts.get("command"), Some("VLLM::Worker_TP0"));
}

#[test]
fn option_behind_a_long_argument_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let long = "x".repeat(100_000);
    let arguments = ["serve", "m", "--chat-template", &long, "--port", "8105"];
    let uid = nix::unistd::Uid::current().as_raw();
    let server = Titled::start(dir.path(), &arguments, &[], &[PathBuf::new()], uid);
    let worker = ProcessDir::open(server.pids()[2]).expect("it runs");
    let facts = Facts::of_process(&worker, &mut |_| true).expect("it runs");
    assert_eq!(
        (facts.get("port"), facts.get("rank")),
        (Some("8105"), Some("TP0"))
    );
    assert_eq!(facts.get("engine"), Some("vllm"));
}

/// Starts two sleeping processes under `command`, which sets their user or namespaces.
fn two(command: &[&str]) -> (Child, [ProcessId; 2]) {
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .args(["sh", "-c", "sleep 600 & echo $! $$; exec sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let pids = line
        .split_whitespace()
        .map(|pid| pid.parse().expect("a pid"));
    let pids = Vec::from_iter(pids.map(|pid| ProcessId::of(pid).expect("it runs")));
    (child, pids.try_into().expect("two"))
}

#[test]
fn stalled_process_skips_its_container_user_or_namespaces() {
    support::needs_root();
    let groups = [
        two(&["env"]),
        two(&["setpriv", "--reuid=65534", "--clear-groups"]),
        two(&["unshare", "--mount"]),
        two(&["unshare", "--mount"]),
        two(&["unshare", "--user", "--map-root-user"]),
        two(&["unshare", "--user", "--mount", "--map-root-user"]),
    ];
    let group = |process: &ProcessId| Group::of(*process);
    for (number, (_, [first, second])) in groups.iter().enumerate() {
        // For a stalled process of root, only this process is skipped.
        assert_eq!(group(first) == group(second), number != 0, "{number}");
        for (other, (_, [process, _])) in groups.iter().enumerate() {
            let is_alike = number == other || (number >= 4 && other >= 4);
            assert_eq!(group(first) == group(process), is_alike, "{number} {other}");
        }
    }
    for (mut child, [background, _]) in groups {
        child.kill().expect("it runs");
        child.wait().expect("our child");
        let background = i32::try_from(background.pid).expect("a pid");
        let _ = kill(Pid::from_raw(background), Signal::SIGKILL);
    }
}
