// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers in flight of each process and remote agent, as the tracer has read them.

use super::Transports;
use super::ids::ClockIds;
use crate::base::per_user;
use crate::log;
use crate::procfs::process::ProcessId;
use crate::trace::protocol::{
    LibraryFailure, PairReading, TraceReading, TraceReport, TraceRequest, TracedProcess,
};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(1);
/// Limit of pairs. Each user gets an equal share of them, its oldest pairs first.
pub const MAX_TRACED_PAIRS: usize = 1024;

/// The only agent of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlyAgent {
    /// Name of its instance.
    pub name: String,
    /// Instance id.
    pub id: u32,
}

/// A process and a remote agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedPair {
    /// What was read.
    pub reading: PairReading,
    /// Name of the instance.
    pub name: String,
    /// Instance id of the agent of the process. `None`: it has none with telemetry, or several.
    pub agent: Option<u32>,
    /// First instance id of its buckets. The others follow.
    pub first_bucket: u32,
}

impl TracedPair {
    /// Returns the number of transfers that took no longer than the upper bound of a bucket.
    #[must_use]
    pub fn up_to(&self, bucket: usize) -> Option<u64> {
        Some(self.reading.buckets.get(..=bucket)?.iter().sum())
    }

    /// Returns the time since the oldest transfer in flight was posted, in milliseconds. `None`: there is none.
    #[must_use]
    pub fn oldest_age(&self) -> Option<u64> {
        Some(self.reading.oldest? / 1_000_000)
    }

    /// True if this is what another reading continues, under the same name.
    fn is_of(&self, reading: &PairReading, name: &str) -> bool {
        (self.reading.created, &*self.name) == (reading.created, name)
    }
}

/// All pairs, and what is known of the tracer.
#[derive(Debug, Default)]
pub struct Traced {
    /// Pairs by instance id.
    pairs: BTreeMap<u32, TracedPair>,
    /// When the last reading was requested. `None`: none was.
    last: Option<Instant>,
    is_reading: bool,
    /// What was read last, without the pairs. `None`: nothing is traced now.
    state: Option<TraceReading>,
    /// Tracers that were started.
    pub starts: u64,
    /// Why nothing is traced.
    failure: Option<String>,
    /// True if pairs have changed since the collector took note of it.
    pub has_changed: bool,
}

impl Traced {
    /// Returns what is to be read if it is time. It is then taken for begun.
    pub fn begin(
        &mut self,
        processes: &Transports,
        bounds: &[u64],
        at_return: bool,
        now: Instant,
    ) -> Option<TraceRequest> {
        let is_due = self.last.is_none_or(|last| now >= last + PERIOD);
        if !is_due || self.is_reading {
            return None;
        }
        (self.last, self.is_reading) = (Some(now), true);
        let processes = processes.iter().filter_map(|process| {
            Some(TracedProcess {
                id: process.found.info.id,
                uid: process.found.info.uid,
                library: process.found.libraries.core.clone()?,
            })
        });
        Some(TraceRequest {
            processes: processes.collect(),
            bounds: bounds.to_vec(),
            at_return,
        })
    }

    /// Applies a report. `agents` are the processes that run one agent. New pairs get their ids from `ids`.
    pub fn apply(
        &mut self,
        report: TraceReport,
        processes: &Transports,
        agents: &HashMap<ProcessId, OnlyAgent>,
        ids: &mut ClockIds,
    ) {
        (self.is_reading, self.starts) = (false, report.starts);
        let mut reading = match report.reading {
            Ok(reading) => reading,
            Err(why) => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::warn!("trace: nothing is traced: {why}");
                }
                self.stop();
                self.failure = Some(why);
                return;
            }
        };
        if self.failure.take().is_some() || self.state.is_none() {
            tracing::info!("trace: transfers are traced from now on");
        }
        for failure in std::mem::take(&mut reading.failures) {
            log_failure(&failure);
        }
        let mut known: HashMap<(ProcessId, String), u32> = HashMap::new();
        for (&id, pair) in &self.pairs {
            known.insert((pair.reading.process, pair.reading.remote.clone()), id);
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        for (name, agent, one) in limited(std::mem::take(&mut reading.pairs), processes, agents) {
            let id = known.get(&(one.process, one.remote.clone()));
            let before = id.and_then(|id| Some((*id, pairs.remove(id)?)));
            let before = before.filter(|(_, pair)| pair.is_of(&one, &name));
            self.has_changed |= before.is_none();
            let (id, first_bucket) = match before {
                Some((id, pair)) => (id, pair.first_bucket),
                None => {
                    let id = ids.draw();
                    let buckets = Vec::from_iter(one.buckets.iter().map(|_| ids.draw()));
                    (id, buckets.first().copied().unwrap_or_default())
                }
            };
            let pair = TracedPair {
                reading: one,
                name,
                agent,
                first_bucket,
            };
            self.pairs.insert(id, pair);
        }
        self.has_changed |= !pairs.is_empty();
        self.state = Some(reading);
    }

    /// Ends the tracing: no pair has a value.
    pub fn stop(&mut self) {
        self.has_changed |= !self.pairs.is_empty();
        self.pairs.clear();
        (self.state, self.is_reading) = (None, false);
    }

    /// Returns the pairs with their instance ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &TracedPair)> {
        self.pairs.iter().map(|(&id, pair)| (id, pair))
    }

    /// Returns the pair with an instance id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&TracedPair> {
        self.pairs.get(&id)
    }

    /// Returns the number of libraries with probes. `None`: nothing is traced.
    #[must_use]
    pub fn libraries(&self) -> Option<u32> {
        Some(self.state.as_ref()?.libraries)
    }

    /// Returns the number of handles and pairs that found no room since the tracer began. `None`: nothing is traced.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        Some(self.state.as_ref()?.lost)
    }
}

/// Returns at most [`MAX_TRACED_PAIRS`] pairs with their names and agents: of each user in turn its oldest one.
fn limited(
    pairs: Vec<PairReading>,
    processes: &Transports,
    agents: &HashMap<ProcessId, OnlyAgent>,
) -> Vec<(String, Option<u32>, PairReading)> {
    let mut all = Vec::new();
    for pair in pairs {
        let Some(process) = processes.get(pair.process) else {
            continue;
        };
        let agent = agents.get(&pair.process);
        let local = agent.map_or_else(|| process.instance_name(), |agent| agent.name.clone());
        let name = format!("{local}::{}", pair.remote);
        let agent = agent.map(|agent| agent.id);
        all.push((process.found.info.uid, (name, agent, pair)));
    }
    all.sort_by_key(|(_, (.., pair))| pair.created);
    let mut all = per_user::numbered(all, |(uid, _)| *uid);
    all.sort_by_key(|(number, (_, (.., pair)))| (*number, pair.created));
    all.truncate(MAX_TRACED_PAIRS);
    all.into_iter().map(|(_, (_, named))| named).collect()
}

/// Logs a library that cannot be probed.
fn log_failure(failure: &LibraryFailure) {
    let _span = log::span(Some(failure.process.uid));
    tracing::warn!(
        "trace: process {}: {}: it cannot be traced: {}; NIXL 1.1 to 1.5 can be",
        failure.process.id.pid,
        log::shown(std::path::Path::new(&failure.process.library)),
        failure.why
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::process_scan::library::Libraries;
    use crate::procfs::process_scan::{NixlProcess, ProcessInfo};

    fn process(pid: u32, uid: u32) -> NixlProcess {
        NixlProcess {
            info: ProcessInfo {
                id: ProcessId { pid, start: 1 },
                uid,
                command: "x".into(),
            },
            libraries: Libraries {
                core: Some("/lib/libnixl.so".into()),
                backends: ["UCX".to_owned()].into(),
            },
        }
    }

    fn report(pairs: Vec<PairReading>) -> TraceReport {
        TraceReport {
            starts: 1,
            reading: Ok(TraceReading {
                pairs,
                ..TraceReading::default()
            }),
        }
    }

    fn pair(pid: u32, remote: &str, created: u64) -> PairReading {
        PairReading {
            process: ProcessId { pid, start: 1 },
            remote: remote.into(),
            created,
            buckets: vec![1, 2, 3],
            ..PairReading::default()
        }
    }

    fn transports(found: &[NixlProcess]) -> Transports {
        let mut transports = Transports::default();
        transports.set_processes(found, None, &mut ClockIds::default());
        transports
    }

    fn names(traced: &Traced) -> Vec<(u32, String)> {
        let all = traced.iter();
        all.map(|(id, pair)| (id, pair.name.clone())).collect()
    }

    #[test]
    fn pair_keeps_its_id_until_its_counters_begin_again() {
        let processes = transports(&[process(7, 1000)]);
        let (mut traced, mut ids) = (Traced::default(), ClockIds::default());
        let mut apply = |created, agent: Option<&str>| {
            let agents = agent.map(|name| {
                let name = name.to_owned();
                (ProcessId { pid: 7, start: 1 }, OnlyAgent { name, id: 3 })
            });
            let reading = report(vec![pair(7, "b", created)]);
            traced.apply(reading, &processes, &agents.into_iter().collect(), &mut ids);
            let pair = traced.iter().next().expect("a pair").1;
            assert_eq!(
                [0, 1, 2].map(|bucket| pair.up_to(bucket)),
                [1, 3, 6].map(Some)
            );
            (names(&traced), std::mem::take(&mut traced.has_changed))
        };
        let (first, changed) = apply(1, None);
        assert!(changed && first[0].1 == "7 x::b");
        assert_eq!(apply(1, None), (first.clone(), false));
        let (other, changed) = apply(2, None);
        assert!(changed && other[0].0 > first[0].0 + 3, "{other:?}");
        let (named, changed) = apply(2, Some("a"));
        assert!(changed && named[0].0 > other[0].0 && named[0].1 == "a::b");
    }

    #[test]
    fn pairs_of_one_user_leave_room_for_another() {
        let processes = transports(&[process(7, 1000), process(8, 1001)]);
        let (mut traced, mut ids) = (Traced::default(), ClockIds::default());
        let many = (0..4000).map(|number| pair(7, &number.to_string(), number));
        let one = pair(8, "late", 5000);
        let unknown = pair(9, "of no process", 0);
        let reading = report(many.chain([one, unknown]).collect());
        traced.apply(reading, &processes, &HashMap::new(), &mut ids);
        let names = names(&traced);
        assert_eq!(names.len(), MAX_TRACED_PAIRS);
        let has = |wanted: &str| names.iter().any(|(_, name)| name == wanted);
        assert!(has("8 x::late") && has("7 x::0") && !has("7 x::3999"));
    }

    #[test]
    fn failed_tracer_leaves_no_values() {
        let processes = transports(&[process(7, 1000)]);
        let (mut traced, mut ids) = (Traced::default(), ClockIds::default());
        let (agents, now) = (HashMap::new(), Instant::now());
        assert!(traced.begin(&processes, &[10], false, now).is_some());
        assert!(
            traced
                .begin(&processes, &[10], false, now + PERIOD)
                .is_none(),
            "it runs"
        );
        traced.apply(report(vec![pair(7, "b", 1)]), &processes, &agents, &mut ids);
        assert_eq!((traced.libraries(), names(&traced).len()), (Some(0), 1));
        let failed = TraceReport {
            starts: 2,
            reading: Err("x".into()),
        };
        traced.apply(failed, &processes, &agents, &mut ids);
        assert_eq!((traced.libraries(), traced.starts), (None, 2));
        assert!(names(&traced).is_empty() && traced.begin(&processes, &[10], false, now).is_none());
        assert!(
            traced
                .begin(&processes, &[10], false, now + PERIOD)
                .is_some()
        );
    }
}
