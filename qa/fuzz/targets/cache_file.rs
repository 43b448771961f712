// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: the file of libpcp_pmda with instance ids. With any content before, it has our ids afterwards.

use super::Input;
use pmdanixl::ids::Ids;
use pmdanixl::ids::cache_file::{self, CacheLine};
use std::collections::HashMap;

/// The input is the number of agents, their ids and names, and the file.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut names: HashMap<String, u32> = HashMap::new();
    for _ in 0..input.u8() % 8 {
        let (id, len) = (u32::from(input.u8()), usize::from(input.u8() % 8));
        // A valid name of an agent, and a unique id.
        let name = pmdanixl::discovery::name::instance_name(input.bytes(len));
        if !name.is_empty() && !names.values().any(|&other| other == id) {
            names.insert(name, id);
        }
    }
    // Later than any time in the file, but within the week for which ids are kept.
    let now = u64::from(i32::MAX.unsigned_abs());
    let known: Vec<CacheLine> = names
        .into_iter()
        .map(|(name, id)| CacheLine {
            id,
            seen: now,
            name,
        })
        .collect();
    // The limit of lines.
    let limit = usize::from(input.u8() % 16);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("39.0");
    std::fs::write(&path, input.0).expect("written");

    let taken = || known.iter().map(|line| line.id).collect();
    let read = || {
        let next = known.iter().map(|line| line.id + 1).max().unwrap_or(0);
        let mut ids = Ids::default();
        ids.load(&[], next);
        ids.merge(cache_file::read(&path).expect("there"), &known, now);
        ids
    };
    let mut ids = read();
    let keep = |ids: &Ids| {
        let lines = ids.lines(known.clone(), limit, now);
        let text = cache_file::text(&lines, ids.next());
        cache_file::write(&path, &text).expect("with any content");
    };
    keep(&ids);
    // A name that another program has written may not be UTF-8.
    let bytes = std::fs::read(&path).expect("there");
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.strip_prefix("2 0 2147483647\n").expect("a header");
    assert!(lines.is_empty() || lines.ends_with('\n'));
    let mut found = Vec::new();
    for line in lines.lines() {
        // libpcp_pmda reads id, time and name, and stops at the first invalid line. A name ends at a space.
        let [id, time, name] = *line.splitn(3, ' ').collect::<Vec<_>>() else {
            panic!("{line:?}");
        };
        assert!(line.len() < 1023 && time.bytes().all(|byte| byte.is_ascii_digit()));
        assert!(!name.starts_with([' ', '[', '\t']), "{line:?}");
        let id: i32 = id.parse().expect("an id");
        let name = name.split(' ').next().expect("a name");
        found.push((id.unsigned_abs(), name));
    }
    assert!(found.is_sorted(), "{text:?}");
    // One line has the highest id.
    assert!(found.len() <= limit.max(known.len()) + 1, "{text:?}");
    for (id, name) in known.iter().map(|line| (line.id, line.name.as_str())) {
        let is_same = |found: &&(u32, &str)| found.0 == id || found.1 == name;
        let same: Vec<_> = found.iter().filter(is_same).collect();
        assert_eq!(same, [&(id, name)], "{text:?}");
    }
    // A second write changes nothing.
    keep(&ids);
    assert_eq!(std::fs::read(&path).expect("there"), bytes);
    // The next id is a new one, also for other readers of this file.
    let new = ids.assign("new agent", taken);
    let highest = found.last().map_or(0, |(id, _)| id + 1);
    assert!(new >= Some(highest), "{new:?} {text:?}");
    assert_eq!(read().assign("new agent", taken), new, "{text:?}");
}
