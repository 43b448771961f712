// SPDX-License-Identifier: GPL-2.0-or-later

//! A request that is being served.

use crate::base::file::list_names_at;
use crate::observer::examination::Subject;
use crate::observer::protocol::{End, Kind, Order, Request, SocketRequest};
use crate::observer::turns::{Turn, Turns};
use crate::procfs::process_dir::ProcessDir;
use crate::procfs::process_scan::ScanRequest;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// The current request of one kind.
#[derive(Debug)]
pub struct Job {
    /// What is still to be read.
    pub turns: Turns,
    /// False once it was served, and before the first one.
    pub is_running: bool,
    /// When it began.
    pub began: Instant,
    /// What it leaves out so far.
    pub end: End,
}

impl Job {
    /// Returns no request. Process scans and readings of sockets may take a part of the time only.
    pub fn new(kind: Kind) -> Self {
        let is_limited = matches!(kind, Kind::Scan | Kind::Sockets);
        Self {
            turns: Turns::new(is_limited, kind == Kind::Scan),
            is_running: false,
            began: Instant::now(),
            end: End::default(),
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, turns: Vec<Turn>, now: Instant) {
        self.turns.begin(turns, now);
        (self.is_running, self.began, self.end) = (true, now, End::default());
    }
}

/// Returns what is to be read for a request. `users` are those of [`all_processes`].
pub fn turns(request: &Request, users: &mut HashMap<u32, u32>) -> (Kind, Vec<Turn>) {
    let turn = |pid, uid, rank, order| Turn {
        pid,
        uid,
        rank,
        order,
    };
    match request {
        Request::Scan(request) => (Kind::Scan, all_processes(request, users)),
        Request::Sockets(requests) => {
            let of = |one: &SocketRequest| {
                turn(
                    one.id.pid,
                    one.uid,
                    one.id.start,
                    Order::Sockets(one.clone()),
                )
            };
            (Kind::Sockets, requests.iter().map(of).collect())
        }
        Request::Examine(subjects) => {
            let of = |one: &Subject| {
                let pid = one.process().map_or(0, |process| process.pid);
                turn(pid, one.uid(), 0, Order::Examine(one.clone()))
            };
            (Kind::Examination, subjects.iter().map(of).collect())
        }
        Request::LookUp(question) => {
            let order = Order::LookUp(question.clone());
            (Kind::Names, vec![turn(0, 0, 0, order)])
        }
    }
}

/// Returns all processes of /proc that are to be read, and the directory with the logs of pods. `users` are the real users of processes
/// whose directory belongs to root, as they were when each was seen first: a process that is not dumpable has such a directory
/// (proc_pid(5)), and to find out its user takes longer than the rest.
fn all_processes(request: &ScanRequest, users: &mut HashMap<u32, u32>) -> Vec<Turn> {
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
        Some((pid, uid, Order::Scan(pid)))
    };
    let logs = (!request.pod_logs.as_os_str().is_empty())
        .then(|| (0, 0, Order::Pods(request.pod_logs.clone())));
    let all = logs
        .into_iter()
        .chain(pids.into_iter().filter_map(&mut process));
    all.map(|(pid, uid, order)| Turn {
        pid,
        uid,
        // The newest one is read first: it may be a new agent.
        rank: (u32::MAX - pid).into(),
        order,
    })
    .collect()
}
