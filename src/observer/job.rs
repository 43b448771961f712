// SPDX-License-Identifier: GPL-2.0-or-later

//! A request that is being served.

use crate::base::file::list_names_at;
use crate::observer::examination::Subject;
use crate::observer::fair_queue::{FairQueue, Orders, QueuedOrder};
use crate::observer::protocol::{End, Order, QueueRequest, Request, RequestKind, SocketRequest};
use crate::procfs::process_dir::ProcessDir;
use crate::procfs::process_scan::ScanRequest;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause after a request, as a multiple of the time that it took, within these bounds. On a host with many processes a
/// scan takes long, and new agents wait for their labels.
const PAUSE_FACTOR: u32 = 3;
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// Shortest pause, as a multiple of the time in which the processes were listed.
const LISTING_FACTOR: u32 = 40;

/// The current request of one kind.
#[derive(Debug)]
pub struct Job {
    /// What is still to be read.
    pub queue: FairQueue,
    /// False once it was served, and before the first one.
    pub is_running: bool,
    /// When it began.
    pub began: Instant,
    /// Time in which the processes of the request were listed.
    listing: Duration,
    /// What it leaves out so far.
    pub end: End,
}

impl Job {
    /// Returns no request.
    pub fn new(kind: RequestKind) -> Self {
        Self {
            queue: FairQueue::new(kind == RequestKind::Scan),
            is_running: false,
            began: Instant::now(),
            listing: Duration::ZERO,
            end: End::default(),
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, orders: Orders, now: Instant) {
        (self.is_running, self.began, self.listing) = (true, now, orders.listing);
        self.queue.begin(orders, now);
        self.end = End::default();
    }

    /// Returns the pause after the current request.
    pub fn pause(&self) -> Duration {
        let pause = match self.queue.has_some() {
            // The rest may take a part of the time only.
            true => MAX_PAUSE,
            false => (self.end.duration * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE),
        };
        pause.max(self.listing * LISTING_FACTOR)
    }
}

/// Returns what is to be read for a request. `users` are those of [`all_processes`].
pub fn list(request: &Request, users: &mut HashMap<u32, u32>) -> (RequestKind, Orders) {
    let start = Instant::now();
    let queued = |uid, rank, order| QueuedOrder {
        uid,
        rank,
        order,
        is_sought: false,
    };
    let (kind, queued) = match request {
        Request::Scan(request) => (RequestKind::Scan, all_processes(request, users)),
        Request::Sockets(requests) => {
            let of =
                |one: &SocketRequest| queued(one.uid, one.id.start, Order::Sockets(one.clone()));
            (RequestKind::Sockets, requests.iter().map(of).collect())
        }
        Request::Queues(requests) => {
            let of = |one: &QueueRequest| queued(one.uid, one.id.start, Order::Queues(*one));
            (RequestKind::Queues, requests.iter().map(of).collect())
        }
        Request::Examine(subjects) => {
            let of = |one: &Subject| queued(one.uid(), 0, Order::Examine(one.clone()));
            (RequestKind::Examination, subjects.iter().map(of).collect())
        }
        Request::LookUp(uids) => {
            let order = Order::LookUp(uids.clone());
            (RequestKind::Names, vec![queued(0, 0, order)])
        }
        // The tracer serves it.
        Request::Trace(_) => (RequestKind::Trace, Vec::new()),
    };
    let orders = Orders {
        queued,
        is_limited: request.is_limited(),
        listing: start.elapsed(),
    };
    (kind, orders)
}

/// Returns all processes of /proc that are to be read, and the directory with the logs of pods. `users` are the real
/// users of processes whose directory belongs to root, as they were when each was seen first: a process that is not
/// dumpable has such a directory (proc_pid(5)), and to find out its user takes longer than the rest.
fn all_processes(request: &ScanRequest, users: &mut HashMap<u32, u32>) -> Vec<QueuedOrder> {
    let names = list_names_at(Path::new("/proc")).unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.to_str()?.parse().ok());
    let pids: HashSet<u32> = pids.collect();
    users.retain(|pid, _| pids.contains(pid));
    let mut process = |pid: u32| {
        let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let uid = match owner {
            0 => *users.entry(pid).or_insert_with(|| {
                let real = || ProcessDir::open(pid).ok()?.uid();
                real().unwrap_or_default()
            }),
            owner => owner,
        };
        // The newest one is read first: it may be a new agent.
        let rank = (u32::MAX - pid).into();
        let order = Order::Scan(pid);
        Some(QueuedOrder {
            uid,
            rank,
            order,
            is_sought: request.owners.contains(&uid),
        })
    };
    let logs = (!request.pod_logs.as_os_str().is_empty()).then(|| QueuedOrder {
        uid: 0,
        rank: 0,
        order: Order::Pods(request.pod_logs.clone()),
        is_sought: false,
    });
    let all = pids.into_iter().filter_map(&mut process);
    logs.into_iter().chain(all).collect()
}
