// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 20 to 23: distribution of transfers by time, size and bandwidth.
//!
//! Retired: 21:8 latency.xfer_time.slowness, 23:3 bandwidth.p90.

use super::{EVENTS, INSTANT, Kind, Name, Pmid, TIME, agent_f64, agent_u64, metric};
use crate::agents::Agent;
use crate::metrics::ValueSource::{Buckets, Cumulative, PeerRatio};
use crate::metrics::{Metric, Semantics, Units};
use crate::stats::Histogram::{self, Bandwidth, PostTime, Size, XferTime};

const BANDWIDTH: Kind = (Semantics::Instant, Units::BytePerSecond);
const TIMES: Kind = (Semantics::Counter, Units::Microsecond);

const fn buckets(pmid: Pmid, name: Name, of: Histogram) -> Metric {
    metric(pmid, name, EVENTS, Buckets(of))
}

const fn cumulative(item: u32, name: Name, of: Histogram) -> Metric {
    metric((20, item), name, EVENTS, Cumulative(of))
}

/// A quantile of transfer times in the last 60 s.
const fn time(item: u32, name: Name, get: fn(&Agent) -> Option<f64>) -> Metric {
    agent_f64((21, item), name, TIME, get)
}

pub(super) const ROWS: &[Metric] = rows![
    /// transfers by time from start to completion, per bucket
    /// Completed transfers, each in the one bucket of its time, while
    /// nixl.latency.xfer_time.bucket also counts each in all larger ones. The time is
    /// from the start until the initiator found the transfer complete. The bounds are
    /// in the names and labels of the instances. Use these in archives and PCP's tools.
    buckets((20, 0), "latency.xfer_time.histogram", XferTime),
    /// transfers by time to post them, per bucket
    /// Transfers, each in the one bucket of its time, while
    /// nixl.latency.post_time.bucket also counts each in all larger ones. The time is
    /// from the start until NIXL's backend accepted the transfer. The bounds are in the
    /// names and labels of the instances. Use these in archives and PCP's tools.
    buckets((20, 1), "latency.post_time.histogram", PostTime),
    /// transfers by time from start to completion, cumulative
    /// Completed transfers, each in the bucket of its time and all larger ones, while
    /// nixl.latency.xfer_time.histogram counts each in one. For histogram_quantile of
    /// the rate of nixl_latency_xfer_time_bucket as pmproxy exports it, summed without
    /// (instid, instname). A change of the bounds begins at zero, with other instances.
    cumulative(2, "latency.xfer_time.bucket", XferTime),
    /// transfers by time to post them, cumulative
    /// Transfers, each in the bucket of its time to post and all larger ones, while
    /// nixl.latency.post_time.histogram counts each in one. For histogram_quantile of
    /// the rate of nixl_latency_post_time_bucket as pmproxy exports it, summed without
    /// (instid, instname). A change of the bounds begins at zero, with other instances.
    cumulative(3, "latency.post_time.bucket", PostTime),
    /// sum of the transfer times in the histogram
    /// Sum of the times of all transfers in nixl.latency.xfer_time.bucket, in
    /// microseconds: _sum of Prometheus' histograms. Unlike
    /// nixl.performance.xfer_time_us it begins at zero when the bounds change.
    agent_u64((20, 4), "latency.xfer_time.sum", TIMES, |agent| {
        agent.counted(agent.entry.stats.histogram_sums()[0])
    }),
    /// transfers in the histogram of transfer times
    /// Transfers in all buckets of nixl.latency.xfer_time.histogram: _count of
    /// Prometheus' histograms.
    agent_u64((20, 5), "latency.xfer_time.count", EVENTS, |agent| {
        agent.counted(agent.entry.stats.histogram_count(XferTime))
    }),
    /// sum of the times to post in the histogram
    /// Sum of the times of all transfers in nixl.latency.post_time.bucket, in
    /// microseconds: _sum of Prometheus' histograms. Unlike
    /// nixl.performance.xfer_post_time_us it begins at zero when the bounds change.
    agent_u64((20, 6), "latency.post_time.sum", TIMES, |agent| {
        agent.counted(agent.entry.stats.histogram_sums()[1])
    }),
    /// transfers in the histogram of times to post
    /// Transfers in all buckets of nixl.latency.post_time.histogram: _count of
    /// Prometheus' histograms.
    agent_u64((20, 7), "latency.post_time.count", EVENTS, |agent| {
        agent.counted(agent.entry.stats.histogram_count(PostTime))
    }),
    /// median transfer time, last 60 s
    /// Microseconds from the start of a transfer until the initiator found it complete.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, and nixl.latency.post_time is too, check the CPU of the
    /// agent's process; else check its link and the remote agent.
    time(0, "latency.xfer_time.p50", |agent| agent.xfer_time(50)),
    /// 90th percentile of transfer times, last 60 s
    /// Microseconds from the start of a transfer until the initiator found it complete.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, and nixl.latency.post_time is too, check the CPU of the
    /// agent's process; else check its link and the remote agent.
    time(1, "latency.xfer_time.p90", |agent| agent.xfer_time(90)),
    /// 99th percentile of transfer times, last 60 s
    /// Microseconds from the start of a transfer until the initiator found it complete.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, and nixl.latency.post_time is too, check the CPU of the
    /// agent's process; else check its link and the remote agent.
    time(2, "latency.xfer_time.p99", |agent| agent.xfer_time(99)),
    /// longest transfer time, last 60 s
    /// Microseconds from the start of a transfer until the initiator found it complete.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, and nixl.latency.post_time is too, check the CPU of the
    /// agent's process; else check its link and the remote agent.
    // A floating-point number, as the percentiles are.
    time(3, "latency.xfer_time.max", |agent| {
        agent.max(&agent.windows.xfer_time).map(|max| max as f64)
    }),
    /// median time to post, last 60 s
    /// Microseconds from the start of a transfer until NIXL's backend accepted it.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, check the CPU and NUMA node that the agent's process runs on, and
    /// whether its container is throttled.
    time(4, "latency.post_time.p50", |agent| agent.post_time(50)),
    /// 90th percentile of times to post, last 60 s
    /// Microseconds from the start of a transfer until NIXL's backend accepted it.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, check the CPU and NUMA node that the agent's process runs on, and
    /// whether its container is throttled.
    time(5, "latency.post_time.p90", |agent| agent.post_time(90)),
    /// 99th percentile of times to post, last 60 s
    /// Microseconds from the start of a transfer until NIXL's backend accepted it.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, check the CPU and NUMA node that the agent's process runs on, and
    /// whether its container is throttled.
    time(6, "latency.post_time.p99", |agent| agent.post_time(99)),
    /// longest time to post, last 60 s
    /// Microseconds from the start of a transfer until NIXL's backend accepted it.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    /// If it is high, check the CPU and NUMA node that the agent's process runs on, and
    /// whether its container is throttled.
    time(7, "latency.post_time.max", |agent| {
        agent.max(&agent.windows.post_time).map(|max| max as f64)
    }),
    /// transfer time divided by the median of its peers, last 60 s
    /// About 1 for ranks that do the same work, far above for one that delays others:
    /// check what the help of p50 names. Geometric means over transfers of like size
    /// (buckets of nixl.operation.size); of stores, which have no sizes, medians.
    /// Peers, the agent included, have the same labels engine, role, pod_uid,
    /// container_id, slurm_job_id and user; without any but user, the same directory.
    /// No value: the agent has exited, or no peer completed transfers of like size.
    metric((21, 9), "latency.xfer_time.peer_ratio", INSTANT, PeerRatio),
    /// transfers by size
    /// Completed transfers, WRITE and READ together, by their bytes. Each counts in one
    /// bucket. The bounds are in the names and labels of the instances. No value: the
    /// agent has a prometheus_mp store, which does not tell.
    buckets((22, 0), "operation.size.histogram", Size),
    /// transfers by bandwidth
    /// Completed transfers by their bytes per second from start to completion, where a
    /// time of 0 counts as one microsecond. Transfers overlap: for the rate on the wire
    /// see the rates of nixl.transfer.tx_bytes and .rx_bytes. A sudden drop shows a
    /// slow path (TCP in place of RDMA) or contention. No value: the agent has a
    /// prometheus_mp store, which does not tell.
    buckets((23, 0), "operation.bandwidth.histogram", Bandwidth),
    /// 10th percentile of bandwidths, last 60 s
    /// Bytes of a transfer per second from its start to its completion. Times are whole
    /// microseconds. Values above 4.4 TB/s (2^42 bytes/s) are shown as that.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    agent_f64((23, 1), "operation.bandwidth.p10", BANDWIDTH, |agent| {
        agent.windows.bandwidth.percentile(10)
    }),
    /// median bandwidth, last 60 s
    /// Bytes of a transfer per second from its start to its completion. Times are whole
    /// microseconds. Values above 4.4 TB/s (2^42 bytes/s) are shown as that.
    /// Of transfers completed in the last minute: see pminfo -T 39.0.
    agent_f64((23, 2), "operation.bandwidth.p50", BANDWIDTH, |agent| {
        agent.windows.bandwidth.percentile(50)
    }),
    /// size or time events without their counterpart
    /// Events of a size or a time whose counterpart is missing, so that the transfer's
    /// bandwidth is not in nixl.operation.bandwidth: a full ring cut the transfer in
    /// two, or the agent does not write both events.
    agent_u64((23, 4), "ring.unpaired", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.pairing.unpaired())
    }),
];
