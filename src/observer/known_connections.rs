// SPDX-License-Identifier: GPL-2.0-or-later

//! Connections as they were read last: what each has added since, for which process and peer.
//!
//! A socket that a forked process inherits counts for the process that it was found in first, as long as that has it:
//! the parent, since of a user the process that has waited longest is read first, of equal ones the oldest. If a
//! connection were forgotten while it is open, all its bytes would count again.

use crate::observer::protocol::{PeerReading, SocketReading, Traffic};
use crate::observer::sockets::OpenFiles;
use crate::procfs::process::ProcessId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Limit of peers of a process in a reading, at the end of [`KnownConnections::add`]: those whose open connections have
/// had the most bytes.
const MAX_READ_PEERS: usize = 64;

/// Time after which a connection that is not found any more is forgotten.
const KEPT_TIME: Duration = Duration::from_secs(120);
/// Limit of connections: some 40 MB. Beyond it, of the user with most of them the process with most of them is
/// forgotten.
const MAX_CONNECTIONS: usize = 1 << 18;

/// Connections of all processes, as they were read last.
#[derive(Debug, Default)]
pub struct KnownConnections {
    connections: HashMap<u64, KnownConnection>,
    /// Processes that run and whose connections were forgotten, because they were too many.
    forgotten: HashSet<ProcessId>,
    /// When the current scan began. `None`: there was no scan yet.
    scan: Option<Instant>,
    /// Processes that run, and their users.
    running: HashMap<ProcessId, u32>,
    /// Processes that run and were not read yet in the current scan.
    unread: HashSet<ProcessId>,
}

#[derive(Debug)]
struct KnownConnection {
    /// Process that it counted for.
    process: ProcessId,
    /// Address of its peer when it was last connected.
    peer: Option<IpAddr>,
    traffic: Traffic,
    /// When the scan began in which it was read last.
    scan: Option<Instant>,
}

/// Sums over the connections of a process to one peer.
#[derive(Debug, Default)]
struct PeerSums {
    /// Traffic since the last reading.
    added: Traffic,
    /// Bytes of the connections since their beginning.
    bytes: u64,
    /// Round-trip time in microseconds times bytes since the last reading.
    rtt: u128,
}

impl PeerSums {
    /// Returns the mean of the round-trip times, weighted by the bytes since the last reading. `None`: no bytes.
    fn mean_rtt(&self) -> Option<u64> {
        let mean = self.rtt.checked_div(self.added.bytes().into())?;
        u64::try_from(mean).ok()
    }
}

impl KnownConnections {
    /// Begins a scan of these processes, with their users.
    pub fn begin_scan(&mut self, running: HashMap<ProcessId, u32>, now: Instant) {
        self.scan = Some(now);
        self.unread = running.keys().copied().collect();
        self.running = running;
    }

    /// Removes a process that has ended: its connections count for the process that inherited them.
    pub fn remove(&mut self, id: ProcessId) {
        self.unread.remove(&id);
    }

    /// Adds the connections of a process. Returns what they have added. `was_counted` is true if the daemon has counted
    /// the process. If not, its connections count from their beginning. If so and they were forgotten, how much of them
    /// was counted is not known, and they count from now on.
    pub fn add(&mut self, id: ProcessId, was_counted: bool, files: &OpenFiles) -> SocketReading {
        self.unread.remove(&id);
        if !was_counted {
            self.connections.retain(|_, known| known.process != id);
        }
        let is_resumed = self.forgotten.remove(&id) && was_counted;
        let mut reading = SocketReading {
            id,
            is_resumed,
            rdma_devices: u32::try_from(files.rdma_devices).unwrap_or(u32::MAX),
            ..SocketReading::default()
        };
        let mut peers: BTreeMap<IpAddr, PeerSums> = BTreeMap::new();
        for connection in &files.connections {
            let known = self.connections.get(&connection.cookie);
            // Another process has it too, or may have.
            let is_of_other = |known: &KnownConnection| {
                known.scan == self.scan || self.unread.contains(&known.process)
            };
            // A socket that was never connected is not remembered: a process can have many, at no cost.
            let is_unused =
                known.is_none() && connection.peer.is_none() && connection.traffic.bytes() == 0;
            if is_unused || known.is_some_and(is_of_other) {
                continue;
            }
            // A connection that has ended has no peer any more.
            let peer = connection.peer.or(known.and_then(|known| known.peer));
            let added = match known {
                Some(known) => connection.traffic.since(&known.traffic),
                None if is_resumed => Traffic::default(),
                None => connection.traffic,
            };
            let known = KnownConnection {
                process: id,
                peer,
                traffic: connection.traffic,
                scan: self.scan,
            };
            self.connections.insert(connection.cookie, known);
            reading.traffic += added;
            if let Some(peer) = peer {
                let sums = peers.entry(peer).or_default();
                sums.added += added;
                sums.bytes = sums.bytes.saturating_add(connection.traffic.bytes());
                sums.rtt += u128::from(connection.rtt) * u128::from(added.bytes());
            }
        }
        let mut peers: Vec<_> = peers.into_iter().collect();
        peers.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.bytes));
        peers.truncate(MAX_READ_PEERS);
        let peers = peers.into_iter().map(|(address, sums)| PeerReading {
            address,
            traffic: sums.added,
            rtt: sums.mean_rtt(),
        });
        reading.peers = peers.collect();
        reading
    }

    /// Ends a scan. Forgets connections that a process has closed. A connection that was
    /// not found may be there still: a thread can move it to another descriptor during a scan, and it can be on its way
    /// to another process.
    pub fn end_scan(&mut self) {
        let (scan, unread) = (self.scan, &self.unread);
        let kept = |known: &KnownConnection| known.scan.map(|scan| scan + KEPT_TIME);
        self.forgotten.retain(|id| self.running.contains_key(id));
        self.connections
            .retain(|_, known| scan < kept(known) || unread.contains(&known.process));
        self.limit(MAX_CONNECTIONS);
        self.connections.shrink_to(2 * self.connections.len());
    }

    /// Forgets processes until there are at most `limit` connections: of the user with most of them the process with
    /// most. The next reading of such a process counts from then on.
    fn limit(&mut self, limit: usize) {
        if self.connections.len() <= limit {
            return;
        }
        // Processes that have ended have no user any more, and are taken together.
        let mut users: HashMap<Option<u32>, HashMap<ProcessId, usize>> = HashMap::new();
        for known in self.connections.values() {
            let user = self.running.get(&known.process).copied();
            *users
                .entry(user)
                .or_default()
                .entry(known.process)
                .or_default() += 1;
        }
        while self.connections.len() > limit {
            let most = users
                .values_mut()
                .max_by_key(|counts| counts.values().sum::<usize>());
            let largest = most.and_then(|counts| {
                let (&process, _) = counts.iter().max_by_key(|(_, count)| **count)?;
                counts.remove(&process).map(|_| process)
            });
            let Some(process) = largest else {
                return;
            };
            self.forgotten.insert(process);
            self.connections.retain(|_, known| known.process != process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::sockets::Connection;
    use std::net::IpAddr;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, start: 1 }
    }

    fn traffic(sent: u64) -> Traffic {
        Traffic {
            sent,
            ..Traffic::default()
        }
    }

    fn peer(sent: u64, rtt: Option<u64>) -> PeerReading {
        PeerReading {
            address: PEER,
            traffic: traffic(sent),
            rtt,
        }
    }

    /// Returns open files with these connections: cookie and bytes.
    fn files(connections: &[(u64, u64)]) -> OpenFiles {
        let connection = |&(cookie, sent)| Connection {
            cookie,
            peer: Some(PEER),
            rtt: 100,
            traffic: traffic(sent),
        };
        OpenFiles {
            connections: connections.iter().map(connection).collect(),
            rdma_devices: 0,
        }
    }

    const PERIOD: Duration = Duration::from_secs(10);
    /// Number of scans in which a connection is kept.
    const KEPT_SCANS: u64 = 12;

    /// Begins a scan of these processes. User 0 has those below 10.
    fn begin(known: &mut KnownConnections, pids: &[u32]) {
        let running = pids.iter().map(|&pid| (process(pid), pid / 10));
        let now = known.scan.unwrap_or_else(Instant::now) + PERIOD;
        known.begin_scan(running.collect(), now);
    }

    /// Scans processes, the oldest first. Returns the bytes that each connection has added.
    fn scan(
        known: &mut KnownConnections,
        was_counted: bool,
        all: &[(u32, &[(u64, u64)])],
    ) -> Vec<u64> {
        let pids: Vec<u32> = all.iter().map(|(pid, _)| *pid).collect();
        begin(known, &pids);
        let add = |&(pid, connections): &(u32, &[_])| {
            let reading = known.add(process(pid), was_counted, &files(connections));
            reading.traffic.sent
        };
        let added = all.iter().map(add).collect();
        known.end_scan();
        added
    }

    #[test]
    fn connection_counts_what_it_has_added() {
        let mut connections = KnownConnections::default();
        assert_eq!(scan(&mut connections, false, &[(1, &[(7, 100)])]), [100]);
        assert_eq!(
            scan(&mut connections, true, &[(1, &[(7, 130), (8, 5)])]),
            [35]
        );
        assert_eq!(scan(&mut connections, true, &[(1, &[(8, 5)])]), [0]);
        // It was disconnected, and connected again.
        assert_eq!(scan(&mut connections, true, &[(1, &[(8, 4)])]), [4]);
        // A scan has missed one.
        assert_eq!(
            scan(&mut connections, true, &[(1, &[(7, 131), (8, 4)])]),
            [1]
        );
        for _ in 0..KEPT_SCANS {
            assert_eq!(scan(&mut connections, true, &[(1, &[(8, 4)])]), [0]);
        }
        assert_eq!(connections.connections.len(), 1, "one is closed");
    }

    #[test]
    fn inherited_connection_counts_for_the_oldest_process() {
        let mut connections = KnownConnections::default();
        assert_eq!(
            scan(&mut connections, false, &[(1, &[(7, 9)]), (2, &[(7, 9)])]),
            [9, 0]
        );
        assert_eq!(
            scan(&mut connections, true, &[(1, &[(7, 10)]), (2, &[(7, 11)])]),
            [1, 0]
        );
        // The parent has closed its copy, then ended.
        assert_eq!(
            scan(&mut connections, true, &[(1, &[]), (2, &[(7, 15)])]),
            [0, 5]
        );
        assert_eq!(scan(&mut connections, true, &[(2, &[(7, 16)])]), [1]);
    }

    #[test]
    fn connection_of_a_postponed_process_counts_for_no_child() {
        let mut connections = KnownConnections::default();
        scan(&mut connections, false, &[(1, &[(7, 9)]), (2, &[(7, 9)])]);
        begin(&mut connections, &[1, 2]);
        let reading = connections.add(process(2), true, &files(&[(7, 12), (8, 1)]));
        assert_eq!(reading.traffic.sent, 1);
        connections.end_scan();
        let all: [(u32, &[_]); 2] = [(1, &[(7, 15)]), (2, &[(7, 15), (8, 1)])];
        assert_eq!(scan(&mut connections, true, &all), [6, 0]);
    }

    #[test]
    fn process_that_was_not_counted_begins_with_its_open_connections() {
        let mut connections = KnownConnections::default();
        assert_eq!(scan(&mut connections, false, &[(1, &[(7, 100)])]), [100]);
        assert_eq!(scan(&mut connections, false, &[(1, &[(7, 110)])]), [110]);
        assert_eq!(scan(&mut connections, true, &[(1, &[(7, 111)])]), [1]);
    }

    #[test]
    fn connections_of_an_unread_process_are_kept() {
        let mut connections = KnownConnections::default();
        scan(&mut connections, false, &[(1, &[(7, 100)])]);
        for _ in 0..2 * KEPT_SCANS {
            begin(&mut connections, &[1]);
            connections.end_scan();
        }
        assert_eq!(scan(&mut connections, true, &[(1, &[(7, 104)])]), [4]);
        for _ in 0..KEPT_SCANS {
            assert_eq!(scan(&mut connections, true, &[]), [0; 0]);
        }
        assert!(connections.connections.is_empty());
    }

    #[test]
    fn connection_counts_for_no_child_that_is_read_before_its_parent() {
        let mut connections = KnownConnections::default();
        scan(&mut connections, false, &[(1, &[(7, 9)])]);
        let all: [(u32, &[_]); 2] = [(2, &[(7, 12)]), (1, &[(7, 12)])];
        assert_eq!(scan(&mut connections, true, &all), [0, 3]);
        // The parent has ended.
        begin(&mut connections, &[1, 2]);
        connections.remove(process(1));
        let reading = connections.add(process(2), true, &files(&[(7, 20)]));
        assert_eq!(reading.traffic.sent, 8);
    }

    #[test]
    fn bytes_of_an_ended_connection_count_for_its_peer() {
        let mut connections = KnownConnections::default();
        scan(&mut connections, false, &[(1, &[(7, 9)])]);
        let mut files = files(&[(7, 30)]);
        files.connections[0].peer = None;
        begin(&mut connections, &[1]);
        let reading = connections.add(process(1), true, &files);
        assert_eq!(reading.peers, [peer(21, Some(100))]);
    }

    #[test]
    fn unused_sockets_are_not_remembered() {
        let mut connections = KnownConnections::default();
        let mut files = files(&[(7, 0), (8, 5)]);
        for connection in &mut files.connections {
            connection.peer = None;
        }
        begin(&mut connections, &[1]);
        connections.add(process(1), false, &files);
        assert!(connections.connections.keys().eq(&[8]));
    }

    #[test]
    fn beyond_the_limit_the_largest_process_of_the_largest_user_is_forgotten() {
        let mut connections = KnownConnections::default();
        let all: [(u32, &[_]); 3] = [(1, &[(1, 9), (2, 9)]), (2, &[(3, 9)]), (3, &[(4, 9)])];
        let other: (u32, &[_]) = (11, &[(5, 9), (6, 9), (7, 9)]);
        scan(&mut connections, false, &[all[0], all[1], all[2], other]);
        connections.limit(7);
        assert_eq!(connections.connections.len(), 7);
        connections.limit(6);
        let mut left: Vec<_> = connections.connections.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [3, 4, 5, 6, 7]);
        let later: [(u32, &[_]); 2] = [(1, &[(1, 15), (2, 9)]), (11, &[(5, 11)])];
        assert_eq!(scan(&mut connections, true, &later), [0, 2]);
        assert!(connections.forgotten.is_empty());
        let later: [(u32, &[_]); 2] = [(1, &[(1, 16), (2, 9)]), (11, &[(5, 11)])];
        assert_eq!(scan(&mut connections, true, &later), [1, 0]);
    }

    #[test]
    fn round_trip_time_is_weighted_by_bytes() {
        let mut connections = KnownConnections::default();
        let mut files = files(&[(7, 300), (8, 100), (9, 0)]);
        files.connections[0].rtt = 1000;
        files.connections[2].peer = None;
        begin(&mut connections, &[1]);
        let reading = connections.add(process(1), false, &files);
        assert_eq!(reading.peers, [peer(400, Some(775))]);
        begin(&mut connections, &[1]);
        let reading = connections.add(process(1), true, &files);
        assert_eq!(reading.peers, [peer(0, None)]);
    }
}
