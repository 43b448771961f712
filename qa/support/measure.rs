// SPDX-License-Identifier: GPL-2.0-or-later

//! Answer time and resource use of the daemon, on a machine with other load.

use super::pdu::Link;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// CPU time of a thread, and time that it waited for a CPU while it was runnable. The schedstat of a
/// process is that of its main thread, so it does not include process scans.
fn spent(schedstat: &str) -> (Duration, Duration) {
    let text = fs::read_to_string(schedstat).expect("it runs");
    let mut fields = text
        .split_whitespace()
        .map(|field| Duration::from_nanos(field.parse().expect("a number")));
    let mut next = || fields.next().expect("three fields");
    (next(), next())
}

fn waited(schedstat: &str) -> Duration {
    spent(schedstat).1
}

/// Steal time of a virtual machine, in clock ticks.
fn stolen() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("there");
    let field = text.split_whitespace().nth(8);
    field.expect("a line of ten").parse().expect("a number")
}

/// Time of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// CPU time of the daemon. Includes other work of the daemon if this test waited for a CPU.
    pub ran: Duration,
    /// Wall-clock time.
    pub wall: Duration,
    /// Part of the wall-clock time in which the daemon or this test waited for a CPU.
    pub waited: Duration,
    /// True if the virtual machine waited for a CPU.
    pub stolen: bool,
}

impl Took {
    /// Upper bound of the time that the daemon itself needed.
    pub fn own(&self) -> Duration {
        self.ran.min(self.wall.saturating_sub(self.waited))
    }

    /// True if the time is certain: daemon and test waited less than 1 ms for a CPU.
    pub fn is_certain(&self) -> bool {
        !self.stolen && self.waited < Duration::from_millis(1)
    }
}

/// Fetches a metric, and measures the time.
pub fn timed(link: &mut Link, metric: &str) -> (BTreeMap<u32, u64>, Took) {
    let own = || waited("/proc/thread-self/schedstat");
    let schedstat = format!("/proc/{}/schedstat", link.pid());
    let (stolen_before, own_before) = (stolen(), own());
    let (ran, waits) = spent(&schedstat);
    let start = Instant::now();
    let mut values = link.fetch(&[metric]).expect("an answer");
    let wall = start.elapsed();
    let (ran_after, waits_after) = spent(&schedstat);
    let took = Took {
        ran: ran_after - ran,
        wall,
        waited: (waits_after - waits) + (own() - own_before),
        stolen: stolen() != stolen_before,
    };
    (values.remove(0), took)
}

/// Resource use of the daemon.
#[derive(Debug, Default)]
pub struct Use {
    /// Anonymous memory, in KiB.
    pub memory: u64,
    /// Resident memory with mapped files, in KiB.
    #[allow(dead_code)] // Debug shows it
    pub resident: u64,
    /// Number of open files without pipes: the worker that reads sockets has two, and runs if any process of the host
    /// uses NIXL.
    pub descriptors: usize,
    /// Number of mappings of files in the directory.
    pub mappings: usize,
}

/// True if a descriptor is a pipe. False if it was closed meanwhile.
fn is_pipe(descriptor: &fs::DirEntry) -> bool {
    let target = fs::read_link(descriptor.path());
    target.is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
}

impl Use {
    pub fn of(link: &Link, directory: &Path) -> Self {
        Self::of_process(link.pid(), directory)
    }

    /// Resource use of any process.
    pub fn of_process(pid: u32, directory: &Path) -> Self {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let read = |name: &str| {
            let bytes = fs::read(proc.join(name)).expect("it runs");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let status = read("status");
        let field = |name: &str| -> u64 {
            let rest = status.lines().find_map(|line| line.strip_prefix(name));
            let number = rest.and_then(|rest| rest.split_whitespace().next());
            number.expect("a number").parse().expect("a number")
        };
        let place = directory.display().to_string();
        Self {
            memory: field("RssAnon:"),
            resident: field("VmRSS:"),
            descriptors: { fs::read_dir(proc.join("fd")).expect("it runs") }
                .filter(|entry| !is_pipe(entry.as_ref().expect("listed")))
                .count(),
            mappings: read("maps").matches(&place).count(),
        }
    }
}
