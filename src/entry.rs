// SPDX-License-Identifier: GPL-2.0-or-later

//! What outlives the daemon of an agent: its [`Name`], and an [`Entry`] with totals, lifecycle and checkpoints.
//!
//! `journal` writes both to the state file. The order of the words is a format: whoever changes it changes `FORMAT`
//! there. This module must not know how they are committed.

use crate::base::file::FileId;
use crate::base::words::{WordReader, WordWriter, signed, unsigned};
use crate::procfs::agent_state::AgentState;
use crate::ring::checkpoint::{Checkpoint, RingIdentity};
use crate::ring::layout::MAX_SLOT_WORDS;
use crate::ring::{Fingerprint, ProducerState};
use crate::stats::agent_stats::AgentStats;
use crate::store::{StoreId, StoreReading};

mod lifecycle;
mod name;
pub use lifecycle::Lifecycle;
pub use name::Name;

/// Highest instance id of an agent. Ids of its histograms begin at 64 times this id, and ids in PCP have 31 bits.
pub const HIGHEST_ID: u32 = (1 << 25) - 1;

/// Number of words of an entry.
pub const ENTRY_WORDS: usize =
    AgentStats::WORDS + 22 + Fingerprint::WORDS + MAX_SLOT_WORDS + StoreReading::WORDS + 1;

/// What changes of an agent: totals, lifecycle, and the checkpoints of its ring and its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Totals, histograms and last values of its events.
    pub stats: AgentStats,
    /// True once its events are counted. Before that it has no totals: nothing of a ring that may not be drained is
    /// counted.
    pub is_counted: bool,
    /// Whether the agent is an instance.
    pub lifecycle: Lifecycle,
    /// Whether a process writes to its files, as of the last drain. The state file keeps only whether all processes
    /// have exited.
    pub agent_state: AgentState,
    /// When the agent was last seen: nanoseconds of CLOCK_MONOTONIC.
    pub last_seen: u64,
    /// When its last event was counted, or its last start was found: nanoseconds of CLOCK_MONOTONIC.
    pub last_event: u64,
    /// When the agent was first seen: seconds since 1970.
    pub first_seen: u64,
    /// Number of starts of its producer.
    pub starts: u64,
    /// Number of producer restarts on the same file.
    pub resets: u64,
    /// Events that another reader released before they were counted here.
    pub foreign_reads: u64,
    /// Number of times that its ring was found full.
    pub overflows: u64,
    /// The most events that were found pending.
    pub highwater: u64,
    /// The last batch that the totals include.
    pub checkpoint: Option<Checkpoint>,
    /// The last reading of its store that the totals include.
    pub store: Option<StoreReading>,
}

impl Entry {
    /// The ring of the last counted batch, if it is not known that the batch's slots were released.
    #[must_use]
    pub fn in_flight(&self) -> Option<FileId> {
        let checkpoint = self.checkpoint.as_ref()?;
        checkpoint.is_in_flight().then_some(checkpoint.ring.id)
    }

    /// Counts a producer restart. The count saturates, since a state file may hold any number.
    pub fn add_reset(&mut self) {
        self.resets = self.resets.saturating_add(1);
        self.stats.producer_restarted();
    }

    /// Counts a start of the producer at `stamp`, from which on it is idle. Memory that was registered and transfers
    /// that were begun before it are gone.
    pub fn add_start(&mut self, stamp: u64) {
        self.starts = self.starts.saturating_add(1);
        (self.last_event, self.last_seen) = (stamp, stamp);
        self.stats.producer_restarted();
    }

    /// Counts events that another reader released. Events before them do not pair with events after them.
    pub fn add_foreign_reads(&mut self, events: u64) {
        self.foreign_reads = self.foreign_reads.saturating_add(events);
        self.stats.note_gap();
    }

    /// Notes the number of pending events in a ring of `capacity` slots. A full ring counts as an overflow: its
    /// producer loses the next event.
    pub fn note_pending(&mut self, pending: u64, capacity: u64) {
        self.highwater = self.highwater.max(pending);
        if pending + 1 == capacity {
            self.overflows = self.overflows.saturating_add(1);
        }
    }
}

/// Bits of the first word.
const ACTIVE: u64 = 1;
const LIFECYCLE_EXITED: u64 = 2;
const HAS_CHECKPOINT: u64 = 4;
const RELEASED: u64 = 8;
const SHOWS_CHANGES: u64 = 16;
const HAS_STORE: u64 = 32;
const STATE_EXITED: u64 = 64;
/// Set with [`ACTIVE`].
const AWAITING: u64 = 128;
const IS_COUNTED: u64 = 256;

pub(crate) fn to_words(entry: &Entry) -> [u64; ENTRY_WORDS] {
    let checkpoint = entry.checkpoint.unwrap_or_default();
    let ring = checkpoint.ring;
    let flag = |set, flag| if set { flag } else { 0 };
    let (lifecycle, stamp) = match entry.lifecycle {
        Lifecycle::Dormant => (0, 0),
        Lifecycle::AwaitingLabels { deadline } => (ACTIVE | AWAITING, deadline),
        Lifecycle::Active => (ACTIVE, 0),
        Lifecycle::Exited { since } => (ACTIVE | LIFECYCLE_EXITED, since),
    };
    let flags = lifecycle
        | flag(entry.agent_state == AgentState::Exited, STATE_EXITED)
        | flag(entry.checkpoint.is_some(), HAS_CHECKPOINT)
        | flag(checkpoint.released, RELEASED)
        | flag(ring.shows_changes, SHOWS_CHANGES)
        | flag(entry.is_counted, IS_COUNTED)
        | flag(entry.store.is_some(), HAS_STORE);
    let mut words = [0; ENTRY_WORDS];
    let mut put = WordWriter::new(&mut words);
    entry.stats.put(&mut put);
    put.all([
        flags,
        stamp,
        entry.last_seen,
        entry.last_event,
        entry.first_seen,
        entry.starts,
        entry.resets,
        entry.foreign_reads,
        entry.overflows,
        entry.highwater,
        ring.id.dev,
        ring.id.ino,
        unsigned(ring.born.0),
        unsigned(ring.born.1),
        unsigned(ring.changed.0),
        unsigned(ring.changed.1),
        ring.versions,
        ring.capacity,
        checkpoint.from,
        checkpoint.end,
        checkpoint.producer.write_pos,
        checkpoint.producer.tail_hash,
    ]);
    put.one(checkpoint.fingerprint.hash);
    put.all(checkpoint.fingerprint.last);
    put.all(checkpoint.producer.next);
    let none = StoreReading::none(StoreId::default());
    entry.store.as_ref().unwrap_or(&none).put(&mut put);
    let base = entry.stats.bucket_base;
    put.one(base.map_or(NO_BASE, u64::from));
    words
}

pub(crate) fn from_words(words: &[u64; ENTRY_WORDS]) -> Entry {
    let mut get = WordReader::new(words);
    let stats = AgentStats::get(&mut get);
    let flags = get.one();
    let has = |flag| flags & flag != 0;
    let [stamp, last_seen, last_event, first_seen] = get.all();
    let [starts, resets, foreign_reads, overflows, highwater] = get.all();
    let [dev, ino, born, born_nsec, changed, changed_nsec] = get.all();
    let [versions, capacity] = get.all();
    let [from, end, write_pos, tail_hash] = get.all();
    let ring = RingIdentity {
        id: FileId { dev, ino },
        born: (signed(born), signed(born_nsec)),
        changed: (signed(changed), signed(changed_nsec)),
        shows_changes: has(SHOWS_CHANGES),
        versions,
        capacity,
    };
    let checkpoint = Checkpoint {
        ring,
        from,
        end,
        fingerprint: Fingerprint {
            hash: get.one(),
            last: get.all(),
        },
        producer: ProducerState {
            write_pos,
            next: get.all(),
            tail_hash,
        },
        released: has(RELEASED),
    };
    let mut entry = Entry {
        stats,
        is_counted: has(IS_COUNTED),
        lifecycle: match (has(ACTIVE), has(LIFECYCLE_EXITED), has(AWAITING)) {
            (false, ..) => Lifecycle::Dormant,
            (true, true, _) => Lifecycle::Exited { since: stamp },
            (true, false, true) => Lifecycle::AwaitingLabels { deadline: stamp },
            (true, false, false) => Lifecycle::Active,
        },
        // A ring that is not found after a restart of the daemon may still be written to.
        agent_state: match has(STATE_EXITED) {
            true => AgentState::Exited,
            false => AgentState::Unknown,
        },
        last_seen,
        last_event,
        first_seen,
        starts,
        resets,
        foreign_reads,
        overflows,
        highwater,
        checkpoint: has(HAS_CHECKPOINT).then_some(checkpoint),
        store: Some(StoreReading::get(&mut get)).filter(|_| has(HAS_STORE)),
    };
    let base = u32::try_from(get.one()).ok();
    entry.stats.bucket_base = base.filter(|&base| base <= HIGHEST_ID);
    entry
}

/// The word of an agent without a bucket base.
const NO_BASE: u64 = u64::MAX;
