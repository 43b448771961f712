//! Who writes the rings and the stores, as far as /proc shows it.

use super::{Agents, Change};
use crate::agents::agent::Agent;
use crate::base::file::FileId;
use crate::producer::facts::Facts;
use crate::producer::holdups::Look;
use crate::producer::survey::{self, Mappers};
use crate::producer::writer::Writer;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Between two surveys there is so much more time than one takes, within these bounds: on a host of many processes it takes long.
const REST: u32 = 20;
/// The same while an agent waits to be an instance, which it does not do for long, or has the labels of the process before: they
/// are to be right from the first moment on.
const URGENT_REST: u32 = 3;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Who uses NIXL without telemetry is looked at this often, and less often where that would take a noticeable share of the time.
const CENSUS: Duration = Duration::from_secs(60);
const CENSUS_REST: u32 = 200;

/// A survey of /proc that goes on.
#[derive(Debug)]
pub(super) struct Surveying {
    survey: Look<Mappers>,
    /// The rings that it is for: those that are attached later were not there when the first processes were looked at.
    rings: HashSet<FileId>,
    /// Of which files it shows who has them mapped.
    inodes: HashSet<u64>,
}

impl Agents {
    /// Makes instances of the agents that wait for what /proc shows of them, as soon as it has, within `patience`: an answer to
    /// pmcd is about to be given.
    pub fn reveal(&mut self, patience: Duration, changes: &mut Vec<Change>) {
        if !self.proc_facts || !self.anybody_waits() {
            return;
        }
        let now = Instant::now();
        self.survey(now);
        if let Some(mut surveying) = self.surveying.take() {
            match surveying.survey.answer_until(now + patience) {
                Ok(Some(mappers)) => self.take(&surveying.rings, &surveying.inodes, &mappers, now),
                Ok(None) => self.surveying = Some(surveying),
                Err(_) => {
                    self.ask_again(&surveying.rings);
                    self.surveyed = Some((now, LONGEST));
                }
            }
        }
        for (key, agent) in self.agents.iter_mut() {
            if !agent.shown && agent.turn(now) == Some(true) {
                changes.push(Change::Appeared(key));
            }
        }
    }

    /// Whether an agent is to be an instance, or to have other labels, as soon as it is known who it is.
    fn anybody_waits(&mut self) -> bool {
        // Each answer asks, and almost always nobody does.
        self.may_wait = self.may_wait && self.agents.values().any(Agent::wants_facts);
        self.may_wait
    }

    pub(super) fn survey(&mut self, now: Instant) {
        if let Some(mut surveying) = self.surveying.take() {
            match surveying.survey.answer(now) {
                Ok(Some(mappers)) => self.take(&surveying.rings, &surveying.inodes, &mappers, now),
                Ok(None) => {
                    let Surveying {
                        survey,
                        rings,
                        inodes,
                    } = surveying;
                    match self.holdups.go_on(survey, now) {
                        Some(survey) => {
                            self.surveying = Some(Surveying {
                                survey,
                                rings,
                                inodes,
                            });
                        }
                        // The next one begins at once, and passes over who holds it up.
                        None => {
                            self.ask_again(&rings);
                            self.surveyed = None;
                        }
                    }
                }
                Err(_) => {
                    self.ask_again(&surveying.rings);
                    self.surveyed = Some((now, LONGEST));
                }
            }
        } else if self.is_census_due(now) || (self.asks && self.is_survey_due(now)) {
            self.begin_survey(now);
        }
    }

    /// Has the next survey ask about these files, of which the last one has told nothing.
    fn ask_again(&mut self, rings: &HashSet<FileId>) {
        self.asks = true;
        for agent in self.agents.values_mut() {
            if agent.attached().any(|(id, _)| rings.contains(&id)) {
                agent.ask_again();
            }
        }
    }

    fn is_census_due(&self, now: Instant) -> bool {
        let due = |(ended, took): (Instant, Duration)| {
            now >= ended + CENSUS.max(took.saturating_mul(CENSUS_REST))
        };
        self.surveyed.is_none_or(due)
    }

    /// The processes that use NIXL and write nothing that is read here, as of the last look at all of them; `None`: not all
    /// can be seen.
    #[must_use]
    pub fn silent(&self) -> Option<&[Writer]> {
        self.silent.as_deref().filter(|_| self.proc_facts)
    }

    fn is_survey_due(&mut self, now: Instant) -> bool {
        let Some((ended, took)) = self.surveyed else {
            return true;
        };
        let rest = |times| now >= ended + (took * times).clamp(SHORTEST, LONGEST);
        rest(REST) || (rest(URGENT_REST) && self.anybody_waits())
    }

    fn begin_survey(&mut self, now: Instant) {
        let Some(avoided) = self.holdups.avoided(now) else {
            self.surveyed = Some((now, LONGEST));
            return;
        };
        self.asks = false;
        let (mut rings, mut files) = (HashSet::new(), HashSet::new());
        for agent in self.agents.values_mut() {
            let sources = agent.sources.iter_mut();
            for source in sources.filter(|source| source.file.presence.asks()) {
                source.begin_survey();
                rings.insert(source.id());
                files.insert((source.id().ino, source.uid()));
            }
        }
        if rings.is_empty() && !self.is_census_due(now) {
            return;
        }
        // Who has any of them mapped does not use NIXL without telemetry.
        let attached = self.agents.values().flat_map(Agent::attached);
        let inodes: HashSet<u64> = attached.map(|(id, _)| id.ino).collect();
        let pod_logs = (!files.is_empty()).then(|| self.pod_logs.clone());
        match survey::begin(files, inodes.clone(), pod_logs, avoided) {
            Ok(survey) => {
                self.surveying = Some(Surveying {
                    survey,
                    rings,
                    inodes,
                });
            }
            Err(err) => {
                tracing::debug!("no thread to ask /proc with: {err}");
                self.ask_again(&rings);
                self.surveyed = Some((now, LONGEST));
            }
        }
    }

    /// Takes what a survey has shown.
    fn take(
        &mut self,
        rings: &HashSet<FileId>,
        inodes: &HashSet<u64>,
        mappers: &Mappers,
        now: Instant,
    ) {
        self.surveys += 1;
        self.survey_time += mappers.took;
        self.surveyed = Some((now, mappers.took));
        let files = || self.agents.values().flat_map(Agent::attached);
        // Of files that were attached meanwhile it does not show whose they are; the next one does, which is due.
        if files().all(|(id, _)| inodes.contains(&id.ino)) || !mappers.complete {
            self.silent = mappers.silent(files().map(|(id, path)| (id.dev, id.ino, path)));
        }
        let mut woken = Vec::new();
        let (moment, lifetimes) = (self.clock.at(now), self.books.lifetimes);
        for (key, agent) in self.agents.iter_mut() {
            // What its owner is called was asked only with its files.
            let is_asked = |(id, _)| rings.contains(&id);
            if !agent.attached().any(is_asked) {
                continue;
            }
            let mut asked: Option<(Option<Facts>, u32)> = None;
            for source in &mut agent.sources {
                let is_asked = rings.contains(&source.id());
                if is_asked {
                    source.end_survey(mappers);
                }
                // Of several rings, the last one's writer counts if it is known.
                let known = source.file.presence.facts();
                if is_asked || known.is_some() {
                    asked = Some((known.cloned(), source.uid()));
                }
            }
            let Some((of_process, uid)) = asked else {
                continue;
            };
            // Of one that is not seen it stays as it was, or what its file tells must do.
            let of_file = agent.facts_of_files(mappers.user(uid));
            let mut facts = match (&of_process, agent.own_facts()) {
                (Some(of_process), _) => of_file.merge(of_process),
                (None, Some(before)) => of_file.merge(before),
                (None, None) => of_file,
            };
            mappers.pods.name(&mut facts, agent.own_facts());
            woken.push(key);
            if agent.own_facts() != Some(&facts) {
                self.books.journal.set_facts(agent.record, Some(&facts));
                agent.set_facts(Some(facts));
            }
            // It may be an instance before the next drain.
            agent.update_life(&moment, lifetimes);
        }
        for key in woken {
            self.agents.wake(key);
        }
    }
}
