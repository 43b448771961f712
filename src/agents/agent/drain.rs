// SPDX-License-Identifier: GPL-2.0-or-later

//! Drains the sources of an agent, and updates its lifecycle and liveness.

use super::{Agent, Now};
use crate::base::file::FileId;
use crate::config::Config;
use crate::error::RingFault;
use crate::journal::record::Name;
use crate::procfs::agent_state::AgentState;
use crate::ring::checkpoint::Checkpoint;
use crate::source::context::{DrainContext, Shared};
use crate::source::ring::{Mode, RingReader};
use crate::source::{Drained, Source};
use std::path::PathBuf;
use std::time::Instant;

/// Result of a drain of an agent.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Files that were replaced or re-initialised, which the next scan has to check.
    pub changed: Vec<PathBuf>,
    /// True if a ring has more events than one batch.
    pub more: bool,
    /// True if a process has a ring open without events for long, and may not write it.
    pub unknown: bool,
    /// True if a file was detached that no process can write any more.
    pub exited: bool,
}

impl Agent {
    /// Drains the sources of the agent, and updates its lifecycle and liveness. Sources that are left at `end` are drained by the next
    /// call.
    pub(crate) fn drain(&mut self, now: Now, end: Instant, shared: &mut Shared) -> Outcome {
        let mut outcome = Outcome::default();
        let (mut context, name, sources) = self.context(now, shared);
        context.windows.advance(now.instant);
        let starts = context.entry.starts;
        let alive = drain_sources(name, sources, &mut context, end, &mut outcome);
        let is_over = update_lifecycle(&name.instance, &mut context, alive, outcome.unknown);
        if is_over {
            self.withdraw(now.instant);
            shared.journal.commit(self.record, &self.entry);
        }
        if self.entry.starts != starts {
            self.outdate_facts();
        }
        self.update_state(&now, outcome.exited, shared);
        self.publish(now.stamp, &mut shared.journal);
        outcome
    }

    /// Updates the liveness of the agent from that of its files. `has_ended`: the last process that could write one has ended.
    pub(crate) fn update_state(&mut self, now: &Now, has_ended: bool, shared: &mut Shared) {
        let had_exited = self.entry.agent_state == AgentState::Exited;
        self.entry.agent_state = self.state(now, has_ended, &shared.config);
        // The only part of it that survives a restart.
        if had_exited != (self.entry.agent_state == AgentState::Exited) {
            shared.journal.commit(self.record, &self.entry);
        }
    }

    fn state(&self, now: &Now, has_ended: bool, config: &Config) -> AgentState {
        let lives = self.sources.iter().map(|source| &source.file.liveness);
        let lately =
            (self.entry.stats.events > 0 || self.has_stores()) && self.idle(now) < config.retain;
        let lives = lives.map(|liveness| liveness.state(lately));
        // Of several files the liveliest counts.
        let most =
            lives.max_by_key(|&life| (life == AgentState::Live, life == AgentState::Unknown));
        match most {
            Some(AgentState::Live) if self.idle(now) >= config.idle_after => AgentState::Idle,
            Some(life) => life,
            // A process may still write a ring that is damaged, or in a directory that is not scanned now.
            None if !has_ended && self.entry.agent_state != AgentState::Exited => {
                AgentState::Unknown
            }
            None => AgentState::Exited,
        }
    }
}

/// Drains the sources of an agent one after the other, until `end`, and detaches those that are over. Returns true if a process may
/// still write one of them.
fn drain_sources(
    name: &Name,
    sources: &mut Vec<Source>,
    context: &mut DrainContext,
    end: Instant,
    outcome: &mut Outcome,
) -> bool {
    let was_dormant = context.entry.lifecycle.is_dormant();
    if !put_in_flight_first(sources, context) {
        return !was_dormant;
    }
    let (mut is_alive, mut at) = (false, 0);
    while at < sources.len() {
        let SourceLife { stays, lives } = drain_source(name, &mut sources[at], context, outcome);
        is_alive |= lives;
        if stays {
            at += 1;
        } else {
            let over = sources.remove(at).id();
            note_last_ring(over, sources, context);
        }
        // A record has room for one batch in flight only.
        let is_over = Instant::now() >= end || context.entry.in_flight().is_some();
        if at < sources.len() && is_over {
            // The next call begins with the sources that are left, which may be written.
            sources.rotate_left(at);
            is_alive |= !was_dormant;
            break;
        }
    }
    is_alive
}

/// Returns a ring that is drained.
fn drained_ring(source: &Source) -> Option<&RingReader> {
    source.as_ring().filter(|ring| ring.mode == Mode::Drain)
}

/// Puts the ring with a batch in flight first, so that the batch is recovered before another replaces it in the record. Returns
/// false if the first scan may still find that ring: then no source can be drained.
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

/// Makes the last ring that is left the one of the record, if that was a ring that is over. A start of the daemon would take the ring that
/// is left for another start of the agent.
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

/// What a drain tells of a source.
struct SourceLife {
    /// False if the source is to be detached.
    stays: bool,
    /// True if a process may still write it.
    lives: bool,
}

fn drain_source(
    name: &Name,
    source: &mut Source,
    context: &mut DrainContext,
    outcome: &mut Outcome,
) -> SourceLife {
    let life = |stays, lives| SourceLife { stays, lives };
    let is_dormant = context.entry.lifecycle.is_dormant();
    let is_ring = source.as_ring().is_some();
    match source.drain(context) {
        Drained::Events => {
            outcome.more |= source.as_ring().is_some_and(|ring| ring.has_more);
            life(true, true)
        }
        // The kernel has shown that a process has the store open for writing.
        Drained::IdleWithHolder if !is_ring => life(true, true),
        // A process that has an exited agent's ring open, such as a backup, does not publish the agent again. A process that may not
        // write the ring does not keep the agent published for ever. A silent agent is published again when a process scan has found
        // its process.
        Drained::IdleWithHolder => {
            let config = &context.shared.config;
            let longest = config.retain.max(config.idle_after);
            let is_recent = context.now.since(context.entry.last_event) < longest;
            let state = source.file.liveness.state(false);
            let is_known = is_recent || state != AgentState::Unknown;
            outcome.unknown |= !is_known;
            life(true, (!is_dormant && is_known) || state == AgentState::Live)
        }
        // Its last values are shown for as long as its agent is an instance.
        Drained::IdleWithoutWriter => {
            let stays = !is_dormant || source.may_return();
            outcome.exited |= !stays;
            life(stays, false)
        }
        Drained::Finished => {
            outcome.exited = true;
            life(false, false)
        }
        Drained::Fault(fault) => {
            let (instance, kind) = (&name.instance, if is_ring { "ring" } else { "store" });
            tracing::info!("agent {instance}: its {kind} {fault}; it is checked again");
            outcome.changed.push(source.file.path.clone());
            // A sparse ring is still the same ring, and its checkpoint stays. In all other cases the file is a new ring from now on, even
            // if its bytes are equal.
            if is_ring && fault != RingFault::Sparse {
                context.entry.add_reset();
                let checkpoint = &mut context.entry.checkpoint;
                *checkpoint = checkpoint.filter(|checkpoint| checkpoint.ring.id != source.id());
                context.write_entry();
            }
            life(false, is_ring && !is_dormant)
        }
    }
}

/// Updates the lifecycle of an agent. Returns true if its time as an instance is over.
fn update_lifecycle(
    instance: &str,
    context: &mut DrainContext,
    is_alive: bool,
    is_unknown: bool,
) -> bool {
    let (entry, now) = (&mut *context.entry, context.now);
    let before = entry.lifecycle;
    if is_alive {
        entry.lifecycle.activate(now.stamp);
        entry.last_seen = now.stamp;
    } else if entry.lifecycle.exit(now.stamp) {
        tracing::debug!("agent {instance}: no process is known to write its files any more");
    }
    if before != entry.lifecycle {
        context.write_entry();
    }
    let retain = context.shared.config.retain;
    let since = context.entry.lifecycle.exited_since();
    let is_over = since.is_some_and(|since| now.since(since) >= retain);
    if is_over {
        let why = match is_unknown {
            true => "withdrawn until its next event: it is silent, and its process is not known",
            false => "withdrawn: it has exited, and retain is over",
        };
        tracing::info!("agent {instance}: {why}");
    }
    is_over
}
