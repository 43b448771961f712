// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 2, slots of 16 bytes: category, type, value (NIXL 1.2).

use super::{Format, halves, numbered};
use crate::event::{Event, EventType};

pub(super) const FORMAT: Format = Format {
    name: "v2",
    version: 2,
    slot_words: 2,
    decode: |slot| {
        Event::new(
            numbered(halves(slot[0])[1], EventType::NoTelemetry),
            slot[1],
        )
    },
};
