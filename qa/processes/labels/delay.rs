// SPDX-License-Identifier: GPL-2.0-or-later

//! How long a new agent waits for its process, also beside processes of another user that cannot be read.

use crate::support::fleet::is_possible;
use crate::support::other_user::{STRANGER, open_to_all};
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, leave_out, wait_for};
use std::fs;
use std::os::unix::fs::chown;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of agents.
const AGENTS: usize = 100;
/// Time from one to the next.
const PERIOD: Duration = Duration::from_millis(500);
/// Limits: of the median, and of the worst agent beside processes that stall.
const USUAL: Duration = Duration::from_secs(1);
const WORST: Duration = Duration::from_secs(2);

/// Processes of another user, each with a ring mapped, whose memory cannot be read for so many seconds, or for ever.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    count: usize,
    seconds: Option<f64>,
}

impl Stalled {
    fn start(self, home: &Home) -> Process {
        // In a mount namespace of its own, which takes the file system along.
        let within = ["unshare", "--mount"].map(str::to_owned);
        let mut process = Process::with_files(&within, &[]);
        let directory = home.path("fuse");
        fs::create_dir(&directory).expect("made");
        let seconds = self
            .seconds
            .map_or("None".to_owned(), |seconds| seconds.to_string());
        let file = process.run(&format!("(file := fuse.mount({directory:?}, {seconds}))"));
        if file == "-1" {
            leave_out("no FUSE here");
        }
        for number in 0..self.count {
            let name = format!("stalled-{number}");
            drop(home.new_ring(&name, 16));
            chown(home.ring(&name), Some(STRANGER), Some(STRANGER)).expect("root");
            let ring = home.ring(&name);
            let code = format!("map_file({ring:?}); keep_memory_locked(file, {STRANGER})");
            process.run(&format!("fork('''{code}''')"));
        }
        process
    }
}

/// Makes an agent, and returns how long it takes until its process is known.
fn delay(home: &Home, link: &mut Link, name: &str) -> Duration {
    let begin = Instant::now();
    let mut ring = RingWriter::create(&home.ring(name), Layout::V4, 16).expect("a ring");
    assert!(ring.push(Kind::TxBytes, 1));
    wait_for("the process is known", || {
        let pids = link.values("agent.pid").ok()?;
        pids.contains_key(name).then_some(())
    });
    let delay = begin.elapsed();
    // More often, its user would ask for more scans than it may.
    sleep(PERIOD.saturating_sub(delay));
    delay
}

#[test]
#[ignore = "elapsed times"]
fn process_of_a_new_agent_is_known_within_a_second_beside_stalled_ones() {
    if !is_possible() {
        return;
    }
    for (count, seconds) in [
        (0, None),
        (1, None),
        (10, None),
        (200, Some(9.0)),
        (200, Some(0.9)),
    ] {
        let stalled = Stalled { count, seconds };
        let home = Home::new();
        open_to_all(home.dir(), 0o755);
        let processes = stalled.start(&home);
        let mut link = Link::open(&home);
        let mut delays: Vec<_> = (0..AGENTS)
            .map(|number| delay(&home, &mut link, &format!("agent-{number}")))
            .collect();
        delays.sort_unstable();
        let (median, worst) = (delays[AGENTS / 2], delays[AGENTS - 1]);
        println!("{stalled:?}: median {median:?}, worst {worst:?}");
        let most = if count == 0 { USUAL } else { WORST };
        assert!(median <= USUAL && worst <= most, "{median:?} {worst:?}");
        if count > 0 && seconds.is_none() {
            wait_for("what stalls is named", || {
                let is_named = |log: String| log.contains("reading its memory blocks, so it was");
                is_named(home.log()).then_some(())
            });
        }
        drop(processes);
    }
}
