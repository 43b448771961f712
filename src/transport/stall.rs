// SPDX-License-Identifier: GPL-2.0-or-later

//! Whether the transfers of an agent have stalled. NIXL counts a transfer when it completes, so a transfer that never
//! completes leaves no trace in telemetry.
//!
//! An agent is *silent* while it completes no transfer. Silence is not a sign of a stall, not even where the other
//! ranks of a server go on: an engine without requests, and a rank that the load balancer leaves out, are silent as
//! well. A sign is something that waits: bytes in a TCP connection of which none leaves its queue, or a halted process
//! at one of its ends ([`crate::observer::protocol::Sign`]). Two successive readings must have it, since bytes wait for
//! a moment in each transfer.

use crate::observer::protocol::{Halt, QueueReading, Sign};
use crate::procfs::process::ProcessId;
use std::time::{Duration, Instant};

/// Limit of the time between two readings of an agent that stays silent. A reading takes as long as a socket scan, so
/// an idle host has one for thirty scans.
const MAX_PERIOD: Duration = Duration::from_secs(300);
/// Least time between two readings.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// An agent is read again after this part of the time that it is silent.
const SILENCE_PART: u32 = 4;
/// A sign that was not read again within this time says nothing any more.
const MAX_SIGN_AGE: Duration = Duration::from_secs(60);
/// Time after which a suspect has stalled, as a multiple of `stalled_after`.
const STALLED_FACTOR: u32 = 4;

/// Whether transfers have stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallState {
    /// There is no sign.
    None = 0,
    /// There is a sign for `stalled_after`.
    Suspect = 1,
    /// There is a sign for four times as long.
    Stalled = 2,
}

/// What is known of the transfers of an agent. The default has no process, and no state.
#[derive(Clone, Debug, Default)]
pub struct Stall {
    /// Process of the agent. `None`: it is not known, or its sockets are not read.
    process: Option<ProcessId>,
    /// Sum of totals that each completed transfer raises.
    completed: u64,
    /// When a transfer was last found completed, or the process was found. `None`: there is no process.
    moved: Option<Instant>,
    /// When the queues of the process were read last.
    read: Option<Instant>,
    /// Sign of the last reading, with what is shown of it.
    sign: Option<Box<ShownSign>>,
    /// State as of the last call of [`Stall::update`] or [`Stall::add`].
    state: Option<StallState>,
}

/// Sign that transfers do not advance, as it is shown.
#[derive(Clone, Debug)]
pub struct ShownSign {
    sign: Sign,
    /// Id and command of the process of the peer, if it is known.
    process: Option<String>,
    /// When the stall began, as far as is known.
    pub began: Instant,
}

impl Stall {
    /// Takes over the process of an agent, and what the agent has completed so far: a sum that each transfer raises.
    pub fn update(&mut self, process: ProcessId, completed: u64, limit: Duration, now: Instant) {
        if self.process != Some(process) {
            *self = Self {
                process: Some(process),
                ..Self::default()
            };
        }
        if self.moved.is_none() || completed != self.completed {
            (self.completed, self.moved, self.sign) = (completed, Some(now), None);
        }
        self.state = self.decide(limit, now);
    }

    /// Takes over what the queues of its process say. `name` is that of the peer's process.
    pub fn add(
        &mut self,
        reading: &QueueReading,
        name: Option<String>,
        limit: Duration,
        now: Instant,
    ) {
        let Some(moved) = self.moved.filter(|_| self.process == Some(reading.id)) else {
            return;
        };
        let before = self.sign.take();
        self.sign = reading.sign.map(|sign| {
            // The stall has begun between two readings. Before the first one is the last transfer, most often with the
            // begin of the stall.
            let is_first = self.read.is_none_or(|read| read <= moved);
            let is_near = now.saturating_duration_since(moved) <= limit;
            let began = match before.filter(|_| !sign.time.is_zero()) {
                Some(before) => before.began,
                None if is_first && is_near => moved,
                None => now.checked_sub(sign.time).unwrap_or(now).max(moved),
            };
            Box::new(ShownSign {
                sign,
                process: name,
                began,
            })
        });
        self.read = Some(now);
        self.state = self.decide(limit, now);
    }

    /// Returns the process of a silent agent: one that has completed no transfer for half of the limit. The first of
    /// two readings comes then, so that there are two when the time is over.
    #[must_use]
    pub fn silent_process(&self, limit: Duration, now: Instant) -> Option<ProcessId> {
        let silence = now.saturating_duration_since(self.moved?);
        self.process.filter(|_| silence >= limit / 2)
    }

    /// True if the queues of its process are to be read: the agent is silent, and the last reading is old enough.
    #[must_use]
    pub fn is_due(&self, limit: Duration, now: Instant) -> bool {
        let silent = self.silent_process(limit, now);
        let Some(moved) = self.moved.filter(|_| silent.is_some()) else {
            return false;
        };
        let shortest = shortest_period(limit);
        let period = match self.sign {
            Some(_) => shortest,
            None => {
                let part = now.saturating_duration_since(moved) / SILENCE_PART;
                part.clamp(shortest, MAX_PERIOD)
            }
        };
        let read = self.read.filter(|read| *read > moved);
        read.is_none_or(|read| now.saturating_duration_since(read) >= period)
    }

    /// Returns the state. `None`: it is not known, since the process is not, or was not read in this silence.
    #[must_use]
    pub fn state(&self) -> Option<StallState> {
        self.state
    }

    /// Returns the sign of an agent that is suspected or has stalled.
    #[must_use]
    pub fn sign(&self) -> Option<&ShownSign> {
        let has_sign = self.state? != StallState::None;
        self.sign.as_deref().filter(|_| has_sign)
    }

    fn decide(&self, limit: Duration, now: Instant) -> Option<StallState> {
        let since = |moment| now.saturating_duration_since(moment);
        let moved = self.moved?;
        if since(moved) < limit {
            return Some(StallState::None);
        }
        let read = self.read.filter(|read| *read > moved)?;
        let Some(shown) = &self.sign else {
            return Some(StallState::None);
        };
        if since(read) >= MAX_SIGN_AGE {
            return None;
        }
        let age = since(shown.began);
        Some(match shown.sign.time.is_zero() || age < limit {
            true => StallState::None,
            false if age < limit * STALLED_FACTOR => StallState::Suspect,
            false => StallState::Stalled,
        })
    }
}

impl ShownSign {
    /// Returns the address of the peer, and its process if that is known; or that it is the agent's own process.
    #[must_use]
    pub fn peer(&self) -> String {
        let process = self.process.as_deref();
        match (self.sign.peer, process) {
            (Some(address), Some(process)) => format!("{address}, process {process}"),
            (Some(address), None) => address.to_string(),
            (None, _) => "its own process".to_owned(),
        }
    }

    /// Returns what waits.
    #[must_use]
    pub fn reason(&self) -> String {
        let halt = self.sign.halt.map(|halt| match halt {
            Halt::Stopped => "stopped by a signal or a debugger".to_owned(),
            Halt::Blocked(_) => "blocked in the kernel".to_owned(),
        });
        let bytes = |bytes, what| (bytes > 0).then(|| format!("{bytes} bytes not {what}"));
        let all = [
            halt,
            bytes(self.sign.unread, "read"),
            bytes(self.sign.unacknowledged, "acknowledged"),
        ];
        Vec::from_iter(all.into_iter().flatten()).join(", ")
    }
}

/// Returns the least time between two readings of an agent: so short that two readings come within `stalled_after`.
#[must_use]
pub fn shortest_period(limit: Duration) -> Duration {
    (limit / 3).clamp(MIN_PERIOD, MAX_SIGN_AGE / 3)
}

#[cfg(test)]
mod tests;
