// SPDX-License-Identifier: GPL-2.0-or-later

//! The dashboards of share/grafana. Each of their expressions must have values, with a real pmproxy, with one that has
//! a real key server and archives, and with a real Prometheus.

mod annotations;
mod prometheus;

use crate::support::pmproxy::{Local, Pmproxy};
use crate::support::sample::Sample;
use crate::support::share::{Logger, is_metric, names_in, text_of};
use crate::support::{Home, Pmcd, example, project, run, soon, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const VECTOR: &str = "share/grafana/nixl-vector.json";
const VALKEY: &str = "share/grafana/nixl-valkey.json";
const PROMETHEUS: &str = "share/grafana/nixl-prometheus.json";

/// Alerts for Prometheus, and cases for promtool(1).
const RULES: &str = "share/prometheus/nixl.rules.yml";

/// Agents with values for each panel of a dashboard: errors, memory, and transfers of many sizes and times.
const BUSY: &str = "--rate 100 --vary --errors 50 --register 1048576";

/// Two agents whose processes move bytes by TCP. Both are of vLLM, so that they are compared; the first one has the
/// title of a rank.
fn agents(home: &Home) -> [Sample; 2] {
    [
        ("agent-A", "VLLM::Worker_TP0"),
        ("agent-B", "VLLM::EngineCore"),
    ]
    .map(|(name, title)| {
        let mut by_tcp = Command::new("/usr/bin/python3");
        by_tcp.arg(project("qa/tools/grafana/by_tcp.py"));
        by_tcp.arg(home.path(name)).arg(example("producer"));
        by_tcp.env("TITLE", title);
        Sample::start_as(by_tcp, &home.rings(), name, BUSY)
    })
}

/// Elements of a list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn string<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} of {object}"))
}

/// Panels of a dashboard, without row headings.
fn panels(file: &str) -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&text_of(file)).expect(file);
    let panels: Vec<_> = list(&dashboard["panels"]).to_vec();
    let shown = panels.into_iter().filter(|panel| panel["type"] != "row");
    shown.collect()
}

/// Targets of all panels.
fn targets(file: &str) -> Vec<Value> {
    let panels = panels(file);
    let targets: Vec<_> = panels
        .iter()
        .flat_map(|panel| list(&panel["targets"]))
        .collect();
    assert!(targets.len() > 30, "{file}");
    targets.into_iter().cloned().collect()
}

/// Expressions of the heat maps of a dashboard, and the bounds of their rows.
fn heat_maps(file: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for panel in panels(file)
        .iter()
        .filter(|panel| panel["type"] == "heatmap")
    {
        let [target] = list(&panel["targets"]) else {
            panic!("{panel} has one target")
        };
        assert!(!string(target, "legendFormat").is_empty(), "{target}");
        let transformations = list(&panel["transformations"]);
        if let Some(first) = transformations.first() {
            assert_eq!(target["legendFormat"], "$instance");
            assert_eq!(first["id"], "renameByRegex");
            let regex = string(&first["options"], "regex");
            assert_eq!(regex, "^.*::[0-9]+-([0-9]+|inf)$", "as bounds_of");
        }
        let sums = transformations
            .iter()
            .filter(|one| one["id"] == "calculateField");
        let bounds = sums.map(|sum| {
            let summed = &sum["options"]["reduce"]["include"];
            assert_eq!(list(summed).len(), 1, "{sum}");
            summed[0].as_str().expect("a bound").to_owned()
        });
        found.push((string(target, "expr").to_owned(), bounds.collect()));
    }
    assert_eq!(found.len(), 4, "{file}");
    found
}

/// Upper bounds in the names of these instances, with the regular expression of the dashboards.
fn bounds_of(instances: &[Value]) -> BTreeSet<String> {
    let bound = |instance: &Value| {
        let (_, range) = string(instance, "name").rsplit_once("::")?;
        Some(range.split_once('-')?.1.to_owned())
    };
    let bounds = instances.iter().map(bound);
    bounds.collect::<Option<_>>().expect("agent::low-high")
}

#[test]
fn dashboards_match_the_generator() {
    let home = Home::new();
    let mut generator = Command::new("/usr/bin/python3");
    run(generator
        .arg(project("share/grafana/generate"))
        .arg("--out")
        .arg(home.path("")));
    for file in [VECTOR, VALKEY, PROMETHEUS] {
        let name = file.rsplit('/').next().expect("a name");
        let made = fs::read_to_string(home.path(name)).expect("written");
        assert!(
            made == text_of(file),
            "{file}: share/grafana/generate writes it"
        );
    }
}

#[test]
fn heat_map_rows_follow_the_configured_bounds() {
    let home = Home::new();
    home.set("histogram_buckets_us = [5, 1_000, 70000]");
    let mut generator = Command::new("/usr/bin/python3");
    run(generator
        .arg(project("share/grafana/generate"))
        .arg("--conf")
        .arg(home.conf())
        .arg("--out")
        .arg(home.path("")));
    let file = home.path("nixl-vector.json");
    let (expression, bounds) = heat_maps(file.to_str().expect("UTF-8")).remove(0);
    assert_eq!(expression, "nixl.latency.xfer_time.histogram");
    assert!(
        bounds.iter().eq(["1000", "5", "70000", "inf"]),
        "{bounds:?}"
    );
}

#[test]
fn dashboards_use_the_same_existing_metrics() {
    let mut all = Vec::new();
    for file in [VECTOR, VALKEY] {
        // Prometheus has no strings, so it has no tables of them.
        let (tables, others): (Vec<_>, Vec<_>) = panels(file)
            .into_iter()
            .partition(|panel| panel["type"] == "table");
        let names = |panels: &[Value]| -> Vec<String> {
            let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
            let names = targets.flat_map(|target| names_in(string(target, "expr")));
            names.map(str::to_owned).collect()
        };
        let (last, in_table): (Vec<_>, Vec<_>) = names(&tables)
            .into_iter()
            .partition(|name| name == "nixl.events.last");
        // pmlogger does not log it.
        assert_eq!(last.len(), usize::from(file == VECTOR));
        assert_eq!(in_table[..2], ["nixl.agent.server", "nixl.agent.rank"]);
        let others = names(&others);
        for name in in_table.iter().chain(&others) {
            assert!(is_metric(name), "{file}: {name}");
        }
        all.push(others);
    }
    // Only Prometheus has labels to group by.
    let (grouped, scraped): (Vec<_>, Vec<_>) =
        targets(PROMETHEUS).into_iter().partition(|target| {
            let groups = ["max by (title)", "histogram_quantile("];
            groups
                .iter()
                .any(|group| string(target, "expr").starts_with(group))
        });
    assert_eq!(grouped.len(), 2);
    let scraped: Vec<_> = scraped
        .iter()
        .flat_map(|target| names_in_promql(string(target, "expr")))
        .collect();
    assert_eq!(all[0], all[1]);
    let underscores: Vec<_> = all[0].iter().map(|name| name.replace('.', "_")).collect();
    assert_eq!(underscores, scraped);
}

#[test]
fn panels_except_heat_maps_use_metrics_logged_by_default() {
    let group = |group| text_of(&format!("share/pmlogconf/nixl/{group}"));
    let (default, detail) = (group("summary") + &group("transport"), group("detail"));
    let has = |group: &str, name: &str| {
        names_in(group).iter().any(|logged| {
            let rest = name.strip_prefix(logged);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    for target in targets(VALKEY) {
        for name in names_in(string(&target, "expr")) {
            let group = if name.ends_with(".histogram") {
                &detail
            } else {
                &default
            };
            assert!(has(group, name), "{name}");
        }
    }
}

#[test]
fn scraped_names_are_those_of_the_dashboard_and_alerts() {
    let page = text_of("docs/grafana.md");
    let (_, names) = page.split_once("        - \"nixl").expect("the names");
    let (names, _) = names.split_once('"').expect("their end");
    assert!(!names.contains("histogram"), "{names}");
    let mut lines = page.lines().filter(|line| line.starts_with("nixl."));
    let of_heat_maps = lines.next().expect("the names for heat maps");
    let names = format!("nixl{names},{of_heat_maps}").replace(['.', ' ', '\\', '\n'], "_");
    let named: Vec<_> = names
        .split(',')
        .map(|name| name.trim_matches('_'))
        .collect();
    let below = |metric: &str, name: &str| {
        let rest = metric.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let mut used = names_in_promql(&text_of(RULES));
    for target in targets(PROMETHEUS).iter().chain(&annotations::all()) {
        used.extend(names_in_promql(string(target, "expr")));
    }
    for metric in &used {
        let found = named.iter().any(|name| below(metric, name));
        assert!(found, "{metric} is not in {named:?}");
    }
    for name in named {
        let found = used.iter().any(|metric| below(metric, name));
        assert!(found, "{name} is used by nothing");
    }
}

/// Values of a metric as pmproxy exports them, by the label `name`.
fn scraped(proxy: &Pmproxy, metric: &str, name: &str) -> Option<Vec<(String, String)>> {
    let text = proxy.get(&format!("/metrics?names={metric}"))?;
    let values = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        let (_, value) = line.rsplit_once("} ")?;
        Some((rest.split_once('"')?.0.to_owned(), value.to_owned()))
    });
    Some(values.collect())
}

#[test]
fn scraped_bounds_of_buckets_are_numbers_of_openmetrics() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = home.new_ring("worker", 64);
    ring.push_transfer(true, 4096, 30, 5);
    let proxy = Pmproxy::start(&home, &pmcd);
    for (metric, label, larger) in [("bucket", "le", "1"), ("histogram", "upper_bound", "0")] {
        let metric = format!("nixl.latency.xfer_time.{metric}");
        let mut found = wait_for(&metric, || {
            let found = scraped(&proxy, &metric, label)?;
            found.iter().any(|(_, value)| value != "0").then_some(found)
        });
        let number = |bound: &str| bound.parse::<f64>().expect("a number");
        found.sort_by(|a, b| number(&a.0).total_cmp(&number(&b.0)));
        let found = found
            .iter()
            .map(|(bound, value)| format!("{bound} {value}"));
        let found: Vec<String> = found.collect();
        assert_eq!(found[..3], ["10 0", "25 0", "50 1"]);
        assert_eq!(found[3], format!("100 {larger}"));
        assert_eq!(found[18..], [format!("+Inf {larger}")]);
    }
}

fn names_in_promql(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c));
    let names = words.filter(|word| word.starts_with("nixl_") && *word != "nixl_agent");
    names.map(str::to_owned).collect()
}

#[test]
fn vector_data_source_has_values_for_every_panel() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _agents = agents(&home);
    let proxy = Pmproxy::start(&home, &pmcd);
    let hostspec = [("hostspec", "local:"), ("polltimeout", "60")];
    let context = wait_for("pmproxy connects", || {
        proxy.json("/pmapi/context", &hostspec)?["context"].as_u64()
    });
    let ask = |what: &str, parameters: &[(&str, &str)]| {
        let path = format!("/pmapi/{context}/{what}");
        proxy.json(&path, parameters)
    };
    for target in targets(VECTOR) {
        let name = string(&target, "expr");
        // All expressions are plain names, which the data source does not have pmproxy derive.
        assert!(is_metric(name) && names_in(name) == [name], "{name}");
        let known = ask("metric", &[("names", name)]).expect("an answer");
        let metric = &known["metrics"][0];
        assert_eq!(metric["name"], name, "{known}");
        // A rate needs values.
        let seen = wait_for(name, || {
            let answer = ask("fetch", &[("names", name)])?;
            let values = list(&answer["values"]).first()?;
            let instances = list(&values["instances"]).to_vec();
            (!instances.is_empty()).then_some(instances)
        });
        if string(&target, "legendFormat").contains("$instance") {
            assert!(metric["indom"].is_string(), "{name}: {metric}");
            assert!(seen.iter().all(|one| one["instance"].is_u64()), "{name}");
        }
    }
    for (name, bounds) in heat_maps(VECTOR) {
        // One agent may be published before the other.
        let instances = wait_for(&name, || {
            let domain = ask("indom", &[("name", &name)])?;
            let instances = list(&domain["instances"]).to_vec();
            (instances.len() == 2 * bounds.len()).then_some(instances)
        });
        assert_eq!(bounds_of(&instances), bounds, "{name}");
    }
}

#[test]
#[ignore = "needs Redis, and loads archives"]
fn valkey_data_source_has_values_for_every_panel() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _agents = agents(&home);
    let archives = std::path::Path::new(pmcd.env("PCP_ARCHIVE_DIR")).join("node");
    fs::create_dir(&archives).expect("made");
    let archive = archives.join("now");
    let _logger = Logger::start(&pmcd, &archive);
    // A running pmproxy may miss a new archive.
    wait_for("the archive has values", || {
        let volume = fs::metadata(archive.with_extension("0")).ok()?;
        (volume.len() > 100_000).then_some(())
    });
    // pmproxy 6.0.3 sometimes stores a metric without its labels, permanently. Then it starts again with an empty key
    // server.
    let missing = (0..3).map_while(|_| {
        let keys = Local::key_server(&home);
        let proxy = Pmproxy::start_with_keys(&home, &pmcd, &keys);
        // If pmproxy 6.0.3 gets a request for labels before it has any, all its later answers have none.
        wait_for("pmproxy has stored values", || {
            (keys.count("pcp:values:series:*")? > 0).then_some(())
        });
        missing_in(&proxy)
    });
    let missing: Vec<String> = missing.collect();
    assert!(missing.len() < 3, "{missing:?}");
}

/// Text that the table shows for a string of pmproxy: version 6.0.3 puts quotes around it.
fn shown_in_table(text: &str) -> String {
    let panels = panels(VALKEY);
    let mut tables = panels.iter().filter(|panel| panel["type"] == "table");
    let table = tables.next().expect("a table");
    let mapping = &table["fieldConfig"]["defaults"]["mappings"][0]["options"];
    assert_eq!(mapping["pattern"], r#"^"(.*)"$"#, "as here");
    assert_eq!(mapping["result"]["text"], "$1");
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text).to_owned()
}

/// First panel without values.
fn missing_in(proxy: &Pmproxy) -> Option<String> {
    let ask = |what: &str, parameters: &[(&str, &str)]| {
        proxy.json(&format!("/series/{what}"), parameters)
    };
    // Values of the variable of the dashboard.
    let host = wait_for("the archive is found", || {
        let hosts = ask("labels", &[("names", "hostname")])?;
        Some(hosts["hostname"][0].as_str()?.to_owned())
    });
    let has_rate = |expression: &str| {
        let found = ask("query", &[("expr", expression)])?;
        let [series] = list(&found) else { return None };
        let times = [
            ("series", series.as_str()?),
            ("start", "-60second"),
            ("finish", "now"),
        ];
        let values = ask("values", &times)?;
        let times = list(&values)
            .iter()
            .map(|value| value["timestamp"].to_string());
        let times: BTreeSet<_> = times.collect();
        (times.len() >= 2).then_some(())
    };
    for target in targets(VALKEY) {
        let expression = string(&target, "expr").replace("$host", &host);
        if soon(|| has_rate(&expression)).is_none() {
            return Some(expression);
        }
    }
    // The table finds server and rank by the name of the agent.
    for (metric, expected) in [("server", "vllm"), ("rank", "TP0")] {
        let mut found = Vec::new();
        let mut has_text = || {
            let expression = format!("nixl.agent.{metric}{{hostname == \"{host}\"}}");
            let series = ask("query", &[("expr", &expression)])?;
            let series = series[0].as_str()?;
            let instances = ask("instances", &[("series", series)])?;
            let mut instances = list(&instances).iter();
            let agent = instances.find(|one| one["name"] == "agent-A")?;
            let times = [
                ("series", series),
                ("start", "-60second"),
                ("finish", "now"),
            ];
            let values = ask("values", &times)?;
            let of_agent = list(&values).iter().filter(|value| {
                // The instance of a value is the hash of the name.
                value["instance"] == agent["instance"]
            });
            let texts = of_agent.filter_map(|value| value["value"].as_str());
            found = texts.map(shown_in_table).collect();
            found.iter().any(|text| text == expected).then_some(())
        };
        if soon(&mut has_text).is_none() {
            return Some(format!("{metric} {expected}: {found:?}"));
        }
    }
    for (expression, bounds) in heat_maps(VALKEY) {
        let expression = expression.replace("$host", &host);
        let has_bounds = || {
            let series = ask("query", &[("expr", &expression)])?;
            let instances = ask("instances", &[("series", series[0].as_str()?)])?;
            let instances = list(&instances);
            (instances.len() == 2 * bounds.len() && bounds_of(instances) == bounds).then_some(())
        };
        if soon(has_bounds).is_none() {
            return Some(expression);
        }
    }
    None
}
