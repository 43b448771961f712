//! Renders the files that PCP wants from the metric table: `pmns` and `help`.
//!
//! Both are checked in, since Install needs them where there is no compiler.

use pmdanixl::event::EventType;
use pmdanixl::metrics::{INDOMS, METRICS, Metric, ValueSource};
use std::fmt::Write;

const NOTE: &str = "Rendered from src/metrics.rs by `BLESS=1 cargo test`; not edited by hand.";

/// What the help of all that counts events says, the events apart that come whatever an agent is told.
const HIDDEN: &str = "\
An agent that runs with NIXL_TELEMETRY_ENABLED_METRICS writes only the events
that are listed there: none may mean none that was listed.";

/// True if a metric comes of events that NIXL_TELEMETRY_ENABLED_METRICS of an agent's process can leave out, so that no event
/// cannot be told from none that was written.
fn may_be_hidden(metric: &Metric) -> bool {
    match metric.source {
        ValueSource::Event(event) | ValueSource::Host(event) => event != EventType::EventsDropped,
        ValueSource::Buckets(_) | ValueSource::UpTo(_) | ValueSource::Slowness => true,
        // Last values, what is registered, errors, and percentiles.
        ValueSource::Agent(_) => (18..=23).contains(&metric.cluster),
        ValueSource::Control(_) => metric.name == "host.errors.total",
    }
}

/// The name space, in the format of pmns(5). A subtree is written when its first metric is met in the table.
pub fn pmns() -> String {
    let names = METRICS.iter().map(|metric| format!("nixl.{}", metric.name));
    let names = Vec::from_iter(names);
    let mut subtrees: Vec<&str> = Vec::new();
    for name in &names {
        for (at, _) in name.match_indices('.') {
            if !subtrees.contains(&&name[..at]) {
                subtrees.push(&name[..at]);
            }
        }
    }
    let mut text = format!("/* {NOTE} */\n");
    for subtree in subtrees {
        let mut entries: Vec<String> = Vec::new();
        for (name, metric) in names.iter().zip(METRICS.iter()) {
            let rest = name.strip_prefix(subtree);
            let Some(rest) = rest.and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let entry = match rest.split_once('.') {
                Some((part, _)) => part.to_owned(),
                None => format!("{rest:<24}NIXL:{}:{}", metric.cluster, metric.item),
            };
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        let _ = writeln!(text, "\n{subtree} {{\n    {}\n}}", entries.join("\n    "));
    }
    text
}

/// The help text, in the format of newhelp(1).
pub fn help() -> String {
    let mut text = format!("# {NOTE}\n");
    for indom in INDOMS {
        let (serial, oneline, help) = (indom.serial, indom.oneline, indom.help);
        let _ = write!(text, "\n@ NIXL.{serial} {oneline}\n{help}\n");
    }
    for metric in METRICS.iter() {
        let (name, oneline, help) = (metric.name, metric.oneline, metric.help);
        let _ = write!(text, "\n@ nixl.{name} {oneline}\n{help}\n");
        if may_be_hidden(metric) {
            let _ = writeln!(text, "{HIDDEN}");
        }
    }
    text
}

#[test]
fn subtree_is_named_in_its_parent_and_written_once() {
    let pmns = pmns();
    assert!(pmns.contains("\nnixl {\n    transfer\n    memory\n    performance\n    errors\n    agent\n    ring\n    last\n    latency\n    size\n    bandwidth\n    host\n    agents\n    control\n}\n"));
    assert!(pmns.contains("\nnixl.control.cut {\n    drains                  NIXL:40:23\n}\n"));
    assert_eq!(pmns.matches("nixl.control {").count(), 1);
}

#[test]
fn no_entry_of_help_is_longer_than_newhelp_takes() {
    // newhelp(1) cuts them off, the line with the name counted in.
    const MOST: usize = 1000;
    for entry in help().split("\n@ ") {
        assert!(entry.len() <= MOST, "{} bytes: {entry}", entry.len());
    }
}

#[test]
fn what_agents_may_leave_out_says_so() {
    let hidden = |name: &str| {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        may_be_hidden(metric.expect(name))
    };
    for name in [
        "transfer.tx_bytes",
        "errors.backend",
        "last.xfer_time",
        "memory.current",
        "errors.total",
        "latency.xfer_time.buckets",
        "latency.xfer_time.bucket",
        "latency.post_time.p99",
        "size.buckets",
        "bandwidth.p50",
        "bandwidth.unpaired",
        "host.memory.registered",
        "host.errors.total",
    ] {
        assert!(hidden(name), "{name}");
    }
    for name in [
        "agent.state",
        "ring.events",
        "ring.full",
        "ring.dropped",
        "host.ring.dropped",
        "host.ring.full",
        "agents.live",
        "control.cut.drains",
    ] {
        assert!(!hidden(name), "{name}");
    }
    let help = help();
    for metric in METRICS.iter() {
        let (_, text) = help
            .split_once(&format!("\n@ nixl.{} ", metric.name))
            .expect(metric.name);
        let text = text.split_once("\n@").map_or(text, |(text, _)| text);
        let says = text.contains("NIXL_TELEMETRY_ENABLED_METRICS");
        assert_eq!(says, may_be_hidden(metric), "{}", metric.name);
    }
}
