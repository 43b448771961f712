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
        Some(match name {
            b"agent_tx_bytes" => Self::TxBytes,
            b"agent_rx_bytes" => Self::RxBytes,
            b"agent_tx_requests_num" => Self::TxRequests,
            b"agent_rx_requests_num" => Self::RxRequests,
            b"agent_memory_registered" => Self::MemoryRegistered,
            b"agent_memory_deregistered" => Self::MemoryDeregistered,
            b"agent_xfer_time" => Self::XferTime,
            b"agent_xfer_post_time" => Self::XferPostTime,
            b"NIXL_ERR_NOT_POSTED" => Self::NotPosted,
            b"NIXL_ERR_INVALID_PARAM" => Self::InvalidParam,
            b"NIXL_ERR_BACKEND" => Self::Backend,
            b"NIXL_ERR_NOT_FOUND" => Self::NotFound,
            b"NIXL_ERR_MISMATCH" => Self::Mismatch,
            b"NIXL_ERR_NOT_ALLOWED" => Self::NotAllowed,
            b"NIXL_ERR_REPOST_ACTIVE" => Self::RepostActive,
            b"NIXL_ERR_UNKNOWN" => Self::Unknown,
            b"NIXL_ERR_NOT_SUPPORTED" => Self::NotSupported,
            b"NIXL_ERR_REMOTE_DISCONNECT" => Self::RemoteDisconnect,
            b"NIXL_ERR_CANCELED" => Self::Canceled,
            b"NIXL_ERR_NO_TELEMETRY" => Self::NoTelemetry,
            _ => return None,
        })
    }
}

/// Sums of event values by type, and how many events no type was known for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    by_type: [u64; EventType::COUNT],
    unknown: u64,
}

impl Totals {
    /// Counts one event. `None` is an event whose type this build does not know for the ring's version.
    pub fn count(&mut self, event: Option<EventType>, value: u64) {
        match event {
            // Wraps as PCP's 64-bit counters do.
            Some(event) => {
                self.by_type[event as usize] = self.by_type[event as usize].wrapping_add(value)
            }
            None => self.unknown += 1,
        }
    }

    /// Adds a batch to what was there before.
    pub fn add(&mut self, batch: &Totals) {
        for (sum, more) in self.by_type.iter_mut().zip(batch.by_type) {
            *sum = sum.wrapping_add(more);
        }
        self.unknown += batch.unknown;
    }

    /// The sum of all values of one type.
    #[must_use]
    pub fn get(&self, event: EventType) -> u64 {
        self.by_type[event as usize]
    }

    /// How many events were of a type that this build does not know.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_stand_at_their_wire_numbers() {
        for (number, event) in EventType::ALL.iter().enumerate() {
            assert_eq!(*event as usize, number);
        }
    }

    #[test]
    fn sums_wrap_as_counters_do() {
        let mut totals = Totals::default();
        totals.count(Some(EventType::TxBytes), u64::MAX);
        let mut batch = Totals::default();
        batch.count(Some(EventType::TxBytes), 3);
        batch.count(None, 99);
        totals.add(&batch);
        assert_eq!(totals.get(EventType::TxBytes), 2);
        assert_eq!(totals.unknown(), 1);
    }
}
