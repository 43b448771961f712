//! Clusters 20 to 23: distribution of transfers by time, size and bandwidth.

use super::{agent_metric, cumulative, histogram};
use crate::agents::Agent;
use crate::base::clock::Now;
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};
use crate::stats::Histogram;

const MICROSECONDS: (Semantics, Units) = (Semantics::Instant, Units::Microsecond);
const BANDWIDTH: (Semantics, Units) = (Semantics::Instant, Units::BytePerSecond);

/// A quantile of the last 60 s. The help of the instance domain of agents explains all quantiles.
macro_rules! quantile {
    ($pmid:expr, $name:literal, $units:expr, $get:expr, $oneline:literal, $what:literal) => {
        agent_metric(
            $pmid,
            $name,
            Get::F64($get),
            $units,
            $oneline,
            concat!(
                $what,
                "\nOf transfers completed in the last minute: see pminfo -T 39.0."
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
            "Microseconds from the start of a transfer until the initiator found it complete."
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
            "Microseconds from the start of a transfer until NIXL's backend accepted it."
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
            "\
Bytes of a transfer per second from its start to its completion; at most 4.4
TB/s, since times are whole microseconds."
        )
    };
}

pub(super) const ROWS: &[Metric] = &[
    histogram(
        (20, 0),
        "latency.xfer_time.buckets",
        Histogram::XferTime,
        "transfers by time from start to completion",
        "\
Completed transfers by the time from their start until the initiator found them
complete. Each transfer counts in one bucket, unlike in Prometheus. The bounds
are in the names and labels of the instances.",
    ),
    histogram(
        (20, 1),
        "latency.post_time.buckets",
        Histogram::PostTime,
        "transfers by time to post them",
        "\
Transfers by the time from their start until NIXL's backend accepted them. Each
transfer counts in one bucket, unlike in Prometheus. The bounds are in the names
and labels of the instances.",
    ),
    cumulative(
        (20, 2),
        "latency.xfer_time.bucket",
        Histogram::XferTime,
        "transfers by time from start to completion, cumulative",
        "\
Completed transfers that took at most the bound of the instance, as a histogram
of Prometheus counts them: for histogram_quantile of the rate of
nixl_latency_xfer_time_bucket as pmproxy exports it, summed without (instid,
instname). Transfers counted before the bounds were changed are in it. For
archives and PCP's tools use nixl.latency.xfer_time.buckets.",
    ),
    cumulative(
        (20, 3),
        "latency.post_time.bucket",
        Histogram::PostTime,
        "transfers by time to post them, cumulative",
        "\
Transfers that took at most the bound of the instance to post, as a histogram of
Prometheus counts them: for histogram_quantile of the rate of
nixl_latency_post_time_bucket as pmproxy exports it, summed without (instid,
instname). Transfers counted before the bounds were changed are in it. For
archives and PCP's tools use nixl.latency.post_time.buckets.",
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
        |agent, _| agent.max(&agent.windows.xfer_time).map(as_f64)
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
        |agent, _| agent.max(&agent.windows.post_time).map(as_f64)
    ),
    Metric {
        cluster: 21,
        item: 8,
        name: "latency.xfer_time.slowness",
        source: ValueSource::Slowness,
        semantics: Semantics::Instant,
        units: Units::None,
        oneline: "median transfer time divided by its peers' mean median",
        help: "\
Median transfer time (p50) of the agent, divided by the mean of its peers'
medians: about 1 for ranks that do the same work, far above for one that delays
the others. Peers have the same engine, role, pod_uid, container_id,
slurm_job_id and user in their labels; without any but user, also the same
directory. With few transfers it says little. No value: the agent or all its
peers have completed nothing in the last minute, or less than 1 us is the mean.",
    },
    histogram(
        (22, 0),
        "size.buckets",
        Histogram::Size,
        "transfers by size",
        "\
Completed transfers, WRITE and READ together, by their bytes. Each counts in one
bucket. The bounds are in the names and labels of the instances. No value: the
agent has a prometheus_mp store, which does not tell.",
    ),
    histogram(
        (23, 0),
        "bandwidth.buckets",
        Histogram::Bandwidth,
        "transfers by bandwidth",
        "\
Completed transfers by their bytes per second from start to completion, where a
time of 0 counts as one microsecond. Transfers overlap: for the rate on the wire
see the rates of nixl.transfer.tx_bytes and .rx_bytes. A sudden drop shows a
slow path (TCP in place of RDMA) or contention. No value: the agent has a
prometheus_mp store, which does not tell.",
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
    agent_metric(
        (23, 4),
        "bandwidth.unpaired",
        Get::U64(|agent, _| agent.of_ring(agent.entry.stats.pairing.unpaired())),
        (Semantics::Counter, Units::Count),
        "size or time events without their counterpart",
        "\
Events of a size or a time whose counterpart is missing, so that the transfer's
bandwidth is not in nixl.bandwidth: a full ring cut the transfer in two, or the
agent does not write both events.",
    ),
];

/// Converts to f64, because the other percentiles, which are interpolated for stores, are floating-point.
#[allow(clippy::cast_precision_loss)]
fn as_f64(value: u64) -> f64 {
    value as f64
}
