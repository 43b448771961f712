// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 1, slots of 56 bytes: time, category, name, value (NIXL 0.5 to 1.0).

use super::{Format, named};
use crate::event::Event;

pub(super) const FORMAT: Format = Format {
    name: "v1",
    version: 1,
    slot_words: 7,
    decode: |slot| Event::new(named(&slot[1..6]), slot[6]),
};
