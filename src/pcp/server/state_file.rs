//! The state file: begins where another pmdanixl has ended, and is made anew where it was taken away.

use super::Server;
use crate::base::clock::Now;
use crate::state::{self, Found, State, StateFile};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often it is looked whether the state file is where it was.
const LOOK_AFTER_STATE: Duration = Duration::from_secs(10);

/// Whether this is the pmdanixl that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The lock on the state file was not tried yet.
    Start,
    /// Another process has the lock.
    Waiting,
    /// This process has the lock, or drains without a state file.
    Serving,
}

/// The state file: which one it is, and whether it is where it was.
#[derive(Debug)]
pub(super) struct StateFileWatch {
    file: Rc<io::Result<StateFile>>,
    path: PathBuf,
    phase: Phase,
    last_check: Instant,
    /// True once its records were this daemon's.
    was_ours: bool,
    /// True once the log says that there is none.
    is_missed: bool,
}

impl StateFileWatch {
    pub fn new(file: Rc<io::Result<StateFile>>, path: PathBuf) -> Self {
        Self {
            file,
            path,
            phase: Phase::Start,
            last_check: Instant::now(),
            was_ours: false,
            is_missed: false,
        }
    }

    /// True if this process drains: another one has no lock on the state file.
    pub fn is_ours(&self) -> bool {
        self.phase == Phase::Serving
    }
}

impl Server {
    /// Becomes the one that drains, if no other is; then it goes on from where that one ended.
    pub(super) fn begin(&mut self) -> bool {
        if self.state.phase == Phase::Serving {
            return true;
        }
        let shown = self.state.path.display();
        match take(&self.state.file) {
            Ok(None) => {
                if self.state.phase == Phase::Start {
                    tracing::warn!(
                        "another pmdanixl holds {shown}; this one waits until that has ended"
                    );
                }
                self.state.phase = Phase::Waiting;
                return false;
            }
            Ok(Some(found)) => {
                if let Some(why) = found.set_aside {
                    tracing::warn!("{shown}: {why}");
                }
                self.state.was_ours = true;
                self.agents.restore(found.state, found.records);
                let instances = self
                    .agents
                    .iter()
                    .filter(|agent| agent.is_published())
                    .count();
                if instances > 0 {
                    tracing::info!("goes on with what {shown} says of {instances} instances");
                }
            }
            Err(err) => {
                self.state.is_missed = true;
                tracing::warn!("{shown}: {err}; totals begin at zero after a restart of pmdanixl")
            }
        }
        if self.state.phase == Phase::Waiting {
            tracing::info!("the other pmdanixl has ended; this one drains the rings now");
        }
        self.state.phase = Phase::Serving;
        self.control.persistent = self.agents.is_persistent();
        let next = self.agents.next_id();
        self.ids.begin(&self.agents.ids(Now::read()), next);
        self.agents.set_next_id(self.ids.next());
        if let Some(when) = self.control.config_read {
            self.agents.set_config_read(when);
        }
        self.follow();
        true
    }

    /// Notices that the state file was removed or replaced, and makes another where there is none.
    pub(super) fn look_after_state(&mut self, now: Instant) {
        if now.duration_since(self.state.last_check) < LOOK_AFTER_STATE {
            return;
        }
        self.state.last_check = now;
        let file = self.state.file.as_ref().as_ref();
        let is_in_place = file.is_ok_and(StateFile::is_in_place);
        match self.agents.state() {
            Some(state) if is_in_place && state.is_whole() => return,
            Some(_) if is_in_place => self.agents.lose_state("was truncated"),
            Some(_) => self.agents.lose_state("was removed or replaced"),
            None => {}
        }
        match self.another_state(is_in_place) {
            Ok(state) => {
                let path = self.state.path.display();
                tracing::info!("{path}: all that is known is kept there now");
                self.agents.move_to(state, now);
                self.agents.set_next_id(self.ids.next());
                (self.state.was_ours, self.state.is_missed) = (true, false);
            }
            Err(err) if !self.state.is_missed => {
                let path = self.state.path.display();
                tracing::warn!("{path}: {err}; no other can be made, which is tried again");
                self.state.is_missed = true;
            }
            Err(_) => {}
        }
        self.control.persistent = self.agents.is_persistent();
    }

    /// An empty state, of the same file if that is still in its place, or of one that is made there.
    fn another_state(&mut self, is_in_place: bool) -> io::Result<State> {
        let opened = match is_in_place {
            // Its lock is still held, and would keep a second opening away.
            true => Rc::clone(&self.state.file),
            false => Rc::new(StateFile::open(&self.state.path)),
        };
        // What is left of our own is known here, and better.
        if let (Ok(file), true) = (opened.as_ref(), is_in_place && self.state.was_ours) {
            file.clear()?;
        }
        let found = take(&opened)?.ok_or_else(|| io::Error::other("another pmdanixl holds it"))?;
        // What another has counted is not to be counted once more here.
        if !found.records.is_empty() {
            return Err(io::Error::other(
                "it is one that another pmdanixl has written; remove it, or run Install to go on with it",
            ));
        }
        self.state.file = Rc::clone(&opened);
        Ok(found.state)
    }
}

/// Takes the lock on the state file, and what it holds. `None` while another process has the lock.
fn take(opened: &io::Result<StateFile>) -> io::Result<Option<Found>> {
    match opened {
        Ok(file) => State::take(file, state::boot_id()?),
        Err(err) => Err(io::Error::new(err.kind(), err.to_string())),
    }
}
