// SPDX-License-Identifier: GPL-2.0-or-later

//! Records what is found by comparison, not by a drain: fallbacks to TCP, slow agents, stalls.

use crate::agents::Agent;
use crate::timeline::{Kind, Timeline};
use crate::transport::stall::StallState;
use std::time::Instant;

/// Text of the end of a fallback to TCP that nothing tells about any more.
const UNKNOWN_TCP: &str =
    "no longer known to be over TCP: it moved too little, or its sockets are not read any more";
/// Text of the end of a slow agent that nothing tells about any more.
const UNKNOWN_RATIO: &str = "no longer known to be slow: it or its peers have completed too few transfers, or it has exited";
/// Text of the end of a stall that nothing tells about any more.
const UNKNOWN_STALL: &str = "no longer known to be stalled, since it was not read or has exited";

impl Agent {
    /// Notes the share of its bytes that go over TCP. `None`: it moves too little.
    pub(crate) fn note_tcp(&mut self, share: Option<f64>, timeline: &mut Timeline) {
        let is_over_tcp = share.is_some_and(|share| share > MAX_TCP_SHARE);
        let Some(begins) = self.noted.tcp.update(is_over_tcp) else {
            return;
        };
        let percent = percent(share);
        let (kind, text) = match (begins, share) {
            (true, _) => {
                let text = format!("over TCP: {percent} % of its bytes in the last minute");
                (Kind::TcpFallback, text)
            }
            (false, Some(_)) => {
                let text =
                    format!("no longer over TCP: {percent} % of its bytes in the last minute");
                (Kind::TcpFallbackEnd, text)
            }
            (false, None) => (Kind::TcpFallbackEnd, UNKNOWN_TCP.to_owned()),
        };
        timeline.record(kind, self.subject(), percent, text);
    }

    /// Ends a fallback to TCP of an agent whose sockets are not read any more: no other reading ends it.
    pub(crate) fn end_tcp(&mut self, timeline: &mut Timeline) {
        if self.noted.tcp.end() {
            timeline.record(Kind::TcpFallbackEnd, self.subject(), 0, UNKNOWN_TCP);
        }
    }

    /// Notes whether its transfers have stalled.
    pub(crate) fn note_stall(&mut self, now: Instant, timeline: &mut Timeline) {
        let stall = &self.transport.stall;
        let state = stall.state();
        let sign = stall.sign().filter(|_| state == Some(StallState::Stalled));
        let began = sign.map(|sign| sign.began);
        let Some(since) = self.noted.stalled.or(began) else {
            return;
        };
        let seconds = now.saturating_duration_since(since).as_secs();
        let (kind, text) = match (self.noted.stalled, sign) {
            (None, Some(sign)) => {
                let (peer, reason) = (sign.peer(), sign.reason());
                let text =
                    format!("no transfer has completed for {seconds} s: peer {peer}: {reason}");
                (Kind::Stalled, text)
            }
            (Some(_), None) => {
                let end = state.map_or(UNKNOWN_STALL, |_| "no longer stalled");
                (Kind::StalledEnd, format!("{end}: it began {seconds} s ago"))
            }
            _ => return,
        };
        self.noted.stalled = began;
        timeline.record(kind, self.subject(), seconds, text);
    }

    /// Ends the stall of an agent that is no longer an instance.
    pub(super) fn end_stall(&mut self, timeline: &mut Timeline) {
        if let Some(since) = self.noted.stalled.take() {
            let seconds = since.elapsed().as_secs();
            let text = format!("{UNKNOWN_STALL}: it began {seconds} s ago");
            timeline.record(Kind::StalledEnd, self.subject(), seconds, text);
        }
    }

    /// Notes how many times as long as those of its peers its transfers took. `None`: there is nothing to compare.
    pub(crate) fn note_ratio(&mut self, ratio: Option<f64>, timeline: &mut Timeline) {
        let is_slow = ratio.is_some_and(|ratio| ratio > MAX_RATIO);
        let Some(begins) = self.noted.slow.update(is_slow) else {
            return;
        };
        let shown = ratio.unwrap_or_default();
        let (kind, text) = match (begins, ratio) {
            (true, _) => {
                let text = format!(
                    "slow: its transfers of the last minute took {shown:.1} times as long as those of its peers"
                );
                (Kind::Slow, text)
            }
            (false, Some(_)) => {
                let text = format!(
                    "no longer slow: {shown:.1} times the time of its peers in the last minute"
                );
                (Kind::SlowEnd, text)
            }
            (false, None) => (Kind::SlowEnd, UNKNOWN_RATIO.to_owned()),
        };
        timeline.record(kind, self.subject(), percent(ratio), text);
    }

    /// Ends the slowness of an agent that is no longer an instance.
    pub(super) fn end_slow(&mut self, timeline: &mut Timeline) {
        if self.noted.slow.end() {
            timeline.record(Kind::SlowEnd, self.subject(), 0, UNKNOWN_RATIO);
        }
    }
}

/// Share of the bytes over TCP above which an agent has fallen back to TCP, as in the rule `tcp_fallback`.
const MAX_TCP_SHARE: f64 = 0.5;
/// Ratio to the times of its peers above which an agent is slow, as in the rule `straggler`.
const MAX_RATIO: f64 = 3.0;

/// Converts a ratio to percent; 0 without one.
fn percent(ratio: Option<f64>) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as casts saturate, and no ratio is negative"
    )]
    let percent = (100.0 * ratio.unwrap_or(0.0)).round() as u64;
    percent
}
