use super::*;
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

#[test]
fn stats_survive_words() {
    let mut stats = AgentStats::default();
    for (number, kind) in (1..).zip(EventType::ALL) {
        apply(&mut stats, &[(kind, number << 40)], &[], &Bounds::size());
        let mut words = [0; AgentStats::WORDS];
        stats.put(&mut WordWriter::new(&mut words));
        assert_eq!(AgentStats::get(&mut WordReader::new(&words)), stats);
    }
    assert_eq!(stats.last_error, Some((EventType::NoTelemetry, 1234)));
    let errors: u64 = (9..=20).map(|number| number << 40).sum();
    assert_eq!(stats.errors(), errors);
}

#[test]
fn error_of_value_zero_is_not_the_last_error() {
    let mut stats = AgentStats::default();
    let [backend, canceled] = [EventType::Backend, EventType::Canceled];
    apply(
        &mut stats,
        &[(backend, 1), (canceled, 0)],
        &[],
        &Bounds::size(),
    );
    assert_eq!(stats.last_error, Some((backend, 1234)));
}

#[test]
fn stats_from_any_words_are_valid() {
    let stats = AgentStats::get(&mut WordReader::new(&[u64::MAX; AgentStats::WORDS]));
    assert_eq!(stats.last_error, None);
    assert_eq!(stats.last(EventType::XferTime), Some(u64::MAX));
    assert_eq!(stats.last(EventType::TxRequests), None);
}

#[test]
fn producer_restart_clears_registered_memory_only() {
    let mut stats = AgentStats::default();
    let [registered, deregistered] = [EventType::MemoryRegistered, EventType::MemoryDeregistered];
    let bounds = Bounds::latency();
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
    for bounds in [Bounds::latency(), Bounds::latency(), other.clone(), other] {
        apply(&mut stats, &time, &[], &bounds);
    }
    assert_eq!(stats.xfer_time.total(), 2);
    let mut words = [0; AgentStats::WORDS];
    stats.put(&mut WordWriter::new(&mut words));
    assert_eq!(AgentStats::get(&mut WordReader::new(&words)), stats);
    stats.bucket_base = Some(7);
    stats.set_bounds(&Bounds::latency());
    assert_eq!((stats.xfer_time.total(), stats.bucket_base), (0, None));
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
    assert_eq!(stats.totals.get(EventType::XferTime), 25);
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
        apply(&mut stats, &transfer, gaps, &Bounds::latency());
        assert_eq!(
            (stats.bandwidth.total(), stats.pairing.unpaired()),
            (pairs, unpaired)
        );
        assert_eq!(stats.size.total(), 1);
    }
}
