//! Unit tests of [`super::Presence`].

use super::*;
use crate::producer::holdups::Gate;
use std::collections::HashSet;
use std::os::fd::AsFd;

/// A file as a ring is attached to it, and where it is.
fn file() -> (tempfile::NamedTempFile, FileFacts, Instant) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(4096).expect("room");
    let facts = FileFacts::new(&fstat(file.as_file().as_fd()).expect("open"));
    (file, facts, Instant::now())
}

/// All of /proc, with nothing hidden.
fn survey(presence: &mut Presence, file: &tempfile::NamedTempFile, facts: &FileFacts) {
    presence.begin_survey(file.as_file());
    let mut mappers = Mappers::read(
        &[(facts.id.ino, facts.uid)].into(),
        Some(&HashSet::new()),
        &Gate::open().0,
    );
    mappers.complete = true;
    presence.end_survey(&mappers, facts, file.path());
}

/// A process that does nothing, as if a survey had shown that it writes.
fn shown_to_write(presence: &mut Presence) -> (std::process::Child, Writer) {
    let mut process = std::process::Command::new("sleep");
    let process = process.arg("600").spawn().expect("it starts");
    let writer = Writer::of(process.id()).expect("it runs");
    (presence.writer, presence.bystanders) = (Some(writer), false);
    (process, writer)
}

#[test]
fn events_of_a_file_that_no_process_had_ask_for_the_writer() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let facts = FileFacts::new(&fstat(file.as_file()).expect("open"));
    let now = Instant::now();
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    assert!(presence.is_abandoned() && !presence.asks());
    presence.saw_events(now, CHECK);
    assert!(presence.is_held() && presence.asks());
    presence.begin_survey(file.as_file());
    presence.saw_events(now, CHECK);
    assert!(!presence.asks(), "once");
}

#[test]
fn the_more_files_there_are_the_more_rarely_each_is_asked_about() {
    let seconds =
        [0, 1, 200, 400, 1000, 1 << 20, usize::MAX].map(|files| check_every(files).as_secs());
    assert_eq!(seconds, [1, 1, 1, 2, 5, 5, 5]);
    let (file, facts, now) = file();
    let _agent = File::options()
        .append(true)
        .open(file.path())
        .expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    presence.saw_events(now, CHECK);
    drop(_agent);
    let seen =
        [1, 2, 3].map(|second| presence.check(file.as_file(), now + second * CHECK, 3 * CHECK));
    assert_eq!(seen, [Seen::Held, Seen::Held, Seen::Silent]);
}

#[test]
fn who_has_a_file_open_to_read_it_does_not_keep_its_agent() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
    survey(&mut presence, &file, &facts);
    assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Silent);
    assert!(!presence.is_abandoned() && presence.abandoned_for(now).is_none());
    // An agent that starts makes it as long as its ring is.
    std::thread::sleep(crate::base::file::COARSE);
    file.as_file().set_len(8192).expect("room");
    assert_eq!(
        presence.check(file.as_file(), now + 2 * CHECK, CHECK),
        Seen::Held
    );
    assert!(presence.asks());
}

#[test]
fn producer_that_starts_on_a_file_that_nobody_had_is_told_from_a_reader_once() {
    let (file, facts, now) = file();
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    let mut second = 0;
    let mut check = || {
        second += 1;
        presence.check(file.as_file(), now + second * CHECK, CHECK)
    };
    assert_eq!(check(), Seen::Silent);
    let tail = File::open(file.path()).expect("there");
    assert_eq!(check(), Seen::Held);
    drop(tail);
    assert_eq!(check(), Seen::Silent);
    let agent = File::options().append(true).open(file.path());
    std::thread::sleep(crate::base::file::COARSE);
    agent.as_ref().expect("there").set_len(8192).expect("room");
    assert_eq!([check(), check()], [Seen::Started, Seen::Held]);
}

#[test]
fn an_agent_that_let_go_of_its_ring_while_its_process_goes_on_is_noticed() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    survey(&mut presence, &file, &facts);
    // As if that had shown a process that still runs.
    presence.writer = Some(Writer::of(std::process::id()).expect("this one"));
    presence.bystanders = false;
    assert_eq!(
        presence.check(file.as_file(), now + CHECK, CHECK),
        Seen::Held
    );
    assert!(!presence.asks());
    let later = now + ASK;
    assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Held);
    assert!(presence.asks());
    survey(&mut presence, &file, &facts);
    assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Silent);
    // It is not taken for live again while that is asked once more.
    presence.begin_survey(file.as_file());
    assert_eq!(
        presence.check(file.as_file(), later + CHECK, CHECK),
        Seen::Silent
    );
}

#[test]
fn when_the_process_that_wrote_has_ended_it_is_asked_at_once_who_else_does() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    survey(&mut presence, &file, &facts);
    let (mut agent, _) = shown_to_write(&mut presence);
    assert_eq!(
        presence.check(file.as_file(), now + CHECK, CHECK),
        Seen::Held
    );
    assert!(!presence.asks());
    agent.kill().expect("it runs");
    agent.wait().expect("our child");
    assert_eq!(
        presence.check(file.as_file(), now + 2 * CHECK, CHECK),
        Seen::Held
    );
    assert!(presence.asks());
    survey(&mut presence, &file, &facts);
    assert_eq!(
        presence.check(file.as_file(), now + 2 * CHECK, CHECK),
        Seen::Silent
    );
}

#[test]
fn writer_that_ends_while_another_writes_is_asked_for_in_spite_of_events() {
    let (file, facts, now) = file();
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    let (mut agent, writer) = shown_to_write(&mut presence);
    presence.saw_events(now, CHECK);
    agent.kill().expect("it runs");
    agent.wait().expect("our child");
    presence.saw_events(now + CHECK, CHECK);
    assert_eq!(presence.writer(), Some(writer), "not at every event");
    presence.asks = false;
    presence.saw_events(now + READ * CHECK, CHECK);
    assert!(presence.writer().is_none() && presence.asks());
}

#[test]
fn scan_that_began_before_a_restart_does_not_keep_the_process_before() {
    let (file, facts, now) = file();
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    let (mut old, before) = shown_to_write(&mut presence);
    presence.renewed();
    let (mut new, next) = shown_to_write(&mut presence);
    presence.writer = None;
    for (shown, expected) in [(&[before][..], before), (&[before, next], next)] {
        let mappers = Mappers::of_processes(&facts, file.path(), shown);
        presence.end_survey(&mappers, &facts, file.path());
        assert_eq!(presence.writer(), Some(expected));
    }
    for process in [&mut old, &mut new] {
        process.kill().expect("it runs");
        process.wait().expect("our child");
    }
}

#[test]
fn a_writer_that_was_not_waited_for_is_found_out_at_the_tenth_check() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    survey(&mut presence, &file, &facts);
    let (mut agent, writer) = shown_to_write(&mut presence);
    agent.kill().expect("it runs");
    // Until its parent has asked for how it ended, it has its id.
    while writer.is_running() {
        std::thread::yield_now();
    }
    assert!(writer.has_process());
    for second in 1..10 {
        presence.check(file.as_file(), now + second * CHECK, CHECK);
        assert!(!presence.asks(), "after {second} s");
    }
    presence.check(file.as_file(), now + READ * CHECK, CHECK);
    assert!(presence.asks());
    agent.wait().expect("our child");
}

#[test]
fn a_survey_that_does_not_see_everything_leaves_it_open_and_is_made_again() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    // Where it never does, this is asked ever more rarely.
    let mut asked = vec![];
    for second in 1..200 {
        let now = now + second * CHECK;
        assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
        if presence.asks() {
            asked.push(second);
            presence.begin_survey(file.as_file());
            presence.end_survey(&Mappers::default(), &facts, file.path());
        }
    }
    assert_eq!(asked, [1, 3, 7, 15, 31, 63, 123, 183]);
    let now = now + 300 * CHECK;
    assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
    survey(&mut presence, &file, &facts);
    assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Silent);
}

#[test]
fn a_file_that_nobody_has_is_abandoned_since_then_and_gone_when_unlinked() {
    let (file, facts, now) = file();
    let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
    assert!(presence.is_abandoned() && !presence.asks());
    let later = now + 5 * CHECK;
    assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Silent);
    assert_eq!(presence.abandoned_for(later), Some(5 * CHECK));
    presence.saw_events(later, CHECK);
    assert_eq!(presence.abandoned_for(later), None);
    let (file, _path) = file.keep().expect("kept");
    std::fs::remove_file(&_path).expect("there");
    assert_eq!(presence.check(&file, later + 2 * CHECK, CHECK), Seen::Gone);
}
