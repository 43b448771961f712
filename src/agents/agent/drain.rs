//! Counts what waits in an agent's rings and its store, and finds out whether it lives.

use super::{Agent, Now};
use crate::config::Config;
use crate::journal::ledger::{Books, Ledger};
use crate::journal::record::Name;
use crate::procfs::agent_state::AgentState;
use crate::source::{Drained, Source};
use std::path::PathBuf;
use std::time::Instant;

/// What a drain of an agent's rings came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Files that are to be looked at anew.
    pub again: Vec<PathBuf>,
    /// Whether more events wait than are taken at a time.
    pub more: bool,
    /// Whether somebody has a ring of whom it is not known whether he writes, and nothing has come for long.
    pub unknown: bool,
    /// True if a file was let go to which no process can write any more.
    pub exited: bool,
}

impl Agent {
    /// Counts the events that wait, and finds out whether the agent lives. At `end` it leaves the rest of its rings for the
    /// next call.
    pub(crate) fn drain(&mut self, now: Now, end: Instant, books: &mut Books) -> Outcome {
        let mut outcome = Outcome::default();
        let (mut ledger, name, sources) = self.ledger(now, books);
        ledger.windows.advance(now.instant);
        let starts = ledger.entry.starts;
        let alive = drain_sources(name, sources, &mut ledger, end, &mut outcome);
        let is_over = age(&name.instance, &mut ledger, alive, outcome.unknown);
        if is_over {
            self.withdraw(now.instant);
            books.journal.commit(self.record, &self.entry);
        }
        if self.entry.starts != starts {
            self.outdate_facts();
        }
        let had_exited = self.entry.life == AgentState::Exited;
        if outcome.exited && !self.has_files() {
            self.entry.life = AgentState::Exited;
        }
        self.update_life(&now, &books.config);
        self.publish(now.instant);
        if had_exited != (self.entry.life == AgentState::Exited) {
            books.journal.commit(self.record, &self.entry);
        }
        outcome
    }

    /// Brings whether it lives up to date with what is known of who has its files.
    pub(crate) fn update_life(&mut self, now: &Now, config: &Config) {
        let lives = self.sources.iter().map(|source| &source.file.liveness);
        let lately =
            (self.entry.stats.events > 0 || self.has_stores()) && self.idle(now) < config.retain;
        let lives = lives.map(|liveness| liveness.state(lately));
        // Of several files, the one that says most for its life counts.
        let most =
            lives.max_by_key(|&life| (life == AgentState::Live, life == AgentState::Unknown));
        self.entry.life = match most {
            Some(AgentState::Live) if self.idle(now) >= config.idle_after => AgentState::Idle,
            Some(life) => life,
            // A process may still write to its ring, which broke or lies in a directory that is not scanned now.
            None if self.entry.life != AgentState::Exited => AgentState::Unknown,
            None => AgentState::Exited,
        };
    }
}

/// Drains an agent's rings, one after the other, until `end`, or its store; whether it lives, as far as they say.
fn drain_sources(
    name: &Name,
    sources: &mut Vec<Source>,
    ledger: &mut Ledger,
    end: Instant,
    outcome: &mut Outcome,
) -> bool {
    let active = ledger.entry.lifecycle.is_awake();
    let config = &ledger.books.config;
    let lately = ledger.now.since(ledger.entry.last_event) < config.retain.max(config.idle_after);
    let (mut alive, mut at) = (false, 0);
    if let Some(ring) = ledger.in_flight() {
        match sources.iter().position(|source| source.id() == ring) {
            Some(first) => sources.swap(0, first),
            // It may still be found.
            None if ledger.books.early => return active,
            None => {
                if let Some(source) = sources.first() {
                    ledger.entry.commit = source.as_ring().map(|ring| ring.commit);
                    ledger.keep();
                }
            }
        }
    }
    while at < sources.len() {
        let source = &mut sources[at];
        let mut keep = true;
        match source.drain(ledger) {
            Drained::Events => {
                alive = true;
                outcome.more |= source.as_ring().is_some_and(|ring| ring.more);
            }
            // Of a store the kernel says that somebody has it who writes.
            Drained::Held if source.as_ring().is_none() => alive = true,
            // Whoever has an exited agent's ring open, a backup or another reader, does not bring it back; nor is one waited for
            // for ever of whom nobody knows whether it writes.
            Drained::Held => {
                let is_known = lately || source.file.liveness.state(false) != AgentState::Unknown;
                outcome.unknown |= !is_known;
                alive |= active && is_known;
            }
            // Its last values stay for as long as its agent is an instance.
            Drained::Silent => {
                keep = active || source.may_return();
                outcome.exited |= !keep;
            }
            Drained::Gone => (keep, outcome.exited) = (false, true),
            Drained::Broken(fault) => {
                let (instance, is_ring) = (&name.instance, source.as_ring().is_some());
                let kind = if is_ring { "ring" } else { "store" };
                tracing::info!("agent {instance}: its {kind} {fault}; it is looked at anew");
                outcome.again.push(source.file.path.clone());
                if is_ring {
                    // What comes next on this file is a new ring, however alike.
                    ledger.entry.add_reset();
                    let commit = &mut ledger.entry.commit;
                    *commit = commit.filter(|commit| commit.ring.id != source.id());
                    ledger.keep();
                    alive |= active;
                }
                keep = false;
            }
        }
        if keep {
            at += 1;
        } else {
            sources.remove(at);
        }
        // The record has room for one batch in flight: another's would take its place.
        let is_over = Instant::now() >= end || ledger.in_flight().is_some();
        if at < sources.len() && is_over {
            // Those that had no turn have it first the next time, and may be alive.
            sources.rotate_left(at);
            alive |= active;
            break;
        }
    }
    alive
}

/// Brings an agent's lifecycle up to date. Returns true if its time as an instance is over.
fn age(instance: &str, ledger: &mut Ledger, alive: bool, is_unknown: bool) -> bool {
    let (entry, now) = (&mut *ledger.entry, ledger.now);
    let before = entry.lifecycle;
    if alive {
        entry.lifecycle.wake(now.instant);
        entry.last_seen = now.stamp;
    } else if entry.lifecycle.exit(now.stamp) {
        tracing::debug!("agent {instance}: nobody is known to write to its ring any more");
    }
    if before != entry.lifecycle {
        ledger.keep();
    }
    let retain = ledger.books.config.retain;
    let since = ledger.entry.lifecycle.exited_since();
    let is_over = since.is_some_and(|since| now.since(since) >= retain);
    if is_over {
        let why = match is_unknown {
            true => "is silent, and whether it lives is not known: until it says something it",
            false => "has exited and",
        };
        tracing::info!("agent {instance}: {why} is no instance any more");
    }
    is_over
}
