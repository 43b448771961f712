//! What `--check` says of a file that is a ring or a store.

use super::Verdict;
use crate::base::file::FileFacts;
use crate::find::{discover, name};
use crate::producer::ancestors;
use crate::producer::survey::Mappers;
use crate::producer::writer::{self, Holder, Writer};
use crate::ring::candidate::{Access, Candidate};
use crate::ring::layout::HEADER_LEN;
use crate::shm::{self, LeaseKind, unlocked};
use crate::store;
use std::ffi::OsStr;
use std::path::Path;

/// Returns the line of a store and counts it: `store of agent "worker", 18 bounds, local rank 0, written by pid 4242 (python3) user
/// dynamo`.
pub fn describe_store(
    candidate: &store::Candidate,
    path: &Path,
    mappers: &Mappers,
    verdict: &mut Verdict,
) -> String {
    let store::Candidate {
        file,
        facts,
        description,
    } = candidate;
    if !verdict.seen.insert(facts.id) {
        return "the same store by another path".into();
    }
    let bounds = description.ranges.count() - 1;
    let mut text = format!("store of agent {:?}, {bounds} bounds", description.agent);
    if !description.rank.is_empty() {
        text.push_str(&format!(", local rank {:?}", description.rank));
    }
    let writers = writers(facts, path, mappers, verdict);
    let held = writer::holder(file, LeaseKind::NoWriter);
    match held {
        _ if !writers.is_empty() => text.push_str(&writers),
        Holder::Nobody => text.push_str(", its agent has exited"),
        Holder::Somebody => text.push_str(", its agent runs, but /proc does not show the process"),
        Holder::Unknown => text.push_str(", no writer seen"),
    }
    verdict.stores += 1;
    verdict.wanted += usize::from(held != Holder::Nobody);
    text
}

/// Returns `, written by pid 4242 (python3) user dynamo` for each process that has the file mapped, the daemon apart.
fn writers(facts: &FileFacts, path: &Path, mappers: &Mappers, verdict: &mut Verdict) -> String {
    let writers = mappers.of(facts.id.dev, facts.id.ino, path).into_iter();
    let writers = writers.filter(|mapper| !mapper.is_pmdanixl(&verdict.daemons));
    writers.fold(String::new(), |text, writer| {
        let user = discover::user_name(writer.uid);
        let command = name::shown(OsStr::new(&writer.command));
        let pid = writer.process.pid;
        verdict.writers.insert(pid);
        format!("{text}, written by pid {pid} ({command}) user {user}")
    })
}

/// Returns the line of a ring and counts it: `ring v4, 4096 events, 12 pending, written by pid 4242 (python3) user dynamo`.
pub fn describe(
    candidate: &Candidate,
    path: &Path,
    mappers: &Mappers,
    verdict: &mut Verdict,
) -> String {
    let Candidate {
        facts,
        header,
        layout,
        ..
    } = candidate;
    if !verdict.seen.insert(facts.id) {
        return "the same ring by another path".into();
    }
    let mut text = format!(
        "ring {}, {} events, {} pending",
        layout.name(),
        header.capacity,
        header.pending()
    );
    let (ours, writers): (Vec<_>, Vec<_>) = mappers
        .of(facts.id.dev, facts.id.ino, path)
        .into_iter()
        .partition(|mapper| mapper.is_pmdanixl(&verdict.daemons));
    let is_unused = header.pending() == 0 && is_unused(candidate);
    if is_unused {
        text.push_str(", never had an event");
    }
    text.push_str(&self::writers(facts, path, mappers, verdict));
    if writers.is_empty() {
        text.push_str(", no writer seen");
        if is_unused && writer::holder(&candidate.file, LeaseKind::Alone) == Holder::Nobody {
            text.push_str(": not an instance before its first event");
        }
    }
    // A ring that is only followed may have a consumer.
    if candidate.access != Access::Asked {
        let agents = writers.iter().filter(|mapper| mapper.is_agent());
        let agents: Vec<Writer> = agents.map(|mapper| mapper.process).collect();
        if ancestors::are_related(&agents) == Some(false) {
            verdict.problems += 1;
            text.push_str(
                ": several processes must not use one ring; give each agent a name or a directory of its own, and end other programs that drain it",
            );
        }
    }
    let is_locked = shm::is_locked(&candidate.file).unwrap_or_default();
    if ours.is_empty() && is_locked {
        text.push_str(", drained by the process that has it locked");
    }
    for reader in ours {
        text.push_str(&format!(", drained by pid {}", reader.process.pid));
    }
    match candidate.access {
        // What this check may not do the daemon does.
        Access::Denied(_) if is_locked => {}
        Access::Write => {}
        Access::Asked => text.push_str(", only followed"),
        Access::Denied(errno) => {
            verdict.problems += 1;
            text.push_str(&format!(
                ", may not be written to ({errno}) and is only followed; run as root or as the user of its agent"
            ));
        }
    }
    verdict.rings += 1;
    verdict.wanted += usize::from(header.pending() > 0 || !writers.is_empty());
    text
}

/// True if no event was ever written to a ring.
fn is_unused(candidate: &Candidate) -> bool {
    let Candidate {
        file,
        header,
        layout,
        ..
    } = candidate;
    let mut start = vec![0; HEADER_LEN + 8 * layout.slot_words()];
    (header.read_pos, header.write_pos) == (0, 0)
        && unlocked::read_start(file, &mut start).is_ok()
        && start[HEADER_LEN..].iter().all(|&byte| byte == 0)
}
