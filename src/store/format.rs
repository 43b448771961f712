// SPDX-License-Identifier: GPL-2.0-or-later

//! The format of a prometheus_mp store: its description of the agent, and its values (NIXL 1.5.0, exporter
//! `prometheus_mp`).
//!
//! All integers are little-endian, in whole 8-byte words except for two halves. The description is written once, before
//! the file gets its name. The values are changed in place, each atomically. A flush of the agent's events changes the
//! counters first, and then the time of the last update.

use crate::base::words::{signed, unsigned, word_at};
use crate::error::Rejection;
use crate::event::EventType;
use crate::procfs::facts::Facts;
use crate::ring::layout::halves;
use crate::ring::protocol::Load;
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::{MAX_BOUNDS, MAX_BUCKETS};
use crate::stats::store_values::StoreValues;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

/// Bytes of a store.
pub const LEN: usize = 6_800;
/// Words of a store.
pub const WORDS: usize = LEN / 8;
/// `NIXLMPS1`, the first eight bytes.
pub const MAGIC: u64 = 0x3153_504d_4c58_494e;
/// The schema that this build reads.
pub const SCHEMA: u32 = 1;

const MAGIC_AT: usize = 0;
const SCHEMA_AND_SLOTS: usize = 1;
const PID: usize = 2;
const UPDATED: usize = 3;
const INSTANCE: usize = 4;
const BOUND_COUNT: usize = 5;
const AGENT: usize = 6;
const HOST: usize = 38;
const RANK: usize = 54;
const BOUNDS: usize = 62;
const COUNTERS: usize = 94;
/// Behind the counters are the values of the last events.
const HISTOGRAMS: usize = COUNTERS + 2 * EventType::COUNT;
// Behind the histograms is a sum for each, which repeats the counter of the same type.
const _: () = assert!(HISTOGRAMS + EventType::COUNT * (MAX_BUCKETS + 1) == WORDS);
const _: () = assert!(BOUNDS + MAX_BOUNDS == COUNTERS);

/// The event types that have a histogram here.
pub const TIMES: [EventType; 2] = [EventType::XferTime, EventType::XferPostTime];

/// What a store says of its agent. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The agent's name, up to 255 bytes: NIXL truncates longer names.
    pub agent: OsString,
    /// Process id of the writer, in its own PID namespace.
    pub pid: i64,
    /// Number of the agent within its process, from 0.
    pub instance: u64,
    /// Name of the writer's host. Empty if NIXL did not know it.
    pub host: OsString,
    /// Value of the variable LOCAL_RANK, or of the one that NIXL_TELEMETRY_RANK_ENV names. Empty if there was none.
    pub rank: OsString,
    /// The upper bounds of the buckets of both histograms.
    pub bounds: BucketBounds,
}

/// True if NIXL names a store so: `nixl.PID.RUN.INSTANCE.mmap`, with three decimal numbers. A store that NIXL has not
/// finished has another name (`*.staging`) or none.
#[must_use]
pub fn is_store_name(name: &OsStr) -> bool {
    let parts: Vec<&[u8]> = name.as_bytes().split(|&byte| byte == b'.').collect();
    let is_number =
        |part: &[u8]| (1..=20).contains(&part.len()) && part.iter().all(u8::is_ascii_digit);
    match parts[..] {
        [b"nixl", pid, run, instance, b"mmap"] => [pid, run, instance].into_iter().all(is_number),
        _ => false,
    }
}

/// True for `nixl-owner.127.0.0.1:19090.lock`: an empty file beside stores that NIXL locks, for the process that serves
/// them over HTTP.
#[must_use]
pub fn is_owner_lock(name: &OsStr, size: u64) -> bool {
    let rest = name.as_bytes().strip_prefix(b"nixl-owner.");
    size == 0 && rest.is_some_and(|rest| rest.ends_with(b".lock"))
}

impl Description {
    /// The labels that the store gives its agent.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let text = |text: &OsStr| {
            Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
        };
        let mut facts = Facts::default();
        facts.set("local_rank", text(&self.rank));
        facts.set("agent_instance", Some(self.instance));
        facts.set("nixl_hostname", text(&self.host));
        facts
    }

    /// Parses the first bytes of a file of `size` bytes. A store of this schema has no more.
    ///
    /// # Errors
    /// The first check that failed: NIXL would not have written this.
    pub fn parse(bytes: &[u8; LEN], size: u64) -> Result<Self, Rejection> {
        let word = |at| word_at(bytes, at);
        let malformed = |wrong: String| Rejection::Malformed { wrong };
        let (magic, count) = (word(MAGIC_AT), EventType::COUNT);
        let [schema, slots] = halves(word(SCHEMA_AND_SLOTS));
        if magic != MAGIC {
            return Err(Rejection::Magic { magic });
        }
        if schema != SCHEMA {
            return Err(Rejection::Schema { schema });
        }
        if slots as usize != count {
            let wrong = format!("{slots} slots, and schema {SCHEMA} has {count}");
            return Err(malformed(wrong));
        }
        if size != LEN as u64 {
            return Err(Rejection::StoreSize { size });
        }
        let text = |field, from: usize, end: usize| {
            let bytes = &bytes[8 * from..8 * end];
            let end = bytes.iter().position(|&byte| byte == 0);
            let end = end.ok_or_else(|| malformed(format!("no end of the {field}")))?;
            Ok(OsString::from_vec(bytes[..end].to_vec()))
        };
        let agent = text("agent name", AGENT, HOST)?;
        if agent.is_empty() {
            return Err(malformed("no agent name".into()));
        }
        // One more than a store has room for is as wrong as any larger number.
        let count = word(BOUND_COUNT).min(MAX_BOUNDS as u64 + 1);
        let bounds = (BOUNDS..).zip(0..count);
        let bounds: Vec<f64> = bounds.map(|(at, _)| f64::from_bits(word(at))).collect();
        Ok(Self {
            agent,
            pid: signed(word(PID)),
            instance: word(INSTANCE),
            host: text("host name", HOST, RANK)?,
            rank: text("local rank", RANK, BOUNDS)?,
            bounds: BucketBounds::new(&bounds).map_err(malformed)?,
        })
    }
}

/// The words before the time of the last update in a store of this process. They never change.
#[must_use]
pub fn head(pid: i64) -> [u64; UPDATED] {
    let schema_and_slots = (EventType::COUNT as u64) << 32 | u64::from(SCHEMA);
    [MAGIC, schema_and_slots, unsigned(pid)]
}

/// The words before the time of the last update as they are in the file now.
#[must_use]
pub fn read_head(words: &[impl Load]) -> [u64; UPDATED] {
    std::array::from_fn(|at| words[at].load(Relaxed))
}

/// Copies the values from the words of a store.
#[must_use]
pub fn read_values(words: &[impl Load]) -> StoreValues {
    let mut values = StoreValues::NONE;
    // NIXL stores the time last, so it is loaded first: the values that are loaded after it are not older.
    values.updated = words[UPDATED].load(Relaxed);
    // Pairs with NIXL's store of the time. On read-only memory only relaxed loads are defined, so a fence follows a
    // relaxed load.
    fence(Acquire);
    copy(&mut values.counters, &words[COUNTERS..]);
    // A truncated file is noticed only by a load from its last page: the rest of a page that is cut reads as zeros.
    let _ = words[WORDS - 1].load(Relaxed);
    for (histogram, kind) in values.histograms.iter_mut().zip(TIMES) {
        copy(
            histogram,
            &words[HISTOGRAMS + kind as usize * MAX_BUCKETS..],
        );
    }
    values
}

fn copy(to: &mut [u64], from: &[impl Load]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests;
