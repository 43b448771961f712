// SPDX-License-Identifier: GPL-2.0-or-later

//! Records what happened to an agent in the timeline, from what its drain has changed.
//!
//! A drain and an update of the state change the entry of an agent in many places. After them [`Agent::note_events`]
//! compares the entry with what was recorded, so that an event is decided here only, and no drain waits for it.

mod compared;
#[cfg(test)]
mod tests;

use super::{Agent, Now};
use crate::event::{EventType, Totals};
use crate::procfs::agent_state::AgentState;
use crate::stats::slow_transfers::{self, SlowTransfer, SlowTransfers};
use crate::timeline::{Condition, Kind, Subject, Timeline};
use std::time::{Duration, Instant};

/// Time after which more errors or losses are recorded, and without a full ring after which its period has ended.
const PAUSE: Duration = Duration::from_secs(10);

/// Period in which at most eight slow transfers are recorded.
const MINUTE: Duration = Duration::from_secs(60);

/// What counts up and is recorded: the errors, in the order of [`EventType::errors`], the events that NIXL dropped, and
/// those that another reader took.
const COUNTS: usize = FOREIGN_READS + 1;
/// Position of the events that NIXL dropped, after the errors.
const DROPPED: usize = EventType::NoTelemetry as usize - EventType::NotPosted as usize + 1;
/// Position of the events that another reader took.
const FOREIGN_READS: usize = DROPPED + 1;

/// A count that is recorded at once, and then at most once in [`PAUSE`].
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    recorded: u64,
    /// When it was recorded last, in nanoseconds of CLOCK_MONOTONIC.
    last: Option<u64>,
}

/// A period in which drains find the ring full.
#[derive(Clone, Copy, Debug)]
struct FullRing {
    /// Number of overflows before it.
    before: u64,
    began: u64,
    last: u64,
}

/// Slow transfers of a minute.
#[derive(Clone, Copy, Debug, Default)]
struct SlowMinute {
    /// When it began: nanoseconds of CLOCK_MONOTONIC.
    minute: u64,
    recorded: usize,
    left_out: u64,
    /// Longest time of those left out, microseconds. Of a drain with many, the longest are known.
    longest: u64,
}

/// What was recorded of an agent.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    is_instance: bool,
    /// True if the first scan has found a file that a process may write, so that the agent may be older than its
    /// appearance. The first scan is after a start and after a new configuration.
    pub in_first_scan: bool,
    state: AgentState,
    /// Since when the state is unknown, in nanoseconds of CLOCK_MONOTONIC. `None`: it is known.
    unknown_since: Option<u64>,
    starts: u64,
    overflows: u64,
    full: Option<FullRing>,
    /// Sum of what [`Noted::counts`] has recorded. Most drains find it unchanged, and read nothing of those.
    recorded: u64,
    counts: Box<[Count; COUNTS]>,
    slow_transfers: SlowMinute,
    tcp: Condition,
    slow: Condition,
    /// When a recorded stall began.
    stalled: Option<Instant>,
}

fn counts(totals: &Totals, foreign_reads: u64) -> [u64; COUNTS] {
    let mut counts = [0; COUNTS];
    for (count, &error) in counts.iter_mut().zip(EventType::errors()) {
        *count = totals.get(error);
    }
    counts[DROPPED] = totals.get(EventType::EventsDropped);
    counts[FOREIGN_READS] = foreign_reads;
    counts
}

fn sum(counts: &[u64; COUNTS]) -> u64 {
    counts.iter().copied().fold(0, u64::wrapping_add)
}

impl Agent {
    /// Returns the agent as the subject of an event.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let facts = self.labelled_facts();
        let known = facts.server().into_iter().chain(facts.rank());
        Subject {
            agent: self.name.instance.clone(),
            server: known.collect::<Vec<_>>().join(" "),
            owner: Some(self.name.owner),
        }
    }

    /// Takes what the entry has as recorded: an agent of the state file, whose events an earlier daemon has recorded.
    pub(crate) fn take_as_noted(&mut self) {
        let entry = &self.entry;
        let values = counts(&entry.stats.totals, entry.foreign_reads);
        self.noted = Noted {
            is_instance: self.is_published(),
            state: entry.agent_state,
            starts: entry.starts,
            overflows: entry.overflows,
            recorded: sum(&values),
            counts: Box::new(values.map(|recorded| Count {
                recorded,
                last: None,
            })),
            ..Noted::default()
        };
        if entry.agent_state != AgentState::Exited {
            // The state file has no other state.
            self.noted.state = AgentState::Live;
        }
    }

    /// Records what has happened to the agent since the last call.
    pub(crate) fn note_events(&mut self, now: &Now, timeline: &mut Timeline) {
        let (was_instance, is_instance) = (self.noted.is_instance, self.is_published());
        if !was_instance && !is_instance {
            // What happens to an agent before it is an instance follows its appearance. One without a process has not
            // started before.
            self.noted.in_first_scan &= !self.entry.lifecycle.is_dormant();
            return;
        }
        if !was_instance {
            self.note_appearance(timeline);
        }
        self.note_state(now, timeline);
        self.note_full_ring(now, timeline);
        self.note_counts(now, timeline);
        if was_instance && !is_instance {
            self.note_withdrawal(timeline);
        }
        (self.noted.is_instance, self.noted.in_first_scan) = (is_instance, false);
    }

    fn note_appearance(&mut self, timeline: &mut Timeline) {
        let starts = self.entry.starts;
        let text = match (self.noted.in_first_scan, starts) {
            (true, _) => {
                let scan = "the first scan after a start of pmdanixl or a new configuration";
                format!("appeared: found by {scan}, so it may have started before")
            }
            (_, 0 | 1) => "appeared".into(),
            _ => format!("appeared again: start {starts} since it was first seen"),
        };
        timeline.record(Kind::Appeared, self.subject(), starts, text);
        (self.noted.starts, self.noted.state) = (starts, AgentState::Live);
    }

    fn note_state(&mut self, now: &Now, timeline: &mut Timeline) {
        let starts = self.entry.starts;
        let is_up = |state| matches!(state, AgentState::Live | AgentState::Idle);
        let (before, state) = (self.noted.state, self.entry.agent_state);
        let is_unknown = state == AgentState::Unknown;
        let since = is_unknown.then(|| self.noted.unknown_since.unwrap_or(now.stamp));
        self.noted.unknown_since = since;
        if since.is_some_and(|since| now.since(since) < PAUSE) {
            // A process scan may find the process, such as the first one after a start of the daemon.
            return;
        }
        let has_restarted = starts != self.noted.starts;
        let event = match state {
            _ if has_restarted && is_up(state) => {
                let text = format!("restarted: start {starts} since it was first seen");
                Some((Kind::Restarted, text))
            }
            AgentState::Exited if before != state => {
                let text = "exited: no process writes its file any more";
                Some((Kind::Exited, text.to_owned()))
            }
            AgentState::Unknown if before != state => {
                let text = "unknown: whether a process writes its file cannot be found out";
                Some((Kind::Unknown, text.to_owned()))
            }
            _ if is_up(state) && !is_up(before) => Some((
                Kind::Live,
                "live: a process writes its file again".to_owned(),
            )),
            _ => None,
        };
        if let Some((kind, text)) = event {
            timeline.record(kind, self.subject(), starts, text);
        }
        self.noted.state = state;
        if is_up(state) {
            // A start that is found while no process writes is recorded when one does.
            self.noted.starts = starts;
        }
    }

    fn note_full_ring(&mut self, now: &Now, timeline: &mut Timeline) {
        let overflows = self.entry.overflows;
        let found = overflows.saturating_sub(self.noted.overflows);
        if found > 0 {
            let full = FullRing {
                before: self.noted.overflows,
                began: now.stamp,
                last: now.stamp,
            };
            if self.noted.full.is_none() {
                let text =
                    "ring full: a drain found no free slot, and NIXL drops events that find none";
                timeline.record(Kind::RingFull, self.subject(), 1, text);
            }
            self.noted.full.get_or_insert(full).last = now.stamp;
            self.noted.overflows = overflows;
        }
        let over = |full: &mut FullRing| now.since(full.last) >= PAUSE;
        if let Some(full) = self.noted.full.take_if(over) {
            self.note_end_of_full_ring(full, "ring no longer full for 10 s", timeline);
        }
    }

    fn note_end_of_full_ring(&self, full: FullRing, end: &str, timeline: &mut Timeline) {
        let drains = self.noted.overflows.saturating_sub(full.before);
        let seconds = Duration::from_nanos(full.last - full.began).as_secs_f64();
        let text = format!("{end}: drains that found it full: {drains}, within {seconds:.1} s");
        timeline.record(Kind::RingFullEnd, self.subject(), drains, text);
    }

    fn note_counts(&mut self, now: &Now, timeline: &mut Timeline) {
        let values = counts(&self.entry.stats.totals, self.entry.foreign_reads);
        // None of them ever falls.
        if sum(&values) == self.noted.recorded {
            return;
        }
        for (at, value) in values.into_iter().enumerate() {
            let count = &mut self.noted.counts[at];
            let more = value.saturating_sub(count.recorded);
            if more == 0 {
                continue;
            }
            let since = count.last.map(|last| now.since(last));
            if since.is_some_and(|since| since < PAUSE) {
                continue;
            }
            (count.recorded, count.last) = (value, Some(now.stamp));
            self.noted.recorded = self.noted.recorded.wrapping_add(more);
            let period = match since {
                // The pause is over, and nothing was left for its end.
                Some(since) if since < 2 * PAUSE => {
                    format!(" in the last {:.0} s", since.as_secs_f64())
                }
                _ => String::new(),
            };
            let (kind, text) = match EventType::errors().get(at) {
                Some(error) => {
                    let status = error.status().unwrap_or_default();
                    let noun = if more == 1 { "error" } else { "errors" };
                    (Kind::Errors, format!("{more} {noun} {status}{period}"))
                }
                None if at == DROPPED => {
                    let text = format!("telemetry lost: NIXL dropped {more} events{period}");
                    (Kind::Lost, text)
                }
                None => {
                    let text = format!("telemetry lost: another reader took {more} events{period}");
                    (Kind::Lost, text)
                }
            };
            timeline.record(kind, self.subject(), more, text);
        }
    }

    /// Ends the periods of an agent that is no longer an instance.
    fn note_withdrawal(&mut self, timeline: &mut Timeline) {
        if let Some(full) = self.noted.full.take() {
            self.note_end_of_full_ring(full, "ring not drained any more", timeline);
        }
        self.end_tcp(timeline);
        self.end_slow(timeline);
        self.end_stall(timeline);
    }

    /// Records the slow transfers of a drain: of a minute, the first that are found.
    pub(crate) fn note_slow_transfers(
        &mut self,
        slow: &SlowTransfers,
        now: &Now,
        timeline: &mut Timeline,
    ) {
        let noted = &mut self.noted.slow_transfers;
        if now.since(noted.minute) >= MINUTE {
            let (left_out, longest) = (noted.left_out, noted.longest);
            *noted = SlowMinute {
                minute: now.stamp,
                ..SlowMinute::default()
            };
            if left_out > 0 && self.noted.is_instance {
                let text = format!(
                    "{left_out} more slow transfers in the minute before, the longest took {longest} us"
                );
                timeline.record(Kind::SlowTransfer, self.subject(), longest, text);
            }
        }
        // Before the agent is an instance, they are counted only.
        let is_instance = self.noted.is_instance;
        let noted = &mut self.noted.slow_transfers;
        let room = match is_instance {
            true => slow_transfers::KEPT - noted.recorded,
            false => 0,
        };
        noted.recorded += slow.longest.len().min(room);
        noted.left_out += slow.count - slow.longest.len().min(room) as u64;
        let left_out = slow.longest.get(room).map_or(0, |next| next.micros);
        noted.longest = noted.longest.max(left_out);
        for SlowTransfer { micros, size } in slow.longest.iter().copied().take(room) {
            let size = match size {
                Some((operation, bytes)) => format!("{operation} of {bytes} bytes"),
                None => "a transfer of unknown size".into(),
            };
            let text =
                format!("slow transfer: {size} took {micros} us, and ended before this drain");
            timeline.record(Kind::SlowTransfer, self.subject(), micros, text);
        }
    }
}
