// SPDX-License-Identifier: GPL-2.0-or-later

//! The header of the state file: the sums of expired agents, and a few numbers of the whole file. `records` has the
//! words before these, by which a state file is recognised.
//!
//! To expire an agent, its sums are added here and its record is freed, and a kill may come in between. Therefore the
//! same store that replaces the sums also names the record. The next start frees that record without adding it again.
//! Instance ids of expired agents are never given again, so the next id is stored here too.

use super::commit::TwoEntries;
use crate::base::words::{Words, signed, unsigned, words};
use crate::entry::{Entry, HIGHEST_ID};
use crate::event::Totals;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The sums of expired agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredTotals {
    /// Sums by event type.
    pub totals: Totals,
    /// Number of times that their rings were found full.
    pub overflows: u64,
}
words!(ExpiredTotals: totals, overflows);

impl ExpiredTotals {
    /// Adds the sums of an agent.
    pub fn add(&mut self, entry: &Entry) {
        self.totals.add(&entry.stats.totals);
        self.overflows = self.overflows.saturating_add(entry.overflows);
    }
}

/// Indexes of words in the page.
const ENTRY: TwoEntries = TwoEntries {
    generation: 8,
    entries: [16, 48],
};
/// Words of the sums and of the number of the record that is being freed.
const ENTRY_WORDS: usize = <(ExpiredTotals, Option<u64>)>::MAX;
/// The next instance id.
const NEXT_ID: usize = 80;
/// When the configuration was last read: nanoseconds since the epoch.
const CONFIG_READ: usize = 81;
/// When the newest store was made that no record has any more: nanoseconds since the epoch. One word, so that a kill
/// cannot divide it.
const STORES_UNTIL: usize = 82;
/// When a configuration was last rejected: nanoseconds since the epoch.
const CONFIG_REJECTED: usize = 83;
const SECOND: i64 = 1_000_000_000;
const _: () = assert!(
    ENTRY.entries[0] + ENTRY_WORDS <= ENTRY.entries[1] && ENTRY.entries[1] + ENTRY_WORDS <= NEXT_ID
);

/// A number above all instance ids that were given. 0 if none was written, or if it cannot be right.
pub fn next_id(words: &[AtomicU64]) -> u32 {
    let next = u32::try_from(words[NEXT_ID].load(Relaxed));
    next.ok()
        .filter(|&next| next <= HIGHEST_ID + 1)
        .unwrap_or(0)
}

/// Writes the number above all instance ids that were given.
pub fn set_next_id(words: &[AtomicU64], next: u32) {
    words[NEXT_ID].store(u64::from(next), Relaxed);
}

/// When the newest store was made that no record has any more: seconds and nanoseconds. Zeros: there is none.
pub fn stores_until(words: &[AtomicU64]) -> (i64, i64) {
    let until = signed(words[STORES_UNTIL].load(Relaxed));
    (until / SECOND, until % SECOND)
}

/// Writes when the newest store was made that no record has any more.
pub fn set_stores_until(words: &[AtomicU64], (seconds, nanoseconds): (i64, i64)) {
    let until = seconds.saturating_mul(SECOND).saturating_add(nanoseconds);
    words[STORES_UNTIL].store(unsigned(until), Relaxed);
}

/// When a daemon last read its configuration, as times since the epoch. 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigTimes {
    /// When it read the configuration that it runs with.
    pub read: Duration,
    /// When it last rejected another one.
    pub rejected: Duration,
}

/// Writes when the configuration was last read, and when one was last rejected.
pub fn set_config_times(words: &[AtomicU64], times: ConfigTimes) {
    for (word, when) in [(CONFIG_READ, times.read), (CONFIG_REJECTED, times.rejected)] {
        let nanoseconds = u64::try_from(when.as_nanos()).unwrap_or(u64::MAX);
        words[word].store(nanoseconds, Relaxed);
    }
}

/// Reads from the state file of another process when that last read its configuration.
///
/// # Errors
/// The error of read(2).
pub fn config_times(file: &File) -> io::Result<ConfigTimes> {
    let time = |word: usize| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 8 * word as u64)?;
        Ok::<_, io::Error>(Duration::from_nanos(u64::from_ne_bytes(bytes)))
    };
    Ok(ConfigTimes {
        read: time(CONFIG_READ)?,
        rejected: time(CONFIG_REJECTED)?,
    })
}

/// Reads the sums, and the number of the record that still has to be freed.
pub fn expired(words: &[AtomicU64]) -> (ExpiredTotals, Option<u64>) {
    ENTRY.read(words).unwrap_or_default()
}

/// Replaces the sums and the number of the record that is being freed, with one store.
pub fn set_expired(words: &[AtomicU64], sums: &ExpiredTotals, freed: Option<u64>) {
    ENTRY.replace(words, &(sums.clone(), freed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventType, Events};

    #[test]
    fn partial_sums_do_not_count() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(expired(&words), (ExpiredTotals::default(), None));
        let received = |value| Event::new(Some(EventType::RxBytes), value);
        let sums = |value| ExpiredTotals {
            totals: Events::of(&[received(value)]).totals().clone(),
            overflows: value,
        };
        for (value, freed) in [(1, None), (2, Some(0)), (3, Some(7))] {
            let before = expired(&words);
            let inactive = ENTRY.first(ENTRY.generation(&words) + 1);
            for word in &words[inactive..inactive + ENTRY_WORDS] {
                word.store(0xbad, Relaxed);
                assert_eq!(expired(&words), before);
            }
            set_expired(&words, &sums(value), freed);
            assert_eq!(expired(&words), (sums(value), freed));
        }
    }

    #[test]
    fn times_of_the_configuration_are_read_from_the_file() -> io::Result<()> {
        let words: Vec<AtomicU64> = (0..512).map(AtomicU64::new).collect();
        let times = ConfigTimes {
            read: Duration::from_nanos(7),
            rejected: Duration::from_nanos(9),
        };
        set_config_times(&words, times);
        let words = words.iter().map(|word| word.load(Relaxed).to_ne_bytes());
        let file = tempfile::tempfile()?;
        file.write_all_at(&words.collect::<Vec<_>>().concat(), 0)?;
        assert_eq!(config_times(&file)?, times);
        Ok(())
    }

    #[test]
    fn impossible_next_id_is_0() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        for (word, next) in [
            (0, 0),
            (7, 7),
            (1 << 25, 1 << 25),
            ((1 << 25) + 1, 0),
            (u64::MAX, 0),
        ] {
            words[NEXT_ID].store(word, Relaxed);
            assert_eq!(next_id(&words), next);
        }
    }
}
