// SPDX-License-Identifier: GPL-2.0-or-later

//! A threshold has one value in the timeline, the rules of pmie, the alerts, the dashboards, the page and `pcp nixl`.

use crate::support::share::text_of;

/// Where a threshold is written: a file, and texts that follow each other there, the last one before the number.
type Place<'a> = (&'a str, &'a [&'a str]);

/// Numbers at a place, one for each time that the texts occur.
fn numbers((file, texts): Place) -> Vec<f64> {
    let text = text_of(file);
    let mut numbers = Vec::new();
    for part in text.split(texts[0]).skip(1) {
        let rest = texts[1..]
            .iter()
            .try_fold(part, |rest, text| Some(rest.split_once(text)?.1));
        let rest = rest.unwrap_or_else(|| panic!("{file}: {texts:?}"));
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let number = rest[..end.unwrap_or(rest.len())].parse();
        numbers.push(number.unwrap_or_else(|_| panic!("{file}: no number after {texts:?}")));
    }
    assert!(!numbers.is_empty(), "{file} does not have {texts:?}");
    numbers
}

/// Fails if a place has another number.
fn all_have(expected: f64, places: &[Place]) {
    for place in places {
        for number in numbers(*place) {
            assert!((number - expected).abs() < 1e-9, "{place:?}: {number}");
        }
    }
}

const RULES: &str = "share/prometheus/nixl.rules.yml";
const COMPARED: &str = "src/agents/agent/noted/compared.rs";
const REPORT: &str = "share/pcp/pcp_nixl/report.py";
const PEERS: &str = "share/pcp/pcp_nixl/peers.py";
const TABLE: &str = "share/dashboard/src/table.js";
const PAIRS: &str = "share/dashboard/src/pairs.js";
const GRAFANA: &str = "share/grafana/generate";

#[test]
fn slow_agents_have_one_threshold() {
    all_have(
        3.0,
        &[
            (COMPARED, &["const MAX_RATIO: f64 = "]),
            (RULES, &["nixl_latency_xfer_time_peer_ratio > "]),
            (RULES, &["agent:nixl_compared:ratio{of=\"time\"} > "]),
            (
                "share/pmieconf/nixl/straggler",
                &["factor\n", "default\t= "],
            ),
            (REPORT, &["\nSLOW_RATIO = "]),
            (TABLE, &["\nconst SLOW_RATIO = "]),
            (
                GRAFANA,
                &["[peak(\"latency.xfer_time.peer_ratio\")]", "mark="],
            ),
            ("docs/fleet.md", &["&& ratio > "]),
        ],
    );
    all_have(
        10.0,
        &[
            (RULES, &["rate(nixl_transfer_rx_requests[5m]))) > "]),
            (
                "share/pmieconf/nixl/straggler",
                &["minimum\n", "default\t= "],
            ),
        ],
    );
}

#[test]
fn fallbacks_to_tcp_have_one_threshold() {
    all_have(
        0.5,
        &[
            (COMPARED, &["const MAX_TCP_SHARE: f64 = "]),
            (RULES, &["nixl_agent_peer_tcp_agent_share > "]),
            (
                RULES,
                &["and on (instance, hostname, instname) nixl_process_tcp_share > "],
            ),
            (REPORT, &["\nFALLBACK_SHARE = "]),
            (TABLE, &["\nconst FALLBACK_SHARE = "]),
            (GRAFANA, &["[peak(\"agent.tcp_share\")]", "mark="]),
            (GRAFANA, &["[process(\"process.tcp_share\")]", "mark="]),
        ],
    );
    for rule in ["tcp_fallback", "tcp_fallback_process"] {
        let rule = &*format!("share/pmieconf/nixl/{rule}");
        all_have(50.0, &[(rule, &["percent\ttcp_share\n", "default\t= "])]);
        all_have(10.0, &[(rule, &["min_rate\n", "default\t= "])]);
    }
    all_have(10.0, &[(RULES, &["rate(nixl_transfer_rx_bytes[5m])) > "])]);
}

/// `pcp nixl --peers` takes its ratio from the report of agents.
#[test]
fn pairs_have_the_same_thresholds_on_the_page() {
    all_have(3.0, &[(PAIRS, &["\nconst SLOW_RATIO = "])]);
    assert!(text_of(PEERS).contains("\nfrom .report import SLOW_RATIO\n"));
    for name in ["SEGMENT", "LOSSY_SHARE", "SLOW_RTT"] {
        let of = |file, head| numbers((file, &[&format!("\n{head}{name} = ")]));
        assert_eq!(of(PEERS, ""), of(PAIRS, "const "), "{name}");
    }
}
