// SPDX-License-Identifier: GPL-2.0-or-later

//! An agent that is killed and restarted on one file again and again, and the events that must be counted.
//!
//! The process (`qa/mortal.rs`) is killed at any instruction, and the number of its events is still known. The value of
//! each event is its number, so the event before `write_pos` is the last one. An event counts as written when
//! `write_pos` is stored.
//!
//! A restart discards the events in the ring, as NIXL does. The daemon may have counted some of them without a release
//! yet; the others are lost. The numbers of both are not visible from outside. So the check for each life, which is the
//! time from one start to the next, uses its `written` events and the `pending` ones in the ring before the next start:
//!
//! - The counted events are the first ones, each once. Each life has a separate event type, so its sum is 1 + 2 + ... +
//!   counted. A lost event or an event counted twice gives another number.
//! - `written - pending <= counted <= written`. If the ring was empty before the next start, this is exact.

use super::kill::{Dice, kill_child};
use super::writer::{HEADER, Layout};
use super::{Values, example, wait_for};
use pmdanixl::metrics::{METRICS, ValueSource};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Names of the metrics that are sums of events, by type number.
pub fn event_metrics() -> Vec<String> {
    let mut metrics: Vec<_> = METRICS
        .iter()
        .filter_map(|metric| match metric.source {
            ValueSource::Event(event) => Some((event as usize, format!("nixl.{}", metric.name))),
            _ => None,
        })
        .collect();
    metrics.sort_unstable();
    metrics.into_iter().map(|(_, name)| name).collect()
}

/// Events of a life that has ended.
#[derive(Clone, Copy, Debug)]
struct Life {
    written: u64,
    pending: u64,
}

/// An agent that is killed and restarted, with the expected counts.
pub struct Mortal {
    path: PathBuf,
    layout: Layout,
    metrics: Vec<String>,
    process: Option<Child>,
    /// Lives since the last check. The index is the type of the events.
    lives: Vec<Life>,
    before: Vec<u64>,
    /// Number of starts of the process. Some were killed before they wrote an event.
    pub starts: u64,
    /// Number of lives with every event counted for certain.
    pub exact: u64,
    /// Number of events that restarts discarded.
    pub wiped: u64,
}

impl Mortal {
    /// Does not start the process.
    pub fn new(path: PathBuf, layout: Layout) -> Self {
        let metrics = event_metrics();
        Self {
            path,
            layout,
            before: vec![0; metrics.len()],
            metrics,
            process: None,
            lives: Vec::new(),
            starts: 0,
            exact: 0,
            wiped: 0,
        }
    }

    /// Starts the process.
    pub fn start(&mut self, dice: &mut Dice) {
        assert!(self.process.is_none(), "one writer at a time");
        let kind = self.lives.len();
        // A ring of 16,384 slots is larger than a batch. The pauses give from a few events to more than fit.
        let capacity = dice.one_of([512, 512, 512, 16_384]);
        let pause = dice.one_of([0, 20, 200]);
        let process = Command::new(example("mortal"))
            .arg(&self.path)
            .arg(self.layout.name())
            .args([capacity, kind as u64, pause].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(process.expect("qa/mortal is built"));
        self.starts += 1;
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        kill_child(&mut self.process.take().expect("it was started"));
    }

    /// Waits until the ring of the killed process is empty.
    pub fn wait_until_drained(&self) {
        wait_for("the ring of a dead agent is drained", || {
            (self.pending() == 0).then_some(())
        });
    }

    /// Records the events of the last life, just before the next start.
    pub fn bury(&mut self) {
        let written = self.written(self.lives.len());
        if written == 0 {
            // The process was killed before its first event. The next life reuses its event type.
            return;
        }
        let pending = self.pending();
        self.exact += u64::from(pending == 0);
        self.wiped += pending;
        self.lives.push(Life { written, pending });
    }

    /// True if the lives since the last check have used up the event types.
    pub fn is_to_be_checked(&self) -> bool {
        self.lives.len() == self.metrics.len()
    }

    /// Asserts that the counted events are the written ones. The ring must be empty.
    pub fn check(&mut self, values: &Values) {
        if let Some(last) = self.lives.len().checked_sub(1) {
            // A restart discarded events only if the new process came to write its header.
            if self.written(last) == self.lives[last].written {
                self.lives[last].pending = 0;
            }
        }
        let name = self.path.file_name().expect("a name").to_str();
        let name = name.expect("UTF-8");
        for (kind, metric) in self.metrics.iter().enumerate() {
            let sum = values[metric].get(name).copied().unwrap_or_default();
            let earned = sum.checked_sub(self.before[kind]);
            let earned = earned.unwrap_or_else(|| panic!("{metric} decreased to {sum}"));
            self.before[kind] = sum;
            let Life { written, pending } = self.lives.get(kind).copied().unwrap_or(Life {
                written: 0,
                pending: 0,
            });
            // Number of events with this sum.
            let counted = (8 * u128::from(earned) + 1).isqrt().saturating_sub(1) / 2;
            let counted = u64::try_from(counted).expect("a count");
            assert!(
                u128::from(counted) * u128::from(counted + 1) / 2 == u128::from(earned)
                    && (written - pending..=written).contains(&counted),
                "{metric}: a sum of {earned}, about {counted} events; {written} were written, {pending} of them wiped; {:?}",
                self.lives
            );
        }
        self.lives.clear();
        let others = values["nixl.ring.foreign_reads"][name];
        assert_eq!(others, 0, "foreign reads");
        let resets = values["nixl.ring.resets"][name];
        assert!(
            0 < resets && resets < self.starts,
            "{resets} of {} starts",
            self.starts
        );
    }

    /// Prints the counts, and asserts that enough lives were exact.
    pub fn conclude(&self, kills: u64) {
        let Self {
            starts,
            exact,
            wiped,
            ..
        } = self;
        println!(
            "{starts} starts, {exact} of them with an empty ring before the next, {wiped} events wiped"
        );
        assert!(*exact > kills / 8, "{exact} of {kills}");
    }

    /// Starts a process, kills it after so many TxBytes events, and waits until the ring is empty.
    pub fn write_and_die(path: &Path, count: u64) {
        let mut mortal = Self::new(path.to_owned(), Layout::V4);
        let process = Command::new(example("mortal"))
            .arg(path)
            .arg(Layout::V4.name())
            .args([512, 0, 0, count].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.expect("qa/mortal is built");
        let mut said = [0];
        let output = process.stdout.as_mut().expect("piped");
        output
            .read_exact(&mut said)
            .expect("all events are written");
        mortal.process = Some(process);
        mortal.kill();
        mortal.wait_until_drained();
    }

    /// Header words of the ring: `write_pos`, `read_pos`, versions, capacity. `None` without a complete ring.
    fn header(&self) -> Option<(File, [u64; 4])> {
        let file = File::open(&self.path).ok()?;
        let places = [
            HEADER.write_pos,
            HEADER.read_pos,
            HEADER.versions,
            HEADER.capacity,
        ];
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(places) {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 8 * place).ok()?;
            *word = u64::from_le_bytes(bytes);
        }
        // A kill between ftruncate(2) and the header leaves a file that is not a ring for the daemon either.
        let whole = Some(file.metadata().ok()?.len()) == self.layout.file_size(words[3]);
        let version = u64::from(self.layout.version());
        (whole && words[2] == ((version << 32) | version)).then_some((file, words))
    }

    fn pending(&self) -> u64 {
        self.header()
            .map_or(0, |(_, [write_pos, read_pos, _, capacity])| {
                write_pos.wrapping_sub(read_pos) & (capacity - 1)
            })
    }

    /// Number of the event before `write_pos`, or 0 if that event is of another life.
    fn written(&self, life: usize) -> u64 {
        let Some((file, [write_pos, _, _, capacity])) = self.header() else {
            return 0;
        };
        let slot = |pos: u64| {
            let mut slot = [0; 16];
            let first = 8 * HEADER.first_slot;
            file.read_exact_at(&mut slot, first + 16 * pos)
                .expect("a whole ring");
            let kind = u32::from_le_bytes(slot[..4].try_into().expect("4 bytes"));
            let number = u64::from_le_bytes(slot[8..].try_into().expect("8 bytes"));
            (kind as usize == life).then_some(number)
        };
        // In a new ring, the last slot may still have an old event of this type. The first slot cannot: each later life
        // has written it.
        let last = slot(write_pos.wrapping_sub(1) & (capacity - 1));
        slot(0).and(last).unwrap_or_default()
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
