// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon with a real pmcd, read by PCP's own tools.

use crate::support::share::{DERIVED, Logger, link};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, Pmcd, TX_BYTES, golden, needs_root, output, run, text, wait_for};
use std::process::Command;

fn text_of(mut command: Command, args: &[&str]) -> String {
    run(command.args(args))
}

#[test]
fn pminfo_describes_every_metric() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    golden(
        "pminfo_dm.out",
        &text_of(pmcd.tool("pminfo"), &["-dm", "nixl"]),
    );
    let labels = text_of(pmcd.tool("pminfo"), &["-l", TX_BYTES]);
    assert!(labels.contains("\"agent\":\"nixl\""), "{labels}");
}

#[test]
fn pminfo_shows_values_with_names_and_labels() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut worker = home.new_ring("worker 1", 4096);
    worker.push_transfer(false, 4096, 120, 20);
    worker.push_transfer(true, 100, 80, 10);
    let values = wait_for("the agent is found", || {
        let values = pmcd.sent();
        (!values.is_empty()).then_some(values)
    });
    assert_eq!(
        values.into_iter().collect::<Vec<_>>(),
        [("worker%201".to_owned(), 4096)]
    );
    assert_eq!(pmcd.values("nixl.transfer.rx_requests")["worker%201"], 1);
    assert_eq!(
        pmcd.values("nixl.performance.xfer_time_us")["worker%201"],
        200
    );
    let labels = text_of(pmcd.tool("pminfo"), &["-l", TX_BYTES]);
    assert!(
        labels.contains("inst [0 or \"worker%201\"] labels"),
        "{labels}"
    );
    assert!(labels.contains("\"nixl_agent\":\"worker 1\""), "{labels}");
}

#[test]
fn client_gets_only_the_instances_it_requests() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    for (name, bytes) in [("a", 5000), ("b", 300), ("c", 70)] {
        let mut ring = home.new_ring(name, 64);
        ring.push_transfer(false, bytes, 120, 20);
    }
    wait_for("the agents are found", || {
        (pmcd.sent().len() == 3).then_some(())
    });
    let shown = |instances: &str, metric: &str| {
        let options = ["-s", "1", "-r", "-w", "20", "-i", instances, metric];
        let shown = text_of(pmcd.tool("pmval"), &options);
        // After the lines about the metric: names and values.
        let lines = shown
            .lines()
            .skip_while(|line| !line.starts_with("samples:"));
        let words = lines.skip(1).flat_map(str::split_whitespace);
        words.collect::<Vec<_>>().join(" ")
    };
    let one = shown("b", "nixl.transfer.tx_bytes");
    assert_eq!(one, "b 300");
    let two = shown("a,c", "nixl.transfer.tx_bytes");
    assert_eq!(two, "a c 5000 70");
    let buckets = shown("c::0-2048,a::0-2048", "nixl.operation.size.histogram");
    assert_eq!(buckets, "a::0-2048 c::0-2048 0 1");
}

#[test]
fn peer_metrics_of_one_requested_agent_use_its_whole_engine() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let metric = "nixl.latency.xfer_time.peer_ratio";
    // The name of the last one puts it into another peer group.
    let agents = [
        ("a", 100),
        ("b", 100),
        ("slow", 400),
        ("kvbm-worker-0", 9000),
    ];
    // An agent that has exited is not compared.
    let _rings = agents.map(|(name, time)| {
        let mut ring = home.new_ring(name, 64);
        ring.push_transfer(false, 4096, time, 20);
        ring
    });
    wait_for("the agents are found", || {
        (pmcd.sent().len() == agents.len()).then_some(())
    });
    let shown = text_of(pmcd.tool("pminfo"), &["-f", metric]);
    let of = |name: &str| {
        let line = shown.lines().find(|line| line.contains(name))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    let of_slow = of("\"slow\"").expect("it has peers");
    assert!((of_slow - 4.0).abs() < 0.2, "{shown}");
    let of_a = of("\"a\"").expect("it has peers");
    assert!((of_a - 1.0).abs() < 0.02, "{shown}");
    assert_eq!(of("\"kvbm-worker-0\""), None, "{shown}");
    let options = ["-s", "1", "-r", "-f", "1", "-i", "slow", metric];
    let alone = text_of(pmcd.tool("pmval"), &options);
    assert!(alone.trim_end().ends_with(" 4.0"), "{alone}");
}

#[test]
fn rings_are_drained_without_fetches() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = RingWriter::create(&home.ring("decode-0"), Layout::V3, 64).expect("a ring");
    let mut pushed = 0;
    // 40 times the capacity of the ring, without a fetch.
    while pushed < 40 * 63 {
        if ring.push(Kind::TxBytes, 7) {
            pushed += 1;
        } else {
            wait_for("the full ring is drained", || {
                (ring.pending() == 0).then_some(())
            });
        }
    }
    assert_eq!(pmcd.sent()["decode-0"], 7 * pushed);
}

#[test]
fn answer_has_events_pushed_just_before_the_request() {
    let home = Home::new();
    home.set("drain_interval = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let mut ring = home.new_ring("decode-0", 64);
    // The instance is published when the labels of the agent are known.
    wait_for("the instance is published", || {
        let instances = text_of(pmcd.tool("pmprobe"), &["-I", TX_BYTES]);
        (instances.trim() == "nixl.transfer.tx_bytes 1 \"decode-0\"").then_some(())
    });
    for pushed in 1..=5 {
        ring.push(Kind::TxBytes, 10);
        assert_eq!(pmcd.sent()["decode-0"], 10 * pushed);
    }
}

#[test]
fn missing_directories_are_counted_until_they_exist() {
    let home = Home::new();
    let (there, later) = (home.rings(), home.path("later"));
    let pattern = home.path("pods").join("*/nixl");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = [{there:?}, {pattern:?}]\nmultiproc_dir = [{later:?}]\n"
    ));
    let pmcd = Pmcd::start(&home);
    let is = |watched, missing| {
        wait_for("the directories are counted", || {
            let of = |name: &str| pmcd.values(&format!("nixl.control.directories.{name}"))[""];
            (of("watched") == watched && of("missing") == missing).then_some(())
        });
    };
    is(1, 2);
    std::fs::create_dir(&later).expect("made");
    is(2, 1);
    // A node without a pod that uses NIXL is not a problem.
    std::fs::create_dir(home.path("pods")).expect("made");
    is(2, 0);
    std::fs::create_dir_all(home.path("pods/one/nixl")).expect("made");
    is(3, 0);
    std::fs::remove_dir(&later).expect("there");
    is(2, 1);
}

#[test]
fn valid_reload_is_applied_and_invalid_reload_is_ignored() {
    needs_root();
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut first = home.new_ring("first", 64);
    first.push(Kind::TxBytes, 5);
    wait_for("the first is found", || pmcd.sent().get("first").copied());
    let conf = pmcd.path("etc/nixl/nixl.conf");
    let reload = || output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    let error = || text_of(pmcd.tool("pminfo"), &["-f", "nixl.control.config_error"]);

    std::fs::write(&conf, "[nixl]\ndrain_interval = 5\n").expect("written");
    let rejected = reload();
    assert!(
        text(&rejected).contains("Bad input to pmstore"),
        "{}",
        text(&rejected)
    );
    let why = error();
    assert!(
        why.contains("nixl.conf:2: drain_interval = 5: write a time from 1ms to 1s"),
        "{why}"
    );
    assert!(
        pmcd.log()
            .contains("the previous configuration stays in force"),
        "{}",
        pmcd.log()
    );
    first.push(Kind::TxBytes, 5);
    assert_eq!(pmcd.sent()["first"], 10);

    let mut second = home.new_ring("second", 64);
    second.push(Kind::TxBytes, 3);
    let owner = Some(65_534);
    std::os::unix::fs::chown(home.ring("second"), owner, owner).expect("root");
    first.push(Kind::TxBytes, 1);
    let good = format!(
        "[nixl]\ntelemetry_dir = {:?}\nowners = [65534]\ndrain_interval = \"20ms\"\nretain = \"0s\"\n",
        home.rings()
    );
    std::fs::write(&conf, good).expect("written");
    let taken = reload();
    assert!(taken.status.success(), "{}", text(&taken));
    assert!(error().contains("value \"\""), "{}", error());
    assert_eq!(pmcd.values("nixl.control.drain.interval")[""], 20);
    let values = wait_for("the second agent has replaced the first", || {
        let values = pmcd.sent();
        (values.contains_key("second") && !values.contains_key("first")).then_some(values)
    });
    assert_eq!(values["second"], 3);
    assert_eq!(
        first.pending(),
        0,
        "the last events of the first agent were counted"
    );
}

#[test]
fn missing_configuration_does_not_restore_the_defaults() {
    needs_root();
    let home = Home::new();
    let (ours, theirs) = (home.ring("ours"), home.ring("theirs"));
    let mut ours = RingWriter::create(&ours, Layout::V4, 16).expect("a ring");
    let mut other = RingWriter::create(&theirs, Layout::V4, 16).expect("a ring");
    std::os::unix::fs::chown(&theirs, Some(4242), None).expect("root");
    home.set("owners = [0]");
    ours.push(Kind::TxBytes, 1);
    other.push(Kind::TxBytes, 1);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("ours", 1)]);
    std::fs::remove_file(pmcd.path("etc/nixl/nixl.conf")).expect("there");
    let rejected = output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    assert!(!rejected.status.success(), "{}", text(&rejected));
    let why = text_of(pmcd.tool("pminfo"), &["-f", "nixl.control.config_error"]);
    assert!(why.contains("nixl.conf: No such file"), "{why}");
    ours.push(Kind::TxBytes, 1);
    assert_eq!(
        pmcd.sent().into_iter().collect::<Vec<_>>(),
        [("ours".to_owned(), 2)]
    );
    assert_eq!(other.pending(), 1);
}

#[test]
fn invalid_configuration_at_the_start_does_not_end_the_daemon() {
    needs_root();
    let home = Home::new();
    home.configure("[nixl]\nowner = [\"root\"]\n");
    let mut ring = home.new_ring("agent", 64);
    ring.push(Kind::TxBytes, 9);
    let pmcd = Pmcd::start(&home);
    let why = text_of(pmcd.tool("pminfo"), &["-f", "nixl.control.config_error"]);
    assert!(
        why.contains(
            r#"nixl.conf:2: owner = ["root"]: unknown key `owner`: did you mean `owners`?"#
        ),
        "{why}"
    );
    assert!(pmcd.sent().is_empty());
    assert_eq!(
        ring.pending(),
        1,
        "nothing is drained while the owners are unknown"
    );
    std::fs::copy(
        support::project("nixl.conf"),
        pmcd.path("etc/nixl/nixl.conf"),
    )
    .expect("copied");
    home.set("");
    std::fs::copy(home.conf(), pmcd.path("etc/nixl/nixl.conf")).expect("copied");
    run(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    pmcd.becomes(&[("agent", 9)]);
}

#[test]
fn pmlogger_archives_what_the_producer_wrote() {
    const BYTES: u64 = 1000;
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let config = home.path("pmlogger.conf");
    std::fs::write(&config, "log mandatory on 100 msec { nixl }\n").expect("written");
    let mut ring = home.new_ring("decode-0", 4096);
    let archive = home.path("archive");
    // Not a device such as /dev/null: pmlogger unlinks its log before it opens it.
    let log = home.path("pmlogger.log");
    let mut pmlogger = pmcd.tool("pmlogger");
    pmlogger.arg("-c").arg(&config).arg("-l").arg(&log);
    let mut pmlogger = pmlogger.arg(&archive).spawn().expect("pmlogger starts");
    // Raw values of a metric in the archive so far, printed by one of PCP's tools.
    let archived = |tool: &str, metric: &str| -> Vec<u64> {
        let mut shown = pmcd.tool(tool);
        shown
            .args(["-r", "-z", "-t", "100msec", "-a"])
            .arg(&archive);
        // pmrep needs an option for the time column; pmval always has one.
        shown.args((tool == "pmrep").then_some("-p"));
        let shown = support::text(&support::output(shown.arg(metric)));
        // Each line has a time and a value.
        let fields = shown.lines().map(|line| line.split_whitespace().collect());
        let samples = fields.filter_map(|fields: Vec<&str>| match fields[..] {
            [time, value] if time.matches(':').count() == 2 => value.parse().ok(),
            _ => None,
        });
        samples.collect()
    };
    let mut transfers = 0;
    for _ in 0..3 {
        for _ in 0..50 {
            assert_eq!(ring.push_transfer(false, BYTES, 40, 4), 4);
            transfers += 1;
        }
        for (tool, metric, total) in [
            ("pmval", TX_BYTES, transfers * BYTES),
            ("pmrep", "nixl.transfer.tx_requests", transfers),
            ("pmrep", "nixl.performance.xfer_time_us", transfers * 40),
        ] {
            let samples = wait_for("the total is archived", || {
                let samples = archived(tool, metric);
                (samples.last() == Some(&total)).then_some(samples)
            });
            assert!(samples.is_sorted(), "{metric}: {samples:?}");
        }
    }
    pmlogger.kill().expect("our child");
    pmlogger.wait().expect("our child");
}

#[test]
fn pmlogger_of_nixl_survives_agents_and_a_restart_of_pmcd() {
    // Derived metrics below nixl would cost 100 kB/s: pmlogger would write this much in a fraction of a second.
    const MAX_LOG_BYTES: usize = 16 << 10;
    let home = Home::new();
    home.set("retain = \"0s\"");
    let mut pmcd = Pmcd::start(&home);
    link(DERIVED, &pmcd.path("var/config/derived/nixl.conf"));
    let derived = text_of(pmcd.tool("pminfo"), &["nixl_derived"]);
    assert!(derived.lines().count() > 10, "{derived}");
    let mut stays = home.new_ring("stays", 64);
    assert!(stays.push(Kind::TxBytes, 1));
    pmcd.becomes(&[("stays", 1)]);
    let archive = home.path("archive");
    let line = "log mandatory on 2 seconds { nixl }\n";
    let pmlogger = Logger::start_configured(pmcd.tool("pmlogger"), &archive, line);
    pmlogger.samples(1);
    for name in ["first", "second", "third"] {
        let mut ring = home.new_ring(name, 64);
        assert_eq!(ring.push_transfer(false, 10, 40, 4), 4);
        pmcd.becomes(&[(name, 10), ("stays", 1)]);
        pmlogger.samples(1);
        drop(ring);
        std::fs::remove_file(home.ring(name)).expect("there");
        pmcd.becomes(&[("stays", 1)]);
        pmlogger.samples(1);
    }
    pmcd.terminate();
    pmcd.start_anew();
    pmcd.wait_until_it_answers();
    assert!(stays.push(Kind::TxBytes, 100));
    wait_for("pmlogger archives what came after the restart", || {
        let dumped = output(pmcd.tool("pmdumplog").arg(&archive).arg(TX_BYTES));
        text(&dumped)
            .contains("or \"stays\"] value 101")
            .then_some(())
    });
    let log = std::fs::read_to_string(archive.with_extension("log")).expect("written");
    let start: String = log.chars().take(4096).collect();
    assert!(
        !log.contains("check_inst") && log.len() < MAX_LOG_BYTES,
        "{} bytes: {start}",
        log.len()
    );
}
