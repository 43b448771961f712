// SPDX-License-Identifier: GPL-2.0-or-later

//! Files with an inode lock that their writers hold for any time. The daemon must not wait for it.

use crate::support::held::Held;
use crate::support::kit::writer::{Kind, RingWriter};
use crate::support::kit::{Core, push};
use crate::support::note_left_out;
use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time after which a file is unlocked in any case, so that the test ends even if the daemon waits for it.
const MOST: Duration = Duration::from_secs(60);
const SLOTS: u64 = 16;

/// A thread that keeps a file locked until [`Self::end`] or a timeout.
struct Holder {
    end: Sender<()>,
    holding: JoinHandle<()>,
}

impl Holder {
    /// Locks a ring with a write to its last slot.
    fn of(path: &Path) -> Self {
        let file = File::options().write(true).open(path).expect("there");
        let (end, ended) = channel();
        let held = Held::begin(file, 40 + 16 * (SLOTS - 1)).expect("userfaultfd memory");
        let holding = std::thread::spawn(move || {
            let _ = ended.recv_timeout(MOST);
            assert!(held.lasts());
        });
        Self { end, holding }
    }

    /// Unlocks the file. Returns true if it was locked until then.
    fn end(self) -> bool {
        let had = !self.holding.is_finished();
        // The receiver is gone if the thread has unlocked the file already.
        let _ = self.end.send(());
        self.holding.join().expect("the lock lasted");
        had
    }
}

/// True if userfaultfd(2) works, which needs root.
fn is_possible() -> bool {
    let file = tempfile::tempfile().expect("a temporary file");
    let is_possible = Held::begin(file, 0).is_ok();
    if !is_possible {
        note_left_out("no userfaultfd(2) here");
    }
    is_possible
}

fn ring(core: &Core, name: &str) -> RingWriter {
    core.ring_of(name, SLOTS)
}

/// Directories on the file system of temporary files, and on a tmpfs.
fn cores() -> [Core; 2] {
    let settings = "remove_exited_after = \"3s\"";
    [Core::new(settings), Core::in_memory(settings)]
}

#[test]
fn rings_locked_by_their_writer_are_found_and_drained() {
    if !is_possible() {
        return;
    }
    for mut core in cores() {
        let mut before = ring(&core, "before");
        push(&mut before, 1);
        core.run(1);
        let first = Holder::of(&core.path("before"));
        let mut new = ring(&core, "new");
        push(&mut new, 10);
        let second = Holder::of(&core.path("new"));
        push(&mut before, 2);
        core.run(3);
        push(&mut before, 4);
        push(&mut new, 20);
        core.run(3);
        assert_eq!(core.sent(), [("before", 7), ("new", 30)].into());
        assert_eq!((before.pending(), new.pending()), (0, 0));
        assert!(first.end() && second.end());
    }
}

#[test]
fn file_locked_by_its_writer_is_not_removed() {
    if !is_possible() {
        return;
    }
    for mut core in cores() {
        assert!(ring(&core, "a").push(Kind::TxBytes, 1));
        core.run(10);
        let holder = Holder::of(&core.path("a"));
        core.tidy();
        assert!(holder.end());
        assert!(core.path("a").exists());
        core.run(10);
        core.tidy();
        assert!(fs::read_dir(core.rings()).expect("there").next().is_none());
    }
}
