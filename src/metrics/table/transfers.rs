//! Clusters 20 to 23: distribution of transfers by time, size and bandwidth.

use super::{EVENTS, TIME, metric};
use crate::agents::Agent;
use crate::base::clock::Now;
use crate::metrics::ValueSource::{Agent as PerAgent, Buckets, Cumulative, Slowness};
use crate::metrics::{Get, Metric, Semantics, Units};
use crate::stats::Histogram;

const BANDWIDTH: (Semantics, Units) = (Semantics::Instant, Units::BytePerSecond);

/// A quantile of transfer times in the last 60 s.
const fn time(item: u32, name: &'static str, value: fn(&Agent, &Now) -> Option<f64>) -> Metric {
    metric((21, item), name, PerAgent(Get::F64(value)), TIME)
}

pub(super) const ROWS: &[Metric] = &[
    metric(
        (20, 0),
        "latency.xfer_time.buckets",
        Buckets(Histogram::XferTime),
        EVENTS,
    ),
    metric(
        (20, 1),
        "latency.post_time.buckets",
        Buckets(Histogram::PostTime),
        EVENTS,
    ),
    metric(
        (20, 2),
        "latency.xfer_time.bucket",
        Cumulative(Histogram::XferTime),
        EVENTS,
    ),
    metric(
        (20, 3),
        "latency.post_time.bucket",
        Cumulative(Histogram::PostTime),
        EVENTS,
    ),
    time(0, "latency.xfer_time.p50", |agent, _| agent.xfer_time(50)),
    time(1, "latency.xfer_time.p90", |agent, _| agent.xfer_time(90)),
    time(2, "latency.xfer_time.p99", |agent, _| agent.xfer_time(99)),
    time(3, "latency.xfer_time.max", |agent, _| {
        agent.max(&agent.windows.xfer_time).map(as_f64)
    }),
    time(4, "latency.post_time.p50", |agent, _| agent.post_time(50)),
    time(5, "latency.post_time.p90", |agent, _| agent.post_time(90)),
    time(6, "latency.post_time.p99", |agent, _| agent.post_time(99)),
    time(7, "latency.post_time.max", |agent, _| {
        agent.max(&agent.windows.post_time).map(as_f64)
    }),
    metric(
        (21, 8),
        "latency.xfer_time.slowness",
        Slowness,
        (Semantics::Instant, Units::None),
    ),
    metric((22, 0), "size.buckets", Buckets(Histogram::Size), EVENTS),
    metric(
        (23, 0),
        "bandwidth.buckets",
        Buckets(Histogram::Bandwidth),
        EVENTS,
    ),
    metric(
        (23, 1),
        "bandwidth.p10",
        PerAgent(Get::F64(|agent, _| agent.windows.bandwidth.percentile(10))),
        BANDWIDTH,
    ),
    metric(
        (23, 2),
        "bandwidth.p50",
        PerAgent(Get::F64(|agent, _| agent.windows.bandwidth.percentile(50))),
        BANDWIDTH,
    ),
    metric(
        (23, 3),
        "bandwidth.p90",
        PerAgent(Get::F64(|agent, _| agent.windows.bandwidth.percentile(90))),
        BANDWIDTH,
    ),
    metric(
        (23, 4),
        "bandwidth.unpaired",
        PerAgent(Get::U64(|agent, _| {
            agent.of_ring(agent.entry.stats.pairing.unpaired())
        })),
        EVENTS,
    ),
];

/// Converts to f64, because the other percentiles, which are interpolated for stores, are floating-point.
#[allow(clippy::cast_precision_loss)]
fn as_f64(value: u64) -> f64 {
    value as f64
}
