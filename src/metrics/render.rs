//! Renders the files that PCP wants from the metric table: `pmns` and `help`.
//!
//! Both are checked in, since Install needs them where there is no compiler; a test compares them with this.

use crate::metrics::{INDOMS, Indom, METRICS, Metric, ROOT};
use std::collections::BTreeMap;
use std::fmt::Write;

const NOTE: &str = "Rendered from src/metrics.rs by `BLESS=1 cargo test`; not edited by hand.";

/// What the help of all that counts events says, the events apart that come whatever an agent is told.
const HIDDEN: &str = "\
An agent that runs with NIXL_TELEMETRY_ENABLED_METRICS writes only the events
that are listed there: none may mean none that was listed.";

/// The name space, in the format of pmns(5).
#[must_use]
pub fn pmns() -> String {
    // In the order of the table, so that a subtree is written when its first metric is.
    let mut order = vec![ROOT.to_owned()];
    let mut children: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Metric {
        cluster,
        item,
        name,
        ..
    } in METRICS
    {
        let mut parent = ROOT.to_owned();
        let parts: Vec<&str> = name.split('.').collect();
        for (depth, part) in parts.iter().enumerate() {
            let leaf = depth + 1 == parts.len();
            let entry = if leaf {
                format!("{part:<24}NIXL:{cluster}:{item}")
            } else {
                (*part).to_owned()
            };
            let siblings = children.entry(parent.clone()).or_default();
            if !siblings.contains(&entry) {
                siblings.push(entry);
            }
            let path = format!("{parent}.{part}");
            if !leaf && !order.contains(&path) {
                order.push(path.clone());
            }
            parent = path;
        }
    }
    let mut text = format!("/* {NOTE} */\n");
    for path in order {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{path} {{\n");
        for entry in &children[&path] {
            let _ = writeln!(text, "    {entry}");
        }
        text.push_str("}\n");
    }
    text
}

/// The help text, in the format of newhelp(1).
#[must_use]
pub fn help() -> String {
    let mut text = format!("# {NOTE}\n");
    for Indom {
        serial,
        oneline,
        help,
    } in INDOMS
    {
        let _ = write!(text, "\n@ NIXL.{serial} {oneline}\n{help}\n");
    }
    for metric in METRICS {
        let Metric {
            name,
            oneline,
            help,
            ..
        } = metric;
        let _ = write!(text, "\n@ {ROOT}.{name} {oneline}\n{help}\n");
        if metric.may_be_hidden() {
            let _ = writeln!(text, "{HIDDEN}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_is_named_in_its_parent_and_written_once() {
        let pmns = pmns();
        assert!(pmns.contains("\nnixl {\n    transfer\n    memory\n    performance\n    errors\n    agent\n    ring\n    last\n    latency\n    size\n    bandwidth\n    host\n    agents\n    control\n}\n"));
        assert!(pmns.contains("\nnixl.control.cut {\n    drains                  NIXL:40:23\n}\n"));
        assert_eq!(pmns.matches("nixl.control {").count(), 1);
    }
}
