//! Cluster 40: the PMDA itself.
//!
//! Retired items of 0.1.0: 2 drains, 3 drain_time, 4 scan_time, 10 events, 13 rings, 14 agents.known, 15 surveys, 16
//! survey_time, 22 log.left_out, 24 cut.scans, 25 files.known, 26 container_looks. The debug log has their values.

use super::control_metric;
use crate::log;
use crate::metrics::control::{self as own, milliseconds};
use crate::metrics::{CONTROL, Get, Metric, Semantics, Units};

pub(super) const ROWS: &[Metric] = &[
    control_metric(
        (CONTROL, 0),
        "control.version",
        Get::Text(|_, _| Some(env!("CARGO_PKG_VERSION").into())),
        (Semantics::Discrete, Units::None),
        "version of pmdanixl",
        "Version of the PMDA, as pmdanixl --version prints it.",
    ),
    control_metric(
        (CONTROL, 1),
        "control.drain_interval",
        Get::U32(|control, _| Some(milliseconds(control.drain_interval))),
        (Semantics::Discrete, Units::Millisecond),
        "time between two drains of the rings",
        "\
Milliseconds between two drains of all rings. Before each answer they are
drained once more. Set by drain_interval in nixl.conf. As root on the local
socket, a value from 1 to 1000 can be stored: it holds until the configuration
is read again (nixl.control.reload).",
    ),
    control_metric(
        (CONTROL, 5),
        "control.files.refused",
        Get::U64(|control, _| Some(control.files_refused)),
        (Semantics::Counter, Units::Count),
        "rejected files in telemetry directories",
        "\
Files in the telemetry directories that were rejected since the start, each file
and reason once, and again after a change of owners in nixl.conf. A shared
directory such as /var/tmp has many that are not telemetry; pmdanixl --check
lists them with their reasons.",
    ),
    control_metric(
        (CONTROL, 6),
        "control.state.persistent",
        Get::U32(|control, _| Some(control.is_persistent.into())),
        (Semantics::Discrete, Units::None),
        "1 if the counters survive a restart of the PMDA",
        "\
1: totals are kept in the state file, and go on when the PMDA restarts. 0: the
state file cannot be opened or cannot grow, and totals begin at zero after a
restart. The log says why.",
    ),
    control_metric(
        (CONTROL, 7),
        "control.debug",
        Get::U32(|_, _| Some(log::is_debug().into())),
        (Semantics::Discrete, Units::None),
        "1 if debug messages are logged",
        "\
1: debug messages are logged without a limit, such as each rejected file with
its reason, and once a minute the cost of drains and scans. 0: they are not.
Begins with what -D appl0 says. As root on the local socket, 1 or 0 can be
stored.",
    ),
    control_metric(
        (CONTROL, 8),
        "control.reload",
        Get::U32(|control, _| Some(control.config_loads)),
        (Semantics::Discrete, Units::None),
        "configurations loaded; pmstore here loads nixl.conf again",
        "\
Number of configurations taken, that of the start included. As root on the local
socket, storing any value reads nixl.conf again. A file with an error changes
nothing: the store fails, and nixl.control.config_error and the log say why. A
changed user takes effect at the next start.",
    ),
    control_metric(
        (CONTROL, 9),
        "control.config_error",
        Get::Text(|control, _| Some(control.config_error.clone())),
        (Semantics::Discrete, Units::None),
        "reason why the configuration was rejected",
        "\
Error of nixl.conf when it was last read, with file, line and key; empty without
one. After an error at the start, no directory is scanned until a good file is
read (nixl.control.reload).",
    ),
    control_metric(
        (CONTROL, 11),
        "control.cpu_time",
        Get::U64(|_, _| own::cpu_time()),
        (Semantics::Counter, Units::Microsecond),
        "processor time of the PMDA",
        "\
Microseconds of processor time, user and system, of all threads of the PMDA
since its start (getrusage(2)).",
    ),
    control_metric(
        (CONTROL, 12),
        "control.memory",
        Get::U64(|_, _| own::memory()),
        (Semantics::Instant, Units::Byte),
        "memory of the PMDA",
        "\
Bytes of resident memory of the PMDA (/proc/self/statm). Touched pages of mapped
rings and of the state file are included, though they belong to these files. No
value: /proc is not mounted.",
    ),
    control_metric(
        (CONTROL, 17),
        "control.places.max",
        Get::U32(|control, _| Some(control.effort.places)),
        (Semantics::Discrete, Units::Count),
        "largest number of places for agents (max_agents)",
        "\
Most agents at a time: max_agents in nixl.conf, or what the limit of open files
allows. An agent takes one place while it is an instance, and another for each
open file beyond the first.",
    ),
    control_metric(
        (CONTROL, 18),
        "control.places.taken",
        Get::U32(|control, _| Some(control.effort.taken)),
        (Semantics::Instant, Units::Count),
        "places in use, out of nixl.control.places.max",
        "\
Places of nixl.control.places.max that are taken. If all are, a new agent evicts
an exited agent of the user with most agents (with at least as many as its own
user has). If there is none, it evicts the newest agent of the user with most
agents, if that user has at least two more than its own user.",
    ),
    control_metric(
        (CONTROL, 19),
        "control.places.refused",
        Get::U64(|control, _| Some(control.effort.refused_places)),
        (Semantics::Counter, Units::Count),
        "rings and stores rejected for lack of a place",
        "\
Number of times that a ring or store found no place, or that its owner had too
many new names. Each is tried, and counted, again every few seconds. If it
grows, raise max_agents in nixl.conf.",
    ),
    control_metric(
        (CONTROL, 20),
        "control.directories.watched",
        Get::U32(|control, _| Some(control.effort.directories)),
        (Semantics::Instant, Units::Count),
        "directories that are scanned",
        "\
Directories that are scanned: those that telemetry_dir and multiproc_dir name,
and at most max_directories that their patterns match. Unreadable ones are in
nixl.control.directories.missing.",
    ),
    control_metric(
        (CONTROL, 21),
        "control.directories.left_out",
        Get::U32(|control, _| Some(control.effort.left_out)),
        (Semantics::Instant, Units::Count),
        "directories left out because of max_directories",
        "\
Directories that match a pattern and are not scanned, since max_directories in
nixl.conf is reached. A directory of the user with most is left out for one of a
user with at least two fewer.",
    ),
    control_metric(
        (CONTROL, 23),
        "control.cut.drains",
        Get::U64(|control, _| Some(control.drains_cut)),
        (Semantics::Counter, Units::Count),
        "drains that used up their time limit",
        "\
Number of drains that used up their time before all events were counted. The
rest is counted by the next drain. If it grows, events come faster than they can
be counted.",
    ),
    control_metric(
        (CONTROL, 27),
        "control.directories.missing",
        Get::U32(|control, _| Some(control.effort.missing)),
        (Semantics::Instant, Units::Count),
        "configured directories that are missing or unreadable",
        "\
Directories of telemetry_dir and multiproc_dir that do not exist or cannot be
read now, and patterns whose part before the first wildcard does not. Above 0: a
path is misspelt, a volume is not mounted, or the PMDA's user may not read it;
pmdanixl --check says which. A directory that the first agent creates is missing
until then.",
    ),
    control_metric(
        (CONTROL, 28),
        "control.doubtful_batches",
        Get::U64(|control, _| Some(control.effort.doubtful)),
        (Semantics::Counter, Units::Count),
        "batches skipped because they may be counted already",
        "\
Batches that were taken for counted although their ring may have been restarted:
the PMDA was killed during a drain, or another reader of the ring ended, and the
ring's first events are the same as before. If they were new, they are lost. The
log names the ring and how many.",
    ),
];
