// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: the line of a ring or a store.

use super::{Line, Severity, Summary};
use crate::base::file::FileFacts;
use crate::base::text;
use crate::discovery::scan::Opened;
use crate::procfs::process::Presence;
use crate::procfs::process_scan::MappingProcess;
use crate::procfs::sharers::{MAX_NAMED, Sharers};
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::layout::header;
use crate::shm::{self, LeaseKind, nonblocking};
use crate::store::StoreCandidate;
use std::path::Path;

/// Counts a file in `summary`, and describes it in its line, such as `worker: ring v4, 4096 slots, 12 pending, written
/// by pid 4242 (python3) user dynamo`.
pub fn describe(opened: &Opened, path: &Path, summary: &mut Summary, line: &mut Line) {
    let facts = match opened {
        Opened::Ring(candidate) => candidate.facts,
        Opened::Store(candidate) => candidate.facts,
    };
    let FileFacts { id, .. } = facts;
    if !summary.counted.insert(id) {
        return line.text += "the same file by another path";
    }
    let all = summary
        .seen
        .process_scan
        .processes_of(&facts, path)
        .into_iter();
    let writers: Vec<_> = all
        .filter(|process| !process.info.is_pmdanixl(&summary.daemons))
        .collect();
    // A daemon that may not write to the file does not have it mapped so.
    let mut readers = Vec::new();
    for (&pid, daemon) in &summary.seen.daemons {
        let mut files = daemon.open_files.iter();
        let file = files.find(|(file, _)| *file == id);
        readers.extend(file.map(|&(_, is_locked)| (pid, is_locked)));
    }
    let named = writers.iter().take(MAX_NAMED);
    let mut written = named.fold(String::new(), |text, writer| {
        let user = summary.seen.names.get(writer.info.uid);
        let command = text::printable(&writer.info.command);
        let pid = writer.info.id.pid;
        format!("{text}, written by pid {pid} ({command}) user {user}")
    });
    if writers.len() > MAX_NAMED {
        written += &format!(" and {} more", writers.len() - MAX_NAMED);
    }
    let pids = writers.iter().map(|writer| writer.info.id.pid);
    summary.writers.extend(pids);
    let is_wanted = match opened {
        Opened::Ring(candidate) => {
            summary.rings += 1;
            describe_ring(candidate, &readers, (&writers, &written), line)
        }
        Opened::Store(candidate) => {
            summary.stores += 1;
            describe_store(candidate, &written, &mut line.text)
        }
    };
    summary.wanted += usize::from(is_wanted);
}

/// Describes a store, such as `store of agent "worker", 18 bounds, local rank "0", written by pid 4242 (python3) user
/// dynamo`. Returns true if `max_agents` must have room for it.
fn describe_store(candidate: &StoreCandidate, written: &str, text: &mut String) -> bool {
    let description = &candidate.description;
    let bounds = description.bounds.bucket_count() - 1;
    let agent = &description.agent;
    *text += &format!("store of agent {agent:?}, {bounds} bounds");
    if !description.rank.is_empty() {
        *text += &format!(", local rank {:?}", description.rank);
    }
    let presence = Presence::by_lease(&candidate.file, LeaseKind::NoWriter);
    text.push_str(match presence {
        _ if !written.is_empty() => written,
        Presence::Gone => ", its agent has exited",
        Presence::Writing => ", its agent runs, but /proc does not show the process",
        _ => ", no writer seen",
    });
    presence != Presence::Gone
}

/// Describes a ring, such as `ring v4, 4096 slots, 12 pending, no writer seen`. `readers` are the daemons that have it
/// open, each with true if it has locked the ring. Returns true if `max_agents` must have room for it.
fn describe_ring(
    candidate: &RingCandidate,
    readers: &[(u32, bool)],
    (writers, written): (&[&MappingProcess], &str),
    line: &mut Line,
) -> bool {
    let (layout, header) = (candidate.layout, &candidate.header);
    let (capacity, pending) = (header.capacity, header.pending());
    let (text, version) = (&mut line.text, layout.name());
    *text += &format!("ring {version}, {capacity} slots, {pending} pending");
    let is_unused = is_unused(candidate);
    if is_unused {
        *text += ", never had an event";
    }
    *text += written;
    if writers.is_empty() {
        *text += ", no writer seen";
        if is_unused && Presence::by_lease(&candidate.file, LeaseKind::Exclusive) == Presence::Gone
        {
            *text += ": not an instance before its first event";
        }
    }
    let is_locked = shm::is_locked(&candidate.file).unwrap_or_default();
    let mut is_drained = false;
    for (pid, has_lock) in readers {
        let drains = *has_lock || !is_locked && candidate.access == Access::Write;
        is_drained |= drains;
        let verb = if drains { "drained" } else { "read" };
        *text += &format!(", {verb} by pid {pid}");
    }
    if is_locked && !is_drained {
        *text += ", drained by the process that has it locked";
    }
    if pending + 1 == capacity {
        let (severity, why) = fullness(is_drained || is_locked, !readers.is_empty());
        line.severity = severity;
        text.push_str(why);
    }
    // A ring that is not drained here may have another consumer.
    if candidate.access != Access::ReadOnly {
        let agents = writers.iter().copied();
        let agents =
            agents.filter(|process| process.info.is_agent() && process.info.id.is_running());
        if let Some(sharers) = Sharers::of(&Vec::from_iter(agents)) {
            line.severity = Severity::Problem;
            *text += &format!("; {sharers}");
        }
    }
    match candidate.access {
        Access::ReadOnly => *text += ", not drained or counted, since observe is on",
        // The process with the lock is a daemon. It may have rights that this check does not have.
        Access::Denied(errno) if !is_locked => {
            line.severity = Severity::Problem;
            *text += &format!(
                ", may not be written to ({errno}), so it is not drained or counted; run as root or as the user of its agent"
            );
        }
        Access::Write | Access::Denied(_) => {}
    }
    pending > 0 || !writers.is_empty()
}

/// Returns what a full ring means, by whether a process drains it and whether pmdanixl has it open.
fn fullness(is_drained: bool, is_read: bool) -> (Severity, &'static str) {
    match (is_drained, is_read) {
        (true, _) => (
            Severity::Problem,
            ", full: NIXL drops events; raise NIXL_TELEMETRY_BUFFER_SIZE",
        ),
        (_, true) => (
            Severity::Problem,
            ", full: NIXL drops events; remove observe, or start what is to drain it",
        ),
        _ => (
            Severity::Warning,
            ", full: its agent has filled it, and NIXL drops events until pmdanixl drains it",
        ),
    }
}

/// True if no event was ever written to the ring.
fn is_unused(candidate: &RingCandidate) -> bool {
    let header = &candidate.header;
    let slots = header::BYTES;
    let mut start = vec![0; slots + 8 * candidate.layout.slot_words()];
    (header.read_pos, header.write_pos) == (0, 0)
        && nonblocking::read_start(&candidate.file, &mut start).is_ok()
        && start[slots..].iter().all(|&byte| byte == 0)
}
