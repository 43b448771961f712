// SPDX-License-Identifier: GPL-2.0-or-later

//! The lifecycle of an agent: whether it is an instance, and why.

use crate::base::words::{Rest, Words};

/// Whether an agent is an instance. Each change is a method, so that no two flags can disagree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// Not an instance: the agent has no file, or no process has written to its files for `retain`.
    #[default]
    Dormant,
    /// Not an instance yet: becomes one as soon as its labels are known, at the deadline at the latest.
    AwaitingLabels {
        /// When the wait for labels ends: nanoseconds of CLOCK_MONOTONIC.
        deadline: u64,
    },
    /// An instance: a process writes to its files, or may.
    Active,
    /// An instance until `retain` has passed: no process is known to write to its files.
    Exited {
        /// When that was found: nanoseconds of CLOCK_MONOTONIC.
        since: u64,
    },
}

impl Lifecycle {
    /// True if the agent is an instance.
    #[must_use]
    pub fn is_published(self) -> bool {
        matches!(self, Self::Active | Self::Exited { .. })
    }

    /// True if the agent is not an instance, and is not about to become one.
    #[must_use]
    pub fn is_dormant(self) -> bool {
        self == Self::Dormant
    }

    /// When it was found that no process is known to write, in nanoseconds of CLOCK_MONOTONIC. `None` if one may, or if
    /// the agent is not an instance.
    #[must_use]
    pub fn exited_since(self) -> Option<u64> {
        match self {
            Self::Exited { since } => Some(since),
            _ => None,
        }
    }

    /// Makes the agent an instance, since a process writes. An agent that is not one awaits its labels first, until the
    /// later of its deadlines at most.
    pub fn activate(&mut self, deadline: u64) {
        *self = match *self {
            Self::Dormant => Self::AwaitingLabels { deadline },
            Self::AwaitingLabels { deadline: before } => Self::AwaitingLabels {
                deadline: deadline.max(before),
            },
            Self::Active | Self::Exited { .. } => Self::Active,
        };
    }

    /// Shortens the wait for labels to `stamp`, since no labels will come.
    pub fn limit_wait(&mut self, stamp: u64) {
        if let Self::AwaitingLabels { deadline } = self {
            *deadline = stamp.min(*deadline);
        }
    }

    /// Ends the wait for labels, if they are known or `stamp` is not before the deadline. Returns true if it has ended.
    pub fn publish(&mut self, are_labels_known: bool, stamp: u64) -> bool {
        let has_ended = matches!(*self, Self::AwaitingLabels { deadline } if are_labels_known || stamp >= deadline);
        if has_ended {
            *self = Self::Active;
        }
        has_ended
    }

    /// Notes that no process is known to write: an active instance has exited at `stamp`. Returns true if it was
    /// active.
    pub fn exit(&mut self, stamp: u64) -> bool {
        let is_active = *self == Self::Active;
        if is_active {
            *self = Self::Exited { since: stamp };
        }
        is_active
    }
}

impl Words for Lifecycle {
    const MAX: usize = 2;

    fn put(&self, words: &mut Rest) {
        let number_and_stamp: (u64, u64) = match *self {
            Self::Dormant => (0, 0),
            Self::AwaitingLabels { deadline } => (1, deadline),
            Self::Active => (2, 0),
            Self::Exited { since } => (3, since),
        };
        number_and_stamp.put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        Some(match <(u64, u64)>::get(words)? {
            (0, _) => Self::Dormant,
            (1, deadline) => Self::AwaitingLabels { deadline },
            (2, _) => Self::Active,
            (3, since) => Self::Exited { since },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_published_with_labels_or_at_its_deadline() {
        for (are_known, stamp, is_published) in
            [(false, 8, false), (true, 8, true), (false, 9, true)]
        {
            let mut lifecycle = Lifecycle::Dormant;
            lifecycle.activate(9);
            assert!(!lifecycle.is_dormant() && !lifecycle.is_published());
            lifecycle.activate(8);
            assert!(!lifecycle.exit(5), "no instance has exited");
            lifecycle.limit_wait(10);
            assert_eq!(lifecycle.publish(are_known, stamp), is_published);
            assert_eq!(lifecycle.is_published(), is_published);
        }
    }

    #[test]
    fn exited_agent_keeps_the_time_of_its_exit() {
        let mut lifecycle = Lifecycle::Active;
        assert!(lifecycle.exit(5) && !lifecycle.exit(6));
        assert_eq!(lifecycle.exited_since(), Some(5));
        assert!(!lifecycle.publish(true, 7) && lifecycle.is_published());
        lifecycle.activate(7);
        assert_eq!(lifecycle, Lifecycle::Active);
        lifecycle = Lifecycle::Dormant;
        assert!(!lifecycle.publish(true, 7), "it waits for nothing");
    }
}
