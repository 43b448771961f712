// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains.

/// Makes a constant of each serial number, and the table. The comment above a row is its help: the short text in the
/// first line, then the long one.
///
/// No instance domain has a label, such as `indom_name` of PCP's own PMDAs. For one that has, pmproxy (6.0.3 to 7.2)
/// puts no labels of instances into a key server: `pmSeriesDiscoverLabels` sets `updated`, so none is looked up.
macro_rules! indoms {
    ($(#[doc = $oneline:literal] $(#[doc = $help:literal])+ $name:ident = $serial:literal,)+) => {
        $(
            #[doc = concat!("Serial number of the instance domain of", $oneline, ".")]
            pub const $name: u32 = $serial;
        )+
        /// All instance domains: serial number, short and long help text, in the form of [`crate::metrics::Metric`].
        pub const INDOMS: [(u32, &str, &str); 10] =
            [$(($name, $oneline, concat!($("\n", $help),+))),+];
    };
}

indoms! {
    /// NIXL agents of this host
    /// One instance for each NIXL agent that writes a telemetry ring or keeps a
    /// prometheus_mp store in a scanned directory; commonly one for each GPU worker. It
    /// has the agent's name, special characters as %XX; a second agent of the name is
    /// NAME@LABEL. It keeps its id over restarts of agent, PMDA and host, unless it is
    /// away for remember (7 days). An exited agent stays for retain (10 minutes).
    ///
    /// Counters count the events that NIXL wrote: with NIXL_TELEMETRY_ENABLED_METRICS
    /// only those listed there, so that 0 can mean that an event is not listed.
    ///
    /// Percentiles are of transfers completed in the last 60 to 70 seconds, right to 5
    /// percent; a maximum is exact. Events that waited in the ring when it was found
    /// are left out. Never average percentiles of agents or times: add up the buckets.
    /// Those of a store are interpolated within its buckets, and it has no maximum and
    /// no bandwidth. No value: no transfer has completed.
    AGENTS = 0,
    /// buckets of transfer times, for each NIXL agent
    /// One instance for each agent and bucket of times, AGENT::LOW-HIGH. HIGH is the
    /// upper bound in microseconds, inclusive; LOW that of the bucket before; the last
    /// bucket ends at inf. The labels lower_bound and upper_bound have these numbers.
    /// The bounds are those of NIXL's own exporters, 10 microseconds to 10 seconds,
    /// unless histogram_buckets_us in nixl.conf has others; a store has its own.
    LATENCIES = 1,
    /// buckets of transfer sizes, for each NIXL agent
    /// One instance for each agent and bucket of sizes, AGENT::LOW-HIGH. HIGH is the
    /// upper bound in bytes, inclusive; LOW that of the bucket before; the last bucket
    /// ends at inf. The labels lower_bound and upper_bound have these numbers. The
    /// bounds are those of vLLM's vllm:nixl_bytes_transferred: 2 KiB to 8 GiB, each
    /// four times the one before.
    SIZES = 2,
    /// buckets of bandwidth, for each NIXL agent
    /// One instance for each agent and bucket of bandwidths, AGENT::LOW-HIGH. HIGH is
    /// the upper bound in bytes per second, inclusive; LOW that of the bucket before;
    /// the last bucket ends at inf. The labels lower_bound and upper_bound have these
    /// numbers. The bounds go from 1 MB/s to 524 GB/s, each twice the one before.
    BANDWIDTHS = 3,
    /// upper bounds of transfer times, for each NIXL agent
    /// One instance for each agent and upper bound of times, AGENT::le-HIGH. HIGH is
    /// the bound in microseconds, inclusive; the last one is inf. The label le has the
    /// number, +Inf for the last, as histograms of Prometheus have it. The bounds are
    /// those of instance domain 39.1.
    CUMULATIVE_TIMES = 4,
    /// processes of this host that use NIXL
    /// One instance for each process that has a backend of NIXL loaded, with or without
    /// telemetry: its process id and name. The label pid joins it with proc.psinfo. It
    /// is found within a minute, or later where /proc is slow, and read every 10 s; at
    /// most 256 are. Counters begin with the bytes of open connections, also when the
    /// PMDA restarts, and then under another identifier. Bytes between the last reading
    /// of a connection and its end are not seen: they are lower bounds. No value: not
    /// read for a minute. The process has other connections than NIXL's (HTTP, ZMQ,
    /// NCCL): in an idle vLLM or SGLang server some KB/s, with NCCL over sockets as
    /// much as NIXL or more. A connection inherited by fork counts for the oldest
    /// process that has it.
    PROCESSES = 5,
    /// peers of NIXL agents by TCP
    /// One instance for each agent and address that its process has TCP connections to,
    /// AGENT::ADDRESS, if the process runs no other agent; for each agent the 16 with
    /// most bytes. A peer stays after its connections are closed until another has more
    /// bytes, or the agent runs in another process. What is said of the counters of
    /// instance domain 39.5 holds here, too.
    PEERS = 6,
    /// upper bounds of transfer times, for each role
    /// One instance for each role of an agent's server and upper bound of times,
    /// ROLE::le-HIGH. ROLE is prefill, decode or both, as in the label role of agents,
    /// or unknown for agents without this label. HIGH is the bound in microseconds,
    /// inclusive; the last one is inf. The label le has the number, +Inf for the last,
    /// as histograms of Prometheus have it. The bounds are the configured ones.
    ROLE_TIMES = 7,
    /// remote agents of processes that are traced
    /// One instance for each process of nixl.process and remote agent of its transfers,
    /// if trace is true in nixl.conf: AGENT::REMOTE, with the agent of the process, or
    /// PID COMMAND::REMOTE if it has none with telemetry, or several. REMOTE is the
    /// name that the application has given, special characters as %XX; of more than 64
    /// bytes, the first ones and ~LENGTH. It is ~unknown if the handle of the transfer
    /// was made before tracing began. At most 1,024 are there, with an equal share for
    /// each user. Counters begin when the tracer begins, under another identifier each
    /// time, and end with the process.
    TRACED = 8,
    /// upper bounds of the times of traced transfers
    /// One instance for each instance of instance domain 39.8 and upper bound of times,
    /// AGENT::REMOTE::le-HIGH. HIGH is the bound in microseconds, inclusive; the last
    /// one is inf. The label le has the number, +Inf for the last, as histograms of
    /// Prometheus have it. The bounds are the configured ones.
    TRACED_TIMES = 9,
}
