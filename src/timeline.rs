// SPDX-License-Identifier: GPL-2.0-or-later

//! The timeline: what happened to agents and to the daemon, as a bounded queue of events that each client reads once.
//!
//! The other modules call [`Timeline::record`], which neither blocks nor fails. The oldest events leave a full queue,
//! and a client that had not read them is told how many it has missed. The events are in memory only.

use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::mem::size_of;
use std::time::{Duration, Instant, SystemTime};

mod condition;
mod kind;
#[cfg(test)]
mod tests;
pub use condition::Condition;
pub use kind::{Kind, Phase};

/// Limit of the queue, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// Limit of the events of one user in a minute, in bytes. Any user can make agents come and go without end.
const MAX_OF_USER: usize = MAX_BYTES / 4;
/// Limit of a text, in bytes.
const MAX_TEXT: usize = 512;
/// Period of [`MAX_OF_USER`].
const MINUTE: Duration = Duration::from_secs(60);
/// Number of events in [`Timeline::last`].
const LAST: usize = 32;

/// What an event is about. The default is the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Instance name of the agent; empty: none.
    pub agent: String,
    /// Server and rank of the agent, as in `nixl.agent.server` and `nixl.agent.rank`; empty: neither is known.
    pub server: String,
    /// Owner of the agent's files. `None`: the event is not caused by a user.
    pub owner: Option<u32>,
}

/// An event of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEvent {
    /// When it was recorded, since 1970.
    pub time: Duration,
    /// What happened.
    pub kind: Kind,
    /// What it happened to.
    pub subject: Subject,
    /// A number that depends on the kind.
    pub value: u64,
    /// What happened in words, without the subject.
    text: String,
}

impl TimelineEvent {
    /// Returns the event that stands for `count` events that a client has not read in time. They were before `time`,
    /// that of the oldest one in the queue.
    #[must_use]
    pub fn missed(count: u64, time: Duration) -> Self {
        Self {
            time,
            kind: Kind::Missed,
            subject: Subject::default(),
            value: count,
            text: format!(
                "{count} events before this time had left the queue before they were read"
            ),
        }
    }

    /// Returns one line that says all but the time.
    #[must_use]
    pub fn text(&self) -> String {
        let Subject { agent, server, .. } = &self.subject;
        match (agent.is_empty(), server.is_empty()) {
            (true, _) => self.text.clone(),
            (_, true) => format!("{agent}: {}", self.text),
            _ => format!("{agent} ({server}): {}", self.text),
        }
    }

    /// Returns the memory that it takes in the queue.
    fn bytes(&self) -> usize {
        let Subject { agent, server, .. } = &self.subject;
        size_of::<Self>() + agent.len() + server.len() + self.text.len()
    }
}

/// What one user has recorded in this minute.
#[derive(Debug, Default)]
struct Spent {
    bytes: usize,
    left_out: u64,
}

/// The queue of events, and how far each client has read it.
#[derive(Debug, Default)]
pub struct Timeline {
    events: VecDeque<TimelineEvent>,
    /// Sum of [`TimelineEvent::bytes`].
    bytes: usize,
    /// Number of events that have left the queue, which is the number of its first event.
    first: u64,
    /// Number of the next event that each client reads.
    positions: HashMap<i32, u64>,
    /// What each user has recorded in this minute, and when the minute began.
    spent: HashMap<u32, Spent>,
    minute: Option<Instant>,
}

impl Timeline {
    /// Adds an event, with the present time. Beyond the limit of its user, it is only counted.
    pub fn record(&mut self, kind: Kind, subject: Subject, value: u64, text: impl Into<String>) {
        self.end_minute(Instant::now());
        let mut text = text.into();
        let is_end = |&len: &usize| text.is_char_boundary(len);
        let len = (0..=text.len().min(MAX_TEXT)).rev().find(is_end);
        text.truncate(len.unwrap_or(0));
        text.shrink_to_fit();
        let event = TimelineEvent {
            time: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
            kind,
            subject,
            value,
            text,
        };
        let bytes = event.bytes();
        if let Some(owner) = event.subject.owner {
            let spent = self.spent.entry(owner).or_default();
            if spent.left_out > 0 || spent.bytes + bytes > MAX_OF_USER {
                spent.left_out += 1;
                return;
            }
            spent.bytes += bytes;
        }
        self.push(event);
    }

    fn push(&mut self, event: TimelineEvent) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.bytes > MAX_BYTES {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
            self.first += 1;
        }
    }

    /// Ends a minute that is over: records how many events of each user were left out.
    pub fn end_minute(&mut self, now: Instant) {
        let began = *self.minute.get_or_insert(now);
        if now.saturating_duration_since(began) < MINUTE {
            return;
        }
        self.minute = Some(now);
        let mut spent = Vec::from_iter(std::mem::take(&mut self.spent));
        spent.sort_unstable_by_key(|&(owner, _)| owner);
        for (owner, Spent { left_out, .. }) in spent {
            if left_out > 0 {
                let limit = MAX_OF_USER >> 10;
                let text = format!(
                    "{left_out} events of uid {owner} were left out: it had {limit} KiB within a minute"
                );
                self.push(TimelineEvent {
                    time: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
                    kind: Kind::LeftOut,
                    subject: Subject::default(),
                    value: left_out,
                    text,
                });
            }
        }
    }

    /// Returns what a client has not read yet: the number of events that have left the queue, and the others in their
    /// order. A client that has read nothing gets the whole queue.
    pub fn unread(&self, client: i32) -> (u64, impl Iterator<Item = &TimelineEvent>) {
        let position = self.positions.get(&client).copied().unwrap_or(self.first);
        let missed = self.first.saturating_sub(position);
        let read = position.saturating_sub(self.first);
        let read = usize::try_from(read).unwrap_or(usize::MAX);
        (missed, self.events.iter().skip(read))
    }

    /// Notes that a client has read all events.
    pub fn set_read(&mut self, client: i32) {
        self.positions.insert(client, self.recorded());
    }

    /// Forgets a client, whose number another may get.
    pub fn end_client(&mut self, client: i32) {
        self.positions.remove(&client);
    }

    /// Returns the number of events that were recorded, without those left out.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Returns the last events as a JSON array, for clients that cannot read event records.
    #[must_use]
    pub fn last(&self) -> String {
        let before = self.events.len().saturating_sub(LAST);
        let numbered = (self.first..).zip(&self.events).skip(before);
        let events = numbered.map(|(number, event)| {
            json!({
                "number": number,
                "time": event.time.as_secs_f64(),
                "kind": event.kind.name(),
                "agent": event.subject.agent,
                "server": event.subject.server,
                "value": event.value,
                "text": event.text(),
            })
        });
        serde_json::Value::from_iter(events).to_string()
    }
}
