//! Which rings are attached: what the scanner finds, as far as there is room.

use super::{Agents, Place};
use crate::agents::agent::{Stranger, Version};
use crate::agents::removal;
use crate::error::Refusal;
use crate::find::discover::{self, Access, Candidate};
use crate::find::scan::{Found, Opened};
use crate::producer::writer::{self, Holder};
use crate::ring::source::{Mode, Source};
use crate::shm::{Broken, LeaseKind};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long an agent that is new is no instance while /proc is asked who it is: its labels are to be right from the first
/// moment on, and one that cannot be known is not to be waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

impl Agents {
    /// Looks for rings that came or went, for as long as the budget lasts; the next call goes on from there. Whether nothing
    /// is left for it.
    pub fn scan(&mut self, now: Instant, budget: Duration) -> bool {
        let started = Instant::now();
        if self.found.is_empty() {
            // The other half is for what is found.
            let end = started + budget / 2;
            let found = self.scanner.scan(now, end, &self.attached);
            self.found = self.in_turn(found, now).into();
        }
        while let Some(found) = self.found.pop_front() {
            // One inode met by two paths is one ring.
            if !self.attached.contains(&found.facts.id) {
                self.look_at(found, now);
            }
            if started.elapsed() >= budget {
                break;
            }
        }
        if self.early.is_none() && self.found.is_empty() {
            self.books.early = false;
        }
        self.found.is_empty() && self.scanner.is_done()
    }

    fn look_at(&mut self, mut found: Found, now: Instant) {
        let opened = match self.scanner.open(&mut found) {
            Ok(opened) => opened,
            Err(Refusal::Unsupported { version, .. }) => {
                return self.watch(&found, Version::Ring(version), now);
            }
            Err(Refusal::Schema { schema }) => {
                return self.watch(&found, Version::Store(schema), now);
            }
            Err(_) => return,
        };
        let candidate = match opened {
            Opened::Ring(candidate) => candidate,
            Opened::Store(candidate) => return self.look_at_store(found, *candidate, now),
        };
        if self.has_room(
            now,
            || match candidate.header.pending() {
                // One that has nothing to say takes nobody's place.
                0 => writer::holder(&candidate.file, LeaseKind::Alone),
                _ => Holder::Somebody,
            },
            &found,
        ) {
            self.attach(found, candidate, now);
        }
    }

    /// Whether there is room for what was found, after some was made if need be; else it is set aside. `holder` says who has it:
    /// for what is certainly nobody's no room is made.
    pub(super) fn has_room(
        &mut self,
        now: Instant,
        holder: impl FnOnce() -> Holder,
        found: &Found,
    ) -> bool {
        // None takes the place of one that can be read.
        let most = self.attached.len() + self.agents.len();
        if most >= self.max_rings && self.attached.len() + self.strangers() >= self.max_rings {
            let mut agents = self.agents.values_mut();
            if let Some(agent) = agents.find(|agent| agent.stranger.is_some()) {
                agent.stranger = None;
            }
        }
        if self.attached.len() >= self.max_rings {
            let holder = holder();
            if holder != Holder::Somebody {
                let exited = holder == Holder::Nobody;
                self.set_aside(found, without_place(exited, self.max_rings));
                return false;
            }
            if !self.make_room(now) {
                self.set_aside(found, without_place(false, self.max_rings));
                // The rest would find no place either: it is looked at again at the next pass.
                self.found.clear();
                self.scanner.find_again();
                return false;
            }
        }
        true
    }

    /// A ring of a version that is not read: its agent is shown as such while somebody has it.
    fn watch(&mut self, found: &Found, version: Version, now: Instant) {
        let place = Place::of_ring(&found.directory.path, &found.name, found.facts.uid);
        let key = self.known_at(&place);
        let known = key.and_then(|key| self.agents.get_mut(key)?.stranger.as_mut());
        if let Some(stranger) = known.filter(|stranger| stranger.id() == found.facts.id) {
            // A second descriptor would be taken for somebody who has it.
            (stranger.facts, stranger.version) = (found.facts, version);
            return;
        }
        let opened = self
            .scanner
            .directory(&found.directory.path)
            .map(|fd| discover::open_to_watch(fd, &found.name, &found.facts));
        let Some(Ok(file)) = opened else {
            return;
        };
        let path = found.directory.path.join(&found.name);
        let stranger = Stranger::new(file, found.facts, path, version, now);
        // One that nobody has is no agent, and none takes the place of one that can be read.
        if !stranger.is_held() || self.attached.len() + self.strangers() >= self.max_rings {
            return;
        }
        let key = self.agent_at(&found.directory, place, now);
        if let Some(agent) = self.agents.get_mut(key) {
            let kept = agent.started(self.clock.at(now).stamp, self.books.state.as_ref());
            if self.proc_facts {
                agent.wait_until = now + PATIENCE;
            }
            agent.stranger = Some(stranger);
            if kept == Err(Broken) {
                self.give_state_up();
            }
            self.wake(key);
        }
    }

    fn strangers(&self) -> usize {
        let agents = self.agents.values();
        agents.filter(|agent| agent.stranger.is_some()).count()
    }

    pub(super) fn set_aside(&mut self, found: &Found, refusal: Refusal) {
        self.scanner
            .set_aside(&found.directory.path, &found.name, &found.facts, refusal);
    }

    fn attach(&mut self, found: Found, candidate: Candidate, now: Instant) {
        let (header, layout) = (candidate.header, candidate.layout);
        let file = found.directory.path.join(&found.name);
        let raw = self.agent_of(&found);
        self.adopt(&found, &raw, now);
        let place = Place::of_ring(&found.directory.path, &raw, found.facts.uid);
        let known = self.known_at(&place).and_then(|key| self.agents.get(key));
        let before = known.and_then(|agent| agent.entry.commit);
        let source = match Source::attach(candidate, file, before.as_ref(), now) {
            Ok(source) => source,
            Err(refusal) => return self.set_aside(&found, refusal),
        };
        self.scanner.taken(&found.directory.path, source.id());
        let key = self.agent_at(&found.directory, place, now);
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.stranger = None;
        let commit = source.commit();
        if agent
            .entry
            .commit
            .is_none_or(|before| !before.ring.is_same_file(&commit.ring))
        {
            // What a store of it has said stays said. One that is still written to is of another process: let go, it would be
            // taken for a new one, and all of it would count again.
            let store = agent.store.as_mut();
            if store.is_none_or(|store| store.is_abandoned(now)) {
                let (gone, _) = agent.let_store_go(self.clock.at(now), &mut self.books);
                if let Some(id) = gone {
                    self.attached.remove(&id);
                }
            }
            if agent.entry.store.is_none() {
                agent.entry.account.set_bounds(&self.books.bounds);
            }
            // A state that is broken is given up below.
            let _ = agent.started(self.clock.at(now).stamp, self.books.state.as_ref());
            // What became of a batch in flight, of another of its rings, is found out first.
            if !agent
                .entry
                .commit
                .is_some_and(|before| before.is_in_flight())
            {
                agent.entry.commit = Some(commit);
            }
        }
        if self.proc_facts && !source.presence.is_abandoned() {
            agent.wait_until = now + PATIENCE;
        }
        let (capacity, pending) = (header.capacity, header.pending());
        let (version, path, instance) = (layout.name(), source.path(), &agent.name.instance);
        let how = match source.mode() {
            Mode::Drain => String::new(),
            Mode::Locked => {
                "; another process has locked it and drains it, so it is only followed".into()
            }
            Mode::Observe(Access::Denied(errno)) => {
                format!("; it may not be written to ({errno}), so it is only followed")
            }
            Mode::Observe(_) => "; it is only followed".into(),
        };
        tracing::info!(
            "agent {instance}: ring {version}, {capacity} events, {pending} pending, {path:?}{how}"
        );
        self.attached.insert(source.id());
        // A ring that is empty and that nobody writes to has nothing to say; it is watched for its agent's return.
        if pending > 0 || !source.presence.is_abandoned() {
            agent.entry.silent_since = None;
            agent.entry.active = true;
        }
        agent.sources.push(source);
        if let (Some(state), Some(record)) = (&self.books.state, agent.record) {
            if state.replace(record, &agent.entry) == Err(Broken) {
                self.give_state_up();
            }
        }
        self.wake(key);
    }

    /// The name of the agent that a file belongs to: the file's, or, if that was being removed when the daemon was killed, what it
    /// was before. Only of a ring that is known to be that agent's, or anybody could add to another's counts.
    fn agent_of(&self, found: &Found) -> OsString {
        let was = removal::original_name(&found.name).filter(|was| {
            let place = Place::of_ring(&found.directory.path, was, found.facts.uid);
            let agent = self.known_at(&place).and_then(|key| self.agents.get(key));
            agent.is_some_and(|agent| {
                let commit = agent.entry.commit;
                commit.is_some_and(|commit| commit.ring.id == found.facts.id)
            })
        });
        was.unwrap_or_else(|| found.name.clone())
    }

    /// Lets the ring go that has been silent for longest, of an agent that has left; whether there was one.
    fn make_room(&mut self, now: Instant) -> bool {
        let left = self
            .agents
            .iter()
            .filter(|(_, agent)| !agent.entry.active && agent.has_files());
        let mut left: Vec<_> = left
            .map(|(key, agent)| (agent.entry.last_seen, key))
            .collect();
        left.sort_unstable();
        for (_, key) in left {
            let Some(agent) = self.agents.get_mut(key) else {
                continue;
            };
            // What is known of a store is kept, for when there is room.
            if let Some(store) = agent.store.take() {
                self.attached.remove(&store.file_id());
            }
            agent.sources.retain_mut(|source| {
                let Some(facts) = source.spent(now) else {
                    return true;
                };
                self.attached.remove(&source.id());
                let refusal = without_place(source.presence.is_abandoned(), self.max_rings);
                if let Some((directory, name)) =
                    source.path().parent().zip(source.path().file_name())
                {
                    self.scanner.set_aside(directory, name, &facts, refusal);
                }
                false
            });
            if self.attached.len() < self.max_rings {
                return true;
            }
        }
        false
    }
}

/// Why a ring is not attached while there is no room for it. Only one whose agent has certainly exited need not be looked at
/// again before its file changes.
fn without_place(exited: bool, max_agents: usize) -> Refusal {
    if exited {
        Refusal::Exited
    } else {
        Refusal::TooMany { max_agents }
    }
}
