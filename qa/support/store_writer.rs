// SPDX-License-Identifier: GPL-2.0-or-later

//! Writer of a store of NIXL's `prometheus_mp` exporter, like the agent.
//!
//! Written from the format and the behaviour of the published NIXL wheels, not from `src/`. Every constant is stated
//! again, so that a test checks both sides.
#![allow(unsafe_code, dead_code)] // one view of the mapping is unsafe; each test binary uses a part of the rest

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::linkat;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a store.
pub const LEN: usize = 6800;
/// Indices of words that tests change: schema and slots, process, time of the last update, number of the agent in its
/// process, number of bounds, first bound.
pub const SCHEMA: usize = 1;
pub const PID: usize = 2;
pub const UPDATED: usize = 3;
pub const INSTANCE: usize = 4;
pub const BOUNDS: usize = 5;
pub const FIRST_BOUND: usize = 62;
const COUNTERS: usize = 94;
const LAST: usize = 115;
const COUNTS: usize = 136;
const SUMS: usize = 829;

/// Numbers of event types.
pub const TX_BYTES: usize = 0;
pub const RX_BYTES: usize = 1;
pub const TX_REQUESTS: usize = 2;
pub const REGISTERED: usize = 4;
pub const XFER_TIME: usize = 6;
pub const POST_TIME: usize = 7;
pub const BACKEND: usize = 10;

/// Default bounds of NIXL, in microseconds.
pub const DEFAULT_BOUNDS: [f64; 18] = [
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    25_000.0,
    50_000.0,
    100_000.0,
    250_000.0,
    500_000.0,
    1_000_000.0,
    5_000_000.0,
    10_000_000.0,
];

/// Identity of an agent, as NIXL would read it from the process and its environment.
#[derive(Clone, Debug)]
pub struct Who {
    pub agent: Vec<u8>,
    pub rank: Vec<u8>,
    pub host: Vec<u8>,
    pub pid: u64,
    pub instance: u64,
    pub bounds: Vec<f64>,
}

impl Who {
    /// First agent of this process, without a rank.
    pub fn named(agent: impl AsRef<OsStr>) -> Self {
        Self {
            agent: agent.as_ref().as_bytes().to_vec(),
            rank: Vec::new(),
            host: b"node-1".to_vec(),
            pid: std::process::id().into(),
            instance: 0,
            bounds: DEFAULT_BOUNDS.to_vec(),
        }
    }

    pub fn rank(mut self, rank: impl AsRef<OsStr>) -> Self {
        self.rank = rank.as_ref().as_bytes().to_vec();
        self
    }

    /// Sets another pid, as in a PID namespace.
    pub fn pid(mut self, pid: u64) -> Self {
        self.pid = pid;
        self
    }

    pub fn bounds(mut self, bounds: &[f64]) -> Self {
        self.bounds = bounds.to_vec();
        self
    }

    /// Bytes of the store of this agent before its first event.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        let mut word =
            |at: usize, word: u64| bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        word(0, u64::from_le_bytes(*b"NIXLMPS1"));
        word(SCHEMA, (21 << 32) | 1);
        word(PID, self.pid);
        word(UPDATED, monotonic());
        word(INSTANCE, self.instance);
        word(BOUNDS, self.bounds.len() as u64);
        for (number, bound) in self.bounds.iter().enumerate() {
            word(FIRST_BOUND + number, bound.to_bits());
        }
        for (at, text, most) in [
            (48, &self.agent, 255),
            (304, &self.host, 127),
            (432, &self.rank, 63),
        ] {
            // NIXL truncates longer texts.
            let len = text.len().min(most);
            bytes[at..at + len].copy_from_slice(&text[..len]);
        }
        bytes
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    u64::try_from(now.expect("a clock").as_nanos()).expect("not for centuries")
}

/// Waits for the next clock tick. Files that are made from then on are younger than all others, as those of processes
/// that start one after the other. The time of a file can be later than CLOCK_REALTIME_COARSE, but not than now.
fn wait_for_tick() {
    let coarse = || clock_gettime(ClockId::CLOCK_REALTIME_COARSE).expect("a clock");
    let tick = coarse();
    while coarse() == tick {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Store of one agent, locked and mapped for writing. Dropping it leaves the file, as NIXL does.
#[derive(Debug)]
pub struct StoreWriter {
    map: MmapRaw,
    /// NIXL holds this lock as long as the agent lives.
    locked: Flock<File>,
    path: PathBuf,
    bounds: Vec<f64>,
}

impl StoreWriter {
    /// Makes a store under a new name. The store is complete when the name appears.
    pub fn create(directory: &Path, identity: &Who) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let (pid, instance) = (identity.pid, identity.instance);
        // NIXL puts the start time of the first agent here.
        let run = 1_795_272_511_000_000_000 + u64::from(std::process::id()) * 100_000_000 + made;
        let path = directory.join(format!("nixl.{pid}.{run}.{instance}.mmap"));
        Self::create_at(&path, identity)
    }

    /// Makes a store at `path`. The store is complete when the name appears.
    pub fn create_at(path: &Path, identity: &Who) -> io::Result<Self> {
        wait_for_tick();
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let directory = path.parent().expect("a directory");
        let file = options.custom_flags(nix::libc::O_TMPFILE).open(directory)?;
        let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let locked = locked.map_err(|(_, errno)| io::Error::from(errno))?;
        locked.set_len(LEN as u64)?;
        locked.write_all_at(&identity.bytes(), 0)?;
        let map = MmapOptions::new().len(LEN).map_raw(&*locked)?;
        let nameless = format!("/proc/self/fd/{}", locked.as_raw_fd());
        linkat(
            AT_FDCWD,
            nameless.as_str(),
            AT_FDCWD,
            path,
            AtFlags::AT_SYMLINK_FOLLOW,
        )?;
        Ok(Self {
            map,
            locked,
            path: path.to_owned(),
            bounds: identity.bounds.clone(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn inode(&self) -> u64 {
        self.locked.metadata().expect("open").ino()
    }

    /// Counts a value of an event type, and stores it as the last value. Does not end the flush.
    pub fn count(&self, kind: usize, value: u64) {
        self.word(COUNTERS + kind)
            .fetch_add(value, Ordering::Relaxed);
        if matches!(kind, 0 | 1 | 4..=7) {
            self.word(LAST + kind).store(value, Ordering::Relaxed);
        }
        if matches!(kind, XFER_TIME | POST_TIME) {
            #[allow(clippy::cast_precision_loss, reason = "small in tests")]
            let above = |bound: &f64| *bound < value as f64;
            let range = self.bounds.partition_point(above);
            let count = self.word(COUNTS + 33 * kind + range);
            count.fetch_add(1, Ordering::Relaxed);
            self.word(SUMS + kind).fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Counts a value, and ends the flush.
    pub fn add(&self, kind: usize, value: u64) {
        self.count(kind, value);
        self.flush_at(monotonic());
    }

    /// Ends a flush: stores the time of the update.
    pub fn flush_at(&self, stamp: u64) {
        self.word(UPDATED).store(stamp, Ordering::Release);
    }

    /// Counter of an event type.
    pub fn counter(&self, kind: usize) -> u64 {
        self.word(COUNTERS + kind).load(Ordering::Relaxed)
    }

    /// Writes any word of the store.
    pub fn put(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < LEN / 8, "word {at} outside the store");
        let word = self.map.as_mut_ptr().cast::<u64>().wrapping_add(at);
        // SAFETY: the assertion keeps `word` inside the mapping, which is page-aligned, lives as long as `self`, and is
        // reached through this function only, as atomic words.
        unsafe { AtomicU64::from_ptr(word) }
    }
}
