//! Answer time of the daemon and its use of the machine, on a machine with other load.

use super::pdu::Link;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Processor time of a thread, and time that it waited for a processor while it could have run. Of a process it is the main
/// thread's: the agent's look through /proc has one of its own.
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

/// Time that the host of a virtual machine kept its processors for itself, in clock ticks.
fn stolen() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("there");
    let field = text.split_whitespace().nth(8);
    field.expect("a line of ten").parse().expect("a number")
}

/// How long an answer took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// The agent's processor time. Too much where it went on with other work while this test waited for a processor.
    pub ran: Duration,
    /// All time.
    pub wall: Duration,
    /// What of that the agent and this test waited for a processor.
    pub waited: Duration,
    /// Whether the machine itself had to wait.
    pub stolen: bool,
}

impl Took {
    /// What the agent is to answer for, as far as that can be known.
    pub fn own(&self) -> Duration {
        self.ran.min(self.wall.saturating_sub(self.waited))
    }

    /// True if the time is certain: no other process had a processor that was needed.
    pub fn is_certain(&self) -> bool {
        !self.stolen && self.waited < Duration::from_millis(1)
    }
}

/// Fetches a metric, and takes the time.
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

/// What the agent uses of the machine.
#[derive(Debug, Default)]
pub struct Use {
    /// Memory that is its own, in KiB.
    pub memory: u64,
    /// All of it, what is mapped included, in KiB.
    pub resident: u64,
    pub descriptors: usize,
    /// Mappings of files in the directory.
    pub mappings: usize,
}

impl Use {
    pub fn of(link: &Link, directory: &Path) -> Self {
        Self::of_process(link.pid(), directory)
    }

    /// The same of any process.
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
            descriptors: fs::read_dir(proc.join("fd")).expect("it runs").count(),
            mappings: read("maps").matches(&place).count(),
        }
    }
}
