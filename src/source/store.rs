//! One attached store of NIXL's prometheus_mp: it is read and never written, its values are taken as they are, and nothing is
//! consumed, so that any number of readers may do the same.

use crate::base::file::{self, FileFacts, FileId};
use crate::error::Refusal;
use crate::producer::presence::{Presence, Seen as Sight};
use crate::producer::survey::Mappers;
use crate::producer::writer::Holder;
use crate::shm::{Broken, LeaseKind, Mapping, Rest};
use crate::state::ledger::Ledger;
use crate::store::format::{self, Head, WORDS};
use crate::store::window::StoreWindow;
use crate::store::{Candidate, Description, StoreId};
use crate::totals::values::Values;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long after the last change a store is looked at all the same: its agent may be about to change it again, and a flush that is
/// not at its end shows in the values only.
const BUSY: Duration = Duration::from_secs(1);

/// A store that is read.
#[derive(Debug)]
pub struct Store {
    mapping: Rc<Mapping>,
    /// The descriptor that the mapping came from.
    file: File,
    facts: FileFacts,
    path: PathBuf,
    id: StoreId,
    head: Head,
    /// Who its agent is.
    pub description: Description,
    /// Whether somebody still writes to it.
    pub presence: Presence,
    /// Its histograms of the last minute; `None`: it was not read yet.
    window: Option<StoreWindow>,
    /// When a look has last found something new.
    moved: Instant,
    /// What it said then of the time of its last change.
    updated: Option<u64>,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its agent lives, or may.
    Held,
    /// Nobody is known who could write to it.
    Silent,
    /// It is not what it was: shortened, or another store's.
    Broken,
}

impl Store {
    /// Maps a candidate.
    ///
    /// # Errors
    /// Why it cannot be mapped, or is not what it was a moment ago.
    pub fn attach(candidate: Candidate, path: PathBuf, now: Instant) -> Result<Self, Refusal> {
        let Candidate {
            file,
            facts,
            description,
        } = candidate;
        let io = |what| {
            move |err: io::Error| {
                err.raw_os_error()
                    .map_or(Refusal::Replaced, |errno| Refusal::Io {
                        what,
                        errno: Errno::from_raw(errno),
                    })
            }
        };
        let mapping = Mapping::read_only(&file, WORDS).map_err(io("mapped"))?;
        let born = file::born(&file.metadata().map_err(io("looked at"))?);
        let head = mapping
            .look(&file, Head::of)
            .map_err(|_| Refusal::Replaced)?;
        Ok(Self {
            presence: Presence::new(&file, &facts, LeaseKind::NoWriter, now),
            id: StoreId {
                file: facts.id,
                born,
                pid: description.pid,
                instance: description.instance,
            },
            mapping: Rc::new(mapping),
            file,
            facts,
            path,
            head,
            description,
            window: None,
            moved: now,
            updated: None,
        })
    }

    /// Which store it is.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// What its file was like when it was attached.
    #[must_use]
    pub fn facts(&self) -> FileFacts {
        self.facts
    }

    /// Which file it is.
    #[must_use]
    pub fn file_id(&self) -> FileId {
        self.facts.id
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the file changed last, as far as stat(2) told when it was found: seconds and nanoseconds.
    #[must_use]
    pub fn changed(&self) -> (i64, i64) {
        self.facts.changed
    }

    /// The file's owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.facts.uid
    }

    /// Its values, now.
    ///
    /// # Errors
    /// The file has lost its second page or more, or says that it is another one's.
    pub fn values(&self) -> Result<Values, Broken> {
        let read = |words: &[_]| (format::read_values(words), Head::of(words));
        let (values, head) = self.mapping.look(&self.file, read)?;
        if head == self.head {
            Ok(values)
        } else {
            Err(Broken)
        }
    }

    /// Counts what came since the last look.
    pub fn look(&mut self, now: Instant, ledger: &mut Ledger) -> Found {
        let Ok(values) = self.values() else {
            return Found::Broken;
        };
        let histograms = values.histograms;
        match &mut self.window {
            Some(window) => window.advance(&histograms, now),
            None => {
                let ranges = self.description.ranges.count();
                self.window = Some(StoreWindow::new(&histograms, ranges, now));
            }
        }
        self.updated = Some(values.updated);
        let is_new = ledger.count_store(self.id, &self.description.ranges, values);
        if is_new {
            self.moved = now;
        }
        // What it had to say before its end, which is for good, is no sign of life.
        if is_new && !self.presence.is_abandoned() {
            self.presence.saw_events(now, ledger.check_every());
            return Found::Held;
        }
        match self.presence.check(&self.file, now, ledger.check_every()) {
            Sight::Held | Sight::Started => Found::Held,
            Sight::Silent | Sight::Gone => Found::Silent,
        }
    }

    /// Until when a look would find what the last one found, unless its agent changes it, where it is asked so often who has it;
    /// `None`: it may find more.
    #[must_use]
    pub fn quiet_until(&self, check_every: Duration, now: Instant) -> Option<Instant> {
        let is_quiet = now.saturating_duration_since(self.moved) >= BUSY;
        is_quiet.then(|| self.presence.next_check(check_every))
    }

    /// By which it can be seen whether its agent has changed it.
    #[must_use]
    pub fn rest(&self) -> Option<Rest> {
        Rest::new(&self.mapping, self.head.with_time(self.updated?))
    }

    /// Lets it go after a last look: what the agent has next is another. Which file it was.
    pub fn go(mut self, now: Instant, ledger: &mut Ledger) -> FileId {
        self.look(now, ledger);
        ledger.retire_store();
        self.file_id()
    }

    /// Whether, asked now, certainly nobody writes to it.
    pub fn is_abandoned(&mut self, now: Instant) -> bool {
        self.presence.ask_kernel(&self.file, now) == Holder::Nobody
    }

    /// A percentile of its transfers' times in the last minute, microseconds; of the times to post where `post`.
    #[must_use]
    pub fn percentile(&self, post: bool, percent: u64) -> Option<f64> {
        let window = self.window.as_ref()?;
        window.percentile(usize::from(post), &self.description.ranges, percent)
    }

    /// A survey of /proc begins that may show who writes.
    pub fn begin_survey(&mut self) {
        self.presence.begin_survey(&self.file);
    }

    /// Takes what it showed.
    pub fn end_survey(&mut self, mappers: &Mappers) {
        self.presence.end_survey(mappers, &self.facts, &self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Terms;
    use std::ffi::OsStr;
    use std::os::unix::fs::FileExt;

    const NAME: &str = "nixl.4242.17.0.mmap";

    #[test]
    fn a_store_that_is_shortened_or_becomes_another_is_no_longer_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(NAME);
        for spoil in [0, 1] {
            std::fs::write(&path, crate::store::format::tests::store("a", "0", &[1.0]))
                .expect("written");
            let fd = File::open(dir.path()).expect("there").into();
            let name = OsStr::new(NAME);
            let facts = file::facts(&fd, name).expect("there");
            let candidate =
                crate::find::store::open(&fd, name, &facts, &Terms::default()).expect("a store");
            let store = Store::attach(candidate, path.clone(), Instant::now()).expect("mapped");
            assert_eq!(store.values().expect("whole").updated, 5);
            crate::shm::guard_against_sigbus().expect("a handler");
            let file = File::options().write(true).open(&path).expect("there");
            match spoil {
                0 => file.set_len(0).expect("shortened"),
                _ => file.write_all_at(&[9], 32).expect("written"),
            }
            assert_eq!(store.values(), Err(Broken));
        }
    }
}
