// SPDX-License-Identifier: GPL-2.0-or-later

//! What process scans cost on a host with many processes, whoever asks for them.

use super::cpu_time;
use crate::support::Home;
use crate::support::fleet::is_possible;
use crate::support::other_user::{STRANGER, open_to_all};
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::writer::{Kind, Layout, RingWriter};
use pmdanixl::procfs::process::Usage;
use std::fs;
use std::os::unix::fs::chown;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of processes.
const PROCESSES: u64 = 2000;
/// Time in which a user uses up what is free, and that of the measurement after it.
const TIME: Duration = Duration::from_secs(60);
/// Limit of the part of a CPU that process scans may take.
const MAX_PART: f64 = 0.05;

/// What a stranger does to cause scans, ten times a second.
#[derive(Clone, Copy, Debug)]
enum Asks {
    /// Nothing.
    Nothing,
    /// It makes a ring with a new name.
    NewName,
    /// It touches its ring, which it has open and not mapped.
    Touch,
}

impl Asks {
    fn begin(self, home: &Home, until: Instant) {
        let name = home.ring("touched");
        let _held = fs::File::open(&name);
        for number in 0_i32.. {
            if Instant::now() >= until {
                return;
            }
            match self {
                Self::Nothing => {}
                Self::NewName => {
                    let path = home.ring(number.to_string());
                    let mut ring = RingWriter::create(&path, Layout::V4, 16).expect("a ring");
                    chown(&path, Some(STRANGER), None).expect("root");
                    assert!(ring.push(Kind::TxBytes, 1));
                    drop(ring);
                    // Otherwise there would soon be more agents than may be.
                    fs::remove_file(home.ring((number - 5).to_string())).ok();
                }
                Self::Touch => {
                    let file = fs::OpenOptions::new().append(true).open(&name);
                    file.and_then(|file| file.set_len(file.metadata()?.len()))
                        .expect("ours");
                }
            }
            sleep(Duration::from_millis(100));
        }
    }
}

/// CPU time of the PMDA so far, and of the observer and its workers, in microseconds.
fn times(link: &mut Link) -> [u64; 2] {
    let all = cpu_time(link);
    [all, all.saturating_sub(Usage::of(link.pid()).cpu)]
}

#[test]
#[ignore = "elapsed times"]
fn process_scans_take_a_twentieth_of_the_time_whoever_asks() {
    if !is_possible() {
        return;
    }
    let mut processes = Process::peer();
    processes.run(&format!("fork('', {PROCESSES})"));
    for asks in [Asks::Nothing, Asks::NewName, Asks::Touch] {
        let home = Home::new();
        open_to_all(home.dir(), 0o755);
        drop(home.new_ring("touched", 16));
        chown(home.ring("touched"), Some(STRANGER), None).expect("root");
        let mut link = Link::open(&home);
        asks.begin(&home, Instant::now() + TIME);
        let (begin, before) = (Instant::now(), times(&mut link));
        asks.begin(&home, begin + TIME);
        let [all, part] = [0, 1].map(|at| {
            let used = times(&mut link)[at] - before[at];
            used as f64 / begin.elapsed().as_micros() as f64
        });
        println!(
            "{asks:?}: {:.1} % of a CPU, of it {:.1} % the observer and its workers",
            all * 100.0,
            part * 100.0
        );
        assert!(part <= MAX_PART, "{part}");
    }
}
