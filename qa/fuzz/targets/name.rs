// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: instance names, made from file names that untrusted users choose.

use super::{Input, assert_instance_name};
use pmdanixl::discovery::name::{instance_name, instance_names};
use std::collections::HashSet;
use std::path::Path;

/// The input is a few agents: a directory with or without a label, and the raw name.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut agents = Vec::new();
    while !input.is_empty() && agents.len() < 16 {
        let (place, len) = (input.u8(), usize::from(input.u8()));
        // A valid file name.
        let raw: Vec<u8> = input
            .bytes(len)
            .iter()
            .map(|&byte| match byte {
                0 | b'/' => b'_',
                byte => byte,
            })
            .collect();
        if !raw.is_empty() {
            agents.push((place, raw));
        }
    }

    let mut instances = HashSet::new();
    for (place, raw) in &agents {
        let name = instance_name(raw);
        assert_instance_name(&name);
        assert!(name.len() <= 200, "{name}");
        // Two agents have equal names only if their raw names are equal, or if a name was truncated.
        let cut = name.len() >= 18 && name.as_bytes()[name.len() - 17] == b'~';
        assert!(cut || unescape(&name) == *raw, "{name} from {raw:?}");

        // Assignment like that for the agents of a host. At most one name is tried for each earlier agent.
        let directory = format!("/dir/{}", place % 4);
        let label = (place & 4 != 0).then_some("label");
        let taken: Vec<String> = instance_names(raw, Path::new(&directory), label)
            .take(agents.len() + 3)
            .collect();
        for candidate in &taken {
            assert_instance_name(candidate);
            assert!(candidate.starts_with(&name));
        }
        let free = taken.into_iter().find(|name| !instances.contains(name));
        assert!(instances.insert(free.expect("a name that is free")));
    }
}

/// Raw name of an instance name.
fn unescape(name: &str) -> Vec<u8> {
    let mut bytes = name.bytes();
    let mut raw = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            raw.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = bytes
                .next()
                .and_then(|digit| char::from(digit).to_digit(16));
            u8::try_from(digit.expect("two digits follow a %")).expect("below 16")
        };
        let (high, low) = (digit(), digit());
        raw.push((high << 4) | low);
    }
    raw
}
