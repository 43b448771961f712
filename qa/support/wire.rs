// SPDX-License-Identifier: GPL-2.0-or-later

//! Slot layouts and event types of NIXL's rings.
//!
//! Written from the format, not from `src/`. All integers are little-endian.

use std::str::FromStr;
use std::time::SystemTime;

/// Layout of a slot. The version in the header is not enough: two layouts have version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Time stamp, category, name, value: up to NIXL 1.0.1.
    V1,
    /// Category, name, value: NIXL 1.1.0.
    V2Named,
    /// Category, type, value: NIXL 1.2.0.
    V2,
    /// Type, value: NIXL 1.3.
    V3,
    /// As `V3`, with one more type: NIXL 1.4 and 1.5.
    V4,
}

/// Header of a ring, in words of 8 bytes. `versions` has `version` in its lower half, `expected_version` in its upper.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub write_pos: u64,
    pub read_pos: u64,
    pub versions: u64,
    pub capacity: u64,
    pub mask: u64,
    /// Word behind the header.
    pub first_slot: u64,
}

/// Places of the header's fields.
pub const HEADER: Header = Header {
    write_pos: 0,
    read_pos: 1,
    versions: 2,
    capacity: 3,
    mask: 4,
    first_slot: 5,
};

impl Layout {
    /// All layouts, oldest first.
    pub const ALL: [Self; 5] = [Self::V1, Self::V2Named, Self::V2, Self::V3, Self::V4];

    /// Name, version in the header, bytes per slot.
    fn row(self) -> (&'static str, u32, u64) {
        match self {
            Self::V1 => ("v1", 1, 56),
            Self::V2Named => ("v2named", 2, 48),
            Self::V2 => ("v2", 2, 16),
            Self::V3 => ("v3", 3, 16),
            Self::V4 => ("v4", 4, 16),
        }
    }

    /// Name for `from_str`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Version in the header.
    pub fn version(self) -> u32 {
        self.row().1
    }

    /// Bytes per slot.
    pub fn slot_size(self) -> u64 {
        self.row().2
    }

    /// Bytes of a ring. `None`: larger than a file can be.
    pub fn file_size(self, capacity: u64) -> Option<u64> {
        let slots = self.slot_size().checked_mul(capacity)?;
        slots.checked_add(8 * HEADER.first_slot)
    }

    /// True if slots carry names in place of type numbers.
    pub fn is_named(self) -> bool {
        matches!(self, Self::V1 | Self::V2Named)
    }

    /// Bytes of a slot. `pos` only changes the content of the padding.
    pub fn slot(self, pos: u64, name: &str, raw: u32, category: i32, value: u64) -> Vec<u8> {
        let [raw, category] = [raw.to_le_bytes(), category.to_le_bytes()];
        let value = value.to_le_bytes();
        let mut text = [0; 32];
        let len = name.len().min(31);
        text[..len].copy_from_slice(&name.as_bytes()[..len]);
        // NIXL does not initialise the padding, which most often has halves of addresses from its stack.
        let rubbish = [0x5583_u32, 0x7fff, 0xdead_beef][(pos % 3) as usize].to_le_bytes();
        match self {
            Self::V1 => {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                let stamp = now.as_micros().to_le_bytes();
                [&stamp[..8], &category, &text, &rubbish, &value].concat()
            }
            Self::V2Named => [&category[..], &text, &rubbish, &value].concat(),
            Self::V2 => [&category[..], &raw, &value].concat(),
            Self::V3 | Self::V4 => [&raw[..], &rubbish, &value].concat(),
        }
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::ALL;
        let found = all.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| format!("must be one of {}", all.map(Self::name).join(", ")))
    }
}

macro_rules! kinds {
    ($($kind:ident $name:literal $category:literal)*) => {
        /// Event types. The discriminant is the type number of the numbered layouts.
        #[allow(missing_docs)] // NIXL's own words
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Kind { $($kind),* }

        impl Kind {
            /// All types by type number: eight measures, twelve errors, `EventsDropped`.
            pub const ALL: [Self; 21] = [$(Self::$kind),*];

            /// Name and category by type number.
            const ROWS: [(&str, i32); 21] = [$(($name, $category)),*];
        }
    };
}

kinds! {
    TxBytes "agent_tx_bytes" 1
    RxBytes "agent_rx_bytes" 1
    TxRequests "agent_tx_requests_num" 1
    RxRequests "agent_rx_requests_num" 1
    MemoryRegistered "agent_memory_registered" 0
    MemoryDeregistered "agent_memory_deregistered" 0
    XferTime "agent_xfer_time" 5
    XferPostTime "agent_xfer_post_time" 5
    NotPosted "NIXL_ERR_NOT_POSTED" 4
    InvalidParam "NIXL_ERR_INVALID_PARAM" 4
    Backend "NIXL_ERR_BACKEND" 4
    NotFound "NIXL_ERR_NOT_FOUND" 4
    Mismatch "NIXL_ERR_MISMATCH" 4
    NotAllowed "NIXL_ERR_NOT_ALLOWED" 4
    RepostActive "NIXL_ERR_REPOST_ACTIVE" 4
    Unknown "NIXL_ERR_UNKNOWN" 4
    NotSupported "NIXL_ERR_NOT_SUPPORTED" 4
    RemoteDisconnect "NIXL_ERR_REMOTE_DISCONNECT" 4
    Canceled "NIXL_ERR_CANCELED" 4
    NoTelemetry "NIXL_ERR_NO_TELEMETRY" 4
    EventsDropped "agent_telemetry_events_dropped" 6
}

impl Kind {
    /// The twelve errors by type number.
    #[allow(dead_code)] // qa/producer uses it
    pub fn errors() -> &'static [Self] {
        &Self::ALL[8..20]
    }

    /// Type number.
    pub fn raw(self) -> u32 {
        self as u32
    }

    /// Name in the slots of the named layouts. The name of an error is NIXL's status text.
    pub fn name(self) -> &'static str {
        Self::ROWS[self as usize].0
    }

    /// Category in the slots of the layouts with a category.
    pub fn category(self) -> i32 {
        Self::ROWS[self as usize].1
    }
}
