// SPDX-License-Identifier: GPL-2.0-or-later

//! Answers of a daemon: values by metric and instance name, read through the metric table, and labels.

use super::{Core, Running};
use pmdanixl::agents::Agent;
use pmdanixl::metrics::control::Control;
use pmdanixl::metrics::peer_ratio;
use pmdanixl::metrics::{self, METRICS, Metric, ValueSource};
use pmdanixl::stats::bucket_bounds::BucketBounds;
use pmdanixl::stats::histogram::Bounds;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// Numbers by instance name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, u64>);

impl Values {
    pub fn into_keys(self) -> impl Iterator<Item = String> {
        self.0.into_keys()
    }
}

impl Deref for Values {
    type Target = BTreeMap<String, u64>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<const COUNT: usize> From<[(&str, u64); COUNT]> for Values {
    fn from(values: [(&str, u64); COUNT]) -> Self {
        let values = values.into_iter();
        Self(
            values
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }
}

/// Metric by its name without `nixl.`.
fn metric(name: &str) -> &'static Metric {
    let metric = METRICS.iter().find(|metric| metric.name == name);
    metric.unwrap_or_else(|| panic!("no metric {name}"))
}

fn number(metric: &str, value: metrics::Value) -> u64 {
    match value {
        metrics::Value::U32(value) => value.into(),
        metrics::Value::U64(value) => value,
        other => panic!("{metric} is {other:?}, not a whole number"),
    }
}

impl Core {
    pub(super) fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(super) fn of_agent(&self, metric: &Metric, agent: &Agent) -> Option<metrics::Value> {
        match metric.source {
            ValueSource::Event(event) => agent.counted(metrics::Value::U64(agent.total(event))),
            ValueSource::Agent(get) => get.value(agent),
            ValueSource::PeerRatio => {
                let all = peer_ratio::of_agents(self.running().instances());
                let mut own = all.into_iter().filter(|&(id, _)| agent.id == Some(id));
                own.next().map(|(_, ratio)| metrics::Value::F64(ratio))
            }
            ValueSource::Buckets(_)
            | ValueSource::Cumulative(_)
            | ValueSource::RoleTimes(_)
            | ValueSource::Process(_)
            | ValueSource::Traced(_)
            | ValueSource::TracedTimes
            | ValueSource::Peer(_)
            | ValueSource::AgentOfPeer(_)
            | ValueSource::Host(_)
            | ValueSource::Control(_)
            | ValueSource::Timeline(_)
            | ValueSource::EventRecords => {
                panic!("{} has no value of an agent", metric.name)
            }
        }
    }

    fn instance(&self, name: &str) -> &Agent {
        let found = self.running().instance(name);
        found
            .unwrap_or_else(|| panic!("{name} is not one of {:?}", self.instances()))
            .1
    }

    /// Value of an instance of any type, or `None` without a value.
    pub fn get(&self, name: &str, instance: &str) -> Option<metrics::Value> {
        self.of_agent(metric(name), self.instance(instance))
    }

    /// Value of an instance that must be a whole number.
    pub fn value(&self, name: &str, instance: &str) -> u64 {
        let value = self.get(name, instance);
        number(
            name,
            value.unwrap_or_else(|| panic!("{name} of {instance} has no value")),
        )
    }

    /// Value of an instance that must be a text, or `None` without a value.
    pub fn text(&self, name: &str, instance: &str) -> Option<String> {
        self.get(name, instance).map(|value| match value {
            metrics::Value::Text(text) => text,
            other => panic!("{name} is {other:?}, not a text"),
        })
    }

    /// Whole numbers of all instances that have a value.
    pub fn values(&self, name: &str) -> Values {
        let of = metric(name);
        let values = self.running().instances().filter_map(|(_, agent)| {
            let value = number(name, self.of_agent(of, agent)?);
            Some((agent.name.instance.clone(), value))
        });
        Values(values.collect())
    }

    /// Value of an agent, which need not be an instance, or `None` without a value.
    pub fn remembered(&self, name: &str, agent: &str) -> Option<metrics::Value> {
        let mut all = self.agents().iter();
        let found = all.find(|known| known.name.instance == agent);
        let found = found.unwrap_or_else(|| panic!("no agent {agent}"));
        self.of_agent(metric(name), found)
    }

    /// Whole numbers of all agents, instances or not.
    pub fn all(&self, name: &str) -> Values {
        let of = metric(name);
        let values = self.agents().iter().filter_map(|agent| {
            let value = number(name, self.of_agent(of, agent)?);
            Some((agent.name.instance.clone(), value))
        });
        Values(values.collect())
    }

    /// Value of a metric of the host or of the daemon.
    pub fn host(&self, name: &str) -> u64 {
        let value = self.of_host(metric(name));
        number(name, value.unwrap_or_else(|| panic!("{name} has no value")))
    }

    pub(super) fn of_host(&self, metric: &Metric) -> Option<metrics::Value> {
        match metric.source {
            ValueSource::Host(event) => Some(metrics::Value::U64(self.agents().host_total(event))),
            ValueSource::Control(get) => get.value(&self.control()),
            ValueSource::Timeline(get) => get.value(self.agents().timeline()),
            // They are what one client has not read.
            ValueSource::EventRecords => None,
            _ => panic!("{} has values of agents", metric.name),
        }
    }

    fn control(&self) -> Control {
        let agents = self.agents();
        Control {
            agents: agents.counts(),
            activity: agents.activity(),
            is_persistent: agents.is_persistent(),
            ..Control::default()
        }
    }

    /// Buckets of an instance that have a value: suffix of the name, and count.
    pub fn buckets(&self, name: &str, instance: &str) -> Vec<(String, u64)> {
        let (metric, agent) = (metric(name), self.instance(instance));
        let ranges = match metric.indom() {
            Some(metrics::SIZES) => BucketBounds::of(&Bounds::SIZE),
            Some(metrics::BANDWIDTHS) => BucketBounds::of(&Bounds::BANDWIDTH),
            _ => *agent.entry.stats.bucket_bounds(),
        };
        let mut below = 0;
        let buckets = (0..ranges.bucket_count()).filter_map(|bucket| match metric.source {
            ValueSource::Buckets(of) => Some((ranges.suffix(bucket), agent.bucket(of, bucket)?)),
            ValueSource::Cumulative(of) => {
                below += agent.bucket(of, bucket)?;
                Some((ranges.le_suffix(bucket), below))
            }
            _ => panic!("{name} is not a histogram"),
        });
        buckets.collect()
    }

    /// Sum of the counts of all buckets of an instance.
    pub fn transfers(&self, name: &str, instance: &str) -> u64 {
        let buckets = self.buckets(name, instance).into_iter();
        buckets.map(|(_, count)| count).sum()
    }

    /// Bytes sent by instance.
    pub fn sent(&self) -> Values {
        self.values("transfer.tx_bytes")
    }

    /// Asserts that exactly these instances exist, with these bytes sent.
    #[track_caller]
    pub fn assert_sent<const COUNT: usize>(&self, expected: [(&str, u64); COUNT]) {
        assert_eq!(self.sent(), expected.into());
    }

    /// Bytes sent by all agents of the host.
    pub fn host_sent(&self) -> u64 {
        self.host("host.transfer.tx_bytes")
    }

    /// Asserts that all agents of the host, exited ones included, have sent so many bytes.
    #[track_caller]
    pub fn assert_host_sent(&self, expected: u64) {
        assert_eq!(self.host_sent(), expected, "{:?}", self.sent());
    }

    /// Bytes sent, resets and foreign reads of the only agent.
    pub fn only(&self) -> [u64; 3] {
        ["transfer.tx_bytes", "ring.resets", "ring.foreign_reads"].map(|name| {
            let all = self.all(name);
            assert_eq!(all.len(), 1, "{all:?}");
            all.values().sum()
        })
    }

    /// State of an instance: `live`, `idle`, `exited` or `unknown`.
    pub fn status(&self, instance: &str) -> String {
        self.text("agent.status", instance).expect("a status")
    }

    /// Names and ids of the instances.
    pub fn instances(&self) -> BTreeMap<String, u32> {
        let all = self.running().instances();
        all.map(|(id, agent)| (agent.name.instance.clone(), id))
            .collect()
    }

    /// Labels of an instance.
    pub fn labels(&self, instance: &str) -> Map<String, Value> {
        let text = self.instance(instance).label_text();
        serde_json::from_str(&text).expect("an object")
    }

    /// Number of transfers of the last minute in the bandwidth percentiles of an agent.
    pub fn bandwidths(&self, instance: &str) -> u64 {
        self.instance(instance).windows.bandwidth.count()
    }

    /// Number of agents, instances or not.
    pub fn known(&self) -> u32 {
        self.agents().activity().agents
    }

    /// Number of attached files.
    pub fn attached(&self) -> u32 {
        self.agents().activity().attached_files
    }

    /// True if the totals survive a restart.
    pub fn is_persistent(&self) -> bool {
        self.agents().is_persistent()
    }

    /// Number of finished process scans.
    pub fn process_scans(&self) -> u64 {
        self.agents().activity().process_scans
    }

    /// Pids of processes with libnixl mapped that write no attached file. `None` if /proc does not show all processes.
    pub fn silent(&self) -> Option<Vec<u32>> {
        let silent = self.agents().silent()?.iter();
        Some(silent.map(|process| process.pid).collect())
    }
}
