// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 40: the PMDA itself.
//!
//! Retired: 2 drains, 3 drain_time, 4 scan_time, 10 events, 13 rings, 14 agents.known, 15 surveys, 16
//! survey_time, 22 log.left_out, 24 cut.scans, 25 files.known, 26 container_looks. The debug log has their values.

use super::{BYTES, EVENTS, FACT, LEVEL, SIZE, daemon_text, daemon_u32, daemon_u64};
use crate::log;
use crate::metrics::control::milliseconds;
use crate::metrics::{Metric, Semantics, Units};

pub(super) const ROWS: &[Metric] = rows![
    /// version of pmdanixl
    /// Version of the PMDA, as pmdanixl --version prints it.
    daemon_text((40, 0), "control.version", |_| {
        Some(env!("CARGO_PKG_VERSION").into())
    }),
    /// time between two drains of the rings
    /// Milliseconds between two drains of all rings. Before each answer they are
    /// drained once more. Set by drain_interval in nixl.conf.
    daemon_u32(
        (40, 1),
        "control.drain.interval",
        (Semantics::Discrete, Units::Millisecond),
        |control| Some(milliseconds(control.drain_interval)),
    ),
    /// rejected files in telemetry directories
    /// Files in the telemetry directories that were rejected since the start, each file
    /// and reason once, and again after a change of owners in nixl.conf. A shared
    /// directory such as /var/tmp has many that are not telemetry; pmdanixl --check
    /// lists them with their reasons.
    daemon_u64((40, 5), "control.files.rejections", EVENTS, |control| {
        Some(control.activity.file_rejections)
    }),
    /// 1 if the counters survive a restart of the PMDA
    /// 1: totals are kept in the state file, and go on when the PMDA restarts. 0: the
    /// state file cannot be opened or cannot grow, and totals begin at zero after a
    /// restart. The log says why.
    daemon_u32((40, 6), "control.persistent", FACT, |control| {
        Some(control.is_persistent.into())
    }),
    /// 1 if debug messages are logged
    /// 1: debug messages are logged without a limit, such as each rejected file with
    /// its reason. 0: they are not. Begins with what -D appl0 says. As root, 1 or 0
    /// can be stored; 1 also logs the cost of drains and scans so far.
    daemon_u32((40, 7), "control.debug", FACT, |_| {
        Some(log::is_debug().into())
    }),
    /// storing any value loads nixl.conf again
    /// Always 0. As root, pmstore nixl.control.reload 1 reads nixl.conf again. A file
    /// with an error changes nothing: pmstore fails, and nixl.control.config_error and
    /// the log say why. A changed user takes effect when ./Install is run again.
    daemon_u32((40, 8), "control.reload", FACT, |_| Some(0)),
    /// reason why the configuration was rejected
    /// Error of nixl.conf when it was last read, with file, line and key; empty without
    /// one. After an error at the start, no directory is scanned until a good file is
    /// read (nixl.control.reload).
    daemon_text((40, 9), "control.config_error", |control| {
        Some(control.config_error.clone())
    }),
    /// CPU time of the PMDA
    /// Microseconds of CPU time, user and system, of all threads of the PMDA
    /// since its start (getrusage(2)), and of the processes that look at others for it,
    /// as of their last scan, which is at most a minute ago.
    daemon_u64(
        (40, 11),
        "control.cpu_time",
        (Semantics::Counter, Units::Microsecond),
        |control| control.cpu_time(),
    ),
    /// memory of the PMDA
    /// Bytes of resident memory of the PMDA (/proc/PID/statm), and of the processes
    /// that look at others for it, as of their last scan. Touched pages of mapped rings
    /// and of the state file are included, though they belong to these files. No value:
    /// /proc is not mounted.
    daemon_u64((40, 12), "control.memory", BYTES, |control| {
        control.memory()
    }),
    /// limit on agents at a time (max_agents)
    /// Limit on agents at a time: max_agents in nixl.conf, or what the limit of open
    /// files allows. An agent takes one of these places while it is an instance, and
    /// another for each open file beyond the first.
    daemon_u32((40, 17), "control.places.max", SIZE, |control| {
        Some(control.activity.places)
    }),
    /// agents at a time, out of nixl.control.places.max
    /// Places that agents take, out of nixl.control.places.max. If none is left, a new
    /// agent evicts an exited agent of the user with most agents (with at least as many
    /// as its own user has). If there is none, it evicts the newest agent of the user
    /// with most agents, if that user has at least two more than its own user.
    daemon_u32((40, 18), "control.places.taken", LEVEL, |control| {
        Some(control.activity.places_taken)
    }),
    /// rings and stores rejected because of max_agents
    /// Number of times that a ring or store was rejected because max_agents is reached,
    /// or because its owner had too many new names. Each is tried, and counted, again
    /// every few seconds. If it grows, see the log: raise max_agents or the limit of
    /// open files, or stop the user that creates names.
    daemon_u64((40, 19), "control.places.rejections", EVENTS, |control| {
        Some(control.activity.place_rejections)
    }),
    /// directories that are scanned
    /// Directories that are scanned: those that telemetry_dir and multiproc_dir name,
    /// and at most max_directories that their patterns match. Unreadable ones are in
    /// nixl.control.directories.missing.
    daemon_u32((40, 20), "control.directories.watched", LEVEL, |control| {
        Some(control.activity.directories)
    }),
    /// matching directories that are not scanned
    /// Directories that match a pattern and are not scanned: max_directories in
    /// nixl.conf is reached, or a user or another host serves the file system (FUSE,
    /// NFS), which may not answer. With max_directories, the user with most directories
    /// loses one to a user that has at least two fewer. pmdanixl --check says which.
    daemon_u32((40, 21), "control.directories.skipped", LEVEL, |control| {
        Some(control.activity.directories_left_out)
    }),
    /// drains that reached their time limit
    /// Number of drains that reached their time limit before all events were counted.
    /// The rest is counted by the next drain. If it grows, events come faster than they
    /// can be counted.
    daemon_u64((40, 23), "control.drain.truncated", EVENTS, |control| {
        Some(control.drains_cut)
    }),
    /// configured directories that are missing or unreadable
    /// Directories of telemetry_dir and multiproc_dir that do not exist or cannot be
    /// read now, and patterns whose part before the first wildcard does not. Above 0: a
    /// path is misspelt, a volume is not mounted, or the PMDA's user may not read it;
    /// pmdanixl --check says which. A directory that the first agent creates is missing
    /// until then.
    daemon_u32((40, 27), "control.directories.missing", LEVEL, |control| {
        Some(control.activity.missing_directories)
    }),
    /// batches skipped because they may be counted already
    /// Batches that were taken for counted although their ring may have been restarted:
    /// the PMDA was killed during a drain, or another reader of the ring ended, and the
    /// ring's first events are the same as before. If they were new, they are lost.
    /// Also rings that were taken for restarted and may not be. The log names the ring.
    daemon_u64((40, 28), "control.drain.doubtful", EVENTS, |control| {
        Some(control.activity.doubtful_batches)
    }),
    /// whether processes are scanned
    /// 1: the process that scans others runs. 0: it has ended or could not be
    /// started, as the log says, until a restart of the PMDA, or it has not answered
    /// for a minute. Then new agents have no labels of their process,
    /// nixl.host.processes.silent has no value, and after a minute nixl.process,
    /// nixl.agent.peer and nixl.agent.tcp_share have none. No value: proc_facts is
    /// false.
    daemon_u32((40, 29), "control.observer", FACT, |control| {
        control.activity.observes.map(u32::from)
    }),
    /// files of a NIXL version that is not supported
    /// Rings and stores of a version that this pmdanixl does not know. They are neither
    /// read nor changed. The log and pmdanixl --check name each. Install a newer
    /// pmdanixl, or remove files that no process uses any more.
    daemon_u32((40, 30), "control.files.unsupported", LEVEL, |control| {
        Some(control.activity.unsupported_files)
    }),
    /// rings and stores that are rejected now
    /// Files that look like telemetry but are rejected now: damaged headers, no
    /// permission to read, max_agents reached. The log and pmdanixl --check name each
    /// with its reason. Files of other kinds and of other owners are not counted.
    daemon_u32((40, 31), "control.files.rejected", LEVEL, |control| {
        Some(control.activity.rejected_files)
    }),
    /// configurations taken
    /// Number of configurations that were taken since the start, that of the start
    /// included. A file with an error is not taken: see nixl.control.config_error.
    daemon_u64((40, 32), "control.reloads", EVENTS, |control| {
        Some(control.config_loads.into())
    }),
    /// drains of all rings
    /// Number of times that all rings were drained: once in each
    /// nixl.control.drain.interval, and before each answer.
    daemon_u64((40, 33), "control.drain.count", EVENTS, |control| {
        Some(control.drains)
    }),
    /// time spent draining
    /// Microseconds spent in drains: reading events, counting them, and releasing their
    /// slots. Divided by nixl.control.drain.count it is the mean time of a drain, which
    /// delays an answer.
    daemon_u64(
        (40, 34),
        "control.drain.time",
        (Semantics::Counter, Units::Microsecond),
        |control| u64::try_from(control.drain_time.as_micros()).ok(),
    ),
    /// libraries of NIXL that are traced
    /// Files of libnixl with probes. 0: no process uses NIXL, or none of a version that
    /// can be traced, as the log says. No value: trace in nixl.conf is false, or the
    /// tracer does not run; the log says why.
    daemon_u32((40, 35), "control.trace.libraries", LEVEL, |control| {
        control.trace.libraries
    }),
    /// starts of the tracer
    /// Each start begins the counters of nixl.trace at zero, under other identifiers;
    /// what was counted since the last reading before it is lost. Above 1: a process
    /// has stalled it, or it was killed. No value: trace in nixl.conf is false.
    daemon_u64((40, 36), "control.trace.starts", EVENTS, |control| {
        control.trace.starts
    }),
    /// handles and remote agents that found no room
    /// Transfer handles and pairs of nixl.trace that were not counted since the tracer
    /// began, because a user had 16,384 handles or 1,024 pairs, or all users four times
    /// as many. No value: as nixl.control.trace.libraries.
    daemon_u64((40, 37), "control.trace.lost", EVENTS, |control| {
        control.trace.lost
    }),
];
