// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests of the scanner.

use super::*;
use crate::config::DirectoryPattern;
use crate::ring::tests::bytes_of_ring;
use std::fs;
use std::os::unix::fs::chown;

fn scanner(dir: &Path) -> Scanner {
    Scanner::new(Config {
        telemetry_dir: vec![DirectoryPattern::of(dir)],
        ..Config::default()
    })
}

fn scan(scanner: &mut Scanner, now: Instant) -> Vec<Found> {
    scanner.scan(now, Instant::now() + PASS_INTERVAL, &HashSet::new())
}

/// Scans as if `look` times ten pass intervals had passed, and opens the found files. Returns the number of files and
/// of rings.
fn open_all(scanner: &mut Scanner, look: u32) -> (usize, usize) {
    let found = scan(scanner, Instant::now() + PASS_INTERVAL * look * 10);
    let count = found.len();
    let rings = found
        .into_iter()
        .filter_map(|mut found| scanner.open(&mut found).ok());
    (count, rings.count())
}

#[test]
fn rejected_file_is_found_again_only_after_a_change() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("notes"), "no ring").expect("written");
    let mut scanner = scanner(dir.path());
    assert_eq!(open_all(&mut scanner, 1), (1, 0));
    // A file that has just changed may change again without another change time.
    let settled = (2..1000).find(|&look| {
        std::thread::sleep(FILE_TIME_GRANULARITY / 4);
        open_all(&mut scanner, look) == (0, 0)
    });
    assert!(settled.is_some());
    assert_eq!(scanner.rejections(), 1);
    std::fs::write(dir.path().join("notes"), "no ring, but longer").expect("written");
    assert_eq!(open_all(&mut scanner, 1001), (1, 0));
}

#[test]
fn other_numbers_in_a_rejection_do_not_count_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut scanner = scanner(dir.path());
    for look in 1..6 {
        std::fs::write(dir.path().join("odd"), vec![1; 8 * look + 1]).expect("written");
        assert_eq!(
            open_all(&mut scanner, u32::try_from(look).expect("small")),
            (1, 0)
        );
    }
    assert_eq!(scanner.rejections(), 1);
}

#[test]
fn file_with_empty_header_is_checked_again_while_it_is_new() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("zeros"), [0; 168]).expect("written");
    let mut scanner = scanner(dir.path());
    assert_eq!(open_all(&mut scanner, 1), (1, 0));
    // Writing a header does not change the directory, so each tick checks the file.
    let soon = Instant::now() + PASS_INTERVAL * 10 + PASS_INTERVAL / 2;
    let found = scan(&mut scanner, soon);
    assert_eq!((found.len(), scanner.rejections()), (1, 0));
    // The change time of the file is more than ten seconds ago.
    let mut facts = found[0].facts;
    facts.changed = (1, 0);
    for look in 0..3 {
        assert_eq!(scanner.rejected.mark_listed(1, &facts, 1), look > 0);
        let path = dir.path().join("zeros");
        let rejection = Rejection::Uninitialised { full: None };
        let new = scanner.rejected.reject(1, &path, &facts, &rejection, 1);
        assert_eq!(new, look == 0);
    }
}

#[test]
fn lock_of_nixl_is_neither_found_nor_rejected() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("nixl-owner.[::1]:9090.lock"), "").expect("written");
    let mut scanner = scanner(dir.path());
    assert_eq!(open_all(&mut scanner, 1), (0, 0));
    assert_eq!(scanner.rejections(), 0);
}

#[test]
fn file_that_alternates_between_two_reasons_counts_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut scanner = scanner(dir.path());
    for look in 1..8 {
        let bytes = if look % 2 == 0 { 169 } else { 1000 };
        std::fs::write(dir.path().join("odd"), vec![7; bytes]).expect("written");
        open_all(&mut scanner, look);
    }
    assert_eq!(scanner.rejections(), 2);
}

#[test]
fn time_in_the_future_is_young() {
    assert!(is_younger_than((i64::MAX / 4, 0), STARTUP_TIME));
    assert!(!is_younger_than((0, 0), STARTUP_TIME) && !is_younger_than((-1, 0), STARTUP_TIME));
}

#[test]
fn large_directory_is_scanned_in_chunks_and_no_file_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in 0..2000 {
        std::fs::write(dir.path().join(format!("file-{file}")), "no ring").expect("written");
    }
    let mut scanner = scanner(dir.path());
    let (mut turns, mut met) = (0, HashSet::new());
    let mut now = Instant::now();
    while met.len() < 2000 {
        // Time for one chunk.
        let found = scanner.scan(now, Instant::now(), &HashSet::new());
        assert!(found.len() <= 256, "{}", found.len());
        for mut found in found {
            assert!(scanner.open(&mut found).is_err());
            assert!(met.insert(found.name.clone()), "{found:?}");
        }
        turns += 1;
        assert!(turns < 10_000);
        now += Duration::from_millis(1);
    }
    assert!(turns >= 2000 / 256, "{turns}");
    assert_eq!(scanner.rejections(), 2000);
}

#[test]
fn many_files_with_empty_headers_do_not_hide_a_new_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in 0..300 {
        std::fs::write(dir.path().join(format!("zeros-{file}")), [0; 168]).expect("written");
    }
    let mut scanner = scanner(dir.path());
    let now = Instant::now();
    for mut found in scan(&mut scanner, now) {
        assert!(scanner.open(&mut found).is_err());
    }
    std::fs::write(dir.path().join("new"), "no ring").expect("written");
    // Time for one file in each scan.
    let is_new = |found: &Found| found.name == "new";
    let met = (1..50).find(|&look| {
        let now = now + PASS_INTERVAL * 10 * look;
        let found = scanner.scan(now, Instant::now(), &HashSet::new());
        found.iter().any(is_new)
    });
    assert!(met.is_some());
}

#[test]
fn rejected_file_that_becomes_a_ring_is_found_among_many() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in 0..200 {
        std::fs::write(dir.path().join(format!("file-{file}")), "no ring").expect("written");
    }
    let mut scanner = scanner(dir.path());
    let settled = (1..1000).find(|&look| {
        std::thread::sleep(FILE_TIME_GRANULARITY / 4);
        open_all(&mut scanner, look) == (0, 0)
    });
    let first = settled.expect("all are known");
    let listed = std::fs::metadata(dir.path()).expect("there").modified();
    std::fs::write(dir.path().join("file-77"), bytes_of_ring(1, &[])).expect("written");
    let now = std::fs::metadata(dir.path()).expect("there").modified();
    assert_eq!(listed.expect("a time"), now.expect("a time"));
    // A full listing comes after ten minutes at the latest.
    let found = (first + 1..first + 32).any(|look| open_all(&mut scanner, look).0 > 0);
    assert!(found);
}

#[test]
fn file_that_grew_after_the_scan_is_checked_at_its_new_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("agent");
    let now = Instant::now();
    let (mut scanner, mut found) = loop {
        std::fs::write(&path, "").expect("written");
        let mut scanner = scanner(dir.path());
        let found = scan(&mut scanner, now);
        // On a busy machine the file may be older, and is then checked again by the next pass.
        if is_younger_than(found[0].facts.changed, FILE_TIME_GRANULARITY) {
            break (scanner, found);
        }
    };
    std::fs::write(&path, bytes_of_ring(1, &[])).expect("written");
    std::thread::sleep(FILE_TIME_GRANULARITY);
    assert!(scanner.open(&mut found[0]).is_ok());
}

#[test]
fn file_without_a_size_is_checked_by_each_tick() {
    let dir = tempfile::tempdir().expect("a directory");
    let now = Instant::now();
    let path = dir.path().join("agent");
    let mut scanner = loop {
        std::fs::write(&path, "").expect("written");
        let mut scanner = scanner(dir.path());
        let mut found = scan(&mut scanner, now);
        let is_rejected = scanner.open(&mut found[0]).is_err();
        // As above.
        if is_rejected && is_younger_than(found[0].facts.changed, FILE_TIME_GRANULARITY) {
            break scanner;
        }
    };
    std::fs::write(&path, bytes_of_ring(1, &[])).expect("written");
    let found = scan(&mut scanner, now + PASS_INTERVAL / 40);
    assert!(found.iter().any(|found| found.name == "agent"));
}

#[test]
fn only_unrelated_files_are_skipped_by_name_and_inode() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("agent");
    let mut old = FileFacts::new(&{
        std::fs::write(&path, [1; 168]).expect("written");
        nix::sys::stat::stat(&path).expect("there")
    });
    let mut rejected = RejectedFiles::default();
    old.changed = (1, 0);
    for (rejection, skips) in [
        (Rejection::Size { size: 7 }, true),
        (Rejection::Version { version: 77 }, true),
        (Rejection::Blank { size: 4096 }, true),
        (Rejection::Exited, false),
        (
            Rejection::Unsupported {
                version: 5,
                newest: 4,
            },
            false,
        ),
        (Rejection::Uninitialised { full: None }, false),
    ] {
        rejected.reject(1, &path, &old, &rejection, 1);
        assert_eq!(
            rejected.mark_listed_name((1, old.id), "agent".as_ref(), 2),
            skips
        );
        assert!(!rejected.mark_listed_name((1, old.id), "other".as_ref(), 2));
    }
}

const LONG: Duration = Duration::from_secs(3600);

fn config(dir: &Path, most: usize) -> Config {
    Config {
        telemetry_dir: vec![DirectoryPattern::of(dir.join("*/nixl"))],
        max_directories: most,
        ..Config::default()
    }
}

fn matching(dir: &Path, most: usize) -> Scanner {
    Scanner::new(config(dir, most))
}

fn make(dir: &Path, name: &str, uid: u32) {
    let path = dir.join(name).join("nixl");
    fs::create_dir_all(&path).expect("made");
    // Without root, one user owns all directories.
    let _ = chown(path, Some(uid), None);
}

/// Runs a whole pass with `time` for each scan. Returns the number of scans.
fn pass(scanner: &mut Scanner, time: Duration) -> usize {
    scanner.next_pass = None;
    let now = Instant::now();
    let steps = (1..).find(|_| scanner.run_pass(now, Instant::now() + time));
    steps.expect("it comes to an end")
}

fn names(scanner: &Scanner) -> Vec<String> {
    let all = scanner.directories.values().map(|one| {
        let parent = one.directory.path.parent().and_then(Path::file_name);
        parent.expect("a name").to_string_lossy().into_owned()
    });
    all.collect()
}

#[test]
fn many_directories_are_expanded_over_several_scans() {
    let dir = tempfile::tempdir().expect("a directory");
    (0..300).for_each(|number| make(dir.path(), &format!("pod-{number:03}"), 1000));
    let mut scanner = matching(dir.path(), 1000);
    // Time for a few directories in each scan.
    assert!(pass(&mut scanner, Duration::ZERO) > 300 / 16);
    let all = names(&scanner);
    assert!(all.len() == 300 && all.is_sorted(), "{all:?}");
    fs::remove_dir_all(dir.path().join("pod-007")).expect("there");
    pass(&mut scanner, LONG);
    assert_eq!(scanner.directories.len(), 299);
    let path = |name: &str| dir.path().join(name).join("nixl");
    assert!(!scanner.directories.contains_key(&path("pod-007")));
    for number in (0..300).filter(|&number| number != 7) {
        let path = path(&format!("pod-{number:03}"));
        let found = scanner.directories.get(&path).expect("it is watched");
        assert_eq!(found.directory.path, path);
    }
}

#[test]
fn absent_directories_and_pattern_bases_count_as_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut scanner = matching(dir.path(), 10);
    scanner
        .config
        .multiproc_dir
        .push(DirectoryPattern::of(dir.path().join("stores")));
    let missing = |scanner: &mut Scanner, time| {
        pass(scanner, time);
        (scanner.directories().2, scanner.directories().0)
    };
    // A path without a wildcard is known even if it does not exist.
    pass(&mut scanner, LONG);
    assert_eq!((scanner.directories().2, scanner.directories.len()), (1, 1));
    for number in 0..40 {
        make(dir.path(), &format!("pod-{number:02}"), 1000);
    }
    assert_eq!(missing(&mut scanner, Duration::ZERO), (1, 10));
    fs::write(dir.path().join("stores"), "not a directory").expect("written");
    assert_eq!(missing(&mut scanner, LONG), (1, 10));
    fs::remove_file(dir.path().join("stores")).expect("there");
    fs::create_dir(dir.path().join("stores")).expect("made");
    assert_eq!(missing(&mut scanner, LONG), (0, 11));
    fs::remove_dir_all(dir.path()).expect("there");
    pass(&mut scanner, LONG);
    assert_eq!((scanner.directories().2, scanner.directories.len()), (2, 2));
}

#[test]
fn user_below_its_share_gets_directories_and_known_ones_stay() {
    if !nix::unistd::geteuid().is_root() {
        return println!("left out: only root can give a directory to another user");
    }
    let dir = tempfile::tempdir().expect("a directory");
    (0..30).for_each(|number| make(dir.path(), &format!("greedy-{number:02}"), 1001));
    let mut scanner = matching(dir.path(), 10);
    pass(&mut scanner, LONG);
    assert_eq!((scanner.directories.len(), scanner.left_out), (10, 20));
    // In the order of names, one is after all directories of uid 1001, the other before them.
    make(dir.path(), "victim", 1000);
    make(dir.path(), "a-victim", 1000);
    for _ in 0..3 {
        pass(&mut scanner, LONG);
        let mut now = names(&scanner);
        now.sort();
        assert_eq!(now.len(), 10);
        assert_eq!((&now[0][..], &now[9][..]), ("a-victim", "victim"));
        assert!(now[1..9].iter().all(|name| name < &"greedy-08".to_owned()));
    }
    assert_eq!(scanner.left_out, 22);
    // Not more than an equal share.
    (0..9).for_each(|number| make(dir.path(), &format!("victim-{number}"), 1000));
    pass(&mut scanner, LONG);
    let now = names(&scanner);
    let victims = now.iter().filter(|name| name.contains("victim"));
    assert_eq!((victims.count(), now.len()), (5, 10));
    // A higher max_directories leaves none out.
    let mut config = scanner.config.clone();
    config.max_directories = 100;
    scanner.configure(config);
    pass(&mut scanner, LONG);
    assert_eq!((scanner.directories.len(), scanner.left_out), (41, 0));
}

#[test]
fn directory_without_a_wildcard_is_always_scanned() {
    let dir = tempfile::tempdir().expect("a directory");
    (0..30).for_each(|number| make(dir.path(), &format!("greedy-{number:02}"), 1001));
    make(dir.path(), "own", 1001);
    let own = dir.path().join("own/nixl");
    let mut config = config(dir.path(), 10);
    config.multiproc_dir.push(DirectoryPattern::of(&own));
    let mut scanner = Scanner::new(config);
    pass(&mut scanner, LONG);
    let watched = scanner.directories.get(&own).expect("it is watched");
    let kinds = watched.directory.kinds;
    assert!(kinds.rings && kinds.stores && watched.owner.is_none());
}

#[test]
fn many_names_in_one_directory_do_not_hide_another() {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path(), "a-many", 1001);
    make(dir.path(), "victim", 1000);
    for number in 0..70_000 {
        let path = dir.path().join("a-many").join(number.to_string());
        fs::File::create(path).expect("made");
    }
    let mut config = config(dir.path(), 10);
    config.telemetry_dir[0].path = format!("{}/*/nix*", dir.path().display());
    let mut scanner = Scanner::new(config);
    // Each scan reads about a thousand names.
    assert!(pass(&mut scanner, Duration::ZERO) > 60);
    assert!(
        scanner
            .directories
            .contains_key(&dir.path().join("victim/nixl"))
    );
}
