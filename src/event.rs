// SPDX-License-Identifier: GPL-2.0-or-later

//! Telemetry events of a NIXL agent: their types, and the sums by type.

use crate::base::words::{Rest, Words, words};

/// Makes the enum, the list of its types, and their names in v1 and v2-named slots. The number of a type is the one in
/// rings from version 2 on (`nixl_telemetry_event_type_t` in NIXL's `telemetry_event.h`).
macro_rules! event_types {
    ($($(#[doc = $doc:literal])+ $kind:ident = $number:literal $name:literal,)+) => {
        /// The type of a telemetry event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum EventType {
            $($(#[doc = $doc])+ $kind = $number,)+
        }

        impl EventType {
            /// All event types in the order of their numbers.
            pub const ALL: [EventType; Self::COUNT] = [$(Self::$kind),+];

            /// The type with this number.
            #[inline]
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                // A match rather than the list, so that nothing is loaded: the compiler sees that the result is the
                // number itself.
                Some(match number {
                    $($number => Self::$kind,)+
                    _ => return None,
                })
            }
        }

        /// Names of the types in v1 and v2-named slots, in the order of their numbers. Empty: these slots do not have
        /// the type.
        const NAMES: [&str; EventType::COUNT] = [$($name),+];
    };
}

event_types! {
    /// Bytes of one completed WRITE.
    TxBytes = 0 "agent_tx_bytes",
    /// Bytes of one completed READ.
    RxBytes = 1 "agent_rx_bytes",
    /// One completed WRITE.
    TxRequests = 2 "agent_tx_requests_num",
    /// One completed READ.
    RxRequests = 3 "agent_rx_requests_num",
    /// Bytes of one registration call.
    MemoryRegistered = 4 "agent_memory_registered",
    /// Bytes of one deregistration call.
    MemoryDeregistered = 5 "agent_memory_deregistered",
    /// Microseconds from the start of a transfer to its completion.
    XferTime = 6 "agent_xfer_time",
    /// Microseconds from the start of a transfer until the backend had accepted it.
    XferPostTime = 7 "agent_xfer_post_time",
    /// `NIXL_ERR_NOT_POSTED`.
    NotPosted = 8 "NIXL_ERR_NOT_POSTED",
    /// `NIXL_ERR_INVALID_PARAM`.
    InvalidParam = 9 "NIXL_ERR_INVALID_PARAM",
    /// `NIXL_ERR_BACKEND`.
    Backend = 10 "NIXL_ERR_BACKEND",
    /// `NIXL_ERR_NOT_FOUND`.
    NotFound = 11 "NIXL_ERR_NOT_FOUND",
    /// `NIXL_ERR_MISMATCH`.
    Mismatch = 12 "NIXL_ERR_MISMATCH",
    /// `NIXL_ERR_NOT_ALLOWED`.
    NotAllowed = 13 "NIXL_ERR_NOT_ALLOWED",
    /// `NIXL_ERR_REPOST_ACTIVE`.
    RepostActive = 14 "NIXL_ERR_REPOST_ACTIVE",
    /// `NIXL_ERR_UNKNOWN`.
    Unknown = 15 "NIXL_ERR_UNKNOWN",
    /// `NIXL_ERR_NOT_SUPPORTED`.
    NotSupported = 16 "NIXL_ERR_NOT_SUPPORTED",
    /// `NIXL_ERR_REMOTE_DISCONNECT`.
    RemoteDisconnect = 17 "NIXL_ERR_REMOTE_DISCONNECT",
    /// `NIXL_ERR_CANCELED`.
    Canceled = 18 "NIXL_ERR_CANCELED",
    /// `NIXL_ERR_NO_TELEMETRY`.
    NoTelemetry = 19 "NIXL_ERR_NO_TELEMETRY",
    /// Events lost in the agent's staging queue since its last flush; ring version 4.
    EventsDropped = 20 "",
}

impl Words for EventType {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        (*self as u64).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        Self::from_number(u32::get(words)?)
    }
}

impl EventType {
    /// The number of event types.
    pub const COUNT: usize = 21;

    /// The type with this name in a v1 or v2-named slot (NIXL 0.5 to 1.1). Counters have their event name there, errors
    /// their status text.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let at = NAMES.iter().position(|known| known.as_bytes() == name)?;
        Some(Self::ALL[at]).filter(|_| !name.is_empty())
    }

    /// NIXL's name of the status that an error event reports. `None` for a type that is not an error.
    #[must_use]
    pub fn status(self) -> Option<&'static str> {
        let name = NAMES[self as usize];
        name.starts_with("NIXL_ERR_").then_some(name)
    }

    /// The types that report errors.
    #[must_use]
    pub fn errors() -> &'static [EventType] {
        &Self::ALL[Self::NotPosted as usize..=Self::NoTelemetry as usize]
    }
}

/// Highest value of an event. No transfer has 64 PiB or takes 2,000 years. A higher value comes from another layout, if
/// two agents of one name and of two versions write to one file, or from an untrusted user. One of them would saturate
/// a sum for good.
pub const MAX_VALUE: u64 = (1 << 56) - 1;

/// One event, as it was copied from its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its type. `None` if this build does not know the type for the ring's version, or if the value is above
    /// [`MAX_VALUE`].
    pub kind: Option<EventType>,
    /// Its value, in the unit of its type.
    pub value: u64,
}

impl Event {
    /// An event of a type.
    #[must_use]
    pub const fn new(kind: Option<EventType>, value: u64) -> Self {
        Self { kind, value }
    }
}

/// Sums of event values by type, and the number of events without a known type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// In the order of the types. The last is the number of events without a known type.
    sums: [u64; EventType::COUNT + 1],
}
words!(Totals: sums);

impl Totals {
    /// Adds one event.
    #[inline]
    pub fn count(&mut self, event: Event) {
        // No branch by type, since a CPU cannot predict the next type.
        let (at, more) = match event.kind {
            Some(kind) => (kind as usize, event.value),
            None => (EventType::COUNT, 1),
        };
        // Saturates: if it wrapped, one absurd value in the ring of an untrusted user would make the sums of the host
        // go back.
        self.sums[at] = self.sums[at].saturating_add(more);
    }

    /// The totals of a store, from its counters by event type.
    #[must_use]
    pub fn from_store(by_type: &[u64; EventType::COUNT]) -> Self {
        let mut totals = Self::default();
        totals.sums[..EventType::COUNT].copy_from_slice(by_type);
        totals
    }

    /// Adds other totals.
    pub fn add(&mut self, batch: &Totals) {
        for (sum, more) in self.sums.iter_mut().zip(batch.sums) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Subtracts totals that were added before.
    pub fn subtract(&mut self, part: &Totals) {
        for (sum, less) in self.sums.iter_mut().zip(part.sums) {
            *sum = sum.saturating_sub(less);
        }
    }

    /// Sum of all values of one type.
    #[must_use]
    pub fn get(&self, event: EventType) -> u64 {
        self.sums[event as usize]
    }

    /// Number of errors of all types.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let sums = EventType::errors().iter().map(|&kind| self.get(kind));
        sums.fold(0, u64::saturating_add)
    }

    /// The sums in the order of the types, then the number of events without a known type.
    #[must_use]
    pub fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Number of events without a known type.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.sums[EventType::COUNT]
    }
}

/// Events that are summed at once: this many of [`MAX_VALUE`] stay below 2^64.
const CHUNK: usize = 1 << 8;
/// A power of two above the number of types, including the unknown one.
const TYPES: usize = (EventType::COUNT + 1).next_power_of_two();

/// Events in their order, and their totals, which are summed while the events are in the CPU's cache.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Buffer whose first `len` events are valid. It keeps its memory when it is cleared.
    buffer: Vec<Event>,
    len: usize,
    totals: Totals,
}

impl Events {
    /// These events with their totals.
    #[must_use]
    pub fn of(events: &[Event]) -> Self {
        let mut all = Self::default();
        all.extend::<1, _>(events, |event| event[0]);
        all
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.len = 0;
        self.totals = Totals::default();
    }

    /// Appends one event for each slot of N words. An event with a value above [`MAX_VALUE`] has no known type.
    #[inline]
    pub fn extend<const N: usize, W>(&mut self, words: &[W], mut event: impl FnMut(&[W]) -> Event) {
        let (start, end) = (self.len, self.len + words.len() / N);
        if end > self.buffer.len() {
            self.buffer.resize(end, Event::new(None, 0));
        }
        let chunks = self.buffer[start..end].chunks_mut(CHUNK);
        for (events, words) in chunks.zip(words.chunks(N * CHUNK)) {
            // Summed as if all had known types and possible values, which is checked once for all of them.
            let (mut sums, mut types, mut bits) = ([0_u64; TYPES], 0_u32, 0_u64);
            for (event_of, slot) in events.iter_mut().zip(words.chunks_exact(N)) {
                *event_of = event(slot);
                // The remainder lets the compiler see that the index is within bounds.
                let at = event_of.kind.map_or(EventType::COUNT, |kind| kind as usize) % TYPES;
                sums[at] = sums[at].wrapping_add(event_of.value);
                types |= 1 << at;
                bits |= event_of.value;
            }
            if bits <= MAX_VALUE && types >> EventType::COUNT == 0 {
                for (sum, more) in self.totals.sums.iter_mut().zip(sums) {
                    *sum = sum.saturating_add(more);
                }
            } else {
                for event in events {
                    event.kind = event.kind.filter(|_| event.value <= MAX_VALUE);
                    self.totals.count(*event);
                }
            }
        }
        self.len = end;
    }

    /// All events.
    #[must_use]
    pub fn list(&self) -> &[Event] {
        &self.buffer[..self.len]
    }

    /// The totals of all events.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::words::tests::from_words;

    #[test]
    fn types_stand_at_their_wire_numbers() {
        for (number, event) in EventType::ALL.iter().enumerate() {
            assert_eq!(*event as usize, number);
            let number = u32::try_from(number).expect("few");
            assert_eq!(EventType::from_number(number), Some(*event));
        }
        assert_eq!(EventType::from_number(21), None);
    }

    #[test]
    fn names_stand_at_the_numbers_of_their_types() {
        for kind in EventType::ALL {
            let name = NAMES[kind as usize].as_bytes();
            let has_name = kind != EventType::EventsDropped;
            assert_eq!(EventType::from_name(name), has_name.then_some(kind));
            assert_eq!(kind.status().is_some(), EventType::errors().contains(&kind));
        }
        assert_eq!(EventType::errors().len(), 12);
        assert_eq!(EventType::Canceled.status(), Some("NIXL_ERR_CANCELED"));
    }

    #[test]
    fn sum_saturates_and_never_goes_back() {
        let tx_bytes = |value| Event::new(Some(EventType::TxBytes), value);
        let mut totals = Totals::default();
        for value in [7, u64::MAX, 7] {
            totals.count(tx_bytes(value));
        }
        assert_eq!(totals.get(EventType::TxBytes), u64::MAX);
        totals.add(Events::of(&[tx_bytes(3), Event::new(None, 99)]).totals());
        assert_eq!(totals.get(EventType::TxBytes), u64::MAX);
        assert_eq!(totals.unknown(), 1);
        totals.add(&from_words(&[u64::MAX; EventType::COUNT + 1]).expect("words"));
        assert_eq!(totals.sums, [u64::MAX; EventType::COUNT + 1]);
    }

    #[test]
    fn totals_of_many_events_equal_those_of_each() {
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..200 {
            let mut event = || {
                // Known types with high values. Some rounds also have unknown types and impossible values.
                let (odd, number) = (round % 3 == 0 && random.u8(..) == 0, random.u32(..21));
                let number = if odd { random.u32(..) } else { number };
                let most = if odd { u64::MAX } else { MAX_VALUE };
                let value = if round % 2 == 0 {
                    MAX_VALUE
                } else {
                    random.u64(..most)
                };
                Event::new(EventType::from_number(number), value)
            };
            let events: Vec<Event> = (0..round * 5).map(|_| event()).collect();
            let all = Events::of(&events);
            let mut totals = Totals::default();
            for (event, listed) in events.iter().zip(all.list()) {
                let can_be = event.kind.filter(|_| event.value <= MAX_VALUE);
                assert_eq!(*listed, Event::new(can_be, event.value));
                totals.count(*listed);
            }
            assert_eq!((all.list().len(), all.totals()), (events.len(), &totals));
        }
    }
}
