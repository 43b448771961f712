// SPDX-License-Identifier: GPL-2.0-or-later

//! Output of strace(1) for the system calls of the daemon.

use std::collections::BTreeMap;

/// System call in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// Target of the call, in a word or two.
    pub on: String,
    /// Number of the call among those with its name in its thread, from 1.
    pub number: usize,
    /// True if this is the first thread, which does everything but process scans.
    pub is_first: bool,
    /// True if strace made the call fail.
    pub injected: bool,
}

/// Name and target of the call.
pub type Kind = (String, String);

impl Call {
    pub fn kind(&self) -> Kind {
        (self.name.clone(), self.on.clone())
    }
}

/// Calls of a trace with paths (`strace -f -y`), in their order.
pub fn calls(trace: &str) -> Vec<Call> {
    let mut numbers: BTreeMap<(String, String), usize> = BTreeMap::new();
    let (mut calls, mut last) = (Vec::new(), BTreeMap::new());
    let mut first = None;
    for line in trace.lines() {
        // Each line has the thread, then the call.
        let Some((thread, call)) = line.split_once(' ') else {
            continue;
        };
        let is_first = *first.get_or_insert(thread) == thread;
        let injected = call.contains("(INJECTED)");
        // A call of another thread came in between.
        if let (true, Some(&begun)) = (call.contains(" resumed>"), last.get(thread)) {
            let begun: &mut Call = &mut calls[begun];
            begun.injected |= injected;
            continue;
        }
        let Some((name, rest)) = call.trim_start().split_once('(') else {
            continue;
        };
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let place = (thread.to_owned(), name.to_owned());
        let number = numbers.entry(place).or_default();
        *number += 1;
        last.insert(thread, calls.len());
        calls.push(Call {
            name: name.to_owned(),
            on: on(name, rest),
            number: *number,
            is_first,
            injected,
        });
    }
    calls
}

/// Texts in a call, and the names of targets. The first text that a call contains gives its target.
const PLACES: [(&str, &str); 22] = [
    ("F_SETLEASE", "lease"),
    ("F_GETLEASE", "lease"),
    ("F_OFD_SETLK", "lock"),
    ("0<pipe:", "pmcd"),
    ("1<pipe:", "pmcd"),
    ("run/nixl/state", "state"),
    ("\"state\"", "state"),
    ("run/nixl", "directory of the state"),
    ("rings/", "ring"),
    ("<anon_inode:[timerfd]>", "timer"),
    ("<anon_inode:[signalfd]>", "signals"),
    ("config/pmda", "ids"),
    ("nixl.conf", "configuration"),
    ("nixl.log", "log"),
    ("pmda/help", "help"),
    ("boot_id", "boot id"),
    ("pcp.conf", "pcp.conf"),
    ("/etc/passwd", "users"),
    ("/etc/group", "users"),
    ("/etc/nsswitch.conf", "users"),
    ("localtime", "time zone"),
    ("zoneinfo", "time zone"),
];

fn on(name: &str, rest: &str) -> String {
    let place = PLACES.iter().find(|(text, _)| rest.contains(text));
    let is_in_rings = rest.contains("/rings>, \"")
        && !rest.contains("/rings>, \"\"")
        && !rest.contains("/rings>, \".\"");
    match place {
        Some((_, what)) => (*what).to_owned(),
        None if is_in_rings => "ring".into(),
        None if rest.contains("/rings") => "directory of the rings".into(),
        None if rest.contains("/proc") => "proc".into(),
        None if name == "mmap" && rest.contains("MAP_FIXED|MAP_ANONYMOUS") => "broken ring".into(),
        None if name == "mmap" && rest.contains("MAP_ANONYMOUS") => "memory".into(),
        None => String::new(),
    }
}
