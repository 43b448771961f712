// SPDX-License-Identifier: GPL-2.0-or-later

//! What `--check` says of the settings of processes on a host with RDMA. The devices are a fake /sys/class.

use super::{NEW, libraries};
use crate::support::fleet::is_possible;
use crate::support::other_user::{VICTIM, open_to_all};
use crate::support::scripted::Process;
use crate::support::{Home, run};
use std::path::PathBuf;
use std::process::Command;

const SYSFS: &str = "mount -t tmpfs sys /sys/class
    for device in mlx5_0 mlx5_1; do
        mkdir -p /sys/class/infiniband/$device/ports/1
        echo '4: ACTIVE' >/sys/class/infiniband/$device/ports/1/state
    done";
/// A /dev with one device file for RDMA.
const DEV: &str = "mount -t tmpfs dev /dev; mkdir /dev/infiniband; touch /dev/infiniband/uverbs0";
/// A /dev without RDMA.
const BARE: &str = "mount -t tmpfs dev /dev";

/// Parts of lines, in the order of the report.
const TLS: &str = "which leaves out RDMA (mlx5_0, mlx5_1): unset it, or add rc";
const OF_OTHERS: &str = "those of another library, such as NCCL";
const TCP: &str = "leaves out RDMA (mlx5_0:1, mlx5_1:1): unset it, or name RDMA ports";
const LACKS: &str = "/dev/infiniband is not in its container";
const MEMLOCK: &str = "its limit of locked memory (ulimit -l) is 65536 bytes";
const NONE_OPEN: &str = "no RDMA device (mlx5_0, mlx5_1) is open";
const ALL: [&str; 6] = [TLS, OF_OTHERS, TCP, LACKS, MEMLOCK, NONE_OPEN];

/// Command prefix: a program with variables and limits (prlimit(1)), and with a /dev that a script makes.
fn within(settings: &[&str], dev: &str) -> Vec<String> {
    let script = format!("{dev}\nexec \"$@\"");
    let unshare = ["unshare", "--mount", "sh", "-ec", &script, "sh"];
    let words = settings.iter().copied().chain(unshare);
    words.map(str::to_owned).collect()
}

/// Returns the parts of [`ALL`] that the report has below the lines of a process.
fn parts(said: &str, pid: u32) -> Vec<&'static str> {
    let start = format!("  pid {pid} (");
    let mut is_its = false;
    let its = said.lines().filter(|line| {
        if !line.starts_with("    ") {
            is_its = line.starts_with(&start);
            return false;
        }
        is_its
    });
    let its = Vec::from_iter(its).join("\n");
    ALL.into_iter().filter(|part| its.contains(part)).collect()
}

/// Returns a process with a title whose environment is only that of its parent, and its pid.
fn titled(setting: &str, files: &[PathBuf]) -> (Process, u32) {
    // Not the last command: the shell would exec(3) it.
    let settings = ["env", setting, "sh", "-c", "\"$@\"; exit", "sh"];
    let mut process = Process::with_files(&within(&settings, DEV), files);
    process.run("set_title(b'VLLM::Worker_TP0')");
    let pid = process.number("os.getpid()");
    (process, pid)
}

#[test]
fn settings_are_judged_beside_open_rdma_devices() {
    if !is_possible() {
        return;
    }
    // In the mount namespace of this test.
    run(Command::new("sh").args(["-ec", SYSFS]));
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    let files = libraries(&home, NEW, &["UCX"]);
    let transports = [None, Some("UCX_TLS=rc,sm"), Some("UCX_TLS=tcp")];
    let devices = [None, Some("mlx5_1:1"), Some("lo")];
    let devices = devices.map(|name| name.map(|name| format!("UCX_NET_DEVICES={name}")));
    let mut cases = Vec::new();
    for is_open in [false, true] {
        for transport in transports {
            for device in &devices {
                let settings = ["env"]
                    .into_iter()
                    .chain(transport)
                    .chain(device.as_deref());
                let prefix = within(&Vec::from_iter(settings), DEV);
                let mut process = Process::with_files(&prefix, &files);
                if is_open {
                    process.run("file = open('/dev/infiniband/uverbs0')");
                }
                let (is_tcp, device) = (transport == transports[2], device.as_deref());
                let is_lo = device.is_some_and(|device| device.ends_with("=lo"));
                let mut expected = Vec::new();
                expected.extend(is_tcp.then_some(TLS));
                expected.extend((is_tcp && is_open).then_some(OF_OTHERS));
                expected.extend(is_lo.then_some(TCP));
                expected.extend((expected.is_empty() && !is_open).then_some(NONE_OPEN));
                let what = format!("open: {is_open}, {transport:?}, {device:?}");
                cases.push((what, process, None, expected));
            }
        }
    }
    for (is_open, dev, expected) in [
        (true, DEV, vec![MEMLOCK]),
        (false, DEV, vec![MEMLOCK]),
        (false, BARE, vec![LACKS, MEMLOCK]),
    ] {
        let prefix = within(&["prlimit", "--memlock=65536:65536"], dev);
        let mut process = Process::with_files(&prefix, &files);
        // CAP_IPC_LOCK ends with the user id of root.
        process.run(&format!("become({VICTIM})"));
        if is_open {
            process.run("file = open('/dev/infiniband/uverbs0')");
        }
        let what = format!("limit, open: {is_open}, {dev}");
        cases.push((what, process, None, expected));
    }
    for (settings, expected) in [("A=b", NONE_OPEN), ("UCX_TLS=tcp", TLS)] {
        let (process, pid) = titled(settings, &files);
        cases.push((settings.to_owned(), process, Some(pid), vec![expected]));
    }
    let (status, said) = home.check();
    for (what, process, pid, expected) in &cases {
        let pid = pid.unwrap_or_else(|| process.pid());
        assert_eq!(parts(&said, pid), *expected, "{what}: pid {pid}\n{said}");
    }
    assert!(status == 0 && said.contains(", 0 problems, "), "{said}");
}
