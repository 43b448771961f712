//! Instance ids that outlive the daemon and the host: when their file is read, and when it is written.
//!
//! A disk may take its time, so that the file is written by a thread of its own, which shares nothing with the rest.

use super::cache_file;
use super::{Ids, Keep};
use crate::state::record::HIGHEST_ID;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// The file's times are brought up to date this often, so that a week is counted from when an agent was last seen.
const SAVE_INTERVAL: Duration = Duration::from_secs(3600);
/// It is written no more often than this, however fast agents come and go.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// How often what failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How many ids are noted as given ahead of those that are: so many agents may come until the next time.
const AHEAD: u32 = 64;
/// ... and how many where they come so fast that this is a few at a time.
const MOST_AHEAD: u32 = 1 << 16;
/// Bytes of the file that are written in a second, on the average: one that is long is written less often.
const BYTES_PER_SECOND: usize = 64 << 10;

/// What the file is to say of the agents.
#[derive(Clone, Copy, Debug)]
pub struct Agents<'a> {
    /// Ids and names of those that are known.
    pub known: &'a [(u32, &'a str)],
    /// The ids of those that are seen now.
    pub seen: &'a HashSet<u32>,
    /// How many names are kept.
    pub limit: usize,
}

/// The ids, and their file.
#[derive(Debug)]
pub struct KeptIds {
    path: PathBuf,
    ids: Ids,
    /// True if the file could not be read. It is not written before it could be.
    unread: bool,
    /// Whether there is something that the file does not say.
    unsaved: bool,
    /// More than any id that the file says was given.
    noted: u32,
    /// How many were noted ahead.
    ahead: u32,
    /// Bytes of the file, as it was written last.
    len: usize,
    /// When it was written last, or tried to be.
    saved: Option<Instant>,
    /// Whether that failed.
    failed: bool,
    /// Whether it was said that no id is left.
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
            unread: false,
            unsaved: false,
            noted: 0,
            ahead: AHEAD,
            len: 0,
            saved: None,
            failed: false,
            exhausted: false,
            writing: None,
        }
    }

    /// Goes on with what the file says, and with what known agents have, which is right where the two differ. `next` is more
    /// than any id that was given before, as far as that is known.
    pub fn begin(&mut self, known: &[(u32, &str)], next: u32) {
        self.ids = Ids::new(known, next, seconds());
        // Whatever it says, the first tick brings it up to date.
        (self.unsaved, self.saved) = (true, None);
        self.read();
        if self.unread && next == 0 {
            // Nobody knows what was given: hardly so many were, nor so many in the minutes since this was the case before.
            let half = HIGHEST_ID / 2;
            let minutes = u32::try_from(seconds() / 60 % u64::from(half)).unwrap_or(0);
            self.ids.skip_to(half + minutes);
        }
    }

    fn read(&mut self) {
        // What fails once, for want of memory or of a descriptor, may not fail again.
        let read = cache_file::read(&self.path).or_else(|_| cache_file::read(&self.path));
        match read {
            Ok(lines) => {
                self.ids.learn(lines);
                self.unread = false;
            }
            Err(err) => {
                if !self.unread {
                    let path = self.path.display();
                    tracing::warn!(
                        "{path}: {err}; until it can be read, agents may get new instance ids, and none is saved"
                    );
                }
                self.unread = true;
            }
        }
    }

    /// The id of a name: the one that it had, or a new one; `None`: all are taken.
    pub fn give(&mut self, name: &str) -> Option<u32> {
        self.unsaved = true;
        if self.ids.next() > HIGHEST_ID && !self.exhausted {
            self.exhausted = true;
            tracing::warn!(
                "{}: no instance id is left, or the file is damaged; those of agents that are long gone are given again",
                self.path.display()
            );
        }
        self.ids.give(name, seconds())
    }

    /// A number that was never given, for no name; `None`: all are taken.
    pub fn draw(&mut self) -> Option<u32> {
        self.unsaved = true;
        self.ids.draw()
    }

    /// Whoever comes under this name is another, with another id.
    pub fn forget(&mut self, name: &str) {
        self.ids.forget(name);
        self.unsaved = true;
    }

    /// More than any id that was given.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.ids.next()
    }

    /// The agents are others than they were.
    pub fn changed(&mut self) {
        self.unsaved = true;
    }

    /// Whether there is something to do for [`KeptIds::save`].
    #[must_use]
    pub fn is_due(&self) -> bool {
        if let Some(writing) = &self.writing {
            return writing.is_finished();
        }
        let pause = match (self.failed || self.unread, self.unsaved) {
            (true, _) => RETRY,
            // More of them than were noted ahead.
            _ if self.ids.next() > self.noted => Duration::ZERO,
            (_, true) => SAVE_PAUSE.max(self.rest()),
            (_, false) => SAVE_INTERVAL,
        };
        self.saved.is_none_or(|saved| saved.elapsed() >= pause)
    }

    /// For how long the file is left alone, for its length.
    fn rest(&self) -> Duration {
        Duration::from_millis((self.len * 1000 / BYTES_PER_SECOND) as u64)
    }

    /// Has the file say what is known of the agents, or finds out what became of that.
    pub fn save(&mut self, agents: Agents) {
        if let Some(writing) = self.writing.take() {
            return self.written(join(writing));
        }
        // Were it so many each time, those that come by the thousand would have the whole file written by the dozen.
        let is_soon = self
            .saved
            .is_some_and(|saved| saved.elapsed() < SAVE_PAUSE.max(self.rest()));
        self.ahead = match is_soon {
            true => (self.ahead * 4).min(MOST_AHEAD),
            false => AHEAD,
        };
        self.saved = Some(Instant::now());
        let Some(text) = self.text(agents, self.ahead) else {
            return;
        };
        self.len = text.len();
        let path = self.path.clone();
        let writing = thread::Builder::new()
            .name("instance ids".into())
            .spawn(move || cache_file::write(&path, &text));
        match writing {
            Ok(writing) => self.writing = Some(writing),
            Err(err) => self.written(Err(err)),
        }
    }

    /// The same at the end, when there is no later.
    pub fn finish(&mut self, agents: Agents) {
        if let Some(writing) = self.writing.take() {
            let written = join(writing);
            self.written(written);
        }
        if let Some(text) = self.text(agents, 0) {
            self.written(cache_file::write(&self.path, &text));
        }
    }

    /// What the file is to say, with so many ids noted ahead; `None`: it cannot be read, and may say more than is known.
    fn text(&mut self, agents: Agents, ahead: u32) -> Option<String> {
        if self.unread {
            self.read();
        }
        let Agents { known, seen, limit } = agents;
        let lines = self.ids.keep(Keep {
            known,
            seen,
            limit,
            now: seconds(),
        });
        if self.unread {
            return None;
        }
        self.unsaved = false;
        let next = self.ids.next();
        // Where none was ever given, none will be for a while.
        let ahead = if next == 0 { 0 } else { ahead };
        self.noted = (next + ahead).min(HIGHEST_ID + 1).max(next);
        Some(cache_file::text(lines, self.noted.checked_sub(1)))
    }

    fn written(&mut self, written: io::Result<()>) {
        match &written {
            Ok(()) if self.failed => {
                tracing::info!("{}: instance ids are saved again", self.path.display());
            }
            Err(err) if !self.failed => {
                let path = self.path.display();
                tracing::warn!(
                    "{path}: {err}; until it can be written, instance ids do not outlive the host"
                );
            }
            _ => {}
        }
        self.failed = written.is_err();
        self.unsaved |= self.failed;
    }
}

fn join(writing: JoinHandle<io::Result<()>>) -> io::Result<()> {
    let panicked = |_| Err(io::Error::other("the thread that writes it panicked"));
    writing.join().unwrap_or_else(panicked)
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
