//! State file: takes its lock, restores the agents, and replaces the file if it was removed or truncated.

use super::Server;
use crate::base::clock::Now;
use std::time::{Duration, Instant};

/// Time between two checks that the state file is still in place.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// State of the lock that decides which pmdanixl drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The lock on the state file was not tried yet.
    Start,
    /// Another process has the lock.
    Waiting,
    /// This process has the lock, or drains without a state file.
    Serving,
}

<<<<<<< HEAD
=======
/// The open state file and the result of the last check.
#[derive(Debug)]
pub(super) struct StateFileWatch {
    file: Rc<io::Result<StateFile>>,
    path: PathBuf,
    phase: Phase,
    last_check: Instant,
    /// True if the records in the file were written by this process.
    has_own_records: bool,
    /// True if the log already has the warning that the state file is unusable.
    is_failure_logged: bool,
}

impl StateFileWatch {
    pub fn new(file: Rc<io::Result<StateFile>>, path: PathBuf) -> Self {
        Self {
            file,
            path,
            phase: Phase::Start,
            last_check: Instant::now(),
            has_own_records: false,
            is_failure_logged: false,
        }
    }

    /// True if this process drains: no other process has the lock on the state file.
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }
}

>>>>>>> a2a7cb3 (pcp: comments in plain words)
impl Server {
    /// Takes the lock on the state file and restores the agents from it. Returns true if this process drains. Without a
    /// usable state file it drains as well, and totals end with the process.
    pub(super) fn start_serving(&mut self) -> bool {
        if self.phase == Phase::Serving {
            return true;
        }
        let shown = self.journal.path().display().to_string();
        let mut records = Vec::new();
        match self.journal.start() {
            Ok(None) => {
                if self.phase == Phase::Start {
                    tracing::warn!(
                        "another pmdanixl holds {shown}; this one waits until that has ended"
                    );
                }
                self.phase = Phase::Waiting;
                return false;
            }
            Ok(Some(found)) => {
                if let Some(why) = found.set_aside {
                    tracing::warn!("{shown}: {why}");
                }
                records = found.records;
            }
            Err(err) => {
                tracing::warn!("{shown}: {err}; totals begin at zero after a restart of pmdanixl");
            }
        }
        let journal = std::mem::take(&mut self.journal);
        self.agents.restore(journal, records);
        let instances = self.agents.iter().filter(|agent| agent.is_published());
        let instances = instances.count();
        if instances > 0 {
            tracing::info!("goes on with what {shown} says of {instances} instances");
        }
        if self.phase == Phase::Waiting {
            tracing::info!("the other pmdanixl has ended; this one drains the rings now");
        }
        self.phase = Phase::Serving;
        self.control.is_persistent = self.agents.is_persistent();
        let next = self.agents.next_id();
        self.ids.load(&self.agents.ids(Now::read()), next);
        self.note_in_state();
        self.update_indoms();
        true
    }

<<<<<<< HEAD
    /// Looks after the state file, if it is time.
=======
    /// Checks every ten seconds that the state file is in place and whole. Replaces it if not.
>>>>>>> a2a7cb3 (pcp: comments in plain words)
    pub(super) fn check_state_file(&mut self, now: Instant) {
        if now.duration_since(self.state_checked) < CHECK_INTERVAL {
            return;
        }
        self.state_checked = now;
        self.agents.check_state();
        self.note_in_state();
        self.control.is_persistent = self.agents.is_persistent();
    }

<<<<<<< HEAD
    /// Writes to the state file what is not of one agent.
    fn note_in_state(&mut self) {
        self.agents.set_next_id(self.ids.next());
        if let Some(when) = self.control.config_read {
            self.agents.set_config_read(when);
        }
=======
    /// Opens an empty state file: the present one if it is in place, otherwise a new one.
    ///
    /// # Errors
    /// If the file cannot be opened, another process has its lock, or another pmdanixl has written records into it.
    fn open_replacement(&mut self, is_in_place: bool) -> io::Result<State> {
        let opened = match is_in_place {
            // This process still holds its lock, so it cannot be opened a second time.
            true => Rc::clone(&self.state.file),
            false => Rc::new(StateFile::open(&self.state.path)),
        };
        // The records in memory are newer than those in the file.
        if let (Ok(file), true) = (opened.as_ref(), is_in_place && self.state.has_own_records) {
            file.clear()?;
        }
        let found = lock(&opened)?.ok_or_else(|| io::Error::other("another pmdanixl holds it"))?;
        // Totals of another pmdanixl may include events that are counted here.
        if !found.records.is_empty() {
            return Err(io::Error::other(
                "it is one that another pmdanixl has written; remove it, or run Install to go on with it",
            ));
        }
        self.state.file = Rc::clone(&opened);
        Ok(found.state)
    }
}

/// Takes the lock on the state file and reads it. `None`: another process has the lock.
fn lock(opened: &io::Result<StateFile>) -> io::Result<Option<Found>> {
    match opened {
        Ok(file) => State::take(file, state::boot_id()?),
        Err(err) => Err(io::Error::new(err.kind(), err.to_string())),
>>>>>>> a2a7cb3 (pcp: comments in plain words)
    }
}
