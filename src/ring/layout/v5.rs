// SPDX-License-Identifier: GPL-2.0-or-later

//! Version 5 as the pull request nixl#2018 has it: slots of version 4 behind another header.

use super::{Format, HeaderLayout, v4};

pub(super) const FORMAT: Format = Format {
    name: "v5",
    version: 5,
    header: HeaderLayout::SPREAD,
    slot_words: v4::FORMAT.slot_words,
    decode: v4::FORMAT.decode,
    is_experimental: true,
};
