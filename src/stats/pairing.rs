// SPDX-License-Identifier: GPL-2.0-or-later

//! Pairs the bytes of a transfer with its duration, from the order of its events in the ring.
//!
//! NIXL appends the events of a transfer under one lock, all of them or none. One thread writes them to the ring in
//! that order. From 1.4 on (`addXferStats`) the order is post time, transfer time, bytes, requests. Before
//! (`addXferTime`) it is transfer time, bytes, requests, and the post time is earlier, among the events of other
//! threads. No version has bytes before their time, or another event between the two. So the rule is:
//!
//! **Bytes belong to a transfer time if it is the event right before them.** All other times and bytes are counted as
//! unpaired.
//!
//! An allow-list (`NIXL_TELEMETRY_ENABLED_METRICS`) removes whole types, so that bytes still follow their own time or
//! no time. A full ring drops single events: a time may be the last event with room, and the next event with room may
//! be the bytes of another transfer. The events do not show this, but the slot does: it is the write position at the
//! time of the overflow, one slot before the read position of that moment. The reader of the ring knows it, and calls
//! [`Pairing::drop_pending`] there.

use crate::base::words::words;

/// A transfer with its bytes and its duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Bytes per second.
    pub bandwidth: u64,
    /// Duration in microseconds. 0 counts as 1, because NIXL's clock has no finer steps.
    pub micros: f64,
}

/// Returns the bandwidth of a transfer in byte/s, from its bytes and its duration, which is at least 1 us.
#[inline]
fn bandwidth(bytes: u64, micros: u64) -> u64 {
    const PER_SECOND: u64 = 1_000_000;
    /// Limit of the fast path: up to 8 GiB in up to two hours. Such numbers times `PER_SECOND` are exact as
    /// floating-point numbers. The whole part of their quotient is exact too: the distance to the next whole number is
    /// larger than the rounding error.
    const EXACT_BITS: u32 = 33;
    const _: () = assert!(PER_SECOND << EXACT_BITS < 1 << 53);
    if (bytes | micros) >> EXACT_BITS == 0 {
        // Several times as fast as a division of 64-bit integers.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is from 0 to 2^53, and the conversion to a signed number is cheaper"
        )]
        return ((bytes * PER_SECOND) as f64 / micros as f64) as i64 as u64;
    }
    match bytes.checked_mul(PER_SECOND) {
        Some(bytes) => bytes / micros,
        None => {
            let wide = u128::from(bytes) * u128::from(PER_SECOND) / u128::from(micros);
            u64::try_from(wide).unwrap_or(u64::MAX)
        }
    }
}

/// State of the pairing of one ring. It continues across batches and, as words, across restarts of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairing {
    /// Transfer time, microseconds, if it was the last event.
    pending_time: Option<u64>,
    unpaired: u64,
}
words!(Pairing: pending_time, unpaired);

impl Pairing {
    /// Notes the time of a transfer, which waits for its bytes.
    #[inline]
    pub fn start(&mut self, micros: u64) {
        self.drop_pending();
        self.pending_time = Some(micros);
    }

    /// Returns the transfer that these bytes complete; `None` if the event before was not a time.
    #[inline]
    pub fn complete(&mut self, bytes: u64) -> Option<Paired> {
        let Some(micros) = self.pending_time.take() else {
            self.unpaired = self.unpaired.saturating_add(1);
            return None;
        };
        let micros = micros.max(1);
        Some(Paired {
            bandwidth: bandwidth(bytes, micros),
            // An event is below 2^56. The conversion of a signed number is cheaper.
            micros: micros as i64 as f64,
        })
    }

    /// Counts a time that waits for its bytes as unpaired. Called for each other event, and where events may be
    /// missing, because the ring overflowed, the producer restarted, or another reader took events.
    #[inline]
    pub fn drop_pending(&mut self) {
        let open = u64::from(self.pending_time.take().is_some());
        self.unpaired = self.unpaired.saturating_add(open);
    }

    /// Returns the number of times without bytes and bytes without a time.
    #[must_use]
    pub fn unpaired(&self) -> u64 {
        self.unpaired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bandwidth_is_bytes_per_second() {
        assert_eq!(bandwidth(1 << 20, 100), 10_485_760_000);
        assert_eq!(bandwidth(3, 2), 1_500_000);
        assert_eq!(bandwidth(0, 1), 0);
        assert_eq!(bandwidth(1 << 50, 1 << 30), 1_048_576_000_000);
        assert_eq!(bandwidth(1 << 50, 1 << 50), 1_000_000);
        assert_eq!(bandwidth(u64::MAX, 1), u64::MAX, "no number holds more");
        assert_eq!(bandwidth(1 << 62, u64::MAX), 250_000);
    }

    #[test]
    fn pair_has_the_time_and_the_bandwidth() {
        let mut pairing = Pairing::default();
        for (micros, bandwidth, counted) in [(100, 40_960_000, 100.0), (0, 4_096_000_000, 1.0)] {
            pairing.start(micros);
            let paired = Paired {
                bandwidth,
                micros: counted,
            };
            assert_eq!(pairing.complete(4096), Some(paired));
        }
        assert_eq!((pairing.complete(4096), pairing.unpaired()), (None, 1));
    }

    proptest! {
        #[test]
        fn bandwidth_is_exact_for_all_numbers(bits in (0..65_u32, 0..65_u32), bytes: u64, micros: u64) {
            let shift = |value: u64, bits| value.checked_shr(bits).unwrap_or(0);
            let (bytes, micros) = (shift(bytes, bits.0), shift(micros, bits.1).max(1));
            let expected = u128::from(bytes) * 1_000_000 / u128::from(micros);
            let expected = u64::try_from(expected).unwrap_or(u64::MAX);
            prop_assert_eq!(bandwidth(bytes, micros), expected);
        }

        #[test]
        fn bandwidth_is_exact_beside_whole_numbers(
            (rate, micros) in (1..1_u64 << 40, 1..1_u64 << 20),
            bits in (0..40_u32, 0..20_u32),
            less in 0..2_u64,
        ) {
            // By bits, so that many are small enough for each way to divide.
            let (rate, micros) = ((rate >> bits.0).max(1), (micros >> bits.1).max(1));
            let bytes = (rate.saturating_mul(micros) / 1_000_000).saturating_sub(less);
            let expected = u128::from(bytes) * 1_000_000 / u128::from(micros);
            prop_assert_eq!(u128::from(bandwidth(bytes, micros)), expected);
        }
    }
}
