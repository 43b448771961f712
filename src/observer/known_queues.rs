// SPDX-License-Identifier: GPL-2.0-or-later

//! Bytes that wait in TCP connections, and halted processes, as they were read last: what waits for how long, and with
//! which peer.
//!
//! Bytes wait as long as none leaves their queue. So a slow connection has no sign of a stall, and a sign takes two
//! readings. If both ends of a connection are on this host, the queue of the receiver counts for the sender: the kernel
//! of a receiver acknowledges what fits into its queue, also for a process that is stopped.

use crate::observer::protocol::{Halt, QueueReading, QueueRequest, Sign};
use crate::observer::queues::{ProcessQueues, Queue, QueuedConnection};
use crate::procfs::process::ProcessId;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for which a process counts as it was read last, if it cannot be read.
const KEPT_TIME: Duration = Duration::from_secs(60);
/// Limit of connections of all processes: some 10 MB. Beyond it, connections are left out.
const MAX_CONNECTIONS: usize = 1 << 16;

/// Queues and halted processes, as they were read last.
#[derive(Debug, Default)]
pub struct KnownQueues {
    processes: HashMap<ProcessId, KnownProcess>,
    /// Requested processes, each with true if its agents are silent.
    requested: HashMap<ProcessId, bool>,
    /// When the current request began. `None`: there was none yet.
    began: Option<Instant>,
}

/// A process as it was read last.
#[derive(Debug)]
struct KnownProcess {
    /// When the request began in which it was read.
    read: Instant,
    network: u64,
    halt: Option<Lasting<Halt>>,
    connections: Vec<KnownConnection>,
}

/// A connection as it was read last.
#[derive(Debug)]
struct KnownConnection {
    cookie: u64,
    local: SocketAddr,
    peer: SocketAddr,
    unacknowledged: Option<Lasting<Queue>>,
    unread: Option<Lasting<Queue>>,
}

/// Something that was read once or in successive readings.
#[derive(Clone, Copy, Debug)]
struct Lasting<T> {
    what: T,
    /// When the request began in which it was read first.
    since: Instant,
}

/// Goes on with what the reading before has, if it is the same, and begins with this reading else.
fn lasting<T>(
    before: Option<Lasting<T>>,
    what: T,
    read: Instant,
    is_same: impl Fn(&T, &T) -> bool,
) -> Lasting<T> {
    let since = before.filter(|before| is_same(&before.what, &what));
    Lasting {
        what,
        since: since.map_or(read, |before| before.since),
    }
}

/// Goes on with the bytes of a queue, as long as none has left it. `None`: it is empty.
fn lasting_queue(
    before: Option<Lasting<Queue>>,
    queue: Queue,
    read: Instant,
) -> Option<Lasting<Queue>> {
    let is_same = |before: &Queue, queue: &Queue| before.passed == queue.passed;
    (queue.bytes > 0).then(|| lasting(before, queue, read, is_same))
}

/// Key of one end of a connection: its two addresses, from that end. Loopback addresses need the network namespace.
type End = (SocketAddr, SocketAddr, Option<u64>);

fn end(local: SocketAddr, peer: SocketAddr, network: u64) -> End {
    (local, peer, local.ip().is_loopback().then_some(network))
}

impl KnownQueues {
    /// Begins a request.
    pub fn begin(&mut self, requests: &[QueueRequest], now: Instant) {
        self.began = Some(now);
        let requested = requests.iter().map(|one| (one.id, one.is_silent));
        self.requested = requested.collect();
        self.processes.retain(|id, process| {
            self.requested.contains_key(id)
                && now.saturating_duration_since(process.read) < KEPT_TIME
        });
    }

    /// Removes a process that has ended.
    pub fn remove(&mut self, id: ProcessId) {
        self.processes.remove(&id);
    }

    /// Adds what was read of a process.
    pub fn add(&mut self, id: ProcessId, queues: ProcessQueues) {
        // It may have answered after the end of its request.
        let Some(read) = self.began.filter(|_| self.requested.contains_key(&id)) else {
            return;
        };
        let before = self.processes.remove(&id);
        let (halt, connections) = match before {
            Some(before) => (before.halt, before.connections),
            None => (None, Vec::new()),
        };
        let known: usize = self
            .processes
            .values()
            .map(|one| one.connections.len())
            .sum();
        let mut before: HashMap<u64, KnownConnection> = { connections.into_iter() }
            .map(|one| (one.cookie, one))
            .collect();
        let connection = |one: &QueuedConnection| {
            let before = before.remove(&one.cookie);
            let (unacknowledged, unread) = before.map_or((None, None), |before| {
                (before.unacknowledged, before.unread)
            });
            KnownConnection {
                cookie: one.cookie,
                local: one.local,
                peer: one.peer,
                unacknowledged: lasting_queue(unacknowledged, one.unacknowledged, read),
                unread: lasting_queue(unread, one.unread, read),
            }
        };
        let room = MAX_CONNECTIONS.saturating_sub(known);
        let connections = queues.connections.iter().take(room).map(connection);
        let process = KnownProcess {
            read,
            network: queues.network,
            connections: connections.collect(),
            halt: { queues.halt }
                .map(|what| lasting(halt, what, read, |before, now| before == now)),
        };
        self.processes.insert(id, process);
    }

    /// Ends a request. Returns what it says of each process with silent agents that was read.
    pub fn end(&self) -> Vec<QueueReading> {
        let ends = self.ends();
        let silent = self.requested.iter().filter(|(_, is_silent)| **is_silent);
        let reading = |(&id, _): (&ProcessId, _)| {
            let process = self.processes.get(&id)?;
            (Some(process.read) == self.began).then(|| QueueReading {
                id,
                sign: process.sign(id, &ends),
            })
        };
        silent.filter_map(reading).collect()
    }

    /// Returns the ends of connections with a halted process or unread bytes.
    fn ends(&self) -> HashMap<End, (ProcessId, &KnownProcess, &KnownConnection)> {
        let of_process = |(&id, process): (&ProcessId, _)| {
            let process: &KnownProcess = process;
            let connections = process.connections.iter();
            let telling = connections.filter(|one| process.halt.is_some() || one.unread.is_some());
            let end = move |one| {
                let one: &KnownConnection = one;
                let key = end(one.local, one.peer, process.network);
                (key, (id, process, one))
            };
            telling.map(end)
        };
        self.processes.iter().flat_map(of_process).collect()
    }
}

impl KnownProcess {
    /// Returns the strongest sign that transfers of the process do not advance: the one that has lasted for longest, of
    /// equal ones a halted process, then the most bytes.
    fn sign(
        &self,
        id: ProcessId,
        ends: &HashMap<End, (ProcessId, &Self, &KnownConnection)>,
    ) -> Option<Sign> {
        let own = self.halt.as_ref().map(|halt| Sign {
            halt: Some(halt.what),
            time: self.read.saturating_duration_since(halt.since),
            ..Sign::default()
        });
        let of_connection = |one: &KnownConnection| {
            let other = ends.get(&end(one.peer, one.local, self.network));
            // UCX connects a process with itself, too.
            let other = other.filter(|(other, ..)| *other != id);
            let halt =
                other.and_then(|(_, process, _)| Some((process.halt.as_ref()?, process.read)));
            let unread =
                other.and_then(|(_, process, end)| Some((end.unread.as_ref()?, process.read)));
            let unacknowledged = one.unacknowledged.as_ref().map(|queue| (queue, self.read));
            let time = [
                halt.map(|(halt, read)| read.saturating_duration_since(halt.since)),
                unread.map(|(queue, read)| read.saturating_duration_since(queue.since)),
                unacknowledged.map(|(queue, read)| read.saturating_duration_since(queue.since)),
            ];
            let bytes = |queue: Option<(&Lasting<Queue>, _)>| {
                queue.map_or(0, |(queue, _)| queue.what.bytes)
            };
            Some(Sign {
                peer: Some(one.peer.ip()),
                process: other.map(|(id, ..)| *id),
                halt: halt.map(|(halt, _)| halt.what),
                unacknowledged: bytes(unacknowledged),
                unread: bytes(unread),
                time: time.into_iter().flatten().max()?,
            })
        };
        let all = self.connections.iter().filter_map(of_connection);
        let bytes = |sign: &Sign| sign.unacknowledged.saturating_add(sign.unread);
        all.chain(own).max_by_key(|sign| {
            (
                sign.time,
                sign.halt.is_some(),
                sign.peer.is_none(),
                bytes(sign),
            )
        })
    }
}

#[cfg(test)]
mod tests;
