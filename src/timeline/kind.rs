// SPDX-License-Identifier: GPL-2.0-or-later

//! Kinds of events of the timeline.

/// Part of a period that an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not of a period.
    Point,
    /// Its begin.
    Begin,
    /// Its end.
    End,
}

/// Makes the enum, the names and the phases. The comment of a kind has what its value is.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal $phase:ident,)+) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind),+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind),+];

            /// Returns the value of `nixl.events.kind`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name),+
                }
            }

            /// Returns the part of a period that it is.
            #[must_use]
            pub fn phase(self) -> Phase {
                match self {
                    $(Kind::$kind => Phase::$phase),+
                }
            }
        }
    };
}

kinds! {
    /// The agent became an instance. Value: number of its starts.
    Appeared = "appeared" Point,
    /// The agent has started again. Value: number of its starts.
    Restarted = "restarted" Point,
    /// A process writes the agent's files again, after `exited` or `unknown`. Value: number of its starts.
    Live = "live" Point,
    /// No process writes the agent's files any more. Value: number of its starts.
    Exited = "exited" Point,
    /// Whether a process writes the agent's files cannot be found out. Value: number of its starts.
    Unknown = "unknown" Point,
    /// A drain has found the ring full. Value: 1.
    RingFull = "ring_full" Begin,
    /// No drain has found the ring full for a while. Value: number of drains that found it full.
    RingFullEnd = "ring_full_end" End,
    /// Events are missing. Value: their number.
    Lost = "lost" Point,
    /// Transfers have failed. Value: number of errors.
    Errors = "errors" Point,
    /// Most bytes of the agent go over TCP. Value: their share in percent.
    TcpFallback = "tcp_fallback" Begin,
    /// No longer. Value: the share in percent, 0 if unknown.
    TcpFallbackEnd = "tcp_fallback_end" End,
    /// The agent is slower than its peers. Value: ratio of the times in percent.
    Slow = "slow" Begin,
    /// No longer. Value: the ratio in percent, 0 if unknown.
    SlowEnd = "slow_end" End,
    /// Transfers of the agent have stalled. Value: seconds since their begin.
    Stalled = "stalled" Begin,
    /// No longer. Value: seconds that they had stalled.
    StalledEnd = "stalled_end" End,
    /// A transfer took longer than `slow_transfer_us`. Value: microseconds.
    SlowTransfer = "slow_transfer" Point,
    /// A configuration is in force. Value: number of configurations since the start.
    Configuration = "configuration" Point,
    /// A configuration was rejected. Value: number of configurations since the start.
    ConfigurationRejected = "configuration_rejected" Point,
    /// Processes are not scanned any more. Value: 0.
    ObserverLost = "observer_lost" Begin,
    /// They are scanned again. Value: 0.
    ObserverBack = "observer_back" End,
    /// A ring or store has an unsupported version. Value: number of such files now.
    Unsupported = "unsupported" Point,
    /// Events that a client has not read in time. Value: their number.
    Missed = "missed" Point,
    /// Events of a user were left out. Value: their number.
    LeftOut = "left_out" Point,
}
