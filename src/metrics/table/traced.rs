// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 25: transfers in flight, by process and remote agent.

use super::{EVENTS, Kind, LEVEL, MILLISECONDS, Name, Pmid, Read, metric};
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};
use crate::transport::traced::TracedPair;

const TOTAL_TIME: Kind = (Semantics::Counter, Units::Microsecond);

const fn traced(pmid: Pmid, name: Name, kind: Kind, get: Read<TracedPair, u64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Traced(Get::U64(get)))
}

pub(super) const ROWS: &[Metric] = rows![
    /// transfers in flight to or from the remote agent
    /// Transfers that the application has posted and not released, on any transport,
    /// with or without telemetry. NIXL tells of the end of a transfer only to the
    /// application that polls for it: one that keeps its handle after the end counts as
    /// in flight until it releases the handle or posts it again. Engines release it at
    /// once.
    traced((25, 0), "trace.in_flight", LEVEL, |pair| Some(pair.reading.in_flight)),
    /// time since the oldest transfer in flight was posted
    /// Milliseconds. A transfer that hangs has an age that only grows, and tells which
    /// remote agent it waits for, over RDMA and shared memory, too. No value: none is
    /// in flight. See nixl.trace.in_flight for applications that keep their handles.
    traced((25, 1), "trace.oldest_age", MILLISECONDS, TracedPair::oldest_age),
    /// transfers that were posted
    /// Calls of postXferReq since tracing began. They are nixl.trace.released,
    /// nixl.trace.reposted, nixl.trace.failed and nixl.trace.in_flight together, but
    /// for those between two readings of these numbers.
    traced((25, 2), "trace.posted", EVENTS, |pair| Some(pair.reading.posted)),
    /// transfers that were released
    /// Transfers whose handle was released after the post, which an application does
    /// after the end of a transfer, or to give it up. With trace_failed_posts, also
    /// those that were done at their post.
    traced((25, 3), "trace.released", EVENTS, |pair| Some(pair.reading.released)),
    /// transfers whose handle was posted again
    /// Transfers that ended without a release, since their handle was posted again.
    /// Their time is not known and is in no bucket.
    traced((25, 4), "trace.reposted", EVENTS, |pair| Some(pair.reading.reposted)),
    /// transfers that failed at their post
    /// Calls of postXferReq that returned an error: a disconnected peer, or arguments
    /// that the backend rejects. No value: trace_failed_posts is false.
    traced((25, 5), "trace.failed", EVENTS, |pair| pair.reading.failed),
    /// time of the released transfers
    /// Microseconds from the post to the release, of all released transfers together.
    /// Divided by nixl.trace.released it is the mean. It includes the time in which the
    /// application did not poll.
    traced((25, 6), "trace.xfer_time.sum", TOTAL_TIME, |pair| Some(pair.reading.time / 1000)),
    /// released transfers that took no longer than a bound
    /// Transfers from post to release within the bound in the name and label le of the
    /// instance. The counts are cumulative, as in Prometheus; the last is
    /// nixl.trace.released.
    metric((25, 7), "trace.xfer_time.bucket", EVENTS, ValueSource::TracedTimes),
];
