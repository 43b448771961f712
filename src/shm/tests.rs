// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use nix::sys::signal::raise;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn stores_reach_the_file_and_other_mappings() {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&[0; 24]).expect("room");
    let (one, other) = (
        Mapping::new(&file, 3).expect("mapped"),
        Mapping::new(&file, 3).expect("mapped"),
    );
    one.access(|words| words[2].store(7, Relaxed))
        .expect("whole");
    assert_eq!(other.access(|words| words[2].load(Relaxed)), Ok(7));
    assert_eq!(one.access(<[AtomicU64]>::len), Ok(3));
}

#[test]
fn read_only_mapping_cannot_be_stored_to() {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&7_u64.to_ne_bytes()).expect("room");
    let mapping = Mapping::read_only(&file, 1).expect("mapped");
    assert_eq!(
        mapping.access(|words| words[0].store(8, Relaxed)),
        Err(FileShortened)
    );
    assert_eq!(
        mapping.read_access(&file, |words| words[0].load(Relaxed)),
        Ok(7)
    );
}

#[test]
fn shortened_file_fails_this_access_and_later_ones() {
    guard_against_sigbus().expect("a handler");
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(3 * 4096).expect("room");
    let mapping = Mapping::new(&file, 3 * 512).expect("mapped");
    let whole = Mapping::new(&file, 512).expect("mapped");
    // During an access, as a producer may do.
    let found = mapping.access(|words| {
        words[0].store(1, Relaxed);
        file.set_len(4096).expect("shorter");
        words[512].load(Relaxed)
    });
    assert_eq!(found, Err(FileShortened));
    file.set_len(3 * 4096).expect("room");
    assert_eq!(
        mapping.access(|words| words[0].load(Relaxed)),
        Err(FileShortened),
        "it stays broken"
    );
    assert_eq!(
        whole.access(|words| words[0].load(Relaxed)),
        Ok(1),
        "another mapping does not"
    );
    file.set_len(0).expect("shorter");
    assert_eq!(
        whole.access(|words| words[0].swap(2, Relaxed)),
        Err(FileShortened)
    );
    assert_eq!(file.metadata().expect("open").len(), 0, "stores go nowhere");
}

#[test]
fn sent_sigbus_does_not_disarm_the_guard() {
    guard_against_sigbus().expect("a handler");
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4096).expect("room");
    let mapping = Mapping::new(&file, 512).expect("mapped");
    // To this thread, and so before the call returns: once beside an access, and once during an access.
    raise(Signal::SIGBUS).expect("sent");
    let found = mapping.access(|words| {
        raise(Signal::SIGBUS).expect("sent");
        words[0].load(Relaxed)
    });
    assert_eq!(found, Ok(0), "the mapping is whole");
    file.set_len(0).expect("shorter");
    assert_eq!(
        mapping.access(|words| words[0].load(Relaxed)),
        Err(FileShortened)
    );
}

#[test]
fn fault_outside_of_an_access_ends_the_process() {
    guard_against_sigbus().expect("a handler");
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4096).expect("room");
    let mapping = Mapping::new(&file, 512).expect("mapped");
    file.set_len(0).expect("shorter");
    // SAFETY: the child only loads a word and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // SAFETY: the mapping is there, and its page is not, which raises SIGBUS.
            let word = unsafe { mapping.map.as_ptr().read_volatile() };
            // SAFETY: ends the process.
            unsafe { libc::_exit(word.into()) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("our child");
            assert!(
                matches!(status, WaitStatus::Signaled(_, Signal::SIGBUS, _)),
                "{status:?}"
            );
        }
    }
}

#[test]
fn shortened_file_larger_than_memory_fails_the_access() {
    guard_against_sigbus().expect("a handler");
    let file = tempfile::tempfile().expect("a temporary file");
    let words = 1 << 37;
    file.set_len(8 * words as u64).expect("sparse");
    let mapping = Mapping::new(&file, words).expect("mapped");
    // Three pages that are far apart.
    let found = mapping.access(|words| {
        file.set_len(0).expect("shorter");
        [0, 1 << 30, (1 << 37) - 1].map(|at: usize| words[at].load(Relaxed))
    });
    assert_eq!(found, Err(FileShortened));
}

#[test]
fn header_poll_is_true_until_the_header_changes() {
    guard_against_sigbus().expect("a handler");
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4096).expect("room");
    let short = Rc::new(Mapping::new(&file, 3).expect("mapped"));
    assert!(HeaderPoll::new(&short, [0; 4]).is_none());
    let mapping = Rc::new(Mapping::new(&file, 512).expect("mapped"));
    let header_poll = HeaderPoll::new(&mapping, [0, 0, 0, 7]).expect("long enough");
    let put = |value| mapping.access(|words| words[3].store(value, Relaxed));
    put(7).expect("whole");
    assert!(header_poll.is_unchanged());
    put(8).expect("whole");
    assert!(!header_poll.is_unchanged());
    put(7).expect("whole");
    file.set_len(0).expect("shorter");
    assert!(!header_poll.is_unchanged());
    assert_eq!(put(7), Err(FileShortened));
    drop(mapping);
    assert!(!header_poll.is_unchanged(), "it is mapped still, and zeros");
}

#[test]
fn fault_in_one_thread_does_not_affect_another() {
    guard_against_sigbus().expect("a handler");
    let breaking = std::thread::spawn(|| {
        let file = tempfile::tempfile().expect("a temporary file");
        for _ in 0..1000 {
            file.set_len(4096).expect("room");
            let mapping = Mapping::new(&file, 512).expect("mapped");
            file.set_len(0).expect("shorter");
            assert_eq!(
                mapping.access(|words| words[0].load(Relaxed)),
                Err(FileShortened)
            );
        }
    });
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4096).expect("room");
    let whole = Mapping::new(&file, 512).expect("mapped");
    while !breaking.is_finished() {
        let found = whole.access(|words| words[0].fetch_add(1, Relaxed));
        assert_ne!(found, Err(FileShortened));
    }
    breaking.join().expect("no panic");
}

#[test]
fn mapping_length_that_overflows_is_an_error() {
    let file = tempfile::tempfile().expect("a temporary file");
    assert!(Mapping::new(&file, usize::MAX).is_err());
}
