// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 3, slots of 16 bytes: type, padding that NIXL does not clear, value (NIXL 1.3).

use super::{Format, halves, numbered};
use crate::event::{Event, EventType};

pub(super) const FORMAT: Format = Format {
    name: "v3",
    version: 3,
    slot_words: 2,
    decode: |slot| {
        Event::new(
            numbered(halves(slot[0])[0], EventType::NoTelemetry),
            slot[1],
        )
    },
};
