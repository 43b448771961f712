//! What a NIXL agent reports: the event types and their sums.

/// One kind of telemetry event. The numbers are those of the wire from ring version 2 on
/// (`nixl_telemetry_event_type_t` in NIXL's `telemetry_event.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum EventType {
    /// Bytes of one completed WRITE.
    TxBytes = 0,
    /// Bytes of one completed READ.
    RxBytes = 1,
    /// One completed WRITE.
    TxRequests = 2,
    /// One completed READ.
    RxRequests = 3,
    /// Bytes of one registration call.
    MemoryRegistered = 4,
    /// Bytes of one deregistration call.
    MemoryDeregistered = 5,
    /// Microseconds from the start of a transfer to its completion.
    XferTime = 6,
    /// Microseconds from the start of a transfer until the backend had taken it.
    XferPostTime = 7,
    /// `NIXL_ERR_NOT_POSTED`.
    NotPosted = 8,
    /// `NIXL_ERR_INVALID_PARAM`.
    InvalidParam = 9,
    /// `NIXL_ERR_BACKEND`.
    Backend = 10,
    /// `NIXL_ERR_NOT_FOUND`.
    NotFound = 11,
    /// `NIXL_ERR_MISMATCH`.
    Mismatch = 12,
    /// `NIXL_ERR_NOT_ALLOWED`.
    NotAllowed = 13,
    /// `NIXL_ERR_REPOST_ACTIVE`.
    RepostActive = 14,
    /// `NIXL_ERR_UNKNOWN`.
    Unknown = 15,
    /// `NIXL_ERR_NOT_SUPPORTED`.
    NotSupported = 16,
    /// `NIXL_ERR_REMOTE_DISCONNECT`.
    RemoteDisconnect = 17,
    /// `NIXL_ERR_CANCELED`.
    Canceled = 18,
    /// `NIXL_ERR_NO_TELEMETRY`.
    NoTelemetry = 19,
    /// Events lost in the agent's staging queue since its last flush; ring version 4.
    EventsDropped = 20,
}

impl EventType {
    /// How many event types there are.
    pub const COUNT: usize = 21;

    /// All of them, in the order of their numbers.
    pub const ALL: [EventType; Self::COUNT] = [
        EventType::TxBytes,
        EventType::RxBytes,
        EventType::TxRequests,
        EventType::RxRequests,
        EventType::MemoryRegistered,
        EventType::MemoryDeregistered,
        EventType::XferTime,
        EventType::XferPostTime,
        EventType::NotPosted,
        EventType::InvalidParam,
        EventType::Backend,
        EventType::NotFound,
        EventType::Mismatch,
        EventType::NotAllowed,
        EventType::RepostActive,
        EventType::Unknown,
        EventType::NotSupported,
        EventType::RemoteDisconnect,
        EventType::Canceled,
        EventType::NoTelemetry,
        EventType::EventsDropped,
    ];

    /// The type behind a name in a v1 or v2-named slot (NIXL 0.5 to 1.1): counters by their event name, errors by their
    /// status text.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let at = NAMES.iter().position(|known| known.as_bytes() == name)?;
        Some(Self::ALL[at])
    }

    /// The type of that number.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        // Not taken from the list, so that nothing is loaded: the compiler sees that it is the number again.
        Some(match number {
            0 => Self::TxBytes,
            1 => Self::RxBytes,
            2 => Self::TxRequests,
            3 => Self::RxRequests,
            4 => Self::MemoryRegistered,
            5 => Self::MemoryDeregistered,
            6 => Self::XferTime,
            7 => Self::XferPostTime,
            8 => Self::NotPosted,
            9 => Self::InvalidParam,
            10 => Self::Backend,
            11 => Self::NotFound,
            12 => Self::Mismatch,
            13 => Self::NotAllowed,
            14 => Self::RepostActive,
            15 => Self::Unknown,
            16 => Self::NotSupported,
            17 => Self::RemoteDisconnect,
            18 => Self::Canceled,
            19 => Self::NoTelemetry,
            20 => Self::EventsDropped,
            _ => return None,
        })
    }

    /// NIXL's name for the status that an error stands for; `None`: it is no error.
    #[must_use]
    pub fn status(self) -> Option<&'static str> {
        let name = NAMES.get(self as usize)?;
        name.starts_with("NIXL_ERR_").then_some(*name)
    }

    /// Those that stand for errors.
    #[must_use]
    pub fn errors() -> &'static [EventType] {
        &Self::ALL[Self::NotPosted as usize..=Self::NoTelemetry as usize]
    }
}

/// What v1 and v2-named slots call the types, in the order of their numbers; drops they do not have.
const NAMES: [&str; EventType::COUNT - 1] = [
    "agent_tx_bytes",
    "agent_rx_bytes",
    "agent_tx_requests_num",
    "agent_rx_requests_num",
    "agent_memory_registered",
    "agent_memory_deregistered",
    "agent_xfer_time",
    "agent_xfer_post_time",
    "NIXL_ERR_NOT_POSTED",
    "NIXL_ERR_INVALID_PARAM",
    "NIXL_ERR_BACKEND",
    "NIXL_ERR_NOT_FOUND",
    "NIXL_ERR_MISMATCH",
    "NIXL_ERR_NOT_ALLOWED",
    "NIXL_ERR_REPOST_ACTIVE",
    "NIXL_ERR_UNKNOWN",
    "NIXL_ERR_NOT_SUPPORTED",
    "NIXL_ERR_REMOTE_DISCONNECT",
    "NIXL_ERR_CANCELED",
    "NIXL_ERR_NO_TELEMETRY",
];

/// The greatest value that an event can have. No transfer is of 64 PiB or takes 2,000 years: a greater one is what another
/// layout has in that place (two agents of one name and of two versions write to one file), or a stranger's, and one of them
/// would keep a sum at its end for good.
pub const MAX_VALUE: u64 = (1 << 56) - 1;

/// One event, as it was copied from its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it tells of; `None`: a type that this build does not know for the ring's version, or a value that cannot be.
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

/// Sums of event values by type, and how many events no type was known for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// In the order of the types; the last is that of the unknown.
    sums: [u64; Self::WORDS],
}

impl Totals {
    /// Words of [`Totals::to_words`].
    pub const WORDS: usize = EventType::COUNT + 1;

    /// Counts one event.
    #[inline]
    pub fn count(&mut self, event: Event) {
        // One way for all, since a processor cannot guess which type comes next.
        let (at, more) = match event.kind {
            Some(kind) => (kind as usize, event.value),
            None => (EventType::COUNT, 1),
        };
        // Stays at the most that there is: were it to wrap, one absurd value in a stranger's ring would take the sums of the
        // whole host back.
        self.sums[at] = self.sums[at].saturating_add(more);
    }

    /// What a store has by event type.
    #[must_use]
    pub fn from_store(by_type: &[u64; EventType::COUNT]) -> Self {
        let mut totals = Self::default();
        totals.sums[..EventType::COUNT].copy_from_slice(by_type);
        totals
    }

    /// Adds a batch to what was there before.
    pub fn add(&mut self, batch: &Totals) {
        for (sum, more) in self.sums.iter_mut().zip(batch.sums) {
            *sum = sum.saturating_add(more);
        }
    }

    /// What there was before something was added.
    pub fn subtract(&mut self, part: &Totals) {
        for (sum, less) in self.sums.iter_mut().zip(part.sums) {
            *sum = sum.saturating_sub(less);
        }
    }

    /// The sum of all values of one type.
    #[must_use]
    pub fn get(&self, event: EventType) -> u64 {
        self.sums[event as usize]
    }

    /// All of it as words: the sums in the order of the types, then how many events were unknown.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        self.sums
    }

    /// The reverse of [`Totals::to_words`].
    #[must_use]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Self {
        Self { sums: *words }
    }

    /// How many events were of a type that this build does not know.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.sums[EventType::COUNT]
    }
}

/// Events that are added up at once: so many of the greatest value stay below 2^64.
const CHUNK: usize = 1 << 8;
/// More than there are types, with the unknown one: a power of two.
const TYPES: usize = (EventType::COUNT + 1).next_power_of_two();

/// Events in their order, and what they come to: added up on the way, while they are at hand.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Room for events, of which the first are those that there are: it stays when they go.
    buffer: Vec<Event>,
    len: usize,
    totals: Totals,
}

impl Events {
    /// These.
    #[must_use]
    pub fn of(events: &[Event]) -> Self {
        let mut all = Self::default();
        all.extend::<1, _>(events, |event| event[0]);
        all
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.len = 0;
        self.totals = Totals::default();
    }

    /// Adds one behind the last for each slot of N words. One whose value cannot be ([`MAX_VALUE`]) is of no known type.
    #[inline]
    pub fn extend<const N: usize, W>(&mut self, words: &[W], mut event: impl FnMut(&[W]) -> Event) {
        let (start, end) = (self.len, self.len + words.len() / N);
        if end > self.buffer.len() {
            self.buffer.resize(end, Event::new(None, 0));
        }
        let chunks = self.buffer[start..end].chunks_mut(CHUNK);
        for (events, words) in chunks.zip(words.chunks(N * CHUNK)) {
            // Added as if all were of known types and could be, which is looked at once for all of them.
            let (mut sums, mut types, mut bits) = ([0_u64; TYPES], 0_u32, 0_u64);
            for (event_of, slot) in events.iter_mut().zip(words.chunks_exact(N)) {
                *event_of = event(slot);
                // As great as it is for the compiler to see that it is within bounds.
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

    /// All of them.
    #[must_use]
    pub fn list(&self) -> &[Event] {
        &self.buffer[..self.len]
    }

    /// What they come to.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let name = NAMES.get(kind as usize).map(|name| name.as_bytes());
            assert_eq!(name.and_then(EventType::from_name), name.map(|_| kind));
            assert_eq!(kind.status().is_some(), EventType::errors().contains(&kind));
        }
        assert_eq!(EventType::errors().len(), 12);
        assert_eq!(EventType::Canceled.status(), Some("NIXL_ERR_CANCELED"));
    }

    #[test]
    fn a_sum_stays_at_the_most_and_never_goes_back() {
        let tx_bytes = |value| Event::new(Some(EventType::TxBytes), value);
        let mut totals = Totals::default();
        for value in [7, u64::MAX, 7] {
            totals.count(tx_bytes(value));
        }
        assert_eq!(totals.get(EventType::TxBytes), u64::MAX);
        totals.add(Events::of(&[tx_bytes(3), Event::new(None, 99)]).totals());
        assert_eq!(totals.get(EventType::TxBytes), u64::MAX);
        assert_eq!(totals.unknown(), 1);
        totals.add(&Totals::from_words(&[u64::MAX; Totals::WORDS]));
        assert_eq!(totals.to_words(), [u64::MAX; Totals::WORDS]);
    }

    #[test]
    fn what_many_come_to_is_what_each_comes_to() {
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..200 {
            let mut event = || {
                // Of known types with great values; in some rounds also what cannot be.
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
