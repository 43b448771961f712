//! When the id file is read, and when it is written.
//!
//! A disk may take its time, so that the file is written by a thread of its own, which shares nothing with the rest.

use super::Ids;
use super::cache_file::{self, Line};
use crate::base::clock::Now;
use crate::state::record::HIGHEST_ID;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The file's times are brought up to date this often, so that a week is counted from when an agent was last seen.
const SAVE_INTERVAL: Duration = Duration::from_secs(3600);
/// It is written no more often than this, however fast agents come and go.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// How often what failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// At least so many ids are reserved.
const LEAST_AHEAD: u32 = 64;
/// Bytes of the file that are written in a second, on the average: one that is long is written less often.
const BYTES_PER_SECOND: usize = 64 << 10;

/// The ids, and their file.
#[derive(Debug)]
pub struct KeptIds {
    path: PathBuf,
    ids: Ids,
    /// True until the file could be read. It is not written before.
    unread: bool,
    /// True if the last reading or writing failed.
    failed: bool,
    /// True if there is something that the file does not say.
    changed: bool,
    /// More than any id that the file says was given or is reserved.
    reserved: u32,
    /// For how long the file is left alone, for its length.
    rest: Duration,
    /// When it was last written, or tried to be.
    tried: Option<Instant>,
    /// True if the log says that no id is left.
    exhausted: bool,
    writing: Option<JoinHandle<io::Result<()>>>,
}

impl KeptIds {
    /// None yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            ids: Ids::default(),
            unread: true,
            failed: false,
            changed: false,
            reserved: 0,
            rest: SAVE_PAUSE,
            tried: None,
            exhausted: false,
            writing: None,
        }
    }

    /// Goes on with what the file says. `known` are the lines of the agents, and `next` is more than any id that the state file
    /// says was given.
    pub fn begin(&mut self, known: &[Line], next: u32) {
        self.ids = Ids::new(next);
        self.read(known);
        if self.unread && next == 0 {
            // What was given is not known: hardly so many were, nor so many in the minutes since this was the case before.
            let half = HIGHEST_ID / 2;
            let minutes = u32::try_from(Now::read().seconds / 60 % u64::from(half)).unwrap_or(0);
            self.ids.skip_to(half + minutes);
        }
    }

    /// Reads the file, unless it was read.
    fn read(&mut self, known: &[Line]) {
        if !self.unread {
            return;
        }
        // What fails once, for want of memory or of a descriptor, may not fail again.
        match cache_file::read(&self.path).or_else(|_| cache_file::read(&self.path)) {
            Ok(lines) => {
                self.ids.learn(lines, known, Now::read().seconds);
                self.unread = false;
            }
            Err(err) => {
                let until =
                    "until it can be read, agents may get new instance ids, and none is saved";
                self.note(Err(err), until);
            }
        }
    }

    /// Returns the id of an agent's name: the one that it had, or a new one. `None`: all are `taken`.
    pub fn give(&mut self, name: &str, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        if self.ids.next() > HIGHEST_ID && !self.exhausted {
            self.exhausted = true;
            tracing::warn!(
                "{}: no instance id is left, or the file is damaged; those of agents that are long gone are given again",
                self.path.display()
            );
        }
        self.ids.give(name, taken)
    }

    /// Returns a number that was never given, for no name. `None`: all are `taken`.
    pub fn draw(&mut self, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        self.ids.draw(taken)
    }

    /// More than any id that was given.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.ids.next()
    }

    /// The agents are others than they were.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns true if there is something to do for [`KeptIds::save`].
    #[must_use]
    pub fn is_due(&self) -> bool {
        if let Some(writing) = &self.writing {
            return writing.is_finished();
        }
        let pause = match self.failed {
            true => RETRY,
            false if self.ids.next() > self.reserved => Duration::ZERO,
            false if self.changed => self.rest,
            false => SAVE_INTERVAL,
        };
        self.tried.is_none_or(|tried| tried.elapsed() >= pause)
    }

    /// Has the file written in the background, or notes how that ended. `known` are the lines of the agents, and `limit` is how
    /// many names the file may have.
    pub fn save(&mut self, known: Vec<Line>, limit: usize) {
        if let Some(writing) = self.writing.take() {
            return self.written(join(writing));
        }
        let Some(text) = self.text(known, limit, true) else {
            return;
        };
        let path = self.path.clone();
        let writing = thread::Builder::new()
            .name("instance ids".into())
            .spawn(move || cache_file::write(&path, &text));
        match writing {
            Ok(writing) => self.writing = Some(writing),
            Err(err) => self.written(Err(err)),
        }
    }

    /// Writes the file at the end, when there is no later.
    pub fn finish(&mut self, known: Vec<Line>, limit: usize) {
        if let Some(writing) = self.writing.take() {
            let written = join(writing);
            self.written(written);
        }
        if let Some(text) = self.text(known, limit, false) {
            self.written(cache_file::write(&self.path, &text));
        }
    }

    /// Returns what the file is to say. `None`: it cannot be read, and may say more than is known.
    fn text(&mut self, known: Vec<Line>, limit: usize, reserves: bool) -> Option<String> {
        self.tried = Some(Instant::now());
        self.read(&known);
        if self.unread {
            return None;
        }
        let lines = self.ids.lines(known, limit, Now::read().seconds);
        let next = self.ids.next();
        let ahead = match next {
            // As many as there are names: what is written grows with what is given, not with its square.
            1.. if reserves => u32::try_from(lines.len()).unwrap_or(0).max(LEAST_AHEAD),
            // Where none was ever given, none will be for a while.
            _ => 0,
        };
        self.reserved = (next + ahead).min(HIGHEST_ID + 1);
        self.changed = false;
        let text = cache_file::text(&lines, self.reserved);
        let millis = text.len() * 1000 / BYTES_PER_SECOND;
        self.rest = SAVE_PAUSE.max(Duration::from_millis(millis as u64));
        Some(text)
    }

    fn written(&mut self, written: io::Result<()>) {
        self.note(
            written,
            "until it can be written, instance ids do not outlive the host",
        );
    }

    /// Notes whether the file could be read or written, and says so where that is new.
    fn note(&mut self, done: io::Result<()>, until: &str) {
        let path = self.path.display();
        match &done {
            Ok(()) if self.failed => tracing::info!("{path}: instance ids are saved again"),
            Err(err) if !self.failed => tracing::warn!("{path}: {err}; {until}"),
            _ => {}
        }
        self.failed = done.is_err();
    }
}

fn join(writing: JoinHandle<io::Result<()>>) -> io::Result<()> {
    let panicked = |_| Err(io::Error::other("the thread that writes it panicked"));
    writing.join().unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_ids_are_reserved_as_the_file_has_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("39.0");
        let line = |id, name| Line {
            id,
            seen: Now::read().seconds,
            name,
        };
        let names: Vec<Line> = (0..100).map(|id| line(id, format!("old-{id}"))).collect();
        std::fs::write(&path, cache_file::text(&names, 100)).expect("written");
        let mut kept = KeptIds::new(path.clone());
        kept.begin(&[], 0);
        assert_eq!(kept.give("new", HashSet::new), Some(100));
        kept.save(vec![line(100, "new".into())], 1000);
        kept.save(Vec::new(), 1000);
        let begun = || {
            let mut kept = KeptIds::new(path.clone());
            kept.begin(&[], 0);
            kept
        };
        assert_eq!(begun().next(), 202, "101 names, and as many reserved");
        assert!(!kept.failed && kept.reserved == 202);
        kept.finish(vec![line(100, "new".into())], 1000);
        assert_eq!(begun().next(), 101, "nothing is reserved after the end");
    }
}
