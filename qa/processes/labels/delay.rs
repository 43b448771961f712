// SPDX-License-Identifier: GPL-2.0-or-later

//! How long a new agent waits for its process, also beside processes of another user that cannot be read.

use super::cpu_time;
use crate::support::fleet::is_possible;
use crate::support::other_user::{STRANGER, VICTIM, open_to_all};
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, leave_out, wait_for};
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of agents.
const AGENTS: usize = 100;
/// Time from one to the next.
const PERIOD: Duration = Duration::from_millis(500);
/// Limits: of the median, and of the worst agent beside processes that stall.
const USUAL: Duration = Duration::from_secs(1);
const WORST: Duration = Duration::from_secs(2);

/// Processes of other users.
#[derive(Clone, Copy, Debug)]
enum Others {
    /// None.
    Nobody,
    /// Each has a ring mapped, and its memory cannot be read for so many seconds, or for ever. They are of this many
    /// users.
    Stalled {
        count: usize,
        seconds: Option<f64>,
        users: u32,
    },
    /// They have so many mappings each.
    Large { count: u64, mappings: u64 },
}

impl Others {
    fn start(self, home: &Home) -> Process {
        match self {
            Self::Nobody => Process::peer(),
            Self::Stalled {
                count,
                seconds,
                users,
            } => stall(home, &[], count, seconds, users),
            Self::Large { count, mappings } => {
                let within = ["unshare", "--pid", "--fork", "--kill-child"].map(str::to_owned);
                let mut process = Process::with_files(&within, &[]);
                process.run(&format!("map_pages({mappings})"));
                process.run(&format!("become({STRANGER})"));
                assert_eq!(process.run(&format!("clone({count})")), "None");
                process
            }
        }
    }
}

/// Starts so many processes of so many users, from the stranger on, which have a ring and these files mapped each. A
/// reading of their memory takes so many seconds, or does not end.
pub fn stall(
    home: &Home,
    files: &[PathBuf],
    count: usize,
    seconds: Option<f64>,
    users: u32,
) -> Process {
    // In a mount namespace of its own, which takes the file system along.
    let within = ["unshare", "--mount"].map(str::to_owned);
    let mut process = Process::with_files(&within, files);
    let directory = home.path("fuse");
    fs::create_dir(&directory).expect("made");
    let seconds = seconds.map_or("None".to_owned(), |seconds| seconds.to_string());
    let file = process.run(&format!("(file := fuse.mount({directory:?}, {seconds}))"));
    if file == "-1" {
        leave_out("no FUSE here");
    }
    for number in 0..count {
        let user = STRANGER + u32::try_from(number).expect("few") % users;
        let name = format!("stalled-{number}");
        drop(home.new_ring(&name, 16));
        chown(home.ring(&name), Some(user), Some(user)).expect("root");
        let ring = home.ring(&name);
        let code = format!("map_file({ring:?}); keep_memory_locked(file, {user})");
        process.run(&format!("fork('''{code}''')"));
    }
    process
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

/// Starts agents beside processes of other users, and asserts how long they wait for their labels.
fn measure(others: Others) {
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    let processes = others.start(&home);
    let mut link = Link::open(&home);
    let (begin, before) = (Instant::now(), cpu_time(&mut link));
    let mut delays: Vec<_> = (0..AGENTS)
        .map(|number| delay(&home, &mut link, &format!("agent-{number}")))
        .collect();
    delays.sort_unstable();
    let (median, worst) = (delays[AGENTS / 2], delays[AGENTS - 1]);
    let cpu = (cpu_time(&mut link) - before) as f64 / begin.elapsed().as_micros() as f64;
    println!(
        "{others:?}: median {median:?}, worst {worst:?}, {:.1} % of a CPU",
        cpu * 100.0
    );
    let most = match others {
        Others::Nobody => USUAL,
        _ => WORST,
    };
    assert!(median <= USUAL && worst <= most, "{median:?} {worst:?}");
    if matches!(others, Others::Stalled { seconds: None, .. }) {
        wait_for("what stalls is named", || {
            let is_named = |log: String| log.contains("reading its memory blocks, so it was");
            is_named(home.log()).then_some(())
        });
    }
    drop(processes);
}

#[test]
#[ignore = "elapsed times"]
fn new_agent_is_labelled_within_a_second() {
    if is_possible() {
        measure(Others::Nobody);
    }
}

#[test]
#[ignore = "elapsed times"]
fn new_agent_is_labelled_within_2_seconds_beside_processes_that_block() {
    if !is_possible() {
        return;
    }
    for (count, seconds, users) in [
        (1, None, 1),
        (10, None, 1),
        (24, None, 24),
        (200, Some(9.0), 1),
        (200, Some(0.9), 1),
    ] {
        measure(Others::Stalled {
            count,
            seconds,
            users,
        });
    }
}

#[test]
#[ignore = "elapsed times"]
fn new_agent_is_labelled_within_2_seconds_beside_large_processes() {
    if is_possible() {
        measure(Others::Large {
            count: 4000,
            mappings: 5000,
        });
    }
}

/// The user has processes that take long to read, and another one has thousands.
#[test]
#[ignore = "elapsed times"]
fn new_agent_of_a_user_with_many_processes_is_labelled_within_2_seconds() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    let mut victim = Process::peer();
    victim.run("map_pages(2000)");
    victim.run(&format!("fork('become({VICTIM})', 40)"));
    let mut link = Link::open(&home);
    let mut delays = |count: usize, of: &str| {
        let mut delays: Vec<_> = (0..count)
            .map(|number| {
                let (name, begin) = (format!("{of}-{number}"), Instant::now());
                let hidden = home.path(&name);
                let mut ring = RingWriter::create(&hidden, Layout::V4, 16).expect("a ring");
                assert!(ring.push(Kind::TxBytes, 1));
                drop(ring);
                chown(&hidden, Some(VICTIM), Some(VICTIM)).expect("root");
                let code = format!("fork('map_file({hidden:?}); become({VICTIM})')");
                let maps = format!("/proc/{}/maps", victim.number(&code));
                wait_for("it has the file mapped", || {
                    let maps = fs::read_to_string(&maps).ok()?;
                    maps.contains(&name).then_some(())
                });
                let mapped = begin.elapsed();
                fs::rename(&hidden, home.ring(&name)).expect("ours");
                wait_for("the process is known", || {
                    let pids = link.values("agent.pid").ok()?;
                    pids.contains_key(&name).then_some(())
                });
                let delay = begin.elapsed() - mapped;
                sleep(PERIOD.saturating_sub(delay));
                delay
            })
            .collect();
        delays.sort_unstable();
        println!(
            "{of}: median {:?}, worst {:?}",
            delays[count / 2],
            delays[count - 1]
        );
        assert!(delays[count - 1] <= WORST, "{delays:?}");
    };
    delays(20, "alone");
    let mut stranger = Process::peer();
    stranger.run(&format!("become({STRANGER})"));
    assert_eq!(stranger.run("clone(2500)"), "None");
    delays(40, "beside-2500");
}
