// SPDX-License-Identifier: GPL-2.0-or-later

#![no_main]

#[path = "../targets/mod.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::ring::run(input));
