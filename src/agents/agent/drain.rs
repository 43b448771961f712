// SPDX-License-Identifier: GPL-2.0-or-later

//! Drains the sources of an agent, and updates its lifecycle and liveness.

use super::{Agent, Now};
use crate::base::file::FileId;
use crate::entry::Name;
use crate::error::RingFault;
use crate::procfs::agent_state::AgentState;
use crate::procfs::process::Presence;
use crate::ring::checkpoint::Checkpoint;
use crate::source::Source;
use crate::source::context::{DrainContext, Shared};
use crate::source::ring::{Mode, RingReader};
use std::path::PathBuf;
use std::time::Instant;

/// Result of a drain of an agent.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Files that were replaced or re-initialised, which the next scan has to check.
    pub changed: Vec<PathBuf>,
    /// True if a ring has more events than one batch.
    pub more: bool,
    /// True if a file was detached that no process can write any more.
    has_ended: bool,
}

impl Agent {
    /// Drains the sources of the agent, and updates its lifecycle and liveness. Sources that are left at `end` are
    /// drained by the next call.
    pub(crate) fn drain(&mut self, now: Now, end: Instant, shared: &mut Shared) -> Outcome {
        let mut outcome = Outcome::default();
        // Those of a file that was drained before its removal are of another agent.
        shared.slow_transfers.clear();
        let (mut context, name, sources) = self.context(now, shared);
        context.windows.advance(now.instant);
        let starts = context.entry.starts;
        let presence = drain_sources(name, sources, &mut context, end, &mut outcome);
        self.update_lifecycle(&now, presence, shared);
        if self.entry.starts != starts {
            self.outdate_facts();
        }
        self.update_state(&now, outcome.has_ended, shared);
        self.publish(now.stamp, &mut shared.journal);
        self.note_events(&now, &mut shared.timeline);
        if shared.config.slow_transfer_us.is_some() {
            self.note_slow_transfers(&shared.slow_transfers, &now, &mut shared.timeline);
        }
        outcome
    }

    /// Updates the lifecycle by the greatest presence of the agent's files, and withdraws the agent if its time as an
    /// instance is over.
    fn update_lifecycle(&mut self, now: &Now, presence: Presence, shared: &mut Shared) {
        let (instance, config) = (&self.name.instance, &shared.config);
        let before = self.entry.lifecycle;
        let is_alive = match presence {
            Presence::Writing => true,
            // As far as the kernel tells, a process has the store open for writing.
            Presence::Held if self.has_stores() => true,
            // A process that has an exited agent's ring open, such as a backup, does not publish the agent again. A
            // process that may not write the ring does not keep the agent published for ever. A silent agent is
            // published again when a process scan has found its process.
            Presence::Held => {
                let longest = config.retain.max(config.idle_after);
                !before.is_dormant() && self.idle(now) < longest
            }
            Presence::Gone | Presence::Readers | Presence::Unknown => false,
        };
        if is_alive {
            self.entry.lifecycle.activate(now.stamp);
            self.entry.last_seen = now.stamp;
        } else if self.entry.lifecycle.exit(now.stamp) {
            tracing::debug!("agent {instance}: no process is known to write its files any more");
        }
        let exited_since = self.entry.lifecycle.exited_since();
        if exited_since.is_some_and(|since| now.since(since) >= config.retain) {
            let why = match presence {
                Presence::Held => {
                    "withdrawn until its next event: it is silent, and its process is not known"
                }
                _ => "withdrawn: it has exited, and retain is over",
            };
            tracing::info!("agent {instance}: {why}");
            self.withdraw(now.instant, &mut shared.journal);
        } else if self.entry.lifecycle != before {
            shared.journal.commit(self.record, &self.entry);
        }
    }

    /// Updates the liveness of the agent from that of its files. `has_ended`: the last process that could write one has
    /// ended.
    pub(crate) fn update_state(&mut self, now: &Now, has_ended: bool, shared: &mut Shared) {
        let (idle, config) = (self.idle(now), &shared.config);
        let has_events = self.entry.stats.events > 0 || self.has_stores();
        let had_exited = self.entry.agent_state == AgentState::Exited;
        let all = self.sources.iter();
        let presence = all.map(|source| source.file.liveness.presence(now.instant));
        self.entry.agent_state = match presence.max() {
            Some(Presence::Gone | Presence::Readers) => AgentState::Exited,
            Some(Presence::Unknown | Presence::Held) if !has_events || idle >= config.retain => {
                AgentState::Unknown
            }
            Some(_) if idle >= config.idle_after => AgentState::Idle,
            Some(_) => AgentState::Live,
            None if has_ended || had_exited => AgentState::Exited,
            // A process may still write a ring that is damaged, or in a directory that is not scanned now.
            None => AgentState::Unknown,
        };
        // The only part of it that survives a restart.
        if had_exited != (self.entry.agent_state == AgentState::Exited) {
            shared.journal.commit(self.record, &self.entry);
        }
    }
}

/// Drains the sources of an agent one after the other, until `end`, and detaches those that are over. Returns the
/// greatest presence of its files.
fn drain_sources(
    name: &Name,
    sources: &mut Vec<Source>,
    context: &mut DrainContext,
    end: Instant,
    outcome: &mut Outcome,
) -> Presence {
    let is_dormant = context.entry.lifecycle.is_dormant();
    // A process may write a file that is not drained, but that does not publish the agent.
    let unread = match is_dormant {
        true => Presence::Gone,
        false => Presence::Writing,
    };
    if !put_in_flight_first(sources, context) {
        return unread;
    }
    let (mut greatest, mut at) = (Presence::Gone, 0);
    while at < sources.len() {
        let source = &mut sources[at];
        let (presence, is_over) = match source.drain(context) {
            Ok(presence) => {
                let has_more = source.as_ring().is_some_and(|ring| ring.has_more);
                outcome.more |= has_more && presence == Presence::Writing;
                let is_over = source.is_over(presence, is_dormant);
                outcome.has_ended |= is_over;
                (presence, is_over)
            }
            Err(fault) => {
                note_fault(name, source, fault, context);
                outcome.changed.push(source.file.path.clone());
                let is_ring = source.as_ring().is_some();
                (if is_ring { unread } else { Presence::Gone }, true)
            }
        };
        greatest = greatest.max(presence);
        if is_over {
            let over = sources.remove(at).id();
            note_last_ring(over, sources, context);
        } else {
            at += 1;
        }
        // A record has room for one batch in flight only.
        let must_stop = Instant::now() >= end || context.entry.in_flight().is_some();
        if at < sources.len() && must_stop {
            // The next call begins with the sources that are left.
            sources.rotate_left(at);
            return greatest.max(unread);
        }
    }
    greatest
}

/// Returns a ring that is drained.
fn drained_ring(source: &Source) -> Option<&RingReader> {
    source.as_ring().filter(|ring| ring.mode == Mode::Drain)
}

/// Puts the ring with a batch in flight first, so that the batch is recovered before another replaces it in the record.
/// Returns false if the first scan may still find that ring: then no source can be drained.
fn put_in_flight_first(sources: &mut [Source], context: &mut DrainContext) -> bool {
    let Some(ring) = context.entry.in_flight() else {
        return true;
    };
    match sources.iter().position(|source| source.id() == ring) {
        Some(first) => sources.swap(0, first),
        None if context.shared.in_first_scan => return false,
        None => {
            if let Some(ring) = sources.iter().find_map(drained_ring) {
                context.entry.checkpoint = Some(ring.checkpoint);
                context.write_entry();
            }
        }
    }
    true
}

/// Makes the last ring that is left the one of the record, if that was a ring that is over. A start of the daemon would
/// take the ring that is left for another start of the agent.
fn note_last_ring(over: FileId, sources: &[Source], context: &mut DrainContext) {
    let was_last = |checkpoint: Checkpoint| checkpoint.ring.id == over && checkpoint.released;
    if !context.entry.checkpoint.is_some_and(was_last) {
        return;
    }
    if let Some(ring) = sources.last().and_then(drained_ring) {
        context.entry.checkpoint = Some(ring.checkpoint);
        context.write_entry();
    }
}

/// Logs that a file is no longer what was attached. The checkpoint of a ring goes, unless it is still the same ring.
fn note_fault(name: &Name, source: &Source, fault: RingFault, context: &mut DrainContext) {
    let is_ring = source.as_ring().is_some();
    let (instance, kind) = (&name.instance, if is_ring { "ring" } else { "store" });
    tracing::info!("agent {instance}: its {kind} {fault}; it is checked again");
    // A sparse ring is still the same ring. In all other cases the file is a new ring from now on, even if its bytes
    // are equal.
    if is_ring && fault != RingFault::Sparse {
        context.entry.add_reset();
        let checkpoint = &mut context.entry.checkpoint;
        *checkpoint = checkpoint.filter(|checkpoint| checkpoint.ring.id != source.id());
        context.write_entry();
    }
}
