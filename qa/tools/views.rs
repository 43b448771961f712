// SPDX-License-Identifier: GPL-2.0-or-later

//! PCP's own viewers: the views of share/pmrep, the plugins of share/dstat, and the meters of share/htop.

use crate::support::share::{DERIVED, archive, is_metric, link, names_in, text_of, tool};
use crate::support::{Home, Pmcd, golden, output, project, run, text, wait_for};
use pmdanixl::event::EventType;
use pmdanixl::metrics::{METRICS, ValueSource};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const VIEWS: &str = "share/pmrep/nixl.conf";
const PLUGINS: &str = "share/dstat/nixl";
const METERS: &str = "share/htop/meters/nixl";

/// Values of two ranks of an engine in four minutes, with agent names like those of vLLM. The second rank is slow, has
/// errors, and has lost events.
fn samples(home: &Home) -> PathBuf {
    let mut table = String::new();
    let ranks = [
        ("4fa1c2de-0b6e-4d0e-9a53-77d0c6a1f001", 1),
        ("4fa1c2de-0b6e-4d0e-9a53-77d0c6a1f002", 4),
    ];
    let mut row = |metric: &str, agent: &str, value: &dyn Fn(u64) -> u64| {
        let values: Vec<_> = (0..4).map(|minute| value(minute).to_string()).collect();
        writeln!(table, "nixl.{metric} {agent} {}", values.join(" ")).expect("a string");
    };
    for (agent, slow) in ranks {
        let trouble = slow - 1;
        row("agent.state", agent, &|_| 1);
        row("agent.idle_time", agent, &|_| 0);
        row("transfer.tx_requests", agent, &|m| m * 600);
        row("transfer.rx_requests", agent, &|m| m * 1200);
        row("transfer.tx_bytes", agent, &|m| (m * 600) << 20);
        row("transfer.rx_bytes", agent, &|m| (m * 1200) << 20);
        row("performance.xfer_time_us", agent, &|m| {
            m * 1800 * 1500 * slow
        });
        row("performance.xfer_post_time_us", agent, &|m| m * 1800 * 20);
        row("errors.total", agent, &|m| m * 60 * trouble);
        row("memory.current", agent, &|_| 3 << 30);
        for (name, time) in [("p50", 1400), ("p90", 2000), ("p99", 2500), ("max", 9000)] {
            row(&format!("latency.xfer_time.{name}"), agent, &|_| {
                time * slow
            });
            row(&format!("latency.post_time.{name}"), agent, &|_| time / 100);
        }
        row("ring.events", agent, &|m| m * 7200);
        row("ring.capacity", agent, &|_| 4096);
        row("ring.highwater", agent, &|_| {
            if trouble > 0 { 4095 } else { 900 }
        });
        row("ring.full", agent, &|m| m * trouble);
        row("queue.dropped", agent, &|m| m * 100 * trouble);
        row("ring.unknown", agent, &|_| 0);
        row("ring.resets", agent, &|_| trouble);
        row("ring.foreign_reads", agent, &|_| 0);
    }
    row("host.transfer.tx_requests", "-", &|m| m * 1200);
    row("host.transfer.rx_requests", "-", &|m| m * 2400);
    row("host.transfer.tx_bytes", "-", &|m| (m * 1200) << 20);
    row("host.transfer.rx_bytes", "-", &|m| (m * 2400) << 20);
    row("host.queue.dropped", "-", &|m| m * 300);
    for error in EventType::errors() {
        let name = METRICS.iter().find_map(|metric| match metric.source {
            ValueSource::Host(event) if event == *error => Some(metric.name),
            _ => None,
        });
        let is_backend = *error == EventType::Backend;
        row(name.expect("each"), "-", &|m| {
            m * 180 * u64::from(is_backend)
        });
    }
    // The second rank has fallen back to TCP.
    let [(first, _), (second, _)] = ranks;
    row("agent.tcp_share", first, &|_| 0);
    row("agent.tcp_share", second, &|_| 1);
    for (peer, sent) in [
        (format!("{first}::10.0.0.1"), 0),
        (format!("{second}::10.0.0.2"), 600),
    ] {
        row("agent.peer.tcp.tx_bytes", &peer, &|m| (m * sent) << 20);
        row("agent.peer.tcp.rx_bytes", &peer, &|m| (m * sent * 2) << 20);
        row("agent.peer.tcp.retransmits", &peer, &|m| m * sent);
    }
    row("host.agents.live", "-", &|_| 2);
    row("host.agents.idle", "-", &|_| 0);
    row("host.agents.exited", "-", &|m| m);
    row("host.agents.unknown", "-", &|_| 0);
    row("host.memory.current", "-", &|_| 6 << 30);
    for (name, micros) in [("xfer_time_us", 90_000_000), ("xfer_post_time_us", 600_000)] {
        row(&format!("host.performance.{name}"), "-", &|m| m * micros);
    }
    for (agent, slow) in ranks {
        for (time, micros) in [("xfer_time", 1500), ("post_time", 20)] {
            row(&format!("latency.{time}.sum"), agent, &|m| {
                m * 1800 * micros * slow
            });
            row(&format!("latency.{time}.count"), agent, &|m| m * 1800);
        }
        row("ring.pending", agent, &|_| slow);
        row("ring.unpaired", agent, &|m| m * (slow - 1));
        row("errors.last_time", agent, &|m| 1_700_000_000 + m);
    }
    // The second process has several agents.
    for (process, agents) in [("41_serve", 1), ("42_serve", 2)] {
        row("process.agents", process, &|_| agents);
        row("process.tcp_share", process, &|_| agents - 1);
        row("process.tcp.tx_bytes", process, &|m| {
            (m * 600 * (agents - 1)) << 20
        });
        row("process.tcp.rx_bytes", process, &|m| m << 20);
        row("process.tcp.retransmits", process, &|m| m * 60 * agents);
        row("process.rdma_devices", process, &|_| 2 - agents);
    }
    for (name, each) in [
        ("cpu_time", 600_000),
        ("drain.count", 600),
        ("drain.time", 60_000),
        ("drain.truncated", 1),
        ("drain.doubtful", 0),
        ("reloads", 1),
        ("places.rejections", 2),
    ] {
        row(&format!("control.{name}"), "-", &|m| m * each);
    }
    for (name, value) in [
        ("memory", 8 << 20),
        ("observer", 1),
        ("places.taken", 3),
        ("places.max", 4096),
        ("directories.watched", 2),
        ("directories.missing", 0),
    ] {
        row(&format!("control.{name}"), "-", &|_| value);
    }
    for ((agent, _), ratio) in ranks.into_iter().zip(["0.25", "4"]) {
        let values = [ratio; 4].join(" ");
        table += &format!("nixl.latency.xfer_time.peer_ratio {agent} {values}\n");
    }
    for process in ["41_serve", "42_serve"] {
        let backends = ["UCX,POSIX"; 4].join(" ");
        table += &format!("nixl.process.backends {process} {backends}\n");
    }
    let path = home.path("archive");
    archive(&path, 60, &table);
    path
}

#[test]
fn pmrep_views_match_golden() {
    let home = Home::new();
    let path = samples(&home);
    let mut shown = String::new();
    let views = text_of(VIEWS);
    let views = views
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    for view in views {
        let mut pmrep = tool("pmrep");
        // A host that reads another host's values may lack the derived metrics.
        pmrep.env("PCP_DERIVED_CONFIG", "");
        pmrep.arg("-c").arg(project(VIEWS)).arg("-z");
        pmrep.args(["-t", "60", "-a"]).arg(&path);
        let output = run(pmrep.arg(format!(":{view}")));
        writeln!(shown, "$ pmrep :{view}\n{output}").expect("a string");
    }
    golden("pmrep_views.out", &shown);
}

#[test]
fn formulas_of_pmrep_views_are_those_of_derived_metrics() {
    let derived = text_of(DERIVED);
    let definitions: Vec<_> = derived
        .lines()
        .filter_map(|line| Some(line.split_once(" = ")?.1))
        .collect();
    let views = text_of(VIEWS);
    let formulas = views
        .lines()
        .filter_map(|line| line.split_once(".formula = "));
    let others = formulas.filter(|(_, formula)| !definitions.contains(formula));
    // The views have transfers per second, which no derived metric has.
    assert_eq!(
        others.map(|(name, _)| name).collect::<Vec<_>>(),
        ["requests"]
    );
}

/// Home directory with the files for dstat and htop.
fn user(home: &Home) -> PathBuf {
    let user = home.path("user");
    link(PLUGINS, &user.join(".pcp/dstat/nixl"));
    link(METERS, &user.join(".config/htop/meters/nixl"));
    user
}

#[test]
fn dstat_plugins_match_golden() {
    let home = Home::new();
    let path = samples(&home);
    let plugins = text_of(PLUGINS);
    let plugins = plugins.lines().filter_map(|line| {
        let name = line.strip_prefix('[')?.strip_suffix(']')?;
        Some(format!("--{name}"))
    });
    let mut dstat = tool("pcp");
    dstat.env("HOME", user(&home)).arg("-a").arg(&path);
    dstat.args(["dstat", "--nocolor"]).args(plugins);
    let shown = output(dstat.args(["60", "3"]));
    // dstat has a separate exit status for the end of an archive.
    assert!(shown.stderr.is_empty(), "{}", text(&shown));
    golden("dstat.out", &String::from_utf8_lossy(&shown.stdout));
}

/// Output of htop within so many seconds on a terminal, without control sequences.
fn htop(pmcd: &Pmcd, user: &Path, seconds: u32) -> String {
    let mut script = pmcd.tool("script");
    let command = format!("timeout --foreground {seconds} pcp htop");
    script.args(["-qc", &command]).arg(user.join("typescript"));
    let drawn = output(script.env("HOME", user).env("TERM", "xterm"));
    let drawn = text(&drawn);
    let mut parts = drawn.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(' ');
        plain.push_str(
            part.split_once(|c: char| c.is_ascii_alphabetic())
                .map_or("", |(_, rest)| rest),
        );
    }
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "reads a terminal after some seconds"]
fn htop_shows_both_meters() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _ring = home.new_ring("worker", 64);
    wait_for("the agent is found", || {
        (pmcd.values("nixl.host.agents.live").get("") == Some(&1)).then_some(())
    });
    let user = user(&home);
    let settings = "config_reader_min_version=3\nfields=0 48\nheader_layout=one_100\n\
        column_meters_0=Dynamic(nixl) Dynamic(nixlagents)\ncolumn_meter_modes_0=2 2\n";
    fs::write(user.join(".config/htop/htoprc"), settings).expect("written");
    let expected = ["NIXL/s: sent: 0", "NIXL agents: live: 1 idle: 0"];
    let mut drawn = String::new();
    // On a busy machine, htop starts later.
    for seconds in [4, 8, 16] {
        drawn = htop(&pmcd, &user, seconds);
        if expected.iter().all(|part| drawn.contains(part)) {
            return;
        }
    }
    panic!("{drawn}");
}

#[test]
fn metrics_of_all_viewers_exist() {
    for file in [VIEWS, PLUGINS, METERS] {
        let text = text_of(file);
        let settings = text.lines().filter(|line| !line.starts_with('#'));
        let settings = settings.collect::<Vec<_>>().join("\n");
        let names = names_in(&settings);
        assert!(!names.is_empty(), "{file}");
        for name in names {
            // The result of a formula has its own name.
            let is_formula = name.starts_with("nixl.view.");
            assert!(is_metric(name) || is_formula, "{file}: {name}");
        }
    }
}
