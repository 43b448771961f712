// SPDX-License-Identifier: GPL-2.0-or-later

//! The annotations of the dashboard for Prometheus.

use super::{PROMETHEUS, list, string};
use crate::support::pmproxy::{Local, Pmproxy};
use crate::support::share::text_of;
use crate::support::writer::Kind;
use crate::support::{Home, Pmcd, run, wait_for};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;
use std::time::SystemTime;

/// The annotations.
pub(super) fn all() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&text_of(PROMETHEUS)).expect("JSON");
    list(&dashboard["annotations"]["list"]).to_vec()
}

/// Expressions by the name of the annotation, with this `$__rate_interval`, for all hosts and agents.
fn expressions(interval: &str) -> BTreeMap<String, String> {
    let expression = |annotation: &Value| {
        assert_eq!(annotation["expr"], annotation["target"]["expr"]);
        let expression = string(annotation, "expr").replace("=\"$host\"", "!=\"\"");
        let labels = ["$engine", "$role", "$rank", "$agent"].into_iter();
        let expression = labels.fold(expression, |all, label| all.replace(label, ".*"));
        let expression = expression.replace("$__rate_interval", interval);
        (string(annotation, "name").to_owned(), expression)
    };
    all().iter().map(expression).collect()
}

#[test]
fn annotations_begin_when_it_happens_and_end() {
    let of_agent = "hostname=\"node1\",instname=\"decode-0\",nixl_agent=\"decode-0\"";
    // 15 s between two values: all happens at 150 s.
    let series = [
        (format!("nixl_agent_state{{{of_agent}}}"), "1x9 3x20"),
        // It is not known when it exited.
        (
            "nixl_agent_state{hostname=\"node1\",instname=\"decode-1\"}".to_owned(),
            "_x9 3x20",
        ),
        (
            format!("nixl_agent_stall_state{{{of_agent}}}"),
            "0x9 1x4 2x15",
        ),
        (format!("nixl_ring_full{{{of_agent}}}"), "0x9 1x20"),
        (format!("nixl_errors_total{{{of_agent}}}"), "7x9 9x20"),
        (
            "nixl_events_count{hostname=\"node1\"}".to_owned(),
            "3x9 7x20",
        ),
    ];
    let mut text = "tests:\n- interval: 15s\n  input_series:".to_owned();
    for (series, values) in series {
        write!(text, "\n  - {{series: '{series}', values: '{values}'}}").expect("a string");
    }
    text += "\n  promql_expr_test:";
    for (name, expression) in expressions("1m") {
        for (time, is_there) in [
            ("140s", false),
            ("165s", name != "Stalled"),
            ("240s", name == "Stalled"),
        ] {
            let title = if name == "Any event" {
                ""
            } else {
                "title=\"decode-0\""
            };
            let expected = if is_there {
                format!("[{{labels: '{{{title}}}', value: 1}}]")
            } else {
                "[]".to_owned()
            };
            write!(
                text,
                "\n  - {{expr: 'count by (title) ({expression})', eval_time: {time}, exp_samples: {expected}}}"
            )
            .expect("a string");
        }
    }
    let home = Home::new();
    let cases = home.path("annotations.yml");
    std::fs::write(&cases, text).expect("written");
    run(Command::new("promtool").args(["test", "rules"]).arg(cases));
}

#[test]
#[ignore = "needs Prometheus, and waits for scrapes"]
fn prometheus_annotations_show_what_happened_to_an_agent() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = home.new_ring("worker", 16);
    ring.push_transfer(false, 4096, 100, 10);
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    let begin = SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs();
    // Titles of the agents by the name of the annotation.
    let shown = || {
        let end = SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs()
            + 1;
        let mut shown = BTreeMap::new();
        for (name, expression) in expressions("10s") {
            let (begin, end) = (begin.to_string(), end.to_string());
            let range = [
                ("query", &*expression),
                ("start", &*begin),
                ("end", &*end),
                ("step", "1"),
            ];
            let answer = server.json("/api/v1/query_range", &range)?;
            assert_eq!(answer["status"], "success", "{expression}: {answer}");
            let rows = list(&answer["data"]["result"]).iter();
            let title = |row: &Value| {
                row["metric"]["title"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let titles = BTreeSet::from_iter(rows.map(title));
            shown.insert(name, Vec::from_iter(titles));
        }
        Some(shown)
    };
    let scraped = || {
        let times = "count_over_time(nixl_agent_state[1m]) > 12 and on () count_over_time(nixl_ring_full[1m]) > 12";
        let answer = server.json("/api/v1/query", &[("query", times)])?;
        (!list(&answer["data"]["result"]).is_empty()).then_some(())
    };
    wait_for(
        "Prometheus has scraped it for longer than the interval",
        scraped,
    );
    let before = shown().expect("an answer");
    for name in ["Stalled", "Exited", "Ring full", "Errors"] {
        assert!(before[name].is_empty(), "{before:?}");
    }
    ring.push(Kind::Backend, 3);
    while ring.push(Kind::TxBytes, 1) {}
    wait_for("the errors are counted", || {
        (pmcd.values("nixl.errors.total").get("worker") == Some(&3)).then_some(())
    });
    drop(ring);
    let after = wait_for("all is shown", || {
        let shown = shown()?;
        let complete = ["Exited", "Ring full", "Errors", "Any event"];
        complete
            .iter()
            .all(|name| !shown[*name].is_empty())
            .then_some(shown)
    });
    for name in ["Exited", "Ring full", "Errors"] {
        assert_eq!(after[name], ["worker"], "{name}");
    }
    assert!(
        after["Stalled"].is_empty() && after["Any event"] == [""],
        "{after:?}"
    );
}
