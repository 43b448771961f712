// SPDX-License-Identifier: GPL-2.0-or-later

//! A simulated NIXL agent: its ring, its pace, and the exact counts of its events.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Error;
use super::options::Options;
use super::stop::Stop;
use super::truth::Truth;
use super::writer::{Kind, RingWriter};

/// Transfers between two checks for signals, if nothing else paces them.
const UNPACED: u64 = 1024;
/// Interval of the checks for room in a full ring.
const RETRY: Duration = Duration::from_millis(1);

/// Simulated agent.
#[derive(Debug)]
pub struct Agent {
    name: OsString,
    path: PathBuf,
    ring: RingWriter,
    registered: bool,
    transfers: u64,
    errors: u64,
    /// Time for which transfers are due.
    paced: Duration,
    random: u64,
    started: Instant,
    truth: Truth,
}

impl Agent {
    /// Creates the ring of the agent with this number.
    pub fn start(options: &Options, index: u64) -> Result<Self, Error> {
        let mut name = options.name.clone();
        if options.agents > 1 {
            name.push(format!("-{index}"));
        }
        let path = options.dir.join(&name);
        Ok(Self {
            name,
            ring: create(&path, options)?,
            path,
            registered: false,
            transfers: 0,
            errors: 0,
            paced: Duration::ZERO,
            random: ((options.seed.wrapping_add(index) << 1) | 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15),
            started: Instant::now(),
            truth: Truth::default(),
        })
    }

    /// Path of the ring.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counts so far.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Pending events in the ring.
    pub fn pending(&self) -> u64 {
        self.ring.pending()
    }

    /// Counts as a line of JSON.
    pub fn json(&self, options: &Options) -> String {
        let name = self.name.to_string_lossy();
        self.truth.json(&name, options.layout.name())
    }

    /// True if all requested transfers are done.
    pub fn is_done(&self, options: &Options) -> bool {
        options.transfers > 0 && self.transfers >= options.transfers
    }

    /// Pushes the transfers that became due in the time that passed.
    pub fn flush(
        &mut self,
        options: &Options,
        passed: Duration,
        stop: &mut Stop,
    ) -> Result<(), Error> {
        let (was_empty, lost) = (self.ring.pending() == 0, self.truth.lost);
        self.register(options, stop)?;
        for _ in 0..self.due(options, passed) {
            let restart = self.transfers.checked_rem(options.restart_every) == Some(0);
            if restart && self.transfers > 0 {
                self.restart(options, stop)?;
            }
            if stop.requested() {
                break;
            }
            self.transfer(options, stop)?;
            self.truth.time = self.started.elapsed();
        }
        if was_empty {
            self.truth.excess += self.truth.lost - lost;
        }
        Ok(())
    }

    /// Ends the agent: its memory is deregistered.
    pub fn finish(&mut self, options: &Options, stop: &mut Stop) -> Result<(), Error> {
        if self.registered {
            self.registered = false;
            self.put(Kind::MemoryDeregistered, options.register, options, stop)?;
        }
        Ok(())
    }

    fn register(&mut self, options: &Options, stop: &mut Stop) -> Result<(), Error> {
        if !self.registered && options.register > 0 {
            self.registered = true;
            self.put(Kind::MemoryRegistered, options.register, options, stop)?;
        }
        Ok(())
    }

    fn due(&mut self, options: &Options, passed: Duration) -> u64 {
        let burst = options.burst.max(1);
        let total = match options.pace {
            None => self.transfers.saturating_add(burst.max(UNPACED)),
            Some(pace) => {
                // A factor of 0 to 2 for each flush varies the rate.
                let factor = if options.vary {
                    (self.random() >> 53) as u32
                } else {
                    1024
                };
                self.paced += passed * factor / 1024;
                u64::try_from(self.paced.as_nanos() / pace.as_nanos()).unwrap_or(u64::MAX)
            }
        };
        let total = total / burst * burst;
        let last = if options.transfers > 0 {
            options.transfers
        } else {
            u64::MAX
        };
        total.min(last).saturating_sub(self.transfers)
    }

    fn transfer(&mut self, options: &Options, stop: &mut Stop) -> Result<(), Error> {
        let read = self.transfers.checked_rem(options.read_every) == Some(0);
        let (bytes, xfer_us, post_us) = self.shape(options);
        for (kind, value) in RingWriter::transfer(read, bytes, xfer_us, post_us) {
            self.put(kind, value, options, stop)?;
        }
        self.transfers += 1;
        let period = if options.transfers > 0 {
            options.transfers
        } else {
            1000
        };
        let due = u128::from(self.transfers) * u128::from(options.errors) / u128::from(period);
        while u128::from(self.errors) < due {
            let turn = (self.errors % 12) as usize;
            self.put(Kind::errors()[turn], 1, options, stop)?;
            self.errors += 1;
        }
        Ok(())
    }

    /// Bytes, transfer time and post time of the next transfer, at about 10 GB/s.
    fn shape(&mut self, options: &Options) -> (u64, u64, u64) {
        if !options.vary {
            return (options.size, 5 + options.size / 10_000, 3);
        }
        // A power of two: 4 KiB to 64 MiB are 14 octaves.
        let octave = 4096 << (self.random() % 14);
        let bytes = octave + self.random() % octave;
        let least = 5 + bytes / 10_000;
        (bytes, least + self.random() % least, 2 + self.random() % 4)
    }

    fn restart(&mut self, options: &Options, stop: &mut Stop) -> Result<(), Error> {
        self.finish(options, stop)?;
        let since = Instant::now();
        while self.ring.pending() > 0 && since.elapsed() < options.full_timeout {
            if stop.sleep(RETRY) {
                return Ok(());
            }
        }
        self.truth.wiped += self.ring.pending();
        self.ring = create(&self.path, options)?;
        self.truth.restarts += 1;
        self.register(options, stop)
    }

    fn put(
        &mut self,
        kind: Kind,
        value: u64,
        options: &Options,
        stop: &mut Stop,
    ) -> Result<(), Error> {
        let mut pushed = self.ring.push(kind, value);
        let since = Instant::now();
        let mut late = false;
        while !pushed && options.wait_if_full && !late && !stop.sleep(RETRY) {
            pushed = self.ring.push(kind, value);
            late = since.elapsed() > options.full_timeout;
        }
        if pushed {
            self.truth.count(kind, value);
            return Ok(());
        }
        self.truth.lost += 1;
        if late {
            return Err(Error::Full {
                path: self.path.clone(),
                seconds: options.full_timeout.as_secs_f64(),
            });
        }
        Ok(())
    }

    /// Next number of a xorshift generator.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn create(path: &Path, options: &Options) -> Result<RingWriter, Error> {
    RingWriter::create(path, options.layout, options.capacity).map_err(|source| Error::Ring {
        path: path.into(),
        source,
    })
}
