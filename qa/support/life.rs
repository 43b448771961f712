//! An agent that is killed and restarted on the same file, again and again, and the events that must be counted.
//!
//! Its process (`qa/mortal.rs`) is killed at any instruction, and still the number of its events is known. Each event has its
//! number as value, so the event before `write_pos` is the last one. As for a reader, an event is written when `write_pos` is
//! stored.
//!
//! A restart discards the events in the ring, as NIXL does. Of those, the daemon may have counted the ones that it had not
//! released yet, and the rest is lost. How many is not visible from outside. So for each life, from one start to the next, with
//! `written` events and `pending` of them in the ring before the next start:
//!
//! - the counted events are the first ones, each once. A life has an event type of its own, so its sum is 1 + 2 + ... +
//!   counted: a gap or an event counted twice gives another number.
//! - `written - pending <= counted <= written`; if the ring was empty before the next start, that is exact.

use super::kill::{Dice, kill_child};
use super::{Values, example, wait_for};
use pmdanixl::metrics::{METRICS, ValueSource};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The metrics that sum up events, by type number.
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

/// A life that has ended.
#[derive(Clone, Copy, Debug)]
struct Life {
    written: u64,
    pending: u64,
}

/// The agent.
pub struct Mortal {
    path: PathBuf,
    metrics: Vec<String>,
    process: Option<Child>,
    /// Since the last check; the index is the type of the events.
    lives: Vec<Life>,
    before: Vec<u64>,
    /// Starts of its process; some were killed before they wrote anything.
    pub starts: u64,
    /// Lives that were checked and had to have every event counted.
    pub exact: u64,
    /// Events in rings that a restart wiped.
    pub wiped: u64,
}

impl Mortal {
    /// An agent that was never alive.
    pub fn new(path: PathBuf) -> Self {
        let metrics = event_metrics();
        Self {
            path,
            before: vec![0; metrics.len()],
            metrics,
            process: None,
            lives: Vec::new(),
            starts: 0,
            exact: 0,
            wiped: 0,
        }
    }

    /// Starts a life.
    pub fn start(&mut self, dice: &mut Dice) {
        assert!(self.process.is_none(), "one writer at a time");
        let kind = self.lives.len();
        // Sometimes a larger ring, of which a batch is only a part; from a few events to more than fit.
        let capacity = dice.one_of([512, 512, 512, 16_384]);
        let pause = dice.one_of([0, 20, 200]);
        let process = Command::new(example("mortal"))
            .arg(&self.path)
            .args([capacity, kind as u64, pause].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(process.expect("it was built"));
        self.starts += 1;
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        kill_child(&mut self.process.take().expect("it was started"));
    }

    /// Waits until all is drained that it wrote in a life that has ended.
    pub fn wait_until_drained(&self) {
        wait_for("the ring of a dead agent is drained", || {
            (self.pending() == 0).then_some(())
        });
    }

    /// Notes what the life that was ended last came to, just before the next start.
    pub fn bury(&mut self) {
        let written = self.written(self.lives.len());
        if written == 0 {
            // It did not come so far; the next one has the type that it would have had.
            return;
        }
        let pending = self.pending();
        self.exact += u64::from(pending == 0);
        self.wiped += pending;
        self.lives.push(Life { written, pending });
    }

    /// Lives since the last check; there are no more types than this.
    pub fn is_to_be_checked(&self) -> bool {
        self.lives.len() == self.metrics.len()
    }

    /// Compares what was counted with what was written, after the ring was drained.
    pub fn check(&mut self, values: &Values) {
        if let Some(last) = self.lives.len().checked_sub(1) {
            // A restart wiped events only if the new process got as far as writing.
            if self.written(last) == self.lives[last].written {
                self.lives[last].pending = 0;
            }
        }
        let name = self.path.file_name().expect("a name").to_str();
        let name = name.expect("UTF-8");
        for (kind, metric) in self.metrics.iter().enumerate() {
            let sum = values[metric].get(name).copied().unwrap_or_default();
            let earned = sum.checked_sub(self.before[kind]);
            let earned = earned.unwrap_or_else(|| panic!("{metric} went backwards to {sum}"));
            self.before[kind] = sum;
            let Life { written, pending } = self.lives.get(kind).copied().unwrap_or(Life {
                written: 0,
                pending: 0,
            });
            // The number of events with this sum.
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
        assert_eq!(others, 0, "nobody else reads");
        let resets = values["nixl.ring.resets"][name];
        assert!(
            0 < resets && resets < self.starts,
            "{resets} of {} starts",
            self.starts
        );
    }

    /// Says what became of it.
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

    /// A life of so many events, bytes sent; it ends when all of them were drained.
    pub fn write_and_die(path: &Path, count: u64) {
        let mut mortal = Self::new(path.to_owned());
        let process = Command::new(example("mortal"))
            .arg(path)
            .args([512, 0, 0, count].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.expect("it was built");
        let mut said = [0];
        let output = process.stdout.as_mut().expect("piped");
        output.read_exact(&mut said).expect("it has written all");
        mortal.process = Some(process);
        mortal.kill();
        mortal.wait_until_drained();
    }

    /// Header words of its ring: `write_pos`, `read_pos`, versions, capacity. None: there is none, or it is not set up.
    fn header(&self) -> Option<(File, [u64; 4])> {
        let file = File::open(&self.path).ok()?;
        let mut header = [0; 32];
        file.read_exact_at(&mut header, 0).ok()?;
        let word =
            |at: usize| u64::from_le_bytes(header[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        let words = [0, 1, 2, 3].map(word);
        // A kill between the change of size and header leaves a file that is not a ring, for the daemon too.
        let whole = file.metadata().ok()?.len() == 40 + 16 * words[3];
        (whole && words[2] == ((4 << 32) | 4)).then_some((file, words))
    }

    fn pending(&self) -> u64 {
        self.header()
            .map_or(0, |(_, [write_pos, read_pos, _, capacity])| {
                write_pos.wrapping_sub(read_pos) & (capacity - 1)
            })
    }

    /// The number of the event before `write_pos`, if it is of this life.
    fn written(&self, life: usize) -> u64 {
        let Some((file, [write_pos, _, _, capacity])) = self.header() else {
            return 0;
        };
        let slot = |pos: u64| {
            let mut slot = [0; 16];
            file.read_exact_at(&mut slot, 40 + 16 * pos)
                .expect("a whole ring");
            let kind = u32::from_le_bytes(slot[..4].try_into().expect("4 bytes"));
            let number = u64::from_le_bytes(slot[8..].try_into().expect("8 bytes"));
            (kind as usize == life).then_some(number)
        };
        // The last slot of a ring that was only just set up may be of this type from long ago. The first is not: each life
        // since has written it.
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
