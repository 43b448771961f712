// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::base::words::tests::{assert_round_trip, from_words, to_words};
use EventType::{
    EventsDropped, MemoryRegistered, NotFound, RxBytes, RxRequests, TxBytes, TxRequests,
    XferPostTime, XferTime,
};
use proptest::prelude::*;
use std::time::Instant;

fn apply(stats: &mut AgentStats, events: &[(EventType, u64)], gaps: &[usize], bounds: &Bounds) {
    let events: Vec<Event> = events
        .iter()
        .map(|&(kind, value)| Event::new(Some(kind), value))
        .collect();
    let mut windows = Windows::new(Instant::now());
    let events = Events::of(&events);
    stats.apply(&events, gaps, bounds, 1234, &mut windows);
}

/// Returns the number of transfers in a histogram.
fn total(stats: &AgentStats, histogram: Histogram) -> u64 {
    stats.histograms[histogram as usize].total()
}

#[test]
fn stats_survive_words() {
    let mut stats = AgentStats::default();
    for (number, kind) in (1..).zip(EventType::ALL) {
        apply(&mut stats, &[(kind, number << 40)], &[], &Bounds::SIZE);
        assert_round_trip(&stats);
    }
    assert_eq!(stats.last_error, Some((EventType::NoTelemetry, 1234)));
    let errors: u64 = (9..=20).map(|number| number << 40).sum();
    assert_eq!(stats.totals.errors(), errors);
}

#[test]
fn error_of_value_zero_is_not_the_last_error() {
    let mut stats = AgentStats::default();
    let [backend, canceled] = [EventType::Backend, EventType::Canceled];
    apply(
        &mut stats,
        &[(backend, 1), (canceled, 0)],
        &[],
        &Bounds::SIZE,
    );
    assert_eq!(stats.last_error, Some((backend, 1234)));
}

#[test]
fn producer_restart_clears_registered_memory_only() {
    let mut stats = AgentStats::default();
    let [registered, deregistered] = [EventType::MemoryRegistered, EventType::MemoryDeregistered];
    let bounds = Bounds::default();
    apply(
        &mut stats,
        &[(registered, 10), (deregistered, 3)],
        &[],
        &bounds,
    );
    assert_eq!(stats.registered, 7);
    stats.producer_restarted();
    apply(
        &mut stats,
        &[(registered, 5), (deregistered, 9)],
        &[],
        &bounds,
    );
    assert_eq!(stats.registered, 0, "what was lost makes it no less");
    assert_eq!(stats.totals.get(registered), 15);
}

#[test]
fn new_bounds_reset_histograms_and_equal_bounds_do_not() {
    let mut stats = AgentStats::default();
    let time = [(EventType::XferTime, 5)];
    let other = Bounds::from_config(&[1, 7]).expect("good bounds");
    for bounds in [Bounds::default(), Bounds::default(), other.clone(), other] {
        apply(&mut stats, &time, &[], &bounds);
    }
    assert_eq!(total(&stats, Histogram::XferTime), 2);
    assert_round_trip(&stats);
    stats.bucket_base = Some(7);
    stats.set_bounds(&Bounds::default());
    assert_eq!(
        (total(&stats, Histogram::XferTime), stats.bucket_base),
        (0, None)
    );
    apply(
        &mut stats,
        &[],
        &[],
        &Bounds::from_config(&[1, 7]).expect("good bounds"),
    );
    apply(
        &mut stats,
        &time,
        &[],
        &Bounds::from_config(&[1, 7]).expect("good bounds"),
    );
    assert_eq!(stats.bucket_count(Histogram::XferTime, 1), 1);
    // Sum and count are those of the histogram, the totals go on.
    assert_eq!(stats.histogram_count(Histogram::XferTime), 1);
    assert_eq!(
        (
            stats.histogram_sums(),
            stats.totals.get(EventType::XferTime)
        ),
        ([5, 0], 25)
    );
}

#[test]
fn events_across_a_gap_are_not_paired() {
    let transfer = [(EventType::XferTime, 5), (EventType::TxBytes, 1000)];
    for (gaps, pairs, unpaired) in [
        (&[][..], 1, 0),
        (&[0], 1, 0),
        (&[1], 0, 2),
        (&[2], 1, 0),
        (&[0, 1, 1, 9], 0, 2),
    ] {
        let mut stats = AgentStats::default();
        apply(&mut stats, &transfer, gaps, &Bounds::default());
        assert_eq!(
            (
                total(&stats, Histogram::Bandwidth),
                stats.pairing.unpaired()
            ),
            (pairs, unpaired)
        );
        assert_eq!(total(&stats, Histogram::Size), 1);
    }
}

/// Events in a ring. `None` is a gap: the ring was full and events were dropped.
type Shown = Vec<Option<(EventType, u64)>>;

/// Applies one event in a batch of its own. Returns the bandwidth of the transfer that it completes.
fn bandwidth_of(stats: &mut AgentStats, kind: Option<EventType>, value: u64) -> Option<u64> {
    let mut windows = Windows::new(Instant::now());
    let events = Events::of(&[Event::new(kind, value)]);
    stats.apply(&events, &[], &Bounds::default(), 1234, &mut windows);
    windows.bandwidth.max()
}

/// Returns the bandwidths of the transfers of a ring, and the number of unpaired events.
fn bandwidths(events: &[(EventType, u64)]) -> (Vec<u64>, u64) {
    let mut stats = AgentStats::default();
    let found = events
        .iter()
        .filter_map(|&(kind, value)| bandwidth_of(&mut stats, Some(kind), value))
        .collect();
    stats.note_gap();
    (found, stats.pairing.unpaired())
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
    let [tx, rx] = [204_800_000, 273_066_666];
    assert_eq!(bandwidths(&adjacent), (vec![tx, rx], 0));
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
    assert_eq!(bandwidths(&apart), (vec![rx, tx], 0));
}

#[test]
fn half_without_the_other_is_unpaired() {
    for (events, found, unpaired) in [
        (
            &[(XferTime, 1), (XferTime, 2), (TxBytes, 3)][..],
            vec![1_500_000],
            1,
        ),
        (&[(TxBytes, 3), (RxBytes, 4)], vec![], 2),
        (
            &[(XferTime, 1), (TxBytes, 3), (TxBytes, 4)],
            vec![3_000_000],
            1,
        ),
        (&[(XferTime, 1)], vec![], 1),
    ] {
        assert_eq!(bandwidths(events), (found, unpaired), "{events:?}");
    }
}

#[test]
fn events_across_another_event_are_not_paired() {
    for between in EventType::ALL {
        if matches!(between, XferTime | TxBytes | RxBytes) {
            continue;
        }
        let events = [(XferTime, 1), (between, 5), (TxBytes, 3)];
        assert_eq!(bandwidths(&events), (vec![], 2), "{between:?}");
    }
    let mut stats = AgentStats::default();
    for kind in [Some(XferTime), None, Some(RxBytes)] {
        assert_eq!(bandwidth_of(&mut stats, kind, 1), None);
    }
    assert_eq!(stats.pairing.unpaired(), 2);
}

#[test]
fn pending_time_is_unpaired_after_a_gap() {
    let mut stats = AgentStats::default();
    stats.note_gap();
    assert_eq!(stats.pairing.unpaired(), 0, "nothing was open");
    bandwidth_of(&mut stats, Some(XferTime), 7);
    stats.note_gap();
    assert_eq!(bandwidth_of(&mut stats, Some(TxBytes), 8), None);
    assert_eq!(stats.pairing.unpaired(), 2);
}

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
    fn pairs_are_exactly_the_complete_transfers(
        events in stream(),
        hidden in prop::collection::hash_set(0..EventType::COUNT, 0..4),
        restarts in prop::collection::hash_set(0..200_usize, 0..5),
    ) {
        let shown: Shown = events
            .into_iter()
            .filter(|event| event.is_none_or(|(kind, _)| !hidden.contains(&(kind as usize))))
            .collect();
        let is_bytes = |kind| matches!(kind, TxBytes | RxBytes);
        let mut stats = AgentStats::default();
        let (mut pairs, mut halves) = (0, 0);
        for (at, event) in shown.iter().enumerate() {
            if restarts.contains(&at) {
                stats.pairing = from_words(&to_words(&stats.pairing)).expect("words");
            }
            let Some((kind, value)) = *event else {
                stats.note_gap();
                continue;
            };
            halves += u64::from(kind == XferTime || is_bytes(kind));
            let bandwidth = bandwidth_of(&mut stats, Some(kind), value);
            // Time and bytes of a transfer have one value, which no other event has.
            let before = at.checked_sub(1).and_then(|before| shown[before]);
            let is_whole = is_bytes(kind) && before == Some((XferTime, value));
            prop_assert_eq!(bandwidth, is_whole.then_some(1_000_000));
            pairs += u64::from(is_whole);
        }
        stats.note_gap();
        prop_assert_eq!(stats.pairing.unpaired(), halves - 2 * pairs);
    }
}
