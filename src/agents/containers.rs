//! The agents in containers whose directories nobody else sees.

use super::Agents;
use crate::config::Config;
use crate::find::containers::{Containers, GRACE};
use crate::find::discover::{self, FileId};
use crate::find::scan::Scanner;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

impl Agents {
    /// Looks into containers from now on, or no more.
    pub(super) fn configure_containers(&mut self, config: &Config) {
        if !config.containers {
            self.containers = None;
            self.scanner.set_containers(Vec::new());
        } else if self.containers.is_none() {
            self.containers = Some(Containers::new(Instant::now()));
        }
    }

    /// Finds out which containers came and went. What those leave that have gone is let go.
    pub(super) fn look_into_containers(&mut self, now: Instant) {
        let Some(containers) = &mut self.containers else {
            return;
        };
        let step = containers.step(now, self.books.inquiry.get_mut().holdups());
        if let Some(took) = step.looked {
            self.surveys += 1;
            self.container_looks += 1;
            self.survey_time += took;
        }
        if step.changed {
            self.scanner.set_containers(containers.to_scan());
            for agent in self.agents.values_mut() {
                agent.find_way(Some(containers));
            }
        }
        for (directories, until) in [(&step.ended, Some(now + GRACE)), (&step.replaced, None)] {
            self.leave(directories, until);
        }
        if step.checked && !self.leaving.is_empty() {
            self.let_go(now);
        }
    }

    /// Notes that the rings of these directories are to be let go: when nothing waits in them and nobody has them, or at a time.
    fn leave(&mut self, directories: &[PathBuf], until: Option<Instant>) {
        if directories.is_empty() {
            return;
        }
        for agent in self.agents.values_mut() {
            if directories.iter().any(|one| one == agent.ring_directory()) {
                agent.stranger = None;
                let ids = agent.sources.iter().map(|source| (source.id(), until));
                self.leaving.extend(ids);
            }
            // Its store may be in another directory than its rings are, or were.
            let stores = agent.store.iter().filter(|store| {
                let directory = store.path().parent();
                directories
                    .iter()
                    .any(|one| Some(one.as_path()) == directory)
            });
            self.leaving
                .extend(stores.map(|store| (store.file_id(), until)));
        }
    }

    /// Lets go of rings in directories that are not there any more: they keep the container's file system in memory.
    fn let_go(&mut self, now: Instant) {
        let (mut left, mut lighter, mut broken) = (HashMap::new(), Vec::new(), false);
        let moment = self.clock.at(now);
        for (key, agent) in self.agents.iter_mut() {
            let sources = agent.sources.len();
            let (directory, raw) = (agent.ring_directory().to_owned(), &agent.name.raw);
            agent.sources.retain_mut(|source| {
                let id = source.id();
                let Some(&until) = self.leaving.get(&id) else {
                    return true;
                };
                let is_late = until.is_some_and(|until| now >= until);
                let keep = source.spent(now, false).is_none()
                    && (!is_late || is_there(&self.scanner, &directory, raw, id));
                if !keep {
                    self.attached.remove(&id);
                } else if !is_late {
                    left.insert(id, until);
                }
                keep
            });
            let gone = agent.store.take_if(|store| {
                let id = store.file_id();
                let Some(&until) = self.leaving.get(&id) else {
                    return false;
                };
                let is_late = until.is_some_and(|until| now >= until);
                let is_there = || {
                    let (directory, name) = (store.path().parent(), store.path().file_name());
                    let place = directory.zip(name);
                    place.is_some_and(|(directory, name)| {
                        is_there(&self.scanner, directory, name, id)
                    })
                };
                let keep = !is_late || is_there();
                let keep = !store.is_abandoned(now) && keep;
                if keep && !is_late {
                    left.insert(id, until);
                }
                !keep
            });
            if let Some(mut store) = gone {
                // What it came to since the last drain; it will not be found again.
                broken |= agent.look_at_end(&mut store, moment, &mut self.books);
                self.attached.remove(&store.file_id());
                lighter.push(key);
            }
            lighter.extend((agent.sources.len() < sources).then_some(key));
        }
        if broken {
            self.give_state_up();
        }
        // What they have let go is not kept mapped.
        lighter.into_iter().for_each(|key| self.wake(key));
        self.leaving = left;
    }
}

/// Whether a file is in its place: a new container with the same volume writes to it.
fn is_there(scanner: &Scanner, directory: &Path, name: &OsStr, id: FileId) -> bool {
    let fd = scanner.directory(directory);
    fd.is_some_and(|fd| discover::facts(fd, name).is_ok_and(|now| now.id == id))
}
