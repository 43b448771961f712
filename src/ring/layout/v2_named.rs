// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 2, slots of 48 bytes: category, name, value (NIXL 1.1.0).

use super::{Format, named};
use crate::event::Event;

pub(super) const FORMAT: Format = Format {
    name: "v2 named",
    version: 2,
    slot_words: 6,
    decode: |slot| Event::new(named(&slot[..5]), slot[5]),
};
