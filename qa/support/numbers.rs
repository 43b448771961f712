// SPDX-License-Identifier: GPL-2.0-or-later

//! Comparison of the values of agents with `prometheus_mp` stores in NIXL's own endpoint and in PCP.
//!
//! Both are converted into one form, so that a test can compare them as a whole. Series have their names. Errors have
//! the status after the name. Histograms have the count of each bucket alone, while NIXL publishes cumulative counts.

use super::{Pmcd, TX_BYTES};
use serde_json::Value;
use std::collections::BTreeMap;

/// Series that are a single metric in PCP.
const SERIES: [(&str, &str); 11] = [
    ("agent_tx_bytes_total", "transfer.tx_bytes"),
    ("agent_rx_bytes_total", "transfer.rx_bytes"),
    ("agent_tx_requests_num_total", "transfer.tx_requests"),
    ("agent_rx_requests_num_total", "transfer.rx_requests"),
    ("agent_memory_registered_total", "memory.registered"),
    ("agent_memory_deregistered_total", "memory.deregistered"),
    ("agent_xfer_time_total", "performance.xfer_time_us"),
    (
        "agent_xfer_post_time_total",
        "performance.xfer_post_time_us",
    ),
    ("agent_telemetry_events_dropped_total", "queue.dropped"),
    ("agent_xfer_time_us_sum", "performance.xfer_time_us"),
    (
        "agent_xfer_post_time_us_sum",
        "performance.xfer_post_time_us",
    ),
];
/// Series that are gauges: they have the value of the last operation, and PCP has none of them.
const LAST: [&str; 6] = [
    "agent_tx_last_bytes",
    "agent_rx_last_bytes",
    "agent_memory_registered_last_bytes",
    "agent_memory_deregistered_last_bytes",
    "agent_xfer_time",
    "agent_xfer_post_time",
];
/// PCP metrics that have all series in their subtrees.
const METRICS: [&str; 6] = [
    "nixl.transfer",
    "nixl.memory",
    "nixl.performance",
    "nixl.errors",
    "nixl.queue.dropped",
    "nixl.agent.pid",
];
/// Histograms: the series and the PCP metric of their buckets. Their sums are among the series above.
const HISTOGRAMS: [(&str, &str); 2] = [
    ("agent_xfer_time_us", "nixl.latency.xfer_time.histogram"),
    (
        "agent_xfer_post_time_us",
        "nixl.latency.post_time.histogram",
    ),
];

/// Series that are in PCP and the metrics that have their values, then series that PCP has none of.
pub fn series() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let known = SERIES.map(|(series, metric)| (series, Some(metric)));
    known.into_iter().chain(LAST.map(|series| (series, None)))
}

/// Identity of an agent, by the labels that both sides have. A missing rank is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    pub name: String,
    pub instance: String,
    pub rank: String,
    pub host: String,
    pub pid: String,
}

impl Who {
    fn of(label: impl Fn(&str) -> String, names: [&str; 4], pid: String) -> Self {
        let [name, instance, rank, host] = names.map(label);
        Self {
            name,
            instance,
            rank,
            host,
            pid,
        }
    }
}

/// Numbers of all agents, by the names of NIXL's series.
pub type Numbers = BTreeMap<Who, BTreeMap<String, u64>>;

/// A series in the text format of Prometheus.
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: String,
}

impl Series {
    /// Parses a line. Returns `None` for a comment.
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, mut rest) = match series.split_once('{') {
            Some((name, rest)) => (name, rest.strip_suffix('}')?),
            None => (series, ""),
        };
        let mut labels = BTreeMap::new();
        while let Some((label, quoted)) = rest.split_once("=\"") {
            let (text, end) = unquoted(quoted)?;
            labels.insert(label.trim_start_matches(',').to_owned(), text);
            rest = &quoted[end..];
        }
        (!name.starts_with('#') && rest.is_empty()).then(|| Self {
            name: name.to_owned(),
            labels,
            value: value.to_owned(),
        })
    }

    fn label(&self, name: &str) -> String {
        self.labels.get(name).cloned().unwrap_or_default()
    }
}

/// Value of a label up to its closing quote, and the offset of the text after the quote.
fn unquoted(quoted: &str) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((text, at + 1)),
            '\\' => text.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => text.push(other),
        }
    }
    None
}

/// Name of the series of a bucket. The upper bound has one format, since NIXL and PCP write numbers differently.
fn range(histogram: &str, bound: &str) -> String {
    let bound: f64 = bound.parse().expect("a number");
    format!("{histogram} {bound}")
}

/// Numbers in the text of NIXL's endpoint. Series of last operations and about the endpoint itself are omitted.
pub fn numbers(text: &str) -> Numbers {
    let mut numbers = Numbers::new();
    let mut below: BTreeMap<(Who, String), u64> = BTreeMap::new();
    for series in text.lines().filter_map(Series::parse) {
        if !series.name.starts_with("agent_") || LAST.contains(&&*series.name) {
            continue;
        }
        let names = ["agent_name", "agent_instance", "local_rank", "hostname"];
        let identity = Who::of(|name| series.label(name), names, series.label("pid"));
        let mut value: u64 = series.value.parse().unwrap_or_else(|err| {
            panic!("{err}: {} of {identity:?} is {}", series.name, series.value);
        });
        let mut name = series.name.clone();
        if let Some(status) = series.labels.get("status") {
            name = format!("{name} {status}");
        } else if let Some(bound) = series.labels.get("le") {
            let below = below.entry((identity.clone(), name.clone())).or_default();
            let all = std::mem::replace(below, value);
            value = value.checked_sub(all).expect("a cumulative count");
            name = range(name.trim_end_matches("_bucket"), bound);
        }
        let before = numbers
            .entry(identity.clone())
            .or_default()
            .insert(name, value);
        assert_eq!(before, None, "{} of {identity:?} occurs twice", series.name);
    }
    numbers
}

impl Pmcd {
    /// Numbers of all agents with stores in PCP, by the names of NIXL's series.
    pub fn numbers(&self) -> Numbers {
        // Labels are fetched first. An agent that appears after that is ignored.
        let labels = self.labels(TX_BYTES);
        let ranges = HISTOGRAMS.map(|(name, metric)| (name, metric, self.labels(metric)));
        let histograms = HISTOGRAMS.map(|(_, metric)| metric);
        let shown = self.shown(&[METRICS.as_slice(), histograms.as_slice()].concat());
        let value = |metric: &str, instance: &str| -> Option<u64> {
            let value = shown.get(metric)?.get(instance)?;
            Some(value.parse().expect("a number"))
        };
        let mut numbers = Numbers::new();
        for (agent, labels) in labels {
            if labels["telemetry"] != "store" {
                continue;
            }
            let label = |name: &str| labels.get(name).and_then(|text| text.as_str());
            let names = [
                "nixl_agent",
                "agent_instance",
                "local_rank",
                "nixl_hostname",
            ];
            let pid = value("nixl.agent.pid", &agent).map(|pid| pid.to_string());
            let identity = Who::of(
                |name| label(name).unwrap_or_default().to_owned(),
                names,
                pid.unwrap_or_default(),
            );
            let mut of_agent = BTreeMap::new();
            for (histogram, metric, ranges) in &ranges {
                let mine = format!("{agent}::");
                let mine = ranges.iter().filter(|(name, _)| name.starts_with(&mine));
                let mut sum = 0;
                for (instance, labels) in mine {
                    let bound = labels["upper_bound"].as_str().expect("text");
                    let counted = value(metric, instance).expect("each bucket has a count");
                    sum += counted;
                    of_agent.insert(range(histogram, bound), counted);
                }
                of_agent.insert(format!("{histogram}_count"), sum);
            }
            for (series, metric) in SERIES {
                let value = value(&format!("nixl.{metric}"), &agent);
                of_agent.extend(value.map(|value| (series.to_owned(), value)));
            }
            for (metric, values) in &shown {
                if let Some(status) = metric.strip_prefix("nixl.errors.") {
                    // NIXL has no series for the last error, its time, and the sum of the errors.
                    if !["total", "last", "last_time"].contains(&status)
                        && values.contains_key(&agent)
                    {
                        let name = format!("agent_errors_total {status}");
                        of_agent.extend(value(metric, &agent).map(|value| (name, value)));
                    }
                }
            }
            let before = numbers.insert(identity.clone(), of_agent);
            assert_eq!(before, None, "{identity:?} is two instances");
        }
        numbers
    }
}

/// Asserts that both sides are equal. Panics with one line for each difference.
pub fn same(published: &Numbers, shown: &Numbers) {
    let mut differences = Vec::new();
    for identity in published.keys().chain(shown.keys()) {
        let none = BTreeMap::new();
        let [published, shown] = [published, shown].map(|all| all.get(identity).unwrap_or(&none));
        for series in published.keys().chain(shown.keys()) {
            let (published, shown) = (published.get(series), shown.get(series));
            if published != shown {
                differences.push(format!(
                    "{identity:?}: {series}: NIXL {published:?}, PCP {shown:?}"
                ));
            }
        }
    }
    differences.sort_unstable();
    differences.dedup();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Asserts that each number is between the ones before and after. Returns how many of them changed.
pub fn lies_between(before: &Numbers, shown: &Numbers, after: &Numbers) -> u64 {
    let mut moved = 0;
    for (identity, before) in before {
        for (series, least) in before {
            let most = &after[identity][series];
            let value = shown.get(identity).and_then(|shown| shown.get(series));
            let value = value.unwrap_or_else(|| panic!("PCP has no {series} of {identity:?}"));
            assert!(
                (least..=most).contains(&value),
                "{series} of {identity:?}: NIXL {least}, PCP {value}, NIXL {most}"
            );
            moved += u64::from(least < most);
        }
    }
    moved
}

/// Asserts that the numbers of an agent in NIXL's endpoint equal those that the workload reports.
pub fn is_what_it_did(published: &Numbers, did: &Value, rank: &str) {
    let mut agents = published.iter();
    let agent =
        agents.find(|(identity, _)| did["agent"] == *identity.name && identity.rank == rank);
    let (_, series) = agent.unwrap_or_else(|| panic!("{did} of rank {rank} is published"));
    assert_eq!(did["flushed"], true, "NIXL itself lost events: {did}");
    for (name, known) in [
        ("agent_tx_bytes_total", &did["tx_bytes"]),
        ("agent_rx_bytes_total", &did["rx_bytes"]),
        ("agent_tx_requests_num_total", &did["tx_requests"]),
        ("agent_rx_requests_num_total", &did["rx_requests"]),
        ("agent_memory_registered_total", &did["registered"]),
        ("agent_memory_deregistered_total", &did["deregistered"]),
        ("agent_xfer_time_total", &did["xfer_time_us"]),
        ("agent_xfer_time_us_sum", &did["xfer_time_us"]),
        ("agent_xfer_post_time_total", &did["xfer_post_time_us"]),
        ("agent_xfer_post_time_us_sum", &did["xfer_post_time_us"]),
        ("agent_errors_total not_found", &did["errors"]["not_found"]),
    ] {
        assert_eq!(series.get(name).copied(), known.as_u64(), "{name} of {did}");
    }
    let transfers = series["agent_tx_requests_num_total"] + series["agent_rx_requests_num_total"];
    for histogram in ["agent_xfer_time_us", "agent_xfer_post_time_us"] {
        let of_it = format!("{histogram} ");
        let ranges = series.iter().filter(|(name, _)| name.starts_with(&of_it));
        let counted: u64 = ranges.map(|(_, count)| count).sum();
        assert_eq!(counted, transfers, "{histogram} of {did}");
        assert_eq!(series[&format!("{histogram}_count")], transfers, "{did}");
    }
}
