// SPDX-License-Identifier: GPL-2.0-or-later

//! Metrics: their types, and the table [`METRICS`] with one row for each metric.
//!
//! Registration, values, and the files `pmns`, `help` and docs/metrics.md are made from that table. Clusters 0 to 3 are
//! exactly those of the Python PMDA of PCP (`src/pmdas/nixl`). Clusters of this PMDA begin at 16. Items are never
//! renumbered.

use crate::agents::Agent;
use crate::event::EventType;
use crate::metrics::control::Control;
use crate::stats::Histogram;
use crate::timeline::Timeline;
use crate::transport::TransportProcess;
use crate::transport::peers::Peer;
use crate::transport::traced::TracedPair;

pub mod control;
mod indoms;
pub mod peer_ratio;
mod table;
pub use indoms::*;
pub use table::METRICS;

/// Domain number that PCP has registered for NIXL (`stdpmid.pcp`). The option -d overrides it.
pub const DOMAIN: u32 = 39;

/// Row of the metric table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Cluster of the PMID.
    pub cluster: u32,
    /// Item of the PMID.
    pub item: u32,
    /// Name below `nixl.`.
    pub name: &'static str,
    /// Where the values come from. Decides about type and instance domain.
    pub source: ValueSource,
    /// PCP semantics.
    pub semantics: Semantics,
    /// PCP units.
    pub units: Units,
    /// Short help text, after a blank.
    pub oneline: &'static str,
    /// Long help text: before each line are a line end and, unless it is empty, a blank.
    pub help: &'static str,
}

/// Where the values of a metric come from, with their type and number.
#[derive(Clone, Copy, Debug)]
pub enum ValueSource {
    /// Sum of an agent's events of one type: u64, one value per agent.
    Event(EventType),
    /// Any other value of an agent: one value per agent.
    Agent(Get<Agent>),
    /// Transfer time of an agent compared with its peers: f64, one value per agent that has peers.
    PeerRatio,
    /// Histogram of an agent: u64, one value per agent and bucket.
    Buckets(Histogram),
    /// Cumulative histogram of times of an agent: u64, one value per agent and upper bound.
    Cumulative(Histogram),
    /// A value of a process that uses NIXL: one value per process.
    Process(Get<TransportProcess>),
    /// A value of a peer of an agent: one value per agent and peer.
    Peer(Get<Peer>),
    /// A value of an agent, for each of its peers.
    AgentOfPeer(Get<Agent>),
    /// A value of a process and a remote agent: one value per pair.
    Traced(Get<TracedPair>),
    /// Cumulative histogram of times of traced transfers: u64, one value per pair and upper bound.
    TracedTimes,
    /// Cumulative histogram of times over the agents of each role: u64, one value per role and upper bound.
    RoleTimes(Histogram),
    /// Sum of all events of one type on this host: u64, one value.
    Host(EventType),
    /// A value of the PMDA itself: one value.
    Control(Get<Control>),
    /// A value of the timeline: one value. Parameters of event records have none.
    Timeline(Get<Timeline>),
    /// The event records of the timeline that the client has not read yet.
    EventRecords,
}

/// Typed function that reads a value. It returns `None` if there is no value now.
#[derive(Debug)]
pub enum Get<T> {
    /// PM_TYPE_U32.
    U32(fn(&T) -> Option<u32>),
    /// PM_TYPE_U64.
    U64(fn(&T) -> Option<u64>),
    /// PM_TYPE_DOUBLE.
    F64(fn(&T) -> Option<f64>),
    /// PM_TYPE_STRING.
    Text(fn(&T) -> Option<String>),
}

impl<T> Copy for Get<T> {}

impl<T> Clone for Get<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Get<T> {
    /// Reads the value.
    pub fn value(&self, of: &T) -> Option<Value> {
        Some(match self {
            Get::U32(get) => Value::U32(get(of)?),
            Get::U64(get) => Value::U64(get(of)?),
            Get::F64(get) => Value::F64(get(of)?),
            Get::Text(get) => Value::Text(get(of)?),
        })
    }

    fn value_type(&self) -> ValueType {
        match self {
            Get::U32(_) => ValueType::U32,
            Get::U64(_) => ValueType::U64,
            Get::F64(_) => ValueType::F64,
            Get::Text(_) => ValueType::Text,
        }
    }
}

/// Type of a metric (PM_TYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// PM_TYPE_U32.
    U32,
    /// PM_TYPE_U64.
    U64,
    /// PM_TYPE_DOUBLE.
    F64,
    /// PM_TYPE_STRING.
    Text,
    /// PM_TYPE_HIGHRES_EVENT.
    EventRecords,
}

/// Value of a fetch.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// PM_TYPE_U32.
    U32(u32),
    /// PM_TYPE_U64.
    U64(u64),
    /// PM_TYPE_DOUBLE.
    F64(f64),
    /// PM_TYPE_STRING.
    Text(String),
}

/// Semantics of a metric (PM_SEM_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// PM_SEM_COUNTER: only grows.
    Counter,
    /// PM_SEM_INSTANT: a level.
    Instant,
    /// PM_SEM_DISCRETE: rarely changes.
    Discrete,
}

/// Units of a metric: dimension and scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// No units.
    None,
    /// Bytes.
    Byte,
    /// Counts.
    Count,
    /// Microseconds.
    Microsecond,
    /// Milliseconds.
    Millisecond,
    /// Seconds.
    Second,
    /// Bytes per second.
    BytePerSecond,
}

impl Metric {
    /// Returns the serial number of the instance domain. `None`: the metric has one value.
    #[must_use]
    pub fn indom(&self) -> Option<u32> {
        match self.source {
            ValueSource::Event(_) | ValueSource::Agent(_) | ValueSource::PeerRatio => Some(AGENTS),
            ValueSource::Buckets(Histogram::XferTime | Histogram::PostTime) => Some(LATENCIES),
            ValueSource::Buckets(Histogram::Size) => Some(SIZES),
            ValueSource::Buckets(Histogram::Bandwidth) => Some(BANDWIDTHS),
            ValueSource::Cumulative(_) => Some(CUMULATIVE_TIMES),
            ValueSource::RoleTimes(_) => Some(ROLE_TIMES),
            ValueSource::Traced(_) => Some(TRACED),
            ValueSource::TracedTimes => Some(TRACED_TIMES),
            ValueSource::Process(_) => Some(PROCESSES),
            ValueSource::Peer(_) | ValueSource::AgentOfPeer(_) => Some(PEERS),
            ValueSource::Host(_)
            | ValueSource::Control(_)
            | ValueSource::Timeline(_)
            | ValueSource::EventRecords => None,
        }
    }

    /// Returns the type of the values.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self.source {
            ValueSource::Event(_)
            | ValueSource::Buckets(_)
            | ValueSource::Cumulative(_)
            | ValueSource::RoleTimes(_)
            | ValueSource::TracedTimes
            | ValueSource::Host(_) => ValueType::U64,
            ValueSource::Agent(get) | ValueSource::AgentOfPeer(get) => get.value_type(),
            ValueSource::PeerRatio => ValueType::F64,
            ValueSource::Process(get) => get.value_type(),
            ValueSource::Peer(get) => get.value_type(),
            ValueSource::Traced(get) => get.value_type(),
            ValueSource::Control(get) => get.value_type(),
            ValueSource::Timeline(get) => get.value_type(),
            ValueSource::EventRecords => ValueType::EventRecords,
        }
    }
}

/// Returns the metric with this cluster and item.
#[must_use]
pub fn find(cluster: u32, item: u32) -> Option<&'static Metric> {
    let at = METRICS
        .binary_search_by_key(&(cluster, item), |metric| (metric.cluster, metric.item))
        .ok()?;
    Some(&METRICS[at])
}

/// Clusters of the host: sums over all agents, and numbers of agents.
pub const HOST: [u32; 2] = [30, 31];
/// Cluster of the sums over the agents of each role.
pub const HOST_ROLES: u32 = 32;
/// Cluster of the metrics of the PMDA itself.
pub const CONTROL: u32 = 40;
/// Cluster of the timeline.
pub const TIMELINE: u32 = 43;
/// Cluster and item of `events.records`.
pub const RECORDS: (u32, u32) = (TIMELINE, 0);
/// Items of kind, agent, server, value and text, the parameters of an event record.
pub const PARAMETERS: [u32; 5] = table::timeline::PARAMETERS;
/// Cluster and item of `control.debug`, a target of pmStore(3).
pub const DEBUG: (u32, u32) = (CONTROL, 7);
/// Cluster and item of `control.reload`. pmStore(3) to it reads the configuration again.
pub const RELOAD: (u32, u32) = (CONTROL, 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmids_are_sorted_and_unique_and_found() {
        assert!(METRICS.is_sorted_by(|a, b| (a.cluster, a.item) < (b.cluster, b.item)));
        for metric in METRICS.iter() {
            assert_eq!(
                find(metric.cluster, metric.item).map(|found| found.name),
                Some(metric.name)
            );
        }
        assert!(find(0, 4).is_none());
        for ((cluster, item), name) in [
            (DEBUG, "control.debug"),
            (RELOAD, "control.reload"),
            (RECORDS, "events.records"),
        ] {
            assert_eq!(find(cluster, item).map(|found| found.name), Some(name));
        }
    }

    #[test]
    fn names_are_unique_and_in_pcps_form() {
        let mut names = std::collections::HashSet::new();
        for Metric { name, .. } in METRICS.iter() {
            assert!(names.insert(name), "{name}");
            let allowed = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.".contains(&byte)
            };
            assert!(
                name.bytes().all(allowed)
                    && name
                        .split('.')
                        .all(|part| part.starts_with(char::is_alphabetic))
            );
        }
    }

    #[test]
    fn help_of_each_metric_fits_a_terminal() {
        for metric in METRICS.iter() {
            let oneline = metric.oneline.trim_start();
            assert!(
                (1..=60).contains(&oneline.len()) && !oneline.ends_with('.'),
                "{oneline}"
            );
            let lines: Vec<&str> = metric.help.split("\n ").skip(1).collect();
            // Lines that begin with @ or # have a meaning for newhelp(1).
            let fits = |line: &&str| line.len() <= 80 && !line.starts_with(['@', '#']);
            assert!(
                metric.help.ends_with('.') && lines.len() <= 6 && lines.iter().all(fits),
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn every_event_type_is_summed_per_agent_and_for_the_host() {
        for event in EventType::ALL {
            let count = |is: &dyn Fn(&ValueSource) -> bool| {
                let rows = METRICS.iter().filter(|metric| is(&metric.source));
                rows.count()
            };
            let is_drop = event == EventType::EventsDropped;
            let per_agent =
                count(&|source| matches!(source, ValueSource::Event(of) if *of == event));
            let of_host = count(&|source| matches!(source, ValueSource::Host(of) if *of == event));
            // The host has what is registered now: sums are wrong once an agent was killed.
            let is_memory = matches!(
                event,
                EventType::MemoryRegistered | EventType::MemoryDeregistered
            );
            // The metric `queue.dropped` of an agent handles rings that do not report drops.
            assert_eq!(
                (per_agent, of_host),
                (usize::from(!is_drop), usize::from(!is_memory)),
                "{event:?}"
            );
        }
    }

    #[test]
    fn python_pmda_metrics_are_all_present() {
        // PCP 7.2, qa/1999.out.
        let errors = "not_posted invalid_param backend not_found mismatch not_allowed repost_active unknown not_supported \
                      remote_disconnect canceled no_telemetry";
        let clusters = [
            ("transfer", Units::Byte, "tx_bytes rx_bytes"),
            ("memory", Units::Byte, "registered deregistered"),
            (
                "performance",
                Units::Microsecond,
                "xfer_time_us xfer_post_time_us",
            ),
            ("errors", Units::Count, errors),
        ];
        for (cluster, (group, units, names)) in (0..).zip(clusters) {
            for (item, name) in (0..).zip(names.split_whitespace()) {
                let metric = find(cluster, item).expect(name);
                assert_eq!(metric.name, format!("{group}.{name}"));
                assert_eq!(
                    (metric.semantics, metric.units),
                    (Semantics::Counter, units)
                );
                assert!(metric.indom() == Some(AGENTS) && metric.value_type() == ValueType::U64);
            }
        }
        for (item, name) in [(2, "transfer.tx_requests"), (3, "transfer.rx_requests")] {
            let metric = find(0, item).expect(name);
            assert_eq!((metric.name, metric.units), (name, Units::Count));
        }
    }
}
