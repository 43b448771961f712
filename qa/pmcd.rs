//! The agent behind a real pmcd, seen through PCP's own tools.

mod support;

use std::process::Command;
use std::time::Duration;
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, Pmcd, golden, output, run, text, wait_for};

fn text_of(mut command: Command, args: &[&str]) -> String {
    run(command.args(args))
}

#[test]
fn pminfo_shows_every_metric_with_its_help() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    golden(
        "pminfo_dmtT.out",
        &text_of(pmcd.tool("pminfo"), &["-dmtT", "nixl"]),
    );
    let labels = text_of(pmcd.tool("pminfo"), &["-l", "nixl.transfer.tx_bytes"]);
    assert!(labels.contains("\"agent\":\"nixl\""), "{labels}");
}

#[test]
fn values_come_to_pminfo_with_names_and_labels() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut worker = RingWriter::create(&home.ring("worker 1"), Layout::V4, 4096).expect("a ring");
    worker.push_transfer(false, 4096, 120, 20);
    worker.push_transfer(true, 100, 80, 10);
    let values = wait_for("the agent is found", 5, || {
        let values = pmcd.values("nixl.transfer.tx_bytes");
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
    let labels = text_of(pmcd.tool("pminfo"), &["-l", "nixl.transfer.tx_bytes"]);
    assert!(
        labels.contains("inst [0 or \"worker%201\"] labels"),
        "{labels}"
    );
    assert!(labels.contains("\"nixl_agent\":\"worker 1\""), "{labels}");
}

#[test]
fn rings_are_drained_while_nobody_asks() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = RingWriter::create(&home.ring("decode-0"), Layout::V3, 64).expect("a ring");
    let mut pushed = 0;
    // Forty times what the ring holds, and not one fetch.
    while pushed < 40 * 63 {
        if ring.push(Kind::TxBytes, 7) {
            pushed += 1;
        } else {
            wait_for("the full ring is drained", 5, || {
                (ring.pending() == 0).then_some(())
            });
        }
    }
    assert_eq!(
        pmcd.values("nixl.transfer.tx_bytes")["decode-0"],
        7 * pushed
    );
}

#[test]
fn an_answer_counts_what_was_pushed_just_before_the_question() {
    let home = Home::new();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {:?}\ndrain_interval = \"1s\"\n",
        home.rings()
    ));
    let pmcd = Pmcd::start(&home);
    let mut ring = RingWriter::create(&home.ring("decode-0"), Layout::V4, 64).expect("a ring");
    // The instance is there for the first question after the ring is.
    let instances = text_of(pmcd.tool("pmprobe"), &["-I", "nixl.transfer.tx_bytes"]);
    assert_eq!(instances.trim(), "nixl.transfer.tx_bytes 1 \"decode-0\"");
    for pushed in 1..=5 {
        ring.push(Kind::TxBytes, 10);
        assert_eq!(
            pmcd.values("nixl.transfer.tx_bytes")["decode-0"],
            10 * pushed
        );
    }
}

#[test]
fn only_root_on_the_local_socket_can_store() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let reload = ["nixl.control.reload", "1"];
    let stored = text_of(pmcd.tool("pmstore"), &reload);
    assert!(stored.contains("old value=1 new value=1"), "{stored}");
    assert_eq!(pmcd.values("nixl.control.reload")[""], 2);
    for (who, mut pmstore) in [
        ("another user", pmcd.tool_as(65_534, "pmstore")),
        ("root by TCP", {
            let mut pmstore = pmcd.tool("pmstore");
            pmstore.args(["-h", "localhost"]);
            pmstore
        }),
    ] {
        let refused = output(pmstore.args(reload));
        let said = text(&refused);
        assert!(
            !refused.status.success() && said.contains("No permission"),
            "{who}: {said}"
        );
    }
    let refused = output(pmcd.tool("pmstore").args(["nixl.control.version", "1"]));
    assert!(!refused.status.success(), "{}", text(&refused));
    assert_eq!(pmcd.values("nixl.control.reload")[""], 2);
}

#[test]
fn reload_takes_a_good_configuration_and_leaves_a_bad_one() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut first = RingWriter::create(&home.ring("first"), Layout::V4, 64).expect("a ring");
    first.push(Kind::TxBytes, 5);
    wait_for("the first is found", 5, || {
        pmcd.values("nixl.transfer.tx_bytes").get("first").copied()
    });
    let conf = pmcd.path("etc/nixl/nixl.conf");
    let reload = || output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    let error = || text_of(pmcd.tool("pminfo"), &["-f", "nixl.control.config_error"]);

    std::fs::write(&conf, "[nixl]\ndrain_interval = 5\n").expect("written");
    let refused = reload();
    assert!(
        text(&refused).contains("Bad input to pmstore"),
        "{}",
        text(&refused)
    );
    let why = error();
    assert!(
        why.contains("nixl.conf:2: drain_interval: invalid type: integer `5`"),
        "{why}"
    );
    assert!(
        pmcd.log().contains("the configuration stays as it was"),
        "{}",
        pmcd.log()
    );
    first.push(Kind::TxBytes, 5);
    assert_eq!(pmcd.values("nixl.transfer.tx_bytes")["first"], 10);

    let other = home.path("other");
    std::fs::create_dir(&other).expect("made");
    let mut second = RingWriter::create(&other.join("second"), Layout::V4, 64).expect("a ring");
    second.push(Kind::TxBytes, 3);
    first.push(Kind::TxBytes, 1);
    let good =
        format!("[nixl]\ntelemetry_dir = {other:?}\ndrain_interval = \"20ms\"\nretain = \"0s\"\n");
    std::fs::write(&conf, good).expect("written");
    let taken = reload();
    assert!(taken.status.success(), "{}", text(&taken));
    assert!(error().contains("value \"\""), "{}", error());
    assert_eq!(pmcd.values("nixl.control.drain_interval")[""], 20);
    let values = wait_for("the first has left and the second is there", 5, || {
        let values = pmcd.values("nixl.transfer.tx_bytes");
        (values.contains_key("second") && !values.contains_key("first")).then_some(values)
    });
    assert_eq!(values["second"], 3);
    assert_eq!(
        first.pending(),
        0,
        "what the first had said was still counted"
    );
}

#[test]
fn a_bad_configuration_at_the_start_costs_no_agent_its_life() {
    let home = Home::new();
    home.configure("[nixl]\nowner = [\"root\"]\n");
    let mut ring = RingWriter::create(&home.ring("agent"), Layout::V4, 64).expect("a ring");
    ring.push(Kind::TxBytes, 9);
    let pmcd = Pmcd::start(&home);
    let why = text_of(pmcd.tool("pminfo"), &["-f", "nixl.control.config_error"]);
    assert!(
        why.contains("nixl.conf:2: owner: unknown field `owner`"),
        "{why}"
    );
    assert!(pmcd.values("nixl.transfer.tx_bytes").is_empty());
    assert_eq!(
        ring.pending(),
        1,
        "nothing is touched while it is not known whose files may be"
    );
    std::fs::copy(
        support::project("nixl.conf"),
        pmcd.path("etc/nixl/nixl.conf"),
    )
    .expect("copied");
    home.configure(&format!("[nixl]\ntelemetry_dir = {:?}\n", home.rings()));
    std::fs::copy(home.conf(), pmcd.path("etc/nixl/nixl.conf")).expect("copied");
    run(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    assert_eq!(pmcd.values("nixl.transfer.tx_bytes")["agent"], 9);
}

#[test]
fn pmlogger_archives_rates_that_match_the_producer() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let config = home.path("pmlogger.conf");
    std::fs::write(&config, "log mandatory on 1 sec { nixl }\n").expect("written");
    let mut ring = RingWriter::create(&home.ring("decode-0"), Layout::V4, 4096).expect("a ring");
    let archive = home.path("archive");
    let (config, archive) = (
        config.to_str().expect("UTF-8"),
        archive.to_str().expect("UTF-8"),
    );
    let mut pmlogger = pmcd.tool("pmlogger");
    pmlogger.args([
        "-c",
        config,
        "-l",
        "/dev/null",
        "-t",
        "1sec",
        "-s",
        "8",
        archive,
    ]);
    let mut pmlogger = pmlogger.spawn().expect("pmlogger starts");
    // 50 transfers of 1,000 bytes every 50 ms: a million bytes and 1,000 transfers each second, until the logger is done.
    let started = std::time::Instant::now();
    let mut batches = 0;
    while pmlogger.try_wait().expect("our child").is_none() {
        while started.elapsed() >= Duration::from_millis(50) * batches {
            for _ in 0..50 {
                assert_eq!(ring.push_transfer(false, 1000, 40, 4), 4);
            }
            batches += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let rates = |tool: &str, args: &[&str]| -> Vec<f64> {
        let shown = text_of(pmcd.tool(tool), args);
        // Lines of a time and a value.
        let samples =
            shown.lines().filter_map(
                |line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                    [time, value] if time.matches(':').count() == 2 => value.parse().ok(),
                    _ => None,
                },
            );
        samples.filter(|&rate: &f64| rate > 0.0).collect()
    };
    // The first second holds the start of the producer.
    let within = |rates: &[f64], expected: f64| {
        let settled = &rates[1..];
        assert!(settled.len() >= 4, "{rates:?}");
        let mean = settled.iter().sum::<f64>() / settled.len() as f64;
        assert!(
            (mean / expected - 1.0).abs() < 0.1,
            "{mean}, not about {expected}: {rates:?}"
        );
    };
    within(
        &rates(
            "pmval",
            &[
                "-z",
                "-a",
                archive,
                "-t",
                "1sec",
                "-f",
                "1",
                "nixl.transfer.tx_bytes",
            ],
        ),
        1e6,
    );
    within(
        &rates(
            "pmrep",
            &[
                "-z",
                "-a",
                archive,
                "-t",
                "1s",
                "-p",
                "nixl.transfer.tx_requests",
            ],
        ),
        1000.0,
    );
    within(
        &rates(
            "pmrep",
            &[
                "-z",
                "-a",
                archive,
                "-t",
                "1s",
                "-p",
                "nixl.performance.xfer_time_us",
            ],
        ),
        40_000.0,
    );
}
