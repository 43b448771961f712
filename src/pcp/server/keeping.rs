//! The state file: begins where another pmdanixl has ended, and is made anew where it was taken away.

use super::{Phase, Server};
use crate::base::clock::Now;
use crate::state::{self, Found, State, StateFile};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often it is looked whether the state file is where it was.
const LOOK_AFTER_STATE: Duration = Duration::from_secs(10);

impl Server {
    /// Becomes the one that drains, if no other is; then it goes on from where that one ended.
    pub(super) fn begin(&mut self) -> bool {
        if self.phase == Phase::Serving {
            return true;
        }
        let shown = self.places.state_path.display();
        match take(&self.places.state) {
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
                self.had_state = true;
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
                self.no_state = true;
                tracing::warn!("{shown}: {err}; totals begin at zero after a restart of pmdanixl")
            }
        }
        if self.phase == Phase::Waiting {
            tracing::info!("the other pmdanixl has ended; this one drains the rings now");
        }
        self.phase = Phase::Serving;
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
        if now.duration_since(self.looked) < LOOK_AFTER_STATE {
            return;
        }
        self.looked = now;
        let file = self.places.state.as_ref().as_ref();
        let is_in_place = file.is_ok_and(StateFile::is_in_place);
        match self.agents.state() {
            Some(state) if is_in_place && state.is_whole() => return,
            Some(_) if is_in_place => self.agents.lose_state("was truncated"),
            Some(_) => self.agents.lose_state("was removed or replaced"),
            None => {}
        }
        match self.another_state(is_in_place) {
            Ok(state) => {
                let path = self.places.state_path.display();
                tracing::info!("{path}: all that is known is kept there now");
                self.agents.move_to(state, now);
                self.agents.set_next_id(self.ids.next());
                (self.had_state, self.no_state) = (true, false);
            }
            Err(err) if !self.no_state => {
                let path = self.places.state_path.display();
                tracing::warn!("{path}: {err}; no other can be made, which is tried again");
                self.no_state = true;
            }
            Err(_) => {}
        }
        self.control.persistent = self.agents.is_persistent();
    }

    /// An empty state, of the same file if that is still in its place, or of one that is made there.
    fn another_state(&mut self, is_in_place: bool) -> io::Result<State> {
        let opened = match is_in_place {
            // Its lock is still held, and would keep a second opening away.
            true => Rc::clone(&self.places.state),
            false => Rc::new(StateFile::open(&self.places.state_path)),
        };
        // What is left of our own is known here, and better.
        if let (Ok(file), true) = (opened.as_ref(), is_in_place && self.had_state) {
            file.clear()?;
        }
        let found = take(&opened)?.ok_or_else(|| io::Error::other("another pmdanixl holds it"))?;
        // What another has counted is not to be counted once more here.
        if !found.records.is_empty() {
            return Err(io::Error::other(
                "it is one that another pmdanixl has written; remove it, or run Install to go on with it",
            ));
        }
        self.places.state = Rc::clone(&opened);
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
