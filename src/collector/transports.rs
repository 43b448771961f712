// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads what processes transfer by TCP, and gives agents their part of it.

use super::Collector;
use crate::agents::Agent;
use crate::event::EventType;
use crate::observer::protocol::{Request, Traffic};
use crate::procfs::process::ProcessId;
use crate::transport::{AgentSum, AgentTransport, Transports};
use std::collections::HashMap;
use std::time::Instant;

impl Collector {
    /// Returns the processes that use NIXL.
    #[must_use]
    pub fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Returns true if processes that use NIXL, or peers, have changed since the last call.
    #[must_use]
    pub fn take_transport_change(&mut self) -> bool {
        std::mem::take(&mut self.transports.has_changed)
    }

    /// Begins a socket scan if one is due, and gives agents what the observer has read of their processes since the
    /// last call. Never waits.
    pub(super) fn read_transports(&mut self, now: Instant) {
        if self.observes() {
            if let Some(processes) = self.transports.begin_scan(now) {
                self.observer.send(&Request::Sockets(processes));
            }
        }
        let Some(updated) = self.transports.take_updated(now) else {
            return;
        };
        let agents = self.count_agents();
        let mut sums: HashMap<ProcessId, AgentSum> = HashMap::new();
        for agent in self.agents.values() {
            let process = process_of(agent);
            if let Some(process) = process.filter(|process| updated.contains(process)) {
                let sum = sums.entry(process).or_default();
                sum.names.push(agent.name.instance.clone());
                sum.nixl += Traffic {
                    sent: agent.total(EventType::TxBytes),
                    received: agent.total(EventType::RxBytes),
                    retransmits: 0,
                };
                sum.has_uncounted |= !agent.is_drained();
            }
        }
        for &process in &updated {
            let sum = sums.remove(&process).unwrap_or_default();
            self.transports.update_share(process, sum, now);
        }
        for agent in self.agents.values_mut() {
            // What is not counted cannot be compared.
            let process = process_of(agent).filter(|_| agent.is_drained());
            let process = process.filter(|process| agents[process] == 1);
            let process = process.and_then(|process| self.transports.get(process));
            if process.is_none_or(|process| updated.contains(&process.found.info.id)) {
                agent.transport.update(process, &mut self.clock_ids);
                let timeline = &mut self.shared.timeline;
                match process.filter(|process| process.reading().is_some()) {
                    Some(process) => agent.note_tcp(process.busy_tcp_share(), timeline),
                    None => agent.end_tcp(timeline),
                }
            }
        }
        self.transports.has_changed = true;
    }

    /// Counts the agents that each process runs. Returns these numbers.
    pub(super) fn count_agents(&mut self) -> HashMap<ProcessId, u32> {
        let mut agents: HashMap<ProcessId, u32> = HashMap::new();
        for process in self.agents.values().filter_map(process_of) {
            *agents.entry(process).or_default() += 1;
        }
        self.transports.set_agent_counts(&agents);
        agents
    }

    /// Removes all that is known of processes, if another configuration has switched that off.
    pub(super) fn configure_transports(&mut self) {
        let config = &self.shared.config;
        if !config.traces() {
            self.traced.stop();
        }
        if config.transport && config.proc_facts {
            return;
        }
        self.transports.clear();
        for agent in self.agents.values_mut() {
            agent.transport = AgentTransport::default();
            agent.end_tcp(&mut self.shared.timeline);
        }
    }
}

/// Returns the process that writes the files of an agent. `None`: it is not known, or there are several.
pub(super) fn process_of(agent: &Agent) -> Option<ProcessId> {
    let mut writers = agent
        .sources
        .iter()
        .map(|source| source.file.liveness.writer());
    let first = writers.next()??;
    let is_only = !agent.is_shared() && writers.all(|writer| writer == Some(first));
    is_only.then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::tests::observer;
    use crate::config::Config;
    use crate::observer::group::Group;
    use crate::observer::protocol::{End, Found, RequestKind, Response, Stalled};
    use crate::procfs::process_scan::library::Libraries;
    use crate::procfs::process_scan::scanned::ScannedProcess;
    use std::path::Path;
    use std::time::Duration;

    /// Commands of an observer that answers each process scan, and each socket scan. It writes down all requests.
    const SERVE: &str = "#!/bin/sh
cd \"${0%/*}\"
while read -r request; do
    printf '%s\\n' \"$request\" >>requests
    case $request in
        '{\"Scan\"'*) cat scan ;;
        '{\"Sockets\"'*) cat sockets ;;
    esac
done
";

    /// Writes responses to a file.
    fn write(path: &Path, responses: &[Response]) {
        let lines = responses.iter().map(serde_json::to_string);
        let lines = lines.map(|line| line.expect("JSON") + "\n");
        std::fs::write(path, lines.collect::<String>()).expect("written");
    }

    #[test]
    fn version_of_a_stalled_process_is_not_requested_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        let process = ScannedProcess {
            libraries: Libraries {
                core: Some("/lib/libnixl.so".into()),
                backends: ["UCX".to_owned()].into(),
            },
            ..ScannedProcess::with_file(1 << 30, 4242)
        };
        let id = process.process.id;
        let done = |kind| Response::Done(kind, End::default());
        write(
            &path("scan"),
            &[
                Response::Found(Found::Scanned(process)),
                done(RequestKind::Scan),
            ],
        );
        let stalled = Response::Stalled(Stalled {
            kind: RequestKind::Sockets,
            process: Some((id, Group::User(4242))),
            uid: 4242,
            blocked: 1,
        });
        write(&path("sockets"), &[stalled, done(RequestKind::Sockets)]);
        let mut agents = Collector::new(&Config::default());
        agents.set_observer(observer(directory.path(), SERVE));
        let requested = || {
            let requests = std::fs::read_to_string(path("requests")).unwrap_or_default();
            let complete = requests
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let sockets = complete.filter_map(|line| match serde_json::from_str(line) {
                Ok(Request::Sockets(processes)) => Some(processes),
                _ => None,
            });
            let versions = sockets.map(|processes| processes[0].library.is_some());
            Vec::from_iter(versions)
        };
        let mut now = Instant::now();
        while requested().len() < 2 {
            agents.maintain(now, now + Duration::from_secs(3600));
            assert!(agents.observes(), "it has ended");
            now += Duration::from_secs(1);
            std::thread::yield_now();
        }
        assert_eq!(requested(), [true, false]);
        // It has a row without values.
        let process = agents.transports().get(id).expect("a row");
        assert!(process.reading().is_none() && process.version.is_none());
    }
}
