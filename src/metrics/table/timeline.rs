// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 43: the timeline.

use super::{EVENTS, FACT, Kind, Name, Pmid, Read, metric};
use crate::metrics::{Get, Metric, ValueSource};
use crate::timeline::Timeline;

const fn timeline_u64(pmid: Pmid, name: Name, kind: Kind, get: Read<Timeline, u64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Timeline(Get::U64(get)))
}

const fn timeline_text(pmid: Pmid, name: Name, get: Read<Timeline, String>) -> Metric {
    metric(pmid, name, FACT, ValueSource::Timeline(Get::Text(get)))
}

const fn event_records(pmid: Pmid, name: Name) -> Metric {
    metric(pmid, name, super::INSTANT, ValueSource::EventRecords)
}

pub(super) const ROWS: &[Metric] = rows![
    /// what happened: event records
    /// Events since the last fetch of the client; at its first fetch all that are
    /// kept, 256 KiB, since the PMDA started. Their time is when the PMDA recorded
    /// them, up to a drain interval after they happened, longer where the text says so.
    /// Parameters: the other metrics of nixl.events. pmevent and pcp nixl --events
    /// print them; a client that reads too late gets an event of the kind missed.
    event_records((43, 0), "events.records"),
    /// kind of an event: ring_full, exited and others
    /// Parameter of nixl.events.records, which has no value of its own. Kinds that end
    /// in _end, and observer_back, end what another kind began. docs/tools.md lists all
    /// kinds.
    timeline_text((43, 1), "events.kind", |_| None),
    /// agent of an event
    /// Parameter of nixl.events.records, which has no value of its own: the instance
    /// name of the agent. Empty if the event is of the host.
    timeline_text((43, 2), "events.agent", |_| None),
    /// server and rank of the agent of an event
    /// Parameter of nixl.events.records, which has no value of its own: what
    /// nixl.agent.server and nixl.agent.rank were then. Empty if neither was known.
    timeline_text((43, 3), "events.server", |_| None),
    /// number of an event
    /// Parameter of nixl.events.records, which has no value of its own: a count, a
    /// percentage, seconds or microseconds, depending on nixl.events.kind. The text
    /// has it in words.
    timeline_u64((43, 4), "events.value", FACT, |_| None),
    /// event in words
    /// Parameter of nixl.events.records, which has no value of its own: one line with
    /// agent, server and what happened.
    timeline_text((43, 5), "events.text", |_| None),
    /// number of events
    /// Events that were recorded since the start of the PMDA. Beyond 64 KiB in a minute
    /// the events of a user are left out, and one event says how many.
    timeline_u64((43, 6), "events.count", EVENTS, |timeline| Some(timeline.recorded())),
    /// last 32 events
    /// The last 32 events as a JSON array, the oldest first, for clients that cannot
    /// read event records, such as pmproxy's. Each has number, time (seconds since
    /// 1970), kind, agent, server, value and text. Numbers begin at 0 when the PMDA
    /// starts.
    timeline_text((43, 7), "events.last", |timeline| Some(timeline.last())),
];

/// Items of the parameters of an event record, in their order in a record.
pub(in crate::metrics) const PARAMETERS: [u32; 5] = [1, 2, 3, 4, 5];
