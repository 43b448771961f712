// SPDX-License-Identifier: GPL-2.0-or-later

//! The dashboard and the alerts for Prometheus, and quantiles of its histograms, with a real Prometheus.

use super::{PROMETHEUS, RULES, VECTOR, agents, heat_maps, list, names_in_promql, string, targets};
use crate::support::kill::{kill_for_a_minute, while_stopped};
use crate::support::pmproxy::{Local, Pmproxy};
use crate::support::rule::lose_and_leave;
use crate::support::share::text_of;
use crate::support::titled::Titled;
use crate::support::{Home, Pmcd, project, run, soon, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

const CASES: [&str; 2] = ["qa/prometheus/rules.yml", "qa/prometheus/fleet.yml"];

#[test]
fn prometheus_alerts_fire_only_in_their_cases() {
    let rules = text_of(RULES);
    let cases = CASES.map(text_of).concat();
    let metrics = text_of("qa/golden/pminfo_dm.out").replace('.', "_");
    for name in names_in_promql(&rules) {
        let line = format!("\n{name} PMID: ");
        assert!(metrics.contains(&line), "{name}");
    }
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    let alerts: Vec<_> = alerts.collect();
    assert_eq!(alerts.len(), 13);
    for alert in alerts {
        let case = format!("alertname: {alert}\n");
        assert!(cases.contains(&case), "{alert} has a case");
    }
    let promtool = |arguments: [&str; 2], file| {
        let mut promtool = Command::new("promtool");
        run(promtool.args(arguments).arg(project(file)));
    };
    promtool(["check", "rules"], RULES);
    for cases in CASES {
        promtool(["test", "rules"], cases);
    }
}

#[test]
#[ignore = "needs Prometheus, and waits for scrapes"]
fn prometheus_has_values_for_every_panel() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _agents = agents(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    let query = |expression: &str| {
        let answer = server.json("/api/v1/query", &[("query", expression)])?;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        Some(list(&answer["data"]["result"]).to_vec())
    };
    // Values of the variables of the dashboard.
    let host = wait_for("Prometheus scrapes pmproxy", || {
        let result = query("nixl_host_agents_live")?;
        Some(string(&result.first()?["metric"], "hostname").to_owned())
    });
    let as_grafana_asks = |expression: &str| {
        let mut expression = expression.replace("$host", &host);
        for label in ["$engine", "$role", "$rank"] {
            expression = expression.replace(label, ".*");
        }
        let expression = expression.replace("$agent", "agent-A|agent-B");
        expression.replace("$__rate_interval", "10s")
    };
    for target in targets(PROMETHEUS) {
        let expression = as_grafana_asks(string(&target, "expr"));
        let agents = expression.contains("nixl_agent=~");
        wait_for(&expression, || {
            let result = query(&expression)?;
            let enough = result.len() >= if agents { 2 } else { 1 };
            enough.then_some(())
        });
    }
    for ((expression, rows), (_, bounds)) in
        heat_maps(PROMETHEUS).into_iter().zip(heat_maps(VECTOR))
    {
        assert!(rows.is_empty(), "Prometheus adds the agents up");
        let expression = as_grafana_asks(&expression);
        let found = query(&expression).expect("an answer");
        let bound = |row: &Value| string(&row["metric"], "upper_bound").replace("+Inf", "inf");
        let found: Vec<_> = found.iter().map(bound).collect();
        assert_eq!(found.len(), bounds.len(), "{expression}: {found:?}");
        assert!(
            found.iter().all(|bound| bounds.contains(bound)),
            "{found:?}"
        );
    }
}

#[test]
fn title_is_server_and_rank_or_the_name() {
    let titles = [
        (
            "role=\"decode\",port=\"8200\",rank=\"TP0\",local_rank=\"0\"",
            "vllm decode:8200 TP0",
        ),
        ("port=\"8200\",local_rank=\"3\"", "vllm:8200 rank 3"),
        (
            "port=\"8200\",rank=\"TP0\",pod=\"decode-0\"",
            "vllm:8200 TP0 decode-0",
        ),
        ("rank=\"TP1\"", "vllm TP1"),
        ("role=\"prefill\"", "vllm prefill uuid-4"),
        ("engine=\"\",local_rank=\"1\"", "rank 1"),
        ("engine=\"\"", "uuid-6"),
    ];
    let targets = targets(PROMETHEUS);
    let mut expressions = targets.iter().map(|target| string(target, "expr"));
    let state = expressions.find(|expression| expression.contains("(nixl_agent_state{"));
    let mut expression = state.expect("a panel").replace("$host", "node1");
    for label in ["$engine", "$role", "$rank", "$agent"] {
        expression = expression.replace(label, ".*");
    }
    let mut series = String::new();
    let mut samples = String::new();
    for (at, (labels, title)) in titles.iter().enumerate() {
        let engine = if labels.contains("engine") {
            ""
        } else {
            "engine=\"vllm\","
        };
        write!(
            series,
            "\n  - {{series: 'nixl_agent_state{{hostname=\"node1\",instname=\"uuid-{at}\",{engine}{labels}}}', values: '1'}}"
        )
        .expect("a string");
        write!(
            samples,
            "\n    - {{labels: '{{title=\"{title}\"}}', value: 1}}"
        )
        .expect("a string");
    }
    let home = Home::new();
    let cases = home.path("titles.yml");
    let text = format!(
        "tests:\n- input_series:{series}\n  promql_expr_test:\n  - expr: 'sum by (title) ({expression})'\n    exp_samples:{samples}\n"
    );
    std::fs::write(&cases, text).expect("written");
    run(Command::new("promtool").args(["test", "rules"]).arg(cases));
}

/// Legend of a row of an answer, as Grafana writes it.
fn legend(format: &str, row: &Value) -> String {
    let mut parts = format.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once("}}").expect("a label");
        text += row["metric"][label].as_str().unwrap_or_default();
        text += rest;
    }
    text
}

#[test]
#[ignore = "needs Prometheus, and waits for scrapes"]
fn prometheus_legends_have_server_and_rank_or_the_name() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _agents = agents(&home);
    let servers = [
        ("8200", "kv_consumer"),
        ("8201", "kv_consumer"),
        ("8100", ""),
    ];
    let _servers = servers.map(|(port, role)| Titled::with_transfers(&home, port, role, "0.05"));
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    let all = |expression: &str, interval: &str| {
        let expression = expression.replace("hostname=\"$host\"", "hostname!=\"\"");
        let mut expression = expression.replace("${__range_s}", "60");
        for label in ["$engine", "$role", "$rank", "$agent"] {
            expression = expression.replace(label, ".*");
        }
        expression.replace("$__rate_interval", interval)
    };
    let rows = |expression: &str| {
        let answer = server.json("/api/v1/query", &[("query", expression)])?;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        Some(list(&answer["data"]["result"]).to_vec())
    };
    let becomes = |part: &str, expected: &[&str]| {
        let targets = targets(PROMETHEUS);
        let has_part = |target: &&Value| string(target, "expr").contains(part);
        let target = targets.iter().find(has_part).expect(part);
        let expression = all(string(target, "expr"), "10s");
        let mut found = Vec::new();
        let is_found = || {
            let rows = rows(&expression)?.into_iter();
            found = rows
                .map(|row| legend(string(target, "legendFormat"), &row))
                .collect();
            found.sort();
            (found == expected).then_some(())
        };
        assert!(soon(is_found).is_some(), "{expression}: {found:?}");
    };
    let each = [
        "vllm TP0",
        "vllm agent-B",
        "vllm decode:8200 TP0",
        "vllm decode:8200 TP1",
        "vllm decode:8201 TP0",
        "vllm decode:8201 TP1",
        "vllm:8100 TP0",
        "vllm:8100 TP1",
    ];
    becomes("rate(nixl_transfer_tx_bytes", &each);
    becomes(
        "max by (title)",
        &[
            "vllm TP0",
            "vllm TP1",
            "vllm agent-B",
            "vllm decode TP0",
            "vllm decode TP1",
        ],
    );
    becomes(
        "nixl_agent_peer_tcp_tx_bytes",
        &["vllm TP0 127.0.0.1 sent", "vllm agent-B 127.0.0.1 sent"],
    );
    // With the labels of a real host, the recording rules have agents to compare.
    for of in ["time", "bandwidth"] {
        let decode =
            format!("agent:nixl_compared:value{{role=\"decode\", rank=\"TP0\", of=\"{of}\"}}");
        wait_for(&decode, || (rows(&decode)?.len() == 2).then_some(()));
    }
    // The list of agents shows the title, and selects by the name.
    let dashboard: Value = serde_json::from_str(&text_of(PROMETHEUS)).expect("JSON");
    let mut variables = list(&dashboard["templating"]["list"]).iter();
    let variable = variables.find(|one| one["name"] == "agent").expect("there");
    let query = string(variable, "query").strip_prefix("query_result(");
    let query = query.and_then(|query| query.strip_suffix(')'));
    let query = all(query.expect("an expression"), "10s");
    let named = wait_for("the titles of all agents", || {
        let rows = rows(&query)?;
        let named = rows.iter().map(|row| {
            let label = |label| string(&row["metric"], label).to_owned();
            (label("title"), label("nixl_agent"))
        });
        let named: BTreeMap<_, _> = named.collect();
        named.keys().eq(each).then_some(named)
    });
    assert_eq!(
        named["vllm decode:8200 TP1"],
        "4fa1c2de-0b6e-4d0e-9a53-77d0c6a182001"
    );
    assert_eq!(named["vllm agent-B"], "agent-B");
}

#[test]
#[ignore = "needs Prometheus"]
fn prometheus_quantile_is_in_the_bucket_of_the_transfers() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut rings = [("fast", 30), ("slow", 3000)].map(|(name, time)| {
        let ring = home.new_ring(name, 4096);
        (ring, time)
    });
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    let mut quantiles = |expression: &str| {
        for (ring, time) in &mut rings {
            // Some transfers are slower, and none is in the last bucket.
            ring.push_transfer(true, 4096, *time, 5);
            ring.push_transfer(true, 4096, *time + 5, 5);
        }
        let answer = server.json("/api/v1/query", &[("query", expression)])?;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let found = list(&answer["data"]["result"]).iter().filter_map(|row| {
            let value: f64 = row["value"][1].as_str()?.parse().ok()?;
            let name = row["metric"]["nixl_agent"].as_str().unwrap_or_default();
            value.is_finite().then(|| (name.to_owned(), value))
        });
        Some(found.collect::<BTreeMap<String, f64>>())
    };
    // The query of the documentation, for a shorter time.
    let page = text_of("docs/grafana.md");
    let query = |part: &str| {
        let mut lines = page.lines();
        let query =
            lines.find(|line| line.starts_with("histogram_quantile(") && line.contains(part));
        query.expect("there").replace("[5m]", "[10s]")
    };
    let of_each = query("instname");
    let found = wait_for("quantiles of both", || {
        let found = quantiles(&of_each)?;
        (found.len() == 2).then_some(found)
    });
    for (name, lower, upper) in [("fast", 25.0, 50.0), ("slow", 2500.0, 5000.0)] {
        assert!(found[name] > lower && found[name] <= upper, "{found:?}");
    }
    // The faster half of all transfers is that of one agent.
    let of_all = "histogram_quantile(0.25, sum by (le) (rate(nixl_latency_xfer_time_bucket[10s])))";
    let found = wait_for("a quantile of all", || quantiles(of_all)?.get("").copied());
    assert!(found > 25.0 && found <= 50.0, "{found}");
    // The slower half as well, from the sums of the host. The role of both agents is not known.
    let of_role = query("(le, role)");
    let found = wait_for("a quantile of the role", || {
        quantiles(&of_role)?.get("").copied()
    });
    assert!(found > 2500.0 && found <= 5000.0, "{found}");
}

#[test]
#[ignore = "needs Prometheus"]
fn prometheus_alerts_report_an_agent_between_two_scrapes() {
    let home = Home::new();
    home.set("retain = \"0s\"");
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    wait_for("Prometheus scrapes pmproxy", || {
        let scrapes = "count_over_time(nixl_host_ring_full[1m]) > 1";
        let answer = server.json("/api/v1/query", &[("query", scrapes)])?;
        (!list(&answer["data"]["result"]).is_empty()).then_some(())
    });
    while_stopped(&[server.pid()], || lose_and_leave(&home, &pmcd));
    let alerts = wait_for("three alerts", || {
        let answer = server.json("/api/v1/alerts", &[])?;
        let alerts = list(&answer["data"]["alerts"]).to_vec();
        (alerts.len() >= 3).then_some(alerts)
    });
    for (alert, gone) in [
        ("NixlRingFull", "an agent that has gone on "),
        ("NixlEventsDropped", "an agent that has gone on "),
        ("NixlErrors", "several agents, or one that has gone, on "),
    ] {
        let mut found = alerts
            .iter()
            .filter(|one| one["labels"]["alertname"] == alert);
        let summary = found.next().map(|one| &one["annotations"]["summary"]);
        let summary = summary.and_then(Value::as_str).unwrap_or_default();
        assert!(summary.starts_with(gone), "{alert}: {alerts:?}");
        assert!(found.next().is_none(), "{alert}: {alerts:?}");
    }
}

#[test]
#[ignore = "needs Prometheus"]
fn prometheus_reports_a_killed_pmda_by_its_target() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let server = Local::prometheus(&home, &proxy);
    let query = |expression: &str| {
        let answer = server.json("/api/v1/query", &[("query", expression)])?;
        Some(list(&answer["data"]["result"]).to_vec())
    };
    wait_for("Prometheus has scraped it", || {
        let found = query("nixl_host_agents_live")?;
        (!found.is_empty()).then_some(())
    });
    let down = || {
        let answer = server.json("/api/v1/alerts", &[])?;
        let mut alerts = list(&answer["data"]["alerts"]).iter();
        let alert = alerts.find(|one| one["labels"]["alertname"] == "NixlPmdaDown")?;
        Some(string(&alert["annotations"], "summary").to_owned())
    };
    assert_eq!(down(), None);
    kill_for_a_minute(&pmcd);
    let summary = wait_for("the alert", down);
    assert!(summary.starts_with("127.0.0.1:"), "{summary}");
    let up = query("up").expect("an answer");
    assert_eq!(up[0]["value"][1], "1", "pmproxy answers: {up:?}");
    wait_for("the alert is gone", || down().is_none().then_some(()));
}
