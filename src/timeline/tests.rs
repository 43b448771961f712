// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn of_user(owner: u32) -> Subject {
    Subject {
        agent: format!("agent-{owner}"),
        owner: Some(owner),
        ..Subject::default()
    }
}

/// Returns what a client has missed, and the values that it reads.
fn read(timeline: &mut Timeline, client: i32) -> (u64, Vec<u64>) {
    let (missed, events) = timeline.unread(client);
    let read = (missed, events.map(|event| event.value).collect());
    timeline.set_read(client);
    read
}

#[test]
fn client_reads_each_event_once_from_the_whole_queue() {
    let mut timeline = Timeline::default();
    let record = |timeline: &mut Timeline, value| {
        timeline.record(Kind::Appeared, Subject::default(), value, "appeared");
    };
    (0..3).for_each(|value| record(&mut timeline, value));
    assert_eq!(read(&mut timeline, 1), (0, vec![0, 1, 2]));
    assert_eq!(read(&mut timeline, 1), (0, vec![]));
    record(&mut timeline, 3);
    assert_eq!(read(&mut timeline, 2), (0, vec![0, 1, 2, 3]));
    assert_eq!(read(&mut timeline, 1), (0, vec![3]));
    timeline.end_client(1);
    assert_eq!(read(&mut timeline, 1), (0, vec![0, 1, 2, 3]));
}

#[test]
fn slow_client_is_told_what_it_has_missed() {
    let mut timeline = Timeline::default();
    assert_eq!(read(&mut timeline, 1), (0, vec![]));
    let text = "x".repeat(2 * MAX_TEXT);
    for value in 0..1000 {
        timeline.record(Kind::Errors, Subject::default(), value, &*text);
        assert!(timeline.bytes <= MAX_BYTES);
    }
    let (missed, values) = read(&mut timeline, 1);
    assert!(missed > 0 && values.len() > 300, "{missed}");
    assert_eq!(values, Vec::from_iter(missed..1000));
    assert_eq!(
        read(&mut timeline, 2),
        (0, values),
        "it could not have read more"
    );
}

#[test]
fn user_with_many_events_does_not_push_out_others() {
    let mut timeline = Timeline::default();
    let start = Instant::now();
    timeline.record(Kind::Exited, of_user(7), 7, "exited");
    for value in 0..10_000 {
        timeline.record(Kind::Appeared, of_user(8), value, "appeared");
    }
    timeline.record(Kind::Exited, of_user(9), 9, "exited");
    let (_, values) = read(&mut timeline, 1);
    assert_eq!((values.first(), values.last()), (Some(&7), Some(&9)));
    let of_many = values.len() as u64 - 2;
    // The minute may have ended by itself on a busy machine, which says the same.
    timeline.end_minute(start + 3 * MINUTE);
    let (missed, events) = timeline.unread(1);
    let left_out = Vec::from_iter(events);
    assert_eq!((missed, left_out.len()), (0, 1));
    assert_eq!(
        (left_out[0].kind, left_out[0].value),
        (Kind::LeftOut, 10_000 - of_many)
    );
    assert!(left_out[0].text().contains("uid 8"));
    timeline.set_read(1);
    timeline.record(Kind::Appeared, of_user(8), 5, "appeared");
    assert_eq!(read(&mut timeline, 1), (0, vec![5]), "the next minute");
}

#[test]
fn text_is_one_line_with_agent_and_server() {
    let mut timeline = Timeline::default();
    let both = Subject {
        server: "vllm decode:8200".into(),
        ..of_user(7)
    };
    timeline.record(Kind::Exited, Subject::default(), 0, "host");
    timeline.record(Kind::Exited, of_user(7), 0, "exited");
    timeline.record(Kind::Exited, both, 0, "exited");
    // A character is not divided.
    timeline.record(
        Kind::Exited,
        Subject::default(),
        0,
        "\u{1d159}".repeat(MAX_TEXT),
    );
    let texts = Vec::from_iter(timeline.unread(1).1.map(TimelineEvent::text));
    assert_eq!(
        texts[..3],
        [
            "host",
            "agent-7: exited",
            "agent-7 (vllm decode:8200): exited"
        ]
    );
    assert_eq!(texts[3].len(), MAX_TEXT);
}

#[test]
fn last_events_are_json_with_rising_numbers() {
    let mut timeline = Timeline::default();
    assert_eq!(timeline.last(), "[]");
    for value in 0..2 * LAST as u64 {
        timeline.record(Kind::RingFull, of_user(1), value, "full");
    }
    let last: serde_json::Value = serde_json::from_str(&timeline.last()).expect("JSON");
    let last = last.as_array().expect("an array");
    let numbers = Vec::from_iter(last.iter().map(|event| event["number"].as_u64()));
    let expected = (LAST as u64..2 * LAST as u64).map(Some);
    assert_eq!(numbers, Vec::from_iter(expected));
    assert_eq!(last[0]["kind"], "ring_full");
    assert_eq!(last[0]["text"], "agent-1: full");
}

#[test]
fn names_of_kinds_are_unique() {
    let names = HashSet::<_>::from_iter(Kind::ALL.iter().map(|kind| kind.name()));
    assert_eq!(names.len(), Kind::ALL.len());
    for kind in Kind::ALL {
        let is_end = kind.name().ends_with("_end") || *kind == Kind::ObserverBack;
        assert_eq!(kind.phase() == Phase::End, is_end, "{kind:?}");
    }
}

proptest! {
    /// Whatever clients read and when, each gets the events in order, each once, or is told how many are missing.
    #[test]
    fn each_client_gets_or_misses_each_event_once(
        steps in prop::collection::vec((0..6_i32, 0..MAX_TEXT), 1..1500),
    ) {
        let mut timeline = Timeline::default();
        let mut next = HashMap::<i32, u64>::new();
        let mut recorded = 0;
        for (client, len) in steps {
            if client > 2 {
                timeline.record(Kind::Errors, Subject::default(), recorded, "x".repeat(len));
                recorded += 1;
                continue;
            }
            let first = timeline.first;
            let (missed, values) = read(&mut timeline, client);
            // A client that has read nothing misses nothing.
            let from = next.insert(client, recorded).unwrap_or(first);
            prop_assert_eq!(values, Vec::from_iter(from + missed..recorded));
            prop_assert_eq!(missed, first.saturating_sub(from));
        }
        prop_assert!(timeline.bytes <= MAX_BYTES && timeline.recorded() == recorded);
        let bytes: usize = timeline.events.iter().map(TimelineEvent::bytes).sum();
        prop_assert_eq!(bytes, timeline.bytes);
    }
}
