// SPDX-License-Identifier: GPL-2.0-or-later

//! The observer: has workers read what the daemon asks for, and ends those that wait for a process.
//!
//! It reads nothing itself that can block. A worker that has not answered for 0.7 s is set aside, and another one reads
//! what comes next, without the processes of the same group. One that has not answered for ten seconds is killed, and
//! the group is skipped for a while. How often a user may delay others by less than that, `FairQueue::next` says.

use crate::observer::fair_queue::QueuedOrder;
use crate::observer::group::Group;
use crate::observer::job::{self, Job};
use crate::observer::known_connections::KnownConnections;
use crate::observer::known_queues::KnownQueues;
use crate::observer::link::{Link, wait_for};
use crate::observer::protocol::{
    Order, Reply, Request, RequestKind, Response, SocketReading, Stalled, Task, Unread,
};
use crate::observer::tracers::Tracers;
use crate::observer::workers::{MAX_BLOCKED, Worker, Workers};
use crate::procfs::process::{INIT_PID, ProcessId, Usage, sees_host};
use crate::procfs::process_scan::ScanRequest;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A worker that has not answered for this long is set aside.
pub const SOFT_TIMEOUT: Duration = Duration::from_millis(700);
/// A worker that has not answered for this long is killed.
pub const HARD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time between two looks at workers that were killed.
const REAP_PERIOD: Duration = Duration::from_secs(1);
/// Longest time without a look at anything.
const LONG: Duration = Duration::from_secs(3600);

/// All kinds of requests, in the order of their numbers.
const KINDS: [RequestKind; 5] = [
    RequestKind::Scan,
    RequestKind::Sockets,
    RequestKind::Queues,
    RequestKind::Examination,
    RequestKind::Names,
];

/// An order that a worker carries out.
#[derive(Debug)]
struct Errand {
    kind: RequestKind,
    worker: Worker,
    queued: QueuedOrder,
    began: Instant,
    /// True once it is set aside. Of each kind, one errand at most is not.
    is_aside: bool,
    /// Ancestor of the process that is read now.
    ancestor: Option<ProcessId>,
    /// Process and group, once it is set aside. `None`: it is not, or it reads no process.
    stalled: Option<(ProcessId, Group)>,
}

/// State of the observer.
#[derive(Debug)]
pub struct Supervisor {
    workers: Workers,
    tracers: Tracers,
    jobs: [Job; KINDS.len()],
    errands: Vec<Errand>,
    /// What the current process scan looks for, and its number.
    scan: (ScanRequest, u64),
    connections: KnownConnections,
    queues: KnownQueues,
    /// Real users of processes whose directory belongs to root, by process id.
    users: HashMap<u32, u32>,
    responses: Vec<Response>,
}

impl Supervisor {
    /// Returns an observer that has nothing to do.
    pub fn new(program: PathBuf) -> Self {
        Self {
            workers: Workers::new(program.clone()),
            tracers: Tracers::new(program),
            jobs: KINDS.map(Job::new),
            errands: Vec::new(),
            scan: (ScanRequest::default(), 0),
            connections: KnownConnections::default(),
            queues: KnownQueues::default(),
            users: HashMap::new(),
            responses: Vec::new(),
        }
    }

    fn job(&mut self, kind: RequestKind) -> &mut Job {
        &mut self.jobs[kind as usize]
    }

    /// Begins to serve a request.
    pub fn begin(&mut self, request: Request, now: Instant) {
        let request = match request {
            Request::Trace(request) => return self.tracers.begin(request, now),
            request => request,
        };
        let (kind, orders) = job::list(&request, &mut self.users);
        match request {
            Request::Scan(request) => self.scan = (request, self.scan.1 + 1),
            Request::Sockets(requests) => {
                let running = requests.iter().map(|one| (one.id, one.uid)).collect();
                self.connections.begin_scan(running, now);
            }
            Request::Queues(requests) => self.queues.begin(&requests, now),
            Request::Examine(_) | Request::LookUp(..) | Request::Trace(_) => {}
        }
        let mut queued = orders.queued.iter();
        let is_init_there = queued.any(|queued| queued.pid() == INIT_PID);
        let job = self.job(kind);
        job.begin(orders, now);
        // With hidepid (proc(5)) the init process is hidden as well.
        job.end.is_complete = kind != RequestKind::Scan || (is_init_there && sees_host());
    }

    /// Goes on with all that is to be read. Waits for nothing but the end of a worker that has failed, 0.1 s. Returns
    /// the responses.
    pub fn poll(&mut self, now: Instant) -> Vec<Response> {
        self.workers.reap(now);
        for errand in std::mem::take(&mut self.errands) {
            self.poll_errand(errand, now);
        }
        for kind in KINDS {
            let mut errands = self.errands.iter();
            if !errands.any(|errand| errand.kind == kind && !errand.is_aside) {
                self.read_next(kind, now);
            }
        }
        self.responses.extend(self.tracers.poll(now));
        std::mem::take(&mut self.responses)
    }

    /// Returns the errands that are set aside.
    fn aside(&self) -> impl Iterator<Item = &Errand> {
        self.errands.iter().filter(|errand| errand.is_aside)
    }

    /// Takes the answer of a worker if it has come, and gives the worker up if it has waited for too long.
    fn poll_errand(&mut self, mut errand: Errand, now: Instant) {
        let time = now.saturating_duration_since(errand.began);
        match errand.worker.link.receive() {
            Ok(Some(Reply::Ancestor(process))) => {
                errand.ancestor = Some(process);
                self.poll_errand(errand, now);
            }
            Ok(Some(reply)) => {
                self.charge(&errand, now);
                self.workers.put_back(errand.worker, now);
                self.respond(&errand.queued, reply);
            }
            Ok(None) if !errand.is_aside && time >= SOFT_TIMEOUT => self.set_aside(errand),
            Ok(None) if time >= HARD_TIMEOUT => self.give_up(errand, now),
            Ok(None) => self.errands.push(errand),
            Err(err) => {
                self.charge(&errand, now);
                self.fail(errand.kind, Some(errand.worker), &err, now);
            }
        }
    }

    /// Charges the time of an errand that has ended to its user.
    fn charge(&mut self, errand: &Errand, now: Instant) {
        let time = now.saturating_duration_since(errand.began);
        // A part was charged when it was set aside.
        let charged = if errand.is_aside {
            SOFT_TIMEOUT
        } else {
            Duration::ZERO
        };
        let queue = &mut self.job(errand.kind).queue;
        let time = time.saturating_sub(charged);
        queue.charge(&errand.queued, time, errand.is_aside);
    }

    /// Sets a worker aside that has not answered in time. Another one goes on, with the same request if that is not
    /// limited.
    fn set_aside(&mut self, mut errand: Errand) {
        self.job(errand.kind).end.has_postponed = true;
        self.job(errand.kind)
            .queue
            .charge(&errand.queued, SOFT_TIMEOUT, false);
        let process = errand.ancestor.or_else(|| errand.queued.order.process());
        let uid = errand.queued.uid;
        let group = |process| match Group::of(process) {
            // It may have ended meanwhile.
            Group::Process(_) if uid != 0 => Group::User(uid),
            group => group,
        };
        errand.stalled = process.map(|process| (process, group(process)));
        errand.is_aside = true;
        self.errands.push(errand);
    }

    /// Kills a worker that a process has stalled.
    fn give_up(&mut self, errand: Errand, now: Instant) {
        self.charge(&errand, now);
        self.workers.kill(errand.worker, errand.stalled, now);
        let blocked = self.blocked();
        self.responses.push(Response::Stalled(Stalled {
            kind: errand.kind,
            process: errand.stalled,
            uid: errand.queued.uid,
            blocked,
        }));
    }

    /// Returns the number of blocked workers: those that are set aside, or were killed and have not ended.
    fn blocked(&mut self) -> usize {
        self.workers.killed() + self.aside().count()
    }

    /// Gives up a process that was not read since its worker has failed, or cannot be started.
    fn fail(&mut self, kind: RequestKind, worker: Option<Worker>, err: &io::Error, now: Instant) {
        self.job(kind).end.has_postponed = true;
        let why = self.workers.fail(worker, err, now);
        self.responses.push(Response::WorkerFailed(why));
    }

    /// Orders the next process of a request, or ends the request.
    fn read_next(&mut self, kind: RequestKind, now: Instant) {
        if !self.job(kind).is_running || self.workers.are_in_pause(now) {
            return;
        }
        let blocked = self.blocked();
        if blocked >= MAX_BLOCKED {
            return;
        }
        // Those that were killed and do not end would keep new users out for ever.
        let only_light = self.aside().count() >= MAX_BLOCKED / 2;
        let Some(queued) = self.job(kind).queue.next(only_light) else {
            return self.end(kind, now);
        };
        let mut worker = match self.workers.take(now) {
            Ok(worker) => worker,
            Err(err) => return self.fail(kind, None, &err, now),
        };
        let (request, number) = &self.scan;
        // Either fails if the worker has ended meanwhile, and so does the wait for its answer.
        if kind == RequestKind::Scan && worker.scan != *number {
            worker.scan = *number;
            let _ = worker.link.send(&Task::LookFor(request.clone()));
        }
        let stalled = self.aside().filter_map(|one| one.stalled);
        let aside = stalled.map(|(_, group)| group);
        let skipped = aside.chain(self.workers.skipped()).collect();
        let task = Task::Read(queued.order.clone(), skipped);
        let _ = worker.link.send(&task);
        self.errands.push(Errand {
            kind,
            worker,
            queued,
            began: now,
            is_aside: false,
            ancestor: None,
            stalled: None,
        });
    }

    /// Ends a request. What is set aside may still be answered.
    fn end(&mut self, kind: RequestKind, now: Instant) {
        match kind {
            RequestKind::Sockets => self.connections.end_scan(),
            RequestKind::Queues => {
                let readings = self.queues.end().into_iter();
                self.responses.extend(readings.map(Response::Queues));
            }
            _ => {}
        }
        let has_aside = self.aside().next().is_some();
        let aside = self.aside().filter_map(|one| one.stalled);
        let mut stalled = Vec::from_iter(aside.map(|(process, _)| process.pid));
        stalled.extend(self.workers.stalled());
        stalled.sort_unstable();
        stalled.dedup();
        let usage = self.usage();
        let job = self.job(kind);
        job.is_running = false;
        job.end.has_postponed |= job.queue.has_some() || has_aside;
        job.end.is_complete &= !job.end.has_postponed;
        job.end.stalled = stalled;
        job.end.duration = now.saturating_duration_since(job.began);
        job.end.pause = job.pause();
        job.end.usage = usage;
        let end = job.end.clone();
        self.responses.push(Response::Done(kind, end));
    }

    /// Returns what this process and its workers use, those that have ended included.
    fn usage(&self) -> Usage {
        let mut usage = Usage::of(std::process::id());
        let ended = getrusage(UsageWho::RUSAGE_CHILDREN).map(|ended| {
            let time = ended.user_time() + ended.system_time();
            u64::try_from(time.num_microseconds()).unwrap_or_default()
        });
        usage.cpu = usage.cpu.saturating_add(ended.unwrap_or_default());
        let errand = self.errands.iter().map(|errand| errand.worker.link.pid());
        for pid in errand.chain(self.workers.pids()).chain(self.tracers.pid()) {
            usage += Usage::of(pid);
        }
        usage
    }

    /// Passes an answer on.
    fn respond(&mut self, queued: &QueuedOrder, reply: Reply) {
        let response = match (reply, &queued.order) {
            (Reply::Found(found), _) => Response::Found(found),
            (Reply::Nothing(is_complete), _) => {
                self.job(RequestKind::Scan).end.is_complete &= is_complete;
                return;
            }
            (Reply::Sockets(Err(why), version), Order::Sockets(request)) => Response::Failed {
                id: request.id,
                why,
                version,
            },
            (Reply::Sockets(Ok(files), version), Order::Sockets(request)) => {
                let added = self
                    .connections
                    .add(request.id, request.was_counted, &files);
                Response::Sockets(SocketReading { version, ..added })
            }
            (Reply::Queues(queues), Order::Queues(request)) => {
                self.queues.add(request.id, queues);
                return;
            }
            (Reply::Unread(Unread::Ended), Order::Queues(request)) => {
                self.queues.remove(request.id);
                return;
            }
            (Reply::Unread(why), Order::Scan(pid)) => {
                // A process that may not be read may have anything mapped. The host's init process is not an agent, and
                // some kernels deny access to it.
                let is_init = *pid == INIT_PID && matches!(why, Unread::Denied(_));
                self.job(RequestKind::Scan).end.is_complete &= why == Unread::Ended || is_init;
                return;
            }
            (Reply::Unread(why), Order::Sockets(request)) => match why {
                Unread::Ended => {
                    self.connections.remove(request.id);
                    Response::Ended(request.id)
                }
                Unread::Denied(why) | Unread::Failed(why) => Response::Failed {
                    id: request.id,
                    why,
                    version: None,
                },
                Unread::Skipped => return,
            },
            _ => return,
        };
        self.responses.push(response);
    }

    /// Waits for a request, for an answer, or until something is to be done. Returns true if there is a request, or no
    /// other one will come.
    pub fn wait(&mut self, requests: BorrowedFd, now: Instant) -> bool {
        let deadlines = self.errands.iter().map(|errand| match errand.is_aside {
            true => errand.began + HARD_TIMEOUT,
            false => errand.began + SOFT_TIMEOUT,
        });
        let mut end = deadlines.min().unwrap_or(now + LONG);
        if self.workers.killed() > 0 || self.jobs.iter().any(|job| job.is_running) {
            end = end.min(now + REAP_PERIOD);
        }
        let links = || self.errands.iter().map(|errand| &errand.worker.link);
        let mut read = vec![requests];
        read.extend(links().map(Link::input));
        let written = links().flat_map(Link::waits_to_send);
        let mut written = Vec::from_iter(written);
        if let Some((tracer, given_up)) = self.tracers.waits_for() {
            end = end.min(given_up);
            read.push(tracer.input());
            written.extend(tracer.waits_to_send());
        }
        wait_for(&read, &written, end.saturating_duration_since(now))
    }
}

impl Drop for Supervisor {
    /// Kills workers that read, with the getent(1) that one may have started. An idle one ends by itself.
    fn drop(&mut self) {
        for errand in self.errands.drain(..) {
            errand.worker.link.close().kill();
        }
        self.tracers.end();
    }
}

#[cfg(test)]
mod tests;
