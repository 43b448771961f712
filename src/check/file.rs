// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: the line of a ring or a store.

use super::{Line, PROBLEM, Summary};
use crate::discovery::name;
use crate::discovery::scan::Opened;
use crate::procfs::process::{self, Holder};
use crate::procfs::process_scan::{MappingProcess, ProcessScan, topmost, user_name};
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::layout::HEADER_LEN;
use crate::shm::{self, LeaseKind, nonblocking};
use crate::store;
use std::ffi::OsStr;
use std::path::Path;

/// Counts a file in `summary`, and describes it in its line, such as `worker: ring v4, 4096 events, 12 pending, written
/// by pid 4242 (python3) user dynamo`.
pub fn describe(
    opened: &Opened,
    path: &Path,
    process_scan: &ProcessScan,
    summary: &mut Summary,
    line: &mut Line,
) {
    let id = match opened {
        Opened::Ring(candidate) => candidate.facts.id,
        Opened::Store(candidate) => candidate.facts.id,
    };
    if !summary.seen.insert(id) {
        return line.text.push_str("the same file by another path");
    }
    let all = process_scan.processes_of(id, path).into_iter();
    let (daemons, writers): (Vec<_>, Vec<_>) =
        all.partition(|process| process.is_pmdanixl(&summary.daemons));
    let written = writers.iter().fold(String::new(), |text, writer| {
        let user = user_name(writer.uid);
        let command = name::printable(OsStr::new(&writer.command));
        let pid = writer.id.pid;
        format!("{text}, written by pid {pid} ({command}) user {user}")
    });
    let pids = writers.iter().map(|writer| writer.id.pid);
    summary.writers.extend(pids);
    match opened {
        Opened::Ring(candidate) => {
            describe_ring(candidate, &daemons, &writers, &written, summary, line);
        }
        Opened::Store(candidate) => describe_store(candidate, &written, summary, line),
    }
}

/// Describes a store, such as `store of agent "worker", 18 bounds, local rank "0", written by pid 4242 (python3) user
/// dynamo`.
fn describe_store(
    candidate: &store::StoreCandidate,
    written: &str,
    summary: &mut Summary,
    line: &mut Line,
) {
    let description = &candidate.description;
    let bounds = description.bounds.bucket_count() - 1;
    let agent = &description.agent;
    let text = &mut line.text;
    text.push_str(&format!("store of agent {agent:?}, {bounds} bounds"));
    if !description.rank.is_empty() {
        text.push_str(&format!(", local rank {:?}", description.rank));
    }
    let held = process::holder(&candidate.file, LeaseKind::NoWriter);
    text.push_str(match held {
        _ if !written.is_empty() => written,
        Holder::Absent => ", its agent has exited",
        Holder::Present => ", its agent runs, but /proc does not show the process",
        Holder::Unknown => ", no writer seen",
    });
    summary.stores += 1;
    summary.wanted += usize::from(held != Holder::Absent);
}

/// Describes a ring, such as `ring v4, 4096 events, 12 pending, no writer seen`.
fn describe_ring(
    candidate: &RingCandidate,
    daemons: &[&MappingProcess],
    writers: &[&MappingProcess],
    written: &str,
    summary: &mut Summary,
    line: &mut Line,
) {
    let (layout, header) = (candidate.layout, &candidate.header);
    let (capacity, pending) = (header.capacity, header.pending());
    let (text, version) = (&mut line.text, layout.name());
    text.push_str(&format!(
        "ring {version}, {capacity} events, {pending} pending"
    ));
    let is_unused = is_unused(candidate);
    if is_unused {
        text.push_str(", never had an event");
    }
    text.push_str(written);
    if writers.is_empty() {
        text.push_str(", no writer seen");
        if is_unused && process::holder(&candidate.file, LeaseKind::Exclusive) == Holder::Absent {
            text.push_str(": not an instance before its first event");
        }
    }
    // A ring that is only followed may have another consumer.
    if candidate.access != Access::FollowOnly {
        let agents = writers.iter().copied();
        let agents = agents.filter(|process| process.is_agent() && process.id.is_running());
        if topmost(&Vec::from_iter(agents)).len() > 1 {
            line.level = PROBLEM;
            text.push_str(
                ": several processes must not use one ring; give each agent a name or a directory of its own, and end other programs that drain it",
            );
        }
    }
    let is_locked = shm::is_locked(&candidate.file).unwrap_or_default();
    if daemons.is_empty() && is_locked {
        text.push_str(", drained by the process that has it locked");
    }
    for daemon in daemons {
        text.push_str(&format!(", drained by pid {}", daemon.id.pid));
    }
    match candidate.access {
        Access::FollowOnly => text.push_str(", only followed"),
        // The process with the lock is a daemon. It may have rights that this check does not have.
        Access::Denied(errno) if !is_locked => {
            line.level = PROBLEM;
            text.push_str(&format!(
                ", may not be written to ({errno}) and is only followed; run as root or as the user of its agent"
            ));
        }
        Access::Write | Access::Denied(_) => {}
    }
    summary.rings += 1;
    summary.wanted += usize::from(pending > 0 || !writers.is_empty());
}

/// True if no event was ever written to the ring.
fn is_unused(candidate: &RingCandidate) -> bool {
    let header = &candidate.header;
    let mut start = vec![0; HEADER_LEN + 8 * candidate.layout.slot_words()];
    (header.read_pos, header.write_pos) == (0, 0)
        && nonblocking::read_start(&candidate.file, &mut start).is_ok()
        && start[HEADER_LEN..].iter().all(|&byte| byte == 0)
}
