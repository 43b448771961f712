// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::entry::{Entry, Lifecycle, Name};
use crate::event::Event;
use crate::procfs::facts::Facts;

/// An agent, the timeline and the time.
struct Watched {
    agent: Agent,
    timeline: Timeline,
    now: Now,
}

impl Watched {
    /// Returns an agent that is about to be published, and that a process writes.
    fn new() -> Self {
        let name = Name {
            raw: "a".into(),
            instance: "a".into(),
            directory: "/run/nixl".into(),
            part: String::new(),
            owner: 7,
        };
        let entry = Entry {
            lifecycle: Lifecycle::AwaitingLabels { deadline: 0 },
            agent_state: AgentState::Live,
            starts: 1,
            ..Entry::default()
        };
        let now = Now::read();
        Self {
            agent: Agent::new(name, entry, now.instant),
            timeline: Timeline::default(),
            now,
        }
    }

    /// Returns an instance whose appearance was read.
    fn published() -> Self {
        let mut watched = Self::new();
        watched.agent.entry.lifecycle = Lifecycle::Active;
        assert_eq!(watched.after(0), [(Kind::Appeared, 1)]);
        watched
    }

    /// Sets the state, as a drain does.
    fn becomes(&mut self, state: AgentState) -> &mut Self {
        self.agent.entry.agent_state = state;
        self
    }

    /// Lets some seconds pass and records events, as a drain does. Returns what was recorded since the last call.
    fn after(&mut self, seconds: u64) -> Vec<(Kind, u64)> {
        self.now = self.now.at(self.now.instant + Duration::from_secs(seconds));
        self.agent.note_events(&self.now, &mut self.timeline);
        self.recorded()
    }

    /// Returns what was recorded since the last call, and checks that all of it names the agent.
    fn recorded(&mut self) -> Vec<(Kind, u64)> {
        self.texts()
            .into_iter()
            .map(|(kind, value, _)| (kind, value))
            .collect()
    }

    fn texts(&mut self) -> Vec<(Kind, u64, String)> {
        let events = self.timeline.unread(0).1;
        let events = events.map(|event| {
            assert_eq!(event.subject, self.agent.subject());
            (event.kind, event.value, event.text())
        });
        let events = events.collect();
        self.timeline.set_read(0);
        events
    }

    fn tcp(&mut self, share: Option<f64>) -> Vec<(Kind, u64)> {
        self.agent.note_tcp(share, &mut self.timeline);
        self.recorded()
    }

    fn ratio(&mut self, ratio: Option<f64>) -> Vec<(Kind, u64)> {
        self.agent.note_ratio(ratio, &mut self.timeline);
        self.recorded()
    }

    /// Counts an event of the agent.
    fn count(&mut self, kind: EventType, value: u64) {
        let totals = &mut self.agent.entry.stats.totals;
        totals.count(Event::new(Some(kind), value));
    }
}

#[test]
fn subject_has_the_rank_behind_the_server() {
    let mut watched = Watched::new();
    for (known, expected) in [
        (&[][..], ""),
        (&[("engine", "vllm")], "vllm"),
        (&[("engine", "vllm"), ("rank", "TP3")], "vllm TP3"),
        (&[("local_rank", "3")], "rank 3"),
    ] {
        let mut facts = Facts::default();
        for (name, value) in known {
            facts.set(name, Some(value));
        }
        watched.agent.set_facts(Some(facts));
        assert_eq!(watched.agent.subject().server, expected);
    }
}

#[test]
fn each_change_of_state_is_recorded_once() {
    let mut watched = Watched::new();
    assert_eq!(watched.after(0), [], "not an instance yet");
    watched.agent.entry.lifecycle = Lifecycle::Active;
    assert_eq!(watched.after(1), [(Kind::Appeared, 1)]);
    for (state, starts, expected) in [
        (AgentState::Idle, 1, None),
        (AgentState::Live, 1, None),
        (AgentState::Exited, 1, Some(Kind::Exited)),
        (AgentState::Exited, 1, None),
        (AgentState::Idle, 1, Some(Kind::Live)),
        (AgentState::Live, 2, Some(Kind::Restarted)),
        (AgentState::Live, 2, None),
        // A start that is found before its process.
        (AgentState::Exited, 3, Some(Kind::Exited)),
        (AgentState::Live, 3, Some(Kind::Restarted)),
    ] {
        watched.agent.entry.starts = starts;
        let recorded = watched.becomes(state).after(1);
        assert_eq!(
            recorded,
            Vec::from_iter(expected.map(|kind| (kind, starts)))
        );
    }
}

#[test]
fn unknown_state_is_recorded_after_ten_seconds() {
    let mut watched = Watched::published();
    // As after a start of the daemon, until the first process scan has ended.
    assert_eq!(watched.becomes(AgentState::Unknown).after(1), []);
    assert_eq!(watched.after(9), []);
    assert_eq!(watched.becomes(AgentState::Idle).after(1), []);
    assert_eq!(watched.becomes(AgentState::Unknown).after(1), []);
    assert_eq!(watched.after(10), [(Kind::Unknown, 1)]);
    assert_eq!(watched.after(10), []);
    assert_eq!(
        watched.becomes(AgentState::Live).after(1),
        [(Kind::Live, 1)]
    );
    assert_eq!(
        watched.becomes(AgentState::Exited).after(1),
        [(Kind::Exited, 1)]
    );
    assert_eq!(watched.becomes(AgentState::Unknown).after(1), []);
    assert_eq!(watched.after(10), [(Kind::Unknown, 1)]);
}

#[test]
fn agent_of_the_first_scan_may_be_older_than_its_appearance() {
    const OLDER: &str = "may have started before";
    let mut watched = Watched::new();
    watched.agent.noted.in_first_scan = true;
    assert_eq!(watched.after(0), []);
    watched.agent.entry.lifecycle = Lifecycle::Active;
    watched
        .agent
        .note_events(&watched.now, &mut watched.timeline);
    assert!(watched.texts()[0].2.contains(OLDER));
    // Its next appearance is after a start that was seen.
    watched.agent.noted.in_first_scan = true;
    for lifecycle in [Lifecycle::Active, Lifecycle::Dormant, Lifecycle::Active] {
        watched.agent.entry.lifecycle = lifecycle;
        watched
            .agent
            .note_events(&watched.now, &mut watched.timeline);
    }
    let texts = watched.texts();
    assert!(matches!(&texts[..], [(Kind::Appeared, 1, text)] if !text.contains(OLDER)));
    // The first scan has found its file, and no process that writes it.
    let mut watched = Watched::new();
    watched.agent.noted.in_first_scan = true;
    for lifecycle in [Lifecycle::Dormant, Lifecycle::Active] {
        watched.agent.entry.lifecycle = lifecycle;
        watched
            .agent
            .note_events(&watched.now, &mut watched.timeline);
    }
    assert!(!watched.texts()[0].2.contains(OLDER));
}

#[test]
fn what_the_state_file_has_is_not_recorded_again() {
    let mut watched = Watched::new();
    watched.count(EventType::Canceled, 3);
    watched.count(EventType::EventsDropped, 4);
    let entry = &mut watched.agent.entry;
    (entry.lifecycle, entry.overflows, entry.foreign_reads) = (Lifecycle::Active, 5, 6);
    watched.agent.take_as_noted();
    assert_eq!(watched.after(1), []);
    watched.agent.entry.foreign_reads = 8;
    watched.count(EventType::Canceled, 1);
    assert_eq!(watched.after(1), [(Kind::Errors, 1), (Kind::Lost, 2)]);
    // An agent that has exited before the start of the daemon.
    watched.becomes(AgentState::Exited).agent.take_as_noted();
    assert_eq!(watched.after(1), []);
    assert_eq!(
        watched.becomes(AgentState::Live).after(1),
        [(Kind::Live, 1)]
    );
}

#[test]
fn errors_within_ten_seconds_are_added_up_by_their_kind() {
    let mut watched = Watched::published();
    watched.count(EventType::Canceled, 1);
    assert_eq!(watched.after(0), [(Kind::Errors, 1)]);
    for _ in 0..3 {
        watched.count(EventType::Canceled, 2);
        assert_eq!(watched.after(3), []);
    }
    watched.count(EventType::NotFound, 9);
    assert_eq!(watched.after(0), [(Kind::Errors, 9)]);
    assert_eq!(watched.after(1), [(Kind::Errors, 6)]);
    for seconds in [20, 11] {
        watched.count(EventType::Canceled, 1);
        assert_eq!(watched.after(seconds), [(Kind::Errors, 1)]);
        assert_eq!(watched.after(0), []);
    }
}

#[test]
fn full_ring_ends_after_ten_seconds_or_with_its_instance() {
    let mut watched = Watched::published();
    for (overflows, seconds, expected) in [
        (2, 1, Some((Kind::RingFull, 1))),
        (3, 9, None),
        (3, 9, None),
        (3, 1, Some((Kind::RingFullEnd, 3))),
        (4, 1, Some((Kind::RingFull, 1))),
    ] {
        watched.agent.entry.overflows = overflows;
        assert_eq!(watched.after(seconds), Vec::from_iter(expected));
    }
    watched.agent.entry.lifecycle = Lifecycle::Dormant;
    assert_eq!(watched.after(1), [(Kind::RingFullEnd, 1)]);
    assert_eq!(watched.after(60), []);
}

#[test]
fn fallback_to_tcp_begins_and_ends_after_two_readings() {
    let mut watched = Watched::published();
    for (share, expected) in [
        (Some(0.9), None),
        (Some(0.5), None),
        (Some(0.51), None),
        (Some(0.9), Some((Kind::TcpFallback, 90))),
        (Some(1.0), None),
        (None, None),
        (Some(0.6), None),
        (Some(0.4), None),
        (Some(0.25), Some((Kind::TcpFallbackEnd, 25))),
    ] {
        assert_eq!(watched.tcp(share), Vec::from_iter(expected), "{share:?}");
    }
    // Nothing else than the end of the readings tells that it is over.
    for _ in 0..2 {
        watched.tcp(Some(1.0));
    }
    watched.agent.end_tcp(&mut watched.timeline);
    watched.agent.end_tcp(&mut watched.timeline);
    let texts = watched.texts();
    assert!(
        matches!(&texts[..], [(Kind::TcpFallbackEnd, 0, text)] if text.contains("no longer known")),
        "{texts:?}"
    );
}

#[test]
fn slow_agent_begins_and_ends_after_two_comparisons() {
    let mut watched = Watched::published();
    for (ratio, expected) in [
        (Some(3.1), None),
        (None, None),
        (Some(3.1), None),
        (Some(4.25), Some((Kind::Slow, 425))),
        (Some(9.0), None),
        (Some(3.0), None),
        (None, Some((Kind::SlowEnd, 0))),
        (None, None),
    ] {
        assert_eq!(watched.ratio(ratio), Vec::from_iter(expected), "{ratio:?}");
    }
}

#[test]
fn withdrawal_ends_what_goes_on() {
    let mut watched = Watched::published();
    for _ in 0..2 {
        watched.tcp(Some(1.0));
        watched.ratio(Some(5.0));
    }
    watched.agent.entry.overflows = 1;
    assert_eq!(watched.after(1), [(Kind::RingFull, 1)]);
    watched.agent.entry.lifecycle = Lifecycle::Dormant;
    let ended = [
        (Kind::Exited, 1),
        (Kind::RingFullEnd, 1),
        (Kind::TcpFallbackEnd, 0),
        (Kind::SlowEnd, 0),
    ];
    assert_eq!(watched.becomes(AgentState::Exited).after(1), ended);
    assert_eq!(watched.after(60), []);
}

/// Drains transfers that took these times. Returns the times that were recorded as those of slow transfers.
fn drain(watched: &mut Watched, times: &[u64]) -> Vec<u64> {
    let events = times
        .iter()
        .map(|&time| Event::new(Some(EventType::XferTime), time));
    let mut slow = SlowTransfers::default();
    slow.add(&Vec::from_iter(events), 100);
    watched
        .agent
        .note_slow_transfers(&slow, &watched.now, &mut watched.timeline);
    let recorded = watched.recorded();
    assert!(recorded.iter().all(|(kind, _)| *kind == Kind::SlowTransfer));
    Vec::from_iter(recorded.iter().map(|(_, micros)| *micros))
}

#[test]
fn slow_transfers_before_the_appearance_are_counted_after_it() {
    let mut watched = Watched::new();
    assert!(drain(&mut watched, &[200, 300]).is_empty());
    watched.agent.entry.lifecycle = Lifecycle::Active;
    assert_eq!(watched.after(1), [(Kind::Appeared, 1)]);
    assert_eq!(drain(&mut watched, &[400]), [400]);
    watched.after(60);
    assert_eq!(drain(&mut watched, &[]), [300]);
}

#[test]
fn eight_slow_transfers_of_a_minute_are_recorded_one_by_one() {
    let mut watched = Watched::published();
    assert_eq!(drain(&mut watched, &[100, 101, 500]), [500, 101]);
    let many = Vec::from_iter(201..=220);
    assert_eq!(
        drain(&mut watched, &many),
        Vec::from_iter((215..=220).rev())
    );
    assert!(drain(&mut watched, &[9000]).is_empty(), "the ninth");
    watched.after(60);
    // The longest of those left out, and then what is new.
    assert_eq!(drain(&mut watched, &[300]), [9000, 300]);
    watched.after(60);
    assert!(drain(&mut watched, &[]).is_empty());
}
