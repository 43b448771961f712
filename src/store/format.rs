//! The file of a prometheus_mp store: what it says of its agent, and its values (NIXL 1.5.0, `prometheus_mp` exporter).
//!
//! Little-endian, whole 8-byte words but for two halves. What it says of its agent is written once, before the file has its
//! name; the values are changed in place, each atomically. A flush of the agent's events changes the counters first and then the
//! time of the last update.

use crate::error::Refusal;
use crate::event::EventType;
use crate::producer::facts::Facts;
use crate::ring::layout::halves;
use crate::ring::protocol::Load;
use crate::totals::histogram::{MAX_BOUNDS, MAX_BUCKETS};
use crate::totals::ranges::Ranges;
use crate::totals::values::Values;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

/// Bytes of a store.
pub const LEN: usize = 6_800;
/// The same in words.
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
const LAST: usize = COUNTERS + EventType::COUNT;
const HISTOGRAMS: usize = LAST + EventType::COUNT;
// Behind the histograms is a sum for each, which is the counter of the same type once more.
const _: () = assert!(HISTOGRAMS + EventType::COUNT * (MAX_BUCKETS + 1) == WORDS);
const _: () = assert!(BOUNDS + MAX_BOUNDS == COUNTERS);

/// The types that have a histogram.
pub const TIMES: [EventType; 2] = [EventType::XferTime, EventType::XferPostTime];

/// What a store says of its agent, which never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The agent's name, up to 255 bytes: NIXL cuts longer ones.
    pub agent: OsString,
    /// Process id of the writer, in its own PID namespace.
    pub pid: i64,
    /// Number of the agent within its process, from 0.
    pub instance: u64,
    /// What the writer's host is called; empty where NIXL did not know.
    pub host: OsString,
    /// What the variable LOCAL_RANK said, or the one that NIXL_TELEMETRY_RANK_ENV names; empty if there was none.
    pub rank: OsString,
    /// The ranges of both histograms.
    pub ranges: Ranges,
}

/// The words that tell one store from another, and from what is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head([u64; 5]);

/// Whether a file is called as NIXL calls its stores: `nixl.PID.RUN.INSTANCE.mmap`, all three decimal numbers. What NIXL has
/// not finished yet is called otherwise (`*.staging`), or nothing at all.
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

/// True for `nixl-owner.127.0.0.1:19090.lock`: an empty file that NIXL locks beside stores, for the process that serves them
/// over HTTP.
#[must_use]
pub fn is_owner_lock(name: &OsStr, size: u64) -> bool {
    let rest = name.as_bytes().strip_prefix(b"nixl-owner.");
    size == 0 && rest.is_some_and(|rest| rest.ends_with(b".lock"))
}

/// Looks at the first two words: whether it is a store, and of the schema that this build reads.
///
/// # Errors
/// It is not.
pub fn check_schema(words: [u64; 2]) -> Result<(), Refusal> {
    let [magic, _] = words;
    let [schema, slots] = halves(words[SCHEMA_AND_SLOTS]);
    if magic != MAGIC {
        return Err(Refusal::Magic { magic });
    }
    if schema != SCHEMA {
        return Err(Refusal::Schema { schema });
    }
    if slots as usize != EventType::COUNT {
        return Err(Refusal::Slots { slots });
    }
    Ok(())
}

impl Description {
    /// What the store tells of its agent.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let text = |text: &OsStr| {
            Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
        };
        Facts::from([
            ("local_rank", text(&self.rank)),
            ("agent_instance", Some(self.instance.to_string())),
            ("nixl_hostname", text(&self.host)),
        ])
    }

    /// What a whole file says.
    ///
    /// # Errors
    /// What NIXL would not have written.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Self, Refusal> {
        let word = |at: usize| -> u64 {
            let word = bytes[8 * at..].first_chunk();
            u64::from_le_bytes(word.copied().unwrap_or_default())
        };
        check_schema([word(MAGIC_AT), word(SCHEMA_AND_SLOTS)])?;
        let text = |field, from: usize, upto: usize| {
            let bytes = &bytes[8 * from..8 * upto];
            let end = bytes.iter().position(|&byte| byte == 0);
            let end = end.ok_or(Refusal::Text { field })?;
            Ok(OsString::from_vec(bytes[..end].to_vec()))
        };
        let agent = text("agent name", AGENT, HOST)?;
        if agent.is_empty() {
            return Err(Refusal::Text {
                field: "agent name",
            });
        }
        let count = word(BOUND_COUNT);
        let bounds: Vec<f64> = (0..MAX_BOUNDS)
            .map(|at| f64::from_bits(word(BOUNDS + at)))
            .collect();
        let used = usize::try_from(count)
            .ok()
            .and_then(|count| bounds.get(..count));
        Ok(Self {
            agent,
            pid: i64::from_ne_bytes(word(PID).to_ne_bytes()),
            instance: word(INSTANCE),
            host: text("host name", HOST, RANK)?,
            rank: text("local rank", RANK, BOUNDS)?,
            ranges: used.and_then(Ranges::new).ok_or_else(|| Refusal::Bounds {
                wrong: wrong_bounds(count, used),
            })?,
        })
    }
}

/// What is wrong with the bounds of a store: how many it says there are, and those if there is room for so many.
fn wrong_bounds(count: u64, bounds: Option<&[f64]>) -> String {
    let bounds = bounds.unwrap_or_default();
    let mut least = (0.0, "not below");
    for (number, &bound) in (1..).zip(bounds) {
        let (value, what) = least;
        let rises = bound > value || (number == 1 && bound.is_sign_positive() && bound >= value);
        if !bound.is_finite() || !rises {
            return format!(
                "{bound} as bound {number} of {count}, which has to be a number {what} {value}"
            );
        }
        least = (bound, "above");
    }
    format!("{count} histogram bounds, not 1 to {MAX_BOUNDS}")
}

impl Head {
    /// Of a store's words.
    #[must_use]
    pub fn of(words: &[impl Load]) -> Self {
        Self(
            [MAGIC_AT, SCHEMA_AND_SLOTS, PID, INSTANCE, BOUND_COUNT]
                .map(|at| words[at].load(Relaxed)),
        )
    }

    /// The first words of such a store that was changed then.
    #[must_use]
    pub fn with_time(&self, updated: u64) -> [u64; 4] {
        let Self([magic, schema, pid, ..]) = *self;
        let mut words = [0; 4];
        words[MAGIC_AT] = magic;
        words[SCHEMA_AND_SLOTS] = schema;
        words[PID] = pid;
        words[UPDATED] = updated;
        words
    }
}

/// Copies the values out of a store's words.
#[must_use]
pub fn read_values(words: &[impl Load]) -> Values {
    let mut values = Values::NONE;
    // The time is written last, and so it is read first: values that come after it are no older.
    values.updated = words[UPDATED].load(Relaxed);
    // Memory that is mapped for reading only has no stronger load; pairs with NIXL's store of the time.
    fence(Acquire);
    copy(&mut values.counters, &words[COUNTERS..]);
    copy(&mut values.last, &words[LAST..]);
    // The last page, so that a file that was cut short is noticed: what is left of its page would be zeros.
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
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// A store of an agent, with bounds, as NIXL makes it.
    pub(crate) fn store(agent: &str, rank: &str, bounds: &[f64]) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        let mut put =
            |at: usize, word: u64| bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        put(MAGIC_AT, MAGIC);
        put(SCHEMA_AND_SLOTS, (21 << 32) | 1);
        put(PID, 4242);
        put(UPDATED, 5);
        put(INSTANCE, 3);
        put(BOUND_COUNT, bounds.len() as u64);
        for (at, bound) in bounds.iter().enumerate() {
            put(BOUNDS + at, bound.to_bits());
        }
        for at in COUNTERS..WORDS {
            put(at, at as u64);
        }
        for (at, text) in [(AGENT, agent), (HOST, "node-1"), (RANK, rank)] {
            bytes[8 * at..8 * at + text.len()].copy_from_slice(text.as_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Description, Refusal> {
        Description::parse(bytes.try_into().expect("a whole store"))
    }

    #[test]
    fn a_store_says_who_its_agent_is() {
        let said = parse(&store("worker 0", "7", &[0.5, 10.0])).expect("a store");
        let expected = Description {
            agent: "worker 0".into(),
            pid: 4242,
            instance: 3,
            host: "node-1".into(),
            rank: "7".into(),
            ranges: Ranges::new(&[0.5, 10.0]).expect("good"),
        };
        assert_eq!(said, expected);
        let longest = "x".repeat(255);
        assert_eq!(
            parse(&store(&longest, "", &[1.0])).expect("a store").agent,
            *longest
        );
    }

    #[test]
    fn values_are_where_nixl_has_them() {
        let bytes = store("a", "", &[1.0]);
        let words: Vec<AtomicU64> = bytes
            .chunks_exact(8)
            .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().expect("a word"))))
            .collect();
        let values = read_values(&words);
        // Offsets of the format, in bytes: 752, 920 and 1088, where each word holds its place.
        assert_eq!(
            (values.updated, values.counters[0], values.counters[20]),
            (5, 94, 114)
        );
        assert_eq!((values.last[0], values.last[20]), (115, 135));
        let [xfer_time, post_time] = values.histograms;
        assert_eq!(
            (xfer_time[0], xfer_time[32]),
            (136 + 6 * 33, 136 + 6 * 33 + 32)
        );
        assert_eq!(post_time[0], 136 + 7 * 33);
        let head = Head::of(&words);
        words[UPDATED].store(6, Relaxed);
        words[COUNTERS].store(6, Relaxed);
        assert_eq!(Head::of(&words), head);
        words[INSTANCE].store(6, Relaxed);
        assert_ne!(Head::of(&words), head);
    }

    #[test]
    fn what_nixl_would_not_have_written_is_refused_with_its_numbers() {
        let good = store("a", "", &[1.0, 2.0]);
        let spoilt = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            parse(&bytes).expect_err("spoilt").to_string()
        };
        assert!(
            spoilt(0, b'X').contains("0x3153504d4c584958"),
            "{}",
            spoilt(0, b'X')
        );
        assert!(spoilt(8, 2).contains("schema 2"));
        assert!(spoilt(12, 37).contains("37 slots"));
        assert!(spoilt(40, 33).contains("33"));
        assert!(spoilt(40, 0).contains("bounds"));
        assert!(spoilt(48, 0).contains("agent name"));
        let endless = |from: usize, len: usize| {
            let mut bytes = good.clone();
            bytes[from..from + len].fill(b'x');
            parse(&bytes).expect_err("endless").to_string()
        };
        assert!(endless(48, 256).contains("agent name"));
        assert!(endless(304, 128).contains("host name"));
        assert!(endless(432, 64).contains("local rank"));
        for bounds in [
            [2.0, 1.0],
            [1.0, f64::NAN],
            [1.0, f64::INFINITY],
            [-1.0, 1.0],
        ] {
            assert!(parse(&store("a", "", &bounds)).is_err(), "{bounds:?}");
        }
    }

    #[test]
    fn owner_lock_is_an_empty_file_of_that_name() {
        for (name, size, expected) in [
            ("nixl-owner.127.0.0.1:19090.lock", 0, true),
            ("nixl-owner.[::1]:9090.lock", 0, true),
            ("nixl-owner.127.0.0.1:19090.lock", 168, false),
            ("nixl-owner.lock2", 0, false),
            ("nixl.1.2.3.mmap", 0, false),
            ("owner.1.lock", 0, false),
        ] {
            assert_eq!(is_owner_lock(OsStr::new(name), size), expected, "{name}");
        }
    }

    #[test]
    fn only_finished_stores_are_called_so() {
        let is = |name: &str| is_store_name(OsStr::new(name));
        assert!(is("nixl.4242.1795272511722547987.0.mmap") && is("nixl.1.2.3.mmap"));
        for name in [
            "nixl.4242.1795272511722547987.0.mmap.staging",
            "nixl-owner.127.0.0.1:19090.lock",
            "nixl.4242.17.mmap",
            "nixl.x.17.0.mmap",
            "nixl..17.0.mmap",
            "nixl.123456789012345678901.17.0.mmap",
            "nixl.1.2.3.4.mmap",
            "Nixl.1.2.3.mmap",
            "",
        ] {
            assert!(!is(name), "{name}");
        }
    }

    #[test]
    fn it_is_told_which_bound_is_wrong() {
        let wrong = |bounds: &[f64]| {
            let refusal = parse(&store("a", "0", bounds)).expect_err("no store");
            refusal.to_string()
        };
        for (bounds, expected) in [
            (&[][..], "the store has 0 histogram bounds, not 1 to 32; "),
            (
                &[10.0, 5.0, 20.0],
                "5 as bound 2 of 3, which has to be a number above 10; ",
            ),
            (
                &[1.0, 1.0],
                "1 as bound 2 of 2, which has to be a number above 1; ",
            ),
            (&[1.0, f64::NAN], "NaN as bound 2 of 2, "),
            (
                &[f64::INFINITY],
                "inf as bound 1 of 1, which has to be a number not below 0; ",
            ),
            (&[-0.0], "-0 as bound 1 of 1, "),
        ] {
            let said = wrong(bounds);
            assert!(said.contains(expected), "{said}");
            assert!(said.ends_with("remove it, its agent makes another at its next start"));
        }
        let mut many = store("a", "0", &[1.0]);
        many[8 * BOUND_COUNT] = 33;
        let said = parse(&many).expect_err("no store").to_string();
        assert!(said.contains("33 histogram bounds, not 1 to 32"), "{said}");
    }
}
