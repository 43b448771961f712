//! Cluster 40: the PMDA itself.
//!
//! Items of 0.1.0 that are retired: 2 drains, 3 drain_time, 4 scan_time, 10 events, 13 rings, 14 agents.known, 15 surveys,
//! 16 survey_time, 22 log.left_out, 24 cut.scans, 25 files.known, 26 container_looks. The debug log has these figures.

use super::of_pmda;
use crate::log;
use crate::metrics::control::{self as own, milliseconds};
use crate::metrics::{CONTROL, Get, Metric, Semantics, Units};

pub(super) const ROWS: &[Metric] = &[
    of_pmda(
        (CONTROL, 0),
        "control.version",
        Get::Text(|_, _| Some(env!("CARGO_PKG_VERSION").into())),
        (Semantics::Discrete, Units::None),
        "version of pmdanixl",
        "The version of this PMDA, as pmdanixl --version prints it.",
    ),
    of_pmda(
        (CONTROL, 1),
        "control.drain_interval",
        Get::U32(|control, _| Some(milliseconds(control.drain_interval))),
        (Semantics::Discrete, Units::Millisecond),
        "time between two drains of the rings",
        "\
All rings are drained this often, whether anyone asks for values or not, and
once more before each answer. Set by drain_interval in nixl.conf. A value from 1
to 1000 that is stored to it (as root, over the local socket) holds from then on
until the configuration is read again (nixl.control.reload).",
    ),
    of_pmda(
        (CONTROL, 5),
        "control.files.refused",
        Get::U64(|control, _| Some(control.files_refused)),
        (Semantics::Counter, Units::Count),
        "files in telemetry directories that were refused",
        "\
Files in the telemetry directories that were looked at and left alone since the
start, each file and reason once, and once more where the configuration was read
again with other owners. A shared directory such as /var/tmp holds many
that are no rings; pmdanixl --check lists them with their reasons.",
    ),
    of_pmda(
        (CONTROL, 6),
        "control.state.persistent",
        Get::U32(|control, _| Some(control.persistent.into())),
        (Semantics::Discrete, Units::None),
        "whether the counters outlive the PMDA",
        "\
1 if what is counted is kept in the state file, so that the counters go on when
the PMDA is started again; 0 if the file cannot be had or cannot grow, and the
counters begin at zero then. The log says why.",
    ),
    of_pmda(
        (CONTROL, 7),
        "control.debug",
        Get::U32(|_, _| Some(log::is_debug().into())),
        (Semantics::Discrete, Units::None),
        "whether debug messages are logged",
        "\
1 if everything is logged without a limit: each refused file with its reason,
and once a minute what drains, scans of directories and of /proc cost; 0 if not.
Storing 1 or 0 to it (as root, over the local socket) switches it until the PMDA
ends; it starts with what -D appl0 says.",
    ),
    of_pmda(
        (CONTROL, 8),
        "control.reload",
        Get::U32(|control, _| Some(control.loads)),
        (Semantics::Discrete, Units::None),
        "store to it to read the configuration again",
        "\
How often a configuration was taken, the one at the start included. Storing any
value to it (as root, over the local socket) reads nixl.conf again. A file with
a mistake changes nothing: the store then fails, and nixl.control.config_error
and the log say why. A changed user takes effect at the next start.",
    ),
    of_pmda(
        (CONTROL, 9),
        "control.config_error",
        Get::Text(|control, _| Some(control.config_error.clone())),
        (Semantics::Discrete, Units::None),
        "why the configuration was not taken",
        "\
What was wrong with nixl.conf when it was last read, with file, line and key;
empty if nothing was. If it was wrong at the start, no directory is looked
through until a good one is read (nixl.control.reload).",
    ),
    of_pmda(
        (CONTROL, 11),
        "control.cpu_time",
        Get::U64(|_, _| own::cpu_time()),
        (Semantics::Counter, Units::Microsecond),
        "processor time of the PMDA",
        "\
Time that the PMDA has had a processor since its start, in user and in system
mode, all of its threads included (getrusage(2)).",
    ),
    of_pmda(
        (CONTROL, 12),
        "control.memory",
        Get::U64(|_, _| own::memory()),
        (Semantics::Instant, Units::Byte),
        "memory of the PMDA",
        "\
Memory that the PMDA occupies (resident, in /proc/self/statm). The pages of
mapped rings and of the state file that it has touched are among it, though they
belong to these files. No value where there is no /proc.",
    ),
    of_pmda(
        (CONTROL, 17),
        "control.places.max",
        Get::U32(|control, _| Some(control.effort.places)),
        (Semantics::Discrete, Units::Count),
        "places for agents",
        "\
How many agents there may be: max_agents in nixl.conf, or as many as the PMDA
may have files open. An agent takes one place while it is an instance, and one
for each file of its that is open beyond the first.",
    ),
    of_pmda(
        (CONTROL, 18),
        "control.places.taken",
        Get::U32(|control, _| Some(control.effort.taken)),
        (Semantics::Instant, Units::Count),
        "places for agents that are taken",
        "\
Where all are taken (nixl.control.places.max), a new agent gets the place of one
that has exited, of a user with at least as many agents as its own, first of the
user with most. If there is none, it gets that of the newest agent of the user
with most, if that user has at least two more than its own.",
    ),
    of_pmda(
        (CONTROL, 19),
        "control.places.refused",
        Get::U64(|control, _| Some(control.effort.refused_places)),
        (Semantics::Counter, Units::Count),
        "files for which there was no place",
        "\
How often a ring or a store was left aside since there was no place for it, or
since its owner has had too many new names. It is tried again every few seconds,
and counts again then. Where this grows, raise max_agents in nixl.conf.",
    ),
    of_pmda(
        (CONTROL, 20),
        "control.directories.watched",
        Get::U32(|control, _| Some(control.effort.directories)),
        (Semantics::Instant, Units::Count),
        "directories that are looked through",
        "\
Directories that telemetry_dir and multiproc_dir name, and those that their
patterns match: of these at most max_directories. Those that cannot be read are
in nixl.control.directories.missing instead.",
    ),
    of_pmda(
        (CONTROL, 21),
        "control.directories.left_out",
        Get::U32(|control, _| Some(control.effort.left_out)),
        (Semantics::Instant, Units::Count),
        "directories for which there was no place",
        "\
Directories that match a pattern and are not looked through, since there are
more than max_directories in nixl.conf. Where a user has at least two fewer than
the user with most, one of that user's gives way.",
    ),
    of_pmda(
        (CONTROL, 23),
        "control.cut.drains",
        Get::U64(|control, _| Some(control.drains_cut)),
        (Semantics::Counter, Units::Count),
        "drains that were cut off",
        "\
How often the time that a drain of all rings and stores may take was up before
all of them were counted. The rest is counted in the next; each has its turn.
Where this grows, events come faster than they can be counted.",
    ),
    of_pmda(
        (CONTROL, 27),
        "control.directories.missing",
        Get::U32(|control, _| Some(control.effort.missing)),
        (Semantics::Instant, Units::Count),
        "configured directories that are missing or unreadable",
        "\
Directories of telemetry_dir and multiproc_dir that do not exist or cannot be
read now, and patterns of which that is true before the first wildcard. No agent
is found there. Above 0: a path is misspelt, a volume is not mounted, or the
user of the PMDA may not read it; pmdanixl --check says which. A directory that
the first agent makes is missing until then.",
    ),
    of_pmda(
        (CONTROL, 28),
        "control.doubtful_batches",
        Get::U64(|control, _| Some(control.effort.doubtful)),
        (Semantics::Counter, Units::Count),
        "batches that may have been counted before",
        "\
How often, after a kill of the PMDA in the midst of a drain, nothing told if a
ring had been restarted since: the first events of its agent were the same as
before. They are taken for those that were counted before the kill. If they were
new, they are lost; the log has the ring and their number.",
    ),
];
