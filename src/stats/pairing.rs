//! Pairs the bytes of a transfer with its duration, from the order of its events in the ring.
//!
//! NIXL appends the events of a transfer under one lock, all of them or none. One thread writes them to the ring in that order.
//! From 1.4 on (`addXferStats`) the order is post time, transfer time, bytes, requests. Before (`addXferTime`) it is transfer time,
//! bytes, requests, and the post time is earlier, among the events of other threads. No version has bytes before their time, or
//! another event between the two. So the rule is:
//!
//! **Bytes belong to a transfer time if it is the event right before them.** All other times and bytes are counted as unpaired.
//!
//! An allow-list (`NIXL_TELEMETRY_ENABLED_METRICS`) removes whole types, so that bytes still follow their own time or no time.
//! A full ring drops single events: a time may be the last event with room, and the next event with room may be the bytes of
//! another transfer. The events do not show this, but the slot does: it is the write position at the time of the overflow, one
//! slot before the read position of that moment. The reader of the ring knows it, and calls [`Pairing::drop_pending`] there.

use crate::event::EventType;

/// Bytes and duration of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes of the transfer.
    pub bytes: u64,
    /// Microseconds from its start to its completion.
    pub micros: u64,
}

impl Transfer {
    /// Returns the bandwidth in byte/s. 0 us count as 1 us, because NIXL's clock has no finer steps.
    #[inline]
    #[must_use]
    pub fn bandwidth(self) -> u64 {
        const PER_SECOND: u64 = 1_000_000;
        /// Limit of the fast path: up to 8 GiB in up to two hours. Such numbers times `PER_SECOND` are exact as floating-point
        /// numbers. The whole part of their quotient is exact too: the distance to the next whole number is larger than the
        /// rounding error.
        const EXACT_BITS: u32 = 33;
        const _: () = assert!(PER_SECOND << EXACT_BITS < 1 << 53);
        let micros = self.micros.max(1);
        if (self.bytes | micros) >> EXACT_BITS == 0 {
            // Several times as fast as a division of 64-bit integers.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the value is from 0 to 2^53, and the conversion to a signed number is cheaper"
            )]
            return ((self.bytes * PER_SECOND) as f64 / micros as f64) as i64 as u64;
        }
        match self.bytes.checked_mul(PER_SECOND) {
            Some(bytes) => bytes / micros,
            None => {
                let wide = u128::from(self.bytes) * u128::from(PER_SECOND) / u128::from(micros);
                u64::try_from(wide).unwrap_or(u64::MAX)
            }
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

impl Pairing {
    /// Number of words of [`Pairing::to_words`].
    pub const WORDS: usize = 3;

    /// Adds the next event of the ring; `None` is an event of an unknown type. Returns the transfer that it completes.
    #[inline]
    pub fn push(&mut self, event: Option<EventType>, value: u64) -> Option<Transfer> {
        match event {
            Some(EventType::TxBytes | EventType::RxBytes) => {
                let Some(micros) = self.pending_time.take() else {
                    self.unpaired = self.unpaired.saturating_add(1);
                    return None;
                };
                Some(Transfer {
                    bytes: value,
                    micros,
                })
            }
            Some(EventType::XferTime) => {
                self.drop_pending();
                self.pending_time = Some(value);
                None
            }
            _ => {
                self.drop_pending();
                None
            }
        }
    }

    /// Counts a time that waits for its bytes as unpaired. Called where events may be missing, because the ring overflowed, the
    /// producer restarted, or another reader took events.
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

    /// Returns three words: 1 if a time waits for its bytes, that time, and the number of unpaired events.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        [
            u64::from(self.pending_time.is_some()),
            self.pending_time.unwrap_or(0),
            self.unpaired,
        ]
    }

    /// Reads the words of [`Pairing::to_words`].
    #[must_use]
    pub fn from_words(&[open, time, unpaired]: &[u64; Self::WORDS]) -> Self {
        Self {
            pending_time: (open != 0).then_some(time),
            unpaired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventType::{
        EventsDropped, MemoryRegistered, NotFound, RxBytes, RxRequests, TxBytes, TxRequests,
        XferPostTime, XferTime,
    };
    use proptest::prelude::*;

    /// Returns the pairs of a ring's events, and the number of unpaired ones.
    fn pairs(events: &[(EventType, u64)]) -> (Vec<(u64, u64)>, u64) {
        let mut pairing = Pairing::default();
        let paired = events
            .iter()
            .filter_map(|&(event, value)| pairing.push(Some(event), value))
            .map(|pair| (pair.bytes, pair.micros))
            .collect();
        pairing.drop_pending();
        (paired, pairing.unpaired())
    }

    #[test]
    fn both_orders_of_events_give_each_transfer() {
        let adjacent = [
            (XferPostTime, 3),
            (XferTime, 20),
            (TxBytes, 4096),
            (TxRequests, 1),
            (XferPostTime, 4),
            (XferTime, 30),
            (RxBytes, 8192),
            (RxRequests, 1),
        ];
        assert_eq!(pairs(&adjacent), (vec![(4096, 20), (8192, 30)], 0));
        // Up to 1.3: two transfers were posted, then both completed, in the other order.
        let apart = [
            (XferPostTime, 3),
            (XferPostTime, 4),
            (XferTime, 30),
            (RxBytes, 8192),
            (RxRequests, 1),
            (MemoryRegistered, 4096),
            (XferTime, 20),
            (TxBytes, 4096),
            (TxRequests, 1),
        ];
        assert_eq!(pairs(&apart), (vec![(8192, 30), (4096, 20)], 0));
    }

    #[test]
    fn half_without_the_other_is_unpaired() {
        assert_eq!(
            pairs(&[(XferTime, 1), (XferTime, 2), (TxBytes, 3)]),
            (vec![(3, 2)], 1)
        );
        assert_eq!(pairs(&[(TxBytes, 3), (RxBytes, 4)]), (vec![], 2));
        assert_eq!(
            pairs(&[(XferTime, 1), (TxBytes, 3), (TxBytes, 4)]),
            (vec![(3, 1)], 1)
        );
        assert_eq!(pairs(&[(XferTime, 1)]), (vec![], 1));
    }

    #[test]
    fn events_across_another_event_are_not_paired() {
        for between in EventType::ALL {
            if matches!(between, XferTime | TxBytes | RxBytes) {
                continue;
            }
            let events = [(XferTime, 1), (between, 5), (TxBytes, 3)];
            assert_eq!(pairs(&events), (vec![], 2), "{between:?}");
        }
        let mut pairing = Pairing::default();
        for event in [Some(XferTime), None, Some(RxBytes)] {
            assert_eq!(pairing.push(event, 1), None);
        }
        assert_eq!(pairing.unpaired(), 2);
    }

    #[test]
    fn pending_time_is_unpaired_when_dropped() {
        let mut pairing = Pairing::default();
        pairing.drop_pending();
        assert_eq!(pairing.unpaired(), 0, "nothing was open");
        pairing.push(Some(XferTime), 7);
        pairing.drop_pending();
        assert_eq!(pairing.push(Some(TxBytes), 8), None);
        assert_eq!(pairing.unpaired(), 2);
    }

    #[test]
    fn bandwidth_is_bytes_per_second() {
        let bandwidth = |bytes, micros| Transfer { bytes, micros }.bandwidth();
        assert_eq!(bandwidth(1 << 20, 100), 10_485_760_000);
        assert_eq!(bandwidth(3, 2), 1_500_000);
        assert_eq!(bandwidth(4096, 0), 4_096_000_000, "0 us counts as 1 us");
        assert_eq!(bandwidth(0, 0), 0);
        assert_eq!(bandwidth(1 << 50, 1 << 30), 1_048_576_000_000);
        assert_eq!(bandwidth(1 << 50, 1 << 50), 1_000_000);
        assert_eq!(bandwidth(u64::MAX, 1), u64::MAX, "no number holds more");
        assert_eq!(bandwidth(1 << 62, u64::MAX), 250_000);
    }

    /// Events in a ring. `None` is a gap: the ring was full and events were dropped.
    type Shown = Vec<Option<(EventType, u64)>>;

    /// Generates transfers and other events as NIXL writes them, each with a value of its own, some dropped by the ring.
    fn stream() -> impl Strategy<Value = Shown> {
        let item = (0..8_u8, any::<bool>());
        (
            any::<bool>(),
            prop::collection::vec(item, 0..40),
            prop::collection::vec((0..160_usize, 1..12_usize), 0..6),
        )
            .prop_map(|(adjacent, items, gaps)| {
                let mut events: Shown = Vec::new();
                for (number, (kind, write)) in (1..).zip(items) {
                    let (bytes, requests) = match write {
                        true => (TxBytes, TxRequests),
                        false => (RxBytes, RxRequests),
                    };
                    let transfer = [(XferTime, number), (bytes, number), (requests, 1)];
                    match kind {
                        0 => events.push(Some((NotFound, 1))),
                        1 => events.push(Some((MemoryRegistered, number))),
                        2 => events.push(Some((EventsDropped, number))),
                        3 if !adjacent => events.push(Some((XferPostTime, number))),
                        _ => {
                            if adjacent {
                                events.push(Some((XferPostTime, number)));
                            }
                            events.extend(transfer.map(Some));
                        }
                    }
                }
                for (at, len) in gaps {
                    let at = at.min(events.len());
                    let end = (at + len).min(events.len());
                    events.splice(at..end, [None]);
                }
                events
            })
    }

    proptest! {
        #[test]
        fn bandwidth_is_exact_for_all_numbers(bits in (0..65_u32, 0..65_u32), bytes: u64, micros: u64) {
            let shift = |value: u64, bits| value.checked_shr(bits).unwrap_or(0);
            let (bytes, micros) = (shift(bytes, bits.0), shift(micros, bits.1));
            let expected = u128::from(bytes) * 1_000_000 / u128::from(micros.max(1));
            let expected = u64::try_from(expected).unwrap_or(u64::MAX);
            prop_assert_eq!(Transfer { bytes, micros }.bandwidth(), expected);
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
            prop_assert_eq!(u128::from(Transfer { bytes, micros }.bandwidth()), expected);
        }

        #[test]
        fn pairs_are_exactly_the_complete_transfers(
            events in stream(),
            hidden in prop::collection::hash_set(0..EventType::COUNT, 0..4),
            restarts in prop::collection::hash_set(0..200_usize, 0..5),
        ) {
            let shown: Shown = events
                .into_iter()
                .filter(|event| event.is_none_or(|(event, _)| !hidden.contains(&(event as usize))))
                .collect();
            let is_bytes = |event: EventType| matches!(event, TxBytes | RxBytes);
            let mut pairing = Pairing::default();
            let (mut pairs, mut halves) = (0, 0);
            for (at, event) in shown.iter().enumerate() {
                if restarts.contains(&at) {
                    pairing = Pairing::from_words(&pairing.to_words());
                }
                let Some((event, value)) = *event else {
                    pairing.drop_pending();
                    continue;
                };
                halves += u64::from(event == XferTime || is_bytes(event));
                let pair = pairing.push(Some(event), value);
                // Time and bytes of a transfer have one value, which no other event has.
                let before = at.checked_sub(1).and_then(|before| shown[before]);
                let whole = is_bytes(event) && before == Some((XferTime, value));
                prop_assert_eq!(pair, whole.then_some(Transfer { bytes: value, micros: value }));
                pairs += u64::from(whole);
            }
            pairing.drop_pending();
            prop_assert_eq!(pairing.unpaired(), halves - 2 * pairs);
        }
    }
}
