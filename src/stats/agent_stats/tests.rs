use super::*;
use std::time::Instant;

fn count(account: &mut AgentStats, events: &[(EventType, u64)], cuts: &[usize], bounds: &Bounds) {
    let events: Vec<Event> = events
        .iter()
        .map(|&(kind, value)| Event::new(Some(kind), value))
        .collect();
    let mut windows = Windows::new(Instant::now());
    let events = Events::of(&events);
    account.count(&events, cuts, bounds, 1234, &mut windows);
}

#[test]
fn what_is_put_is_got() {
    let mut account = AgentStats::default();
    for (number, kind) in (1..).zip(EventType::ALL) {
        count(&mut account, &[(kind, number << 40)], &[], &Bounds::size());
        let mut words = [0; AgentStats::WORDS];
        account.put(&mut WordWriter::new(&mut words));
        assert_eq!(AgentStats::get(&mut WordReader::new(&words)), account);
    }
    assert_eq!(account.last_error, Some((EventType::NoTelemetry, 1234)));
    let errors: u64 = (9..=20).map(|number| number << 40).sum();
    assert_eq!(account.errors(), errors);
}

#[test]
fn an_error_that_counts_nothing_is_not_the_last() {
    let mut account = AgentStats::default();
    let [backend, canceled] = [EventType::Backend, EventType::Canceled];
    count(
        &mut account,
        &[(backend, 1), (canceled, 0)],
        &[],
        &Bounds::size(),
    );
    assert_eq!(account.last_error, Some((backend, 1234)));
}

#[test]
fn whatever_the_words_are_they_are_an_account() {
    let account = AgentStats::get(&mut WordReader::new(&[u64::MAX; AgentStats::WORDS]));
    assert_eq!(account.last_error, None);
    assert_eq!(account.last(EventType::XferTime), Some(u64::MAX));
    assert_eq!(account.last(EventType::TxRequests), None);
}

#[test]
fn a_restart_frees_what_was_registered_and_not_what_was_counted() {
    let mut account = AgentStats::default();
    let [registered, deregistered] = [EventType::MemoryRegistered, EventType::MemoryDeregistered];
    let bounds = Bounds::latency();
    count(
        &mut account,
        &[(registered, 10), (deregistered, 3)],
        &[],
        &bounds,
    );
    assert_eq!(account.registered, 7);
    account.restart();
    count(
        &mut account,
        &[(registered, 5), (deregistered, 9)],
        &[],
        &bounds,
    );
    assert_eq!(account.registered, 0, "what was lost makes it no less");
    assert_eq!(account.totals.get(registered), 15);
}

#[test]
fn other_bounds_begin_anew_and_the_same_go_on() {
    let mut account = AgentStats::default();
    let time = [(EventType::XferTime, 5)];
    let other = Bounds::from_config(&[1, 7]).expect("good bounds");
    for bounds in [Bounds::latency(), Bounds::latency(), other.clone(), other] {
        count(&mut account, &time, &[], &bounds);
    }
    assert_eq!(account.xfer_time.total(), 2);
    let mut words = [0; AgentStats::WORDS];
    account.put(&mut WordWriter::new(&mut words));
    assert_eq!(AgentStats::get(&mut WordReader::new(&words)), account);
    account.bucket_base = Some(7);
    account.set_bounds(&Bounds::latency());
    assert_eq!((account.xfer_time.total(), account.bucket_base), (0, None));
    count(
        &mut account,
        &[],
        &[],
        &Bounds::from_config(&[1, 7]).expect("good bounds"),
    );
    count(
        &mut account,
        &time,
        &[],
        &Bounds::from_config(&[1, 7]).expect("good bounds"),
    );
    assert_eq!(account.bucket(Histogram::XferTime, 1), 1);
    assert_eq!(account.totals.get(EventType::XferTime), 25);
}

#[test]
fn nothing_is_paired_across_a_place_where_events_may_be_missing() {
    let transfer = [(EventType::XferTime, 5), (EventType::TxBytes, 1000)];
    for (cuts, pairs, unpaired) in [
        (&[][..], 1, 0),
        (&[0], 1, 0),
        (&[1], 0, 2),
        (&[2], 1, 0),
        (&[0, 1, 1, 9], 0, 2),
    ] {
        let mut account = AgentStats::default();
        count(&mut account, &transfer, cuts, &Bounds::latency());
        assert_eq!(
            (account.bandwidth.total(), account.pairing.unpaired()),
            (pairs, unpaired)
        );
        assert_eq!(account.size.total(), 1);
    }
}
