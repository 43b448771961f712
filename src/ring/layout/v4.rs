// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 4, slots of version 3 with event type 20 (NIXL 1.4 and 1.5).

use super::{Format, halves, numbered};
use crate::event::{Event, EventType};

pub(super) const FORMAT: Format = Format {
    name: "v4",
    version: 4,
    slot_words: 2,
    decode: |slot| {
        Event::new(
            numbered(halves(slot[0])[0], EventType::EventsDropped),
            slot[1],
        )
    },
};
