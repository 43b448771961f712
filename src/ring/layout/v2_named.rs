// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 2, slots of 48 bytes: category, name, value (NIXL 1.1.0).

use super::{Format, HeaderLayout, named};
use crate::event::Event;

pub(super) const FORMAT: Format = Format {
    name: "v2 named",
    version: 2,
    header: HeaderLayout::PACKED,
    slot_words: 6,
    decode: |slot| Event::new(named(&slot[..5]), slot[5]),
    is_experimental: false,
};
