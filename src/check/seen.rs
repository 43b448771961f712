// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: what the observer reads of other processes. All of it together has one deadline.

use crate::accounts::user_names::UserNames;
use crate::config::Config;
use crate::observer::client::ObserverHandle;
use crate::observer::examination::{DaemonExamination, Examination, NixlExamination, Subject};
use crate::observer::protocol::{Found, Request, RequestKind, Response};
use crate::procfs::process::sees_host;
use crate::procfs::process_scan::{ProcessInfo, ProcessScan, ScanRequest};
use caps::{CapSet, Capability};
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time in which other processes answer.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// Part of it that is left for what a scan of all processes has found.
const EXAMINATION_TIME: Duration = Duration::from_secs(5);

/// What was read of other processes.
#[derive(Debug, Default)]
pub struct Seen {
    /// Processes that have files mapped.
    pub process_scan: ProcessScan,
    /// Probable reason why not all processes were read, and the remedy.
    pub why_incomplete: Option<&'static str>,
    /// Processes that have a NIXL backend loaded.
    pub nixl: Vec<NixlExamination>,
    /// Processes of pmdanixl, by process id.
    pub daemons: BTreeMap<u32, DaemonExamination>,
    /// Processes that block each reading.
    pub stalled: BTreeSet<u32>,
    /// Names of the users of these processes.
    pub names: UserNames,
}

impl Seen {
    /// Reads other processes. `daemons` are the users that a daemon can have. `config` decides whose sockets are read.
    pub fn read(observer: &mut ObserverHandle, daemons: &[u32], config: Option<&Config>) -> Self {
        let mut seen = Self::default();
        let end = Instant::now() + ANSWER_TIME;
        let request = ScanRequest::default();
        seen.process_scan = ProcessScan::of(HashMap::new(), request.clone());
        let end_of_scan = end - EXAMINATION_TIME;
        seen.ask(
            observer,
            &Request::Scan(request),
            RequestKind::Scan,
            end_of_scan,
        );
        let mut subjects = Vec::new();
        for process in &seen.process_scan.nixl_processes {
            subjects.push(Subject::Nixl {
                may_copy: config.is_some_and(|config| reads_sockets(config, process.info.uid)),
                process: process.clone(),
            });
        }
        let all = seen.process_scan.processes();
        let all = all.map(|process| &process.info);
        let mut found: Vec<&ProcessInfo> =
            all.filter(|process| process.is_pmdanixl(daemons)).collect();
        found.sort_by_key(|process| process.id);
        found.dedup_by_key(|process| process.id);
        subjects.extend(
            found
                .iter()
                .map(|process| Subject::Daemon(process.id, process.uid)),
        );
        seen.ask(
            observer,
            &Request::Examine(subjects),
            RequestKind::Examination,
            end,
        );
        seen.nixl.sort_by_key(|process| process.found.info.id.pid);
        let users = seen
            .process_scan
            .processes()
            .map(|process| process.info.uid);
        let users = users.chain(seen.nixl.iter().map(|process| process.found.info.uid));
        let users: BTreeSet<u32> = users.collect();
        seen.names.want(users, Instant::now());
        while let Some(uids) = seen.names.question(Instant::now()) {
            seen.ask(observer, &Request::LookUp(uids), RequestKind::Names, end);
            seen.names.end_question(Instant::now());
        }
        seen.why_incomplete = (!seen.process_scan.is_complete).then(why_incomplete);
        seen
    }

    /// Has a request served, and takes over what is found until its end or the deadline.
    fn ask(
        &mut self,
        observer: &mut ObserverHandle,
        request: &Request,
        kind: RequestKind,
        end: Instant,
    ) {
        observer.send(request);
        let mut is_served = false;
        while observer.is_running() && !is_served {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            for response in observer.receive(left) {
                is_served |= matches!(&response, Response::Done(served, _) if *served == kind);
                self.add(response);
            }
        }
        if !is_served && kind == RequestKind::Scan {
            self.process_scan.is_complete = false;
        }
    }

    fn add(&mut self, response: Response) {
        match response {
            Response::Found(Found::Scanned(process)) => self.process_scan.add(process),
            Response::Found(Found::Examined(Examination::Nixl(process))) => {
                self.nixl.push(*process);
            }
            Response::Found(Found::Examined(Examination::Daemon(pid, daemon))) => {
                self.daemons.insert(pid, daemon);
            }
            Response::Found(Found::LookedUp(uids, lines)) => {
                self.names.add(&uids, lines.as_deref(), Instant::now());
            }
            Response::Done(RequestKind::Scan | RequestKind::Examination, end) => {
                self.stalled.extend(end.stalled);
                self.process_scan.is_complete &= end.is_complete;
            }
            _ => {}
        }
    }
}

/// True if the daemon reads the sockets of processes of this user.
fn reads_sockets(config: &Config, uid: u32) -> bool {
    let owners = config.owners.as_ref();
    config.proc_facts && config.transport && owners.is_none_or(|owners| owners.contains(&uid))
}

/// Returns the probable reason why a process scan is not complete, and the remedy. It depends on the rights of the
/// observer, which are those that this process has until it becomes the configured user.
fn why_incomplete() -> &'static str {
    let may_read = caps::has_cap(None, CapSet::Permitted, Capability::CAP_SYS_PTRACE);
    if !geteuid().is_root() {
        "those of other users may not be read; run as root"
    } else if !may_read.unwrap_or(true) {
        "some may not be read without CAP_SYS_PTRACE; give it to the container (docker run --cap-add SYS_PTRACE)"
    } else if !Path::new("/proc/1").exists() {
        "/proc has no process 1; mount proc(5) there, without hidepid"
    } else if !sees_host() {
        "those outside of this container are not visible; if NIXL runs outside of it too, run this on the host or in its PID namespace (docker run --pid=host)"
    } else {
        "a process blocks, or too many have one file mapped; run this again"
    }
}
