// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;

/// Returns a file as long as a ring, and the time.
fn file() -> (tempfile::NamedTempFile, FileFacts, Instant) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(4096).expect("room");
    let facts = FileFacts::new(&fstat(file.as_file()).expect("open"));
    (file, facts, Instant::now())
}

/// Checks a file. Returns what other processes do with it.
fn checked(liveness: &mut Liveness, file: &File, now: Instant) -> Presence {
    liveness.check(file, now, CHECK_PERIOD);
    liveness.presence(now)
}

/// Applies a scan of all of /proc, as if nothing was hidden, that looks for the writer of the file.
fn scan(liveness: &mut Liveness, file: &tempfile::NamedTempFile, facts: &FileFacts) {
    liveness.begin_process_scan(true);
    let now = FileFacts::new(&fstat(file.as_file()).expect("open"));
    let process_scan = ProcessScan::run(&[&now], Some([now.id.ino].into()));
    liveness.end_process_scan(&process_scan, facts, file.path());
}

/// Applies a scan from which processes are hidden.
fn incomplete(liveness: &mut Liveness, file: &tempfile::NamedTempFile, facts: &FileFacts) {
    let process_scan = ProcessScan::of_processes(facts, file.path(), &[]);
    liveness.begin_process_scan(false);
    liveness.end_process_scan(&process_scan, facts, file.path());
}

/// Starts a process, as if a scan had shown that it writes.
fn shown_to_write(liveness: &mut Liveness) -> (std::process::Child, ProcessId) {
    let mut process = std::process::Command::new("sleep");
    let process = process.arg("600").spawn().expect("it starts");
    let writer = ProcessId::of(process.id()).expect("it runs");
    (liveness.writer, liveness.only_readers_since) = (Some(writer), None);
    (process, writer)
}

#[test]
fn events_of_unheld_file_need_a_scan_once() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let facts = FileFacts::new(&fstat(file.as_file()).expect("open"));
    let now = Instant::now();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    assert!(liveness.has_no_holder() && !liveness.needs_scan());
    liveness.saw_events(now, CHECK_PERIOD);
    assert!(liveness.holder == Presence::Held && liveness.needs_scan());
    assert!(liveness.begin_process_scan(false));
    liveness.saw_events(now, CHECK_PERIOD);
    assert!(!liveness.needs_scan(), "once");
}

#[test]
fn check_period_grows_with_the_number_of_files() {
    let seconds =
        [0, 1, 200, 400, 1000, 1 << 20, usize::MAX].map(|files| check_period(files).as_secs());
    assert_eq!(seconds, [1, 1, 1, 2, 5, 5, 5]);
    let (file, facts, now) = file();
    let _agent = File::options()
        .append(true)
        .open(file.path())
        .expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    liveness.saw_events(now, CHECK_PERIOD);
    drop(_agent);
    let seen = [1, 2, 3].map(|second| {
        let now = now + second * CHECK_PERIOD;
        liveness.check(file.as_file(), now, 3 * CHECK_PERIOD);
        liveness.presence(now)
    });
    assert_eq!(seen, [Presence::Held, Presence::Held, Presence::Gone]);
}

#[test]
fn reader_of_a_file_does_not_keep_its_agent_live() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    assert_eq!(checked(&mut liveness, file.as_file(), now), Presence::Held);
    scan(&mut liveness, &file, &facts);
    assert_eq!(
        checked(&mut liveness, file.as_file(), now),
        Presence::Readers
    );
    assert!(!liveness.has_no_holder() && liveness.no_holder_for(now).is_none());
    // An agent that starts sets the length of its ring.
    std::thread::sleep(crate::base::file::FILE_TIME_GRANULARITY);
    file.as_file().set_len(8192).expect("room");
    assert_eq!(
        checked(&mut liveness, file.as_file(), now + 2 * CHECK_PERIOD),
        Presence::Held
    );
    assert!(liveness.needs_scan());
}

#[test]
fn producer_start_is_reported_once_and_a_reader_is_not() {
    let (file, facts, now) = file();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    let mut second = 0;
    let mut check = || {
        second += 1;
        let now = now + second * CHECK_PERIOD;
        let has_started = liveness.check(file.as_file(), now, CHECK_PERIOD);
        (has_started, liveness.presence(now))
    };
    assert_eq!(check(), (false, Presence::Gone));
    let tail = File::open(file.path()).expect("there");
    assert_eq!(check(), (false, Presence::Held));
    drop(tail);
    assert_eq!(check(), (false, Presence::Gone));
    let agent = File::options().append(true).open(file.path());
    std::thread::sleep(crate::base::file::FILE_TIME_GRANULARITY);
    agent.as_ref().expect("there").set_len(8192).expect("room");
    let held = Presence::Held;
    assert_eq!([check(), check()], [(true, held), (false, held)]);
}

#[test]
fn agent_that_closed_its_ring_exits_at_the_next_full_scan() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    scan(&mut liveness, &file, &facts);
    // As if the scan had shown a process that still runs.
    liveness.writer = Some(ProcessId::of(std::process::id()).expect("this one"));
    liveness.only_readers_since = None;
    let later = now + CHECK_PERIOD;
    assert_eq!(
        checked(&mut liveness, file.as_file(), later),
        Presence::Writing
    );
    assert!(!liveness.needs_scan() && !liveness.begin_process_scan(false));
    scan(&mut liveness, &file, &facts);
    assert_eq!(
        checked(&mut liveness, file.as_file(), later),
        Presence::Readers
    );
    // It does not become live again while the next scan runs.
    assert!(liveness.begin_process_scan(true));
    assert_eq!(
        checked(&mut liveness, file.as_file(), later + CHECK_PERIOD),
        Presence::Readers
    );
}

#[test]
fn end_of_the_writer_needs_a_scan_at_once() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    scan(&mut liveness, &file, &facts);
    let (mut agent, _) = shown_to_write(&mut liveness);
    assert_eq!(
        checked(&mut liveness, file.as_file(), now + CHECK_PERIOD),
        Presence::Writing
    );
    assert!(!liveness.needs_scan());
    agent.kill().expect("it runs");
    agent.wait().expect("our child");
    assert_eq!(
        checked(&mut liveness, file.as_file(), now + 2 * CHECK_PERIOD),
        Presence::Held
    );
    assert!(liveness.needs_scan());
    scan(&mut liveness, &file, &facts);
    assert_eq!(
        checked(&mut liveness, file.as_file(), now + 2 * CHECK_PERIOD),
        Presence::Readers
    );
}

#[test]
fn scan_from_before_a_restart_does_not_keep_the_old_writer() {
    let (file, facts, now) = file();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    let (mut old, before) = shown_to_write(&mut liveness);
    liveness.producer_restarted();
    // A restart may be noted twice.
    liveness.producer_restarted();
    let (mut new, next) = shown_to_write(&mut liveness);
    liveness.writer = None;
    // A child of the previous process inherits its mappings.
    let child = ProcessId {
        pid: u32::MAX,
        start: u64::MAX,
    };
    let all = [(before, 1), (next, 2), (child, 1)];
    for (shown, expected) in [(&all[..1], before), (&all, next)] {
        let process_scan = ProcessScan::of_processes(&facts, file.path(), shown);
        liveness.end_process_scan(&process_scan, &facts, file.path());
        assert_eq!(liveness.writer(), Some(expected));
    }
    for process in [&mut old, &mut new] {
        process.kill().expect("it runs");
        process.wait().expect("our child");
    }
}

#[test]
fn incomplete_scan_does_not_decide() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    assert!(liveness.needs_scan());
    for second in 1..200 {
        incomplete(&mut liveness, &file, &facts);
        let now = now + second * CHECK_PERIOD;
        assert_eq!(checked(&mut liveness, file.as_file(), now), Presence::Held);
        assert!(!liveness.needs_scan(), "the next full scan asks");
    }
    let now = now + 300 * CHECK_PERIOD;
    scan(&mut liveness, &file, &facts);
    assert_eq!(
        checked(&mut liveness, file.as_file(), now),
        Presence::Readers
    );
}

#[test]
fn unheld_file_counts_its_time_and_is_gone_when_unlinked() {
    let (file, facts, now) = file();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    assert!(liveness.has_no_holder() && !liveness.needs_scan());
    let later = now + 5 * CHECK_PERIOD;
    assert_eq!(
        checked(&mut liveness, file.as_file(), later),
        Presence::Gone
    );
    assert_eq!(liveness.no_holder_for(later), Some(5 * CHECK_PERIOD));
    liveness.saw_events(later, CHECK_PERIOD);
    assert_eq!(liveness.no_holder_for(later), None);
    let (file, _path) = file.keep().expect("kept");
    std::fs::remove_file(&_path).expect("there");
    assert_eq!(
        checked(&mut liveness, &file, later + 2 * CHECK_PERIOD),
        Presence::Gone
    );
    assert!(liveness.is_unlinked());
}

#[test]
fn several_writers_are_returned_once_for_each_set() {
    let (file, facts, now) = file();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    // Beyond the largest process id, so that none of them runs.
    let process = |number: u32| ProcessId {
        pid: 4_200_000_000 + number,
        start: number.into(),
    };
    let mut shown = |writers: u32| {
        let child = (process(100), 0);
        let all = (0..writers)
            .map(|number| (process(number), number.into()))
            .rev();
        let all = Vec::from_iter(all.chain([child]));
        let process_scan = ProcessScan::of_processes(&facts, file.path(), &all);
        let sharers = liveness.end_process_scan(&process_scan, &facts, file.path());
        sharers.map(ToString::to_string)
    };
    assert_eq!(shown(1), None, "a forked process is not another writer");
    let two = shown(2).expect("two processes");
    assert!(
        two.starts_with("2 processes can write this ring: pid 4200000000, 4200000001; "),
        "{two}"
    );
    assert_eq!(shown(2), None, "the set is the one before");
    let many = shown(12).expect("a new set");
    assert!(
        many.starts_with("12 processes ") && many.contains(", 4200000007 and 4 more; "),
        "{many}"
    );
    assert_eq!(shown(1), None);
    assert_eq!(shown(2), Some(two), "several again");
    assert_eq!(
        liveness.sharers().map(|sharers| sharers.named().len()),
        Some(2)
    );
    let later = now + 2 * CHECK_PERIOD;
    liveness.begin_process_scan(false);
    let _reader = File::open(file.path()).expect("there");
    liveness.check(file.as_file(), later, CHECK_PERIOD);
    assert!(liveness.needs_scan(), "one of them has ended");
}

#[test]
fn process_writes_by_a_scan_or_a_lease_against_writers() {
    let (file, facts, now) = file();
    let _tail = File::open(file.path()).expect("there");
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    assert_eq!(liveness.presence(now), Presence::Held);
    liveness.writer = Some(ProcessId::default());
    assert_eq!(liveness.presence(now), Presence::Writing);
    liveness.only_readers_since = Some(liveness.change_time);
    assert_eq!(liveness.presence(now), Presence::Readers);
    liveness.holder = Presence::Gone;
    assert_eq!(liveness.presence(now), Presence::Gone);
    let mut of_store = Liveness::new(file.as_file(), &facts, LeaseKind::NoWriter, now);
    assert_eq!(of_store.presence(now), Presence::Writing);
    of_store.saw_events(now, CHECK_PERIOD);
    assert_eq!(of_store.presence(now), Presence::Writing);
}

#[test]
fn file_of_unknown_holder_has_a_writer_for_the_grace_time() {
    let (file, facts, now) = file();
    let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
    liveness.unlinked(now);
    let check = |liveness: &mut Liveness, after| {
        // The kernel is not asked again, since it would tell.
        liveness.check(file.as_file(), now + after, 2 * UNKNOWN_HOLDER_GRACE);
        liveness.presence(now + after)
    };
    let before = UNKNOWN_HOLDER_GRACE - Duration::from_millis(1);
    assert_eq!(check(&mut liveness, before), Presence::Held);
    assert_eq!(
        check(&mut liveness, UNKNOWN_HOLDER_GRACE),
        Presence::Unknown
    );
    liveness.writer = Some(ProcessId::default());
    assert_eq!(
        check(&mut liveness, UNKNOWN_HOLDER_GRACE),
        Presence::Writing
    );
}

#[test]
fn writer_that_a_scan_has_postponed_is_looked_for_again() {
    for has_postponed in [false, true] {
        let (file, facts, now) = file();
        let _writer = File::options()
            .append(true)
            .open(file.path())
            .expect("there");
        let mut liveness = Liveness::new(file.as_file(), &facts, LeaseKind::Exclusive, now);
        assert!(liveness.begin_process_scan(false));
        let mut scan = ProcessScan::of_processes(&facts, file.path(), &[]);
        scan.has_postponed = has_postponed;
        liveness.end_process_scan(&scan, &facts, file.path());
        assert_eq!(liveness.needs_scan(), has_postponed);
    }
}
