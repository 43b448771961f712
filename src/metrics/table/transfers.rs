// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 20 to 23: distribution of transfers by time, size and bandwidth.

use super::{EVENTS, INSTANT, Kind, Name, Pmid, TIME, agent_f64, agent_u64, metric};
use crate::agents::Agent;
use crate::metrics::ValueSource::{Buckets, Cumulative, Slowness};
use crate::metrics::{Metric, Semantics, Units};
use crate::stats::Histogram::{self, Bandwidth, PostTime, Size, XferTime};

const BANDWIDTH: Kind = (Semantics::Instant, Units::BytePerSecond);

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

pub(super) const ROWS: &[Metric] = &[
    buckets((20, 0), "latency.xfer_time.buckets", XferTime),
    buckets((20, 1), "latency.post_time.buckets", PostTime),
    cumulative(2, "latency.xfer_time.bucket", XferTime),
    cumulative(3, "latency.post_time.bucket", PostTime),
    time(0, "latency.xfer_time.p50", |agent| agent.xfer_time(50)),
    time(1, "latency.xfer_time.p90", |agent| agent.xfer_time(90)),
    time(2, "latency.xfer_time.p99", |agent| agent.xfer_time(99)),
    // A floating-point number, as the percentiles are.
    time(3, "latency.xfer_time.max", |agent| {
        agent.max(&agent.windows.xfer_time).map(|max| max as f64)
    }),
    time(4, "latency.post_time.p50", |agent| agent.post_time(50)),
    time(5, "latency.post_time.p90", |agent| agent.post_time(90)),
    time(6, "latency.post_time.p99", |agent| agent.post_time(99)),
    time(7, "latency.post_time.max", |agent| {
        agent.max(&agent.windows.post_time).map(|max| max as f64)
    }),
    metric((21, 8), "latency.xfer_time.slowness", INSTANT, Slowness),
    buckets((22, 0), "size.buckets", Size),
    buckets((23, 0), "bandwidth.buckets", Bandwidth),
    agent_f64((23, 1), "bandwidth.p10", BANDWIDTH, |agent| {
        agent.windows.bandwidth.percentile(10)
    }),
    agent_f64((23, 2), "bandwidth.p50", BANDWIDTH, |agent| {
        agent.windows.bandwidth.percentile(50)
    }),
    agent_f64((23, 3), "bandwidth.p90", BANDWIDTH, |agent| {
        agent.windows.bandwidth.percentile(90)
    }),
    agent_u64((23, 4), "bandwidth.unpaired", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.pairing.unpaired())
    }),
];
