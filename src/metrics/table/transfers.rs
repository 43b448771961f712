//! Clusters 20 to 23: how transfers are distributed, by their time, size and bandwidth.

use super::{cumulative, histogram, of_agent};
use crate::agents::agent::Agent;
use crate::base::clock::Now;
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};
use crate::totals::Buckets;

const MICROSECONDS: (Semantics, Units) = (Semantics::Instant, Units::Microsecond);
const BANDWIDTH: (Semantics, Units) = (Semantics::Instant, Units::BytePerSecond);

/// A quantile of the last 60 s. Its help is for the reader of the one metric: the ways that it is not what it seems.
macro_rules! quantile {
    ($pmid:expr, $name:literal, $units:expr, $get:expr, $oneline:literal, $what:literal) => {
        of_agent(
            $pmid,
            $name,
            Get::F64($get),
            $units,
            $oneline,
            concat!(
                $what,
                "\n\
Over the transfers that completed in the last 60 to 70 seconds (the window moves
in steps of 10 seconds), without those that waited in a ring that was older when
it was found. A percentile is interpolated as numpy.percentile does, which vLLM
uses, and right to 5 percent; a maximum is exact. There is no value while none
has completed. Never average such figures of several agents or times: add up the
buckets. An agent with a prometheus_mp store has no single transfers: they are
taken as evenly spread in each bucket, so that percentiles of its times are no
more exact than the bounds, the last bound where they lie above it, and there is
no maximum, and none of bandwidth."
            ),
        )
    };
}

macro_rules! xfer_time {
    ($item:literal, $name:literal, $oneline:literal, $get:expr) => {
        quantile!(
            (21, $item),
            $name,
            MICROSECONDS,
            $get,
            $oneline,
            "Time from the start of a transfer until the initiator found it complete."
        )
    };
}

macro_rules! post_time {
    ($item:literal, $name:literal, $oneline:literal, $get:expr) => {
        quantile!(
            (21, $item),
            $name,
            MICROSECONDS,
            $get,
            $oneline,
            "Time from the start of a transfer until NIXL's backend had accepted it."
        )
    };
}

macro_rules! bandwidth {
    ($item:literal, $name:literal, $percent:literal, $oneline:literal) => {
        quantile!(
            (23, $item),
            $name,
            BANDWIDTH,
            |agent: &Agent, _: &Now| agent.windows.bandwidth.percentile($percent),
            $oneline,
            "Bytes of a transfer by the time from its start to its completion, in whole
microseconds, and no more than 4.4 TB/s."
        )
    };
}

pub(super) const ROWS: &[Metric] = &[
    histogram(
        (20, 0),
        "latency.xfer_time.buckets",
        Buckets::XferTime,
        "transfers by time from start to completion",
        "\
Completed transfers by the time from their start until the initiator found them
complete, in ranges that do not overlap: unlike in Prometheus, a transfer counts
in one of them. The bounds are in the instances and their labels.",
    ),
    histogram(
        (20, 1),
        "latency.post_time.buckets",
        Buckets::PostTime,
        "transfers by time to post them",
        "\
Transfers by the time from their start until NIXL's backend had accepted them,
in ranges that do not overlap: unlike in Prometheus, a transfer counts in one of
them. The bounds are in the instances and their labels.",
    ),
    cumulative(
        (20, 2),
        "latency.xfer_time.bucket",
        Buckets::XferTime,
        "transfers by time from start to completion, cumulative",
        "\
What nixl.latency.xfer_time.buckets counts, each bound with all below it (and
what was counted before the bounds were changed), as Prometheus has histograms,
for histogram_quantile of PromQL: of the rate of nixl_latency_xfer_time_bucket
as pmproxy exports it, summed without (instid, instname). For archives and PCP's
own tools the other says the same, and changes less.",
    ),
    cumulative(
        (20, 3),
        "latency.post_time.bucket",
        Buckets::PostTime,
        "transfers by time to post them, cumulative",
        "\
What nixl.latency.post_time.buckets counts, each bound with all below it (and
what was counted before the bounds were changed), as Prometheus has histograms,
for histogram_quantile of PromQL: of the rate of nixl_latency_post_time_bucket
as pmproxy exports it, summed without (instid, instname). For archives and PCP's
own tools the other says the same, and changes less.",
    ),
    xfer_time!(
        0,
        "latency.xfer_time.p50",
        "median transfer time, last 60 s",
        |agent, _| agent.xfer_time(50)
    ),
    xfer_time!(
        1,
        "latency.xfer_time.p90",
        "90th percentile of transfer times, last 60 s",
        |agent, _| agent.xfer_time(90)
    ),
    xfer_time!(
        2,
        "latency.xfer_time.p99",
        "99th percentile of transfer times, last 60 s",
        |agent, _| agent.xfer_time(99)
    ),
    xfer_time!(
        3,
        "latency.xfer_time.max",
        "longest transfer time, last 60 s",
        |agent, _| agent.windows.xfer_time.max().map(as_f64)
    ),
    post_time!(
        4,
        "latency.post_time.p50",
        "median time to post, last 60 s",
        |agent, _| agent.post_time(50)
    ),
    post_time!(
        5,
        "latency.post_time.p90",
        "90th percentile of times to post, last 60 s",
        |agent, _| agent.post_time(90)
    ),
    post_time!(
        6,
        "latency.post_time.p99",
        "99th percentile of times to post, last 60 s",
        |agent, _| agent.post_time(99)
    ),
    post_time!(
        7,
        "latency.post_time.max",
        "longest time to post, last 60 s",
        |agent, _| agent.windows.post_time.max().map(as_f64)
    ),
    Metric {
        cluster: 21,
        item: 8,
        name: "latency.xfer_time.slowness",
        source: ValueSource::Slowness,
        semantics: Semantics::Instant,
        units: Units::None,
        oneline: "median transfer time, by the mean of its peers' medians",
        help: "\
nixl.latency.xfer_time.p50 of the agent, divided by the mean of those of its
peers: about 1 for each of the ranks of an engine, which do the same work, and
far above it for one that holds up the others. Peers are the other agents of the
host that have the same engine, role, pod_uid, container_id, slurm_job_id and
user in their labels, known or not; where no engine, pod, container or job is
known, also the same directory. Servers that differ by their port only are
peers; two servers of one engine and user whose roles are not known are, too. It
says little where few transfers have completed. No value: it has no peer, or it
or all of them have completed nothing in the last 60 seconds, or the mean of
theirs is less than a microsecond.",
    },
    histogram(
        (22, 0),
        "size.buckets",
        Buckets::Size,
        "transfers by size",
        "\
Completed transfers by their bytes, WRITE and READ together, in ranges that do
not overlap. The bounds are in the instances and their labels. No value: the
agent has a prometheus_mp store, which does not tell.",
    ),
    histogram(
        (23, 0),
        "bandwidth.buckets",
        Buckets::Bandwidth,
        "transfers by bandwidth",
        "\
Completed transfers by their bytes per second: the bytes of a transfer by the
time from its start to its completion, where a time of 0 counts as one
microsecond. Transfers overlap, so this is not the rate on the wire, for which
see the rates of nixl.transfer.tx_bytes and nixl.transfer.rx_bytes; a sudden
drop tells of a slow path (TCP in place of RDMA) or of contention. No value: the
agent has a prometheus_mp store, which does not tell.",
    ),
    bandwidth!(
        1,
        "bandwidth.p10",
        10,
        "10th percentile of bandwidths, last 60 s"
    ),
    bandwidth!(2, "bandwidth.p50", 50, "median bandwidth, last 60 s"),
    bandwidth!(
        3,
        "bandwidth.p90",
        90,
        "90th percentile of bandwidths, last 60 s"
    ),
    of_agent(
        (23, 4),
        "bandwidth.unpaired",
        Get::U64(|agent, _| agent.of_ring(agent.entry.account.pairing.unpaired())),
        (Semantics::Counter, Units::Count),
        "events whose transfer was not complete",
        "\
Times and sizes whose counterpart is missing, so that the bandwidth of their
transfer is not known and not in nixl.bandwidth: a full ring cuts a transfer in
two, and an agent may not write all of it.",
    ),
];

/// PCP has no integers for what is a quantile beside it.
#[allow(clippy::cast_precision_loss)]
fn as_f64(value: u64) -> f64 {
    value as f64
}
