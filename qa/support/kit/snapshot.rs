// SPDX-License-Identifier: GPL-2.0-or-later

//! All values of a daemon that the load determines, as text.

use super::Core;
use nix::unistd::getuid;
use pmdanixl::agents::Agent;
use pmdanixl::metrics::{
    METRICS, Metric, PEERS, PROCESSES, ROLE_TIMES, TIMELINE, TRACED, TRACED_TIMES, Value,
    ValueSource,
};
use std::collections::BTreeMap;

/// Metrics that depend on the clock, the machine, the user or the process of the test, and metrics that the code for
/// pmcd sets. The number of retries of a file while a limit is reached depends on the granularity of file times.
const LEFT_OUT: [&str; 14] = [
    "agent.idle_time",
    "agent.pid",
    "agent.user",
    "host.processes.silent",
    "control.config_error",
    "control.cpu_time",
    "control.drain.truncated",
    "control.debug",
    "control.drain.interval",
    "control.memory",
    "control.places.rejections",
    "control.reload",
    "control.version",
    "errors.last_time",
];

/// Values by metric name. A metric without a value is not there.
pub type Row = BTreeMap<&'static str, String>;

/// Answer of a daemon at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Instance id and values of each instance. The labels are the value of `labels`.
    pub instances: BTreeMap<String, (u32, Row)>,
    /// Values of metrics without instances.
    pub host: Row,
}

impl Snapshot {
    /// Metrics that an agent may have.
    pub fn of_agents() -> impl Iterator<Item = &'static str> {
        let of_agents = metrics_of_agents();
        of_agents.map(|metric| metric.name)
    }
}

/// Metrics with values of agents, buckets among them. Those of processes, peers and roles are in tests with pmcd.
fn metrics_of_agents() -> impl Iterator<Item = &'static Metric> {
    metrics().filter(|metric| {
        let serial = metric.indom();
        serial.is_some_and(|serial| {
            ![PROCESSES, PEERS, ROLE_TIMES, TRACED, TRACED_TIMES].contains(&serial)
        })
    })
}

fn text(value: Value) -> String {
    match value {
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::Text(text) => text,
    }
}

fn metrics() -> impl Iterator<Item = &'static Metric> {
    let all = METRICS.iter();
    all.filter(|metric| !LEFT_OUT.contains(&metric.name))
}

impl Core {
    /// Takes all values of all instances and of the host.
    pub fn snapshot(&self) -> Snapshot {
        let instances = self.running().instances();
        let instances = instances.map(|(id, agent)| {
            let name = &agent.name.instance;
            (name.clone(), (id, self.row(name, agent)))
        });
        // The timeline has times of day, and is in tools::events.
        let is_shown = |metric: &&Metric| metric.indom().is_none() && metric.cluster != TIMELINE;
        let host = metrics().filter(is_shown);
        let host = host.filter_map(|metric| Some((metric.name, text(self.of_host(metric)?))));
        Snapshot {
            instances: instances.collect(),
            host: host.collect(),
        }
    }

    fn row(&self, name: &str, agent: &Agent) -> Row {
        let of_agents = metrics_of_agents();
        let values = of_agents.filter_map(|metric| {
            let value = match metric.source {
                ValueSource::Buckets(_) | ValueSource::Cumulative(_) => self.counted(metric, name),
                _ => self.of_agent(metric, agent).map(text),
            };
            Some((metric.name, self.normalised(&value?)))
        });
        let mut row: Row = values.collect();
        // The user that runs the tests need not be root.
        let labels = self.normalised(&agent.label_text());
        let own_uid = format!("\"uid\":{}}}", getuid());
        row.insert("labels", labels.replace(&own_uid, "\"uid\":UID}"));
        row
    }

    /// The buckets that counted something: what their names end in, and their counts. Of a cumulative histogram those
    /// that count more than the one before. `None`: no bucket has a value.
    fn counted(&self, metric: &Metric, name: &str) -> Option<String> {
        let buckets = self.buckets(metric.name, name);
        if buckets.is_empty() {
            return None;
        }
        let is_sum = matches!(metric.source, ValueSource::Cumulative(_));
        let mut below = 0;
        let counted = buckets.into_iter().filter(|&(_, count)| {
            let is_shown = count > below;
            if is_sum {
                below = count;
            }
            is_shown
        });
        let counted: Vec<_> = counted
            .map(|(bucket, count)| format!("{bucket}: {count}"))
            .collect();
        Some(match &counted[..] {
            [] => "0".into(),
            some => some.join(", "),
        })
    }
}
