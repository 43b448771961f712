//! The derived metrics of share/derived, computed by PCP's tools from what a private pmcd's archive holds.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command};
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, Pmcd, TX_BYTES, golden, project, run, wait_for};

const FILE: &str = "share/derived/nixl.conf";
/// The agent whose events are counted.
const AGENT: &str = "worker";
/// More than a recorded stream has.
const SLOTS: u64 = 8192;

/// A pmcd whose tools have the definitions where PCP looks for them.
fn pmcd(home: &Home) -> Pmcd {
    let pmcd = Pmcd::start(home);
    let place = pmcd.path("var/config/derived");
    std::fs::create_dir(&place).expect("made");
    std::os::unix::fs::symlink(project(FILE), place.join("nixl.conf")).expect("made");
    pmcd
}

fn ring(home: &Home, pmcd: &Pmcd) -> RingWriter {
    let ring = RingWriter::create(&home.ring(AGENT), Layout::V4, SLOTS).expect("a ring");
    wait_for("the agent is found", || {
        pmcd.values(TX_BYTES).get(AGENT).copied()
    });
    ring
}

/// Ends a pmlogger that has not ended by itself.
struct Logger(Child);

impl Drop for Logger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples that pmlogger takes, and what happens between each and the next.
struct Archive<'a> {
    pmcd: &'a Pmcd,
    path: PathBuf,
    logger: Logger,
    samples: usize,
}

impl<'a> Archive<'a> {
    /// Begins an archive of this many samples, 3 s apart.
    fn begin(home: &Home, pmcd: &'a Pmcd, samples: usize) -> Self {
        let [path, config, log] =
            ["archive", "pmlogger.conf", "pmlogger.log"].map(|name| home.path(name));
        std::fs::write(&config, "log mandatory on 3 sec { nixl }\n").expect("written");
        let mut pmlogger = pmcd.tool("pmlogger");
        pmlogger.arg("-c").arg(config).arg("-l").arg(log);
        pmlogger.args(["-t", "3sec", "-s", &samples.to_string()]);
        let logger = Logger(pmlogger.arg(&path).spawn().expect("pmlogger starts"));
        Self {
            pmcd,
            path,
            logger,
            samples: 0,
        }
    }

    fn tool(&self, tool: &str) -> Command {
        let mut command = self.pmcd.tool(tool);
        if tool == "pmrep" {
            command.arg("-a");
        }
        command.arg(&self.path);
        command
    }

    /// How many samples there are.
    fn count(&self) -> usize {
        // Before the first is written there is no archive that could be read.
        let dumped = support::output(self.tool("pmdumplog").arg("nixl.ring.events"));
        let text = String::from_utf8_lossy(&dumped.stdout);
        text.matches("(nixl.ring.events):").count()
    }

    /// Does this after the next sample and before the one that follows.
    fn then(&mut self, events: impl FnOnce()) {
        self.samples += 1;
        wait_for("pmlogger takes a sample", || {
            (self.count() >= self.samples).then_some(())
        });
        events();
        assert_eq!(
            self.count(),
            self.samples,
            "the machine is too slow: the next sample came meanwhile"
        );
    }

    /// The derived metrics of the agent by the end of their names, for each interval, with its length in seconds.
    fn intervals(mut self) -> Vec<(f64, BTreeMap<String, f64>)> {
        self.logger.0.wait().expect("our child");
        let mut pmrep = self.tool("pmrep");
        // The records as they are, rather than what may have been between them.
        pmrep.args([
            "-u",
            "-p",
            "-f",
            "%s.%f",
            "-o",
            "csv",
            "-P",
            "9",
            "nixl.derived",
        ]);
        let shown = run(&mut pmrep);
        let mut lines = shown.lines().map(|line| line.split(','));
        let header: Vec<&str> = lines.next().expect("a header").collect();
        let rows = lines.map(|mut line| {
            let time: f64 = line.next().and_then(|t| t.parse().ok()).expect("a time");
            let cells = header[1..].iter().zip(line);
            let values = cells.filter_map(|(name, value)| {
                let name = name.trim_matches('"').strip_prefix("nixl.derived.")?;
                let name = name.strip_suffix(AGENT)?.strip_suffix('-')?;
                Some((name.to_owned(), value.parse().ok()?))
            });
            (time, values.collect())
        });
        let rows: Vec<(f64, BTreeMap<String, f64>)> = rows.collect();
        let pairs = rows.windows(2);
        pairs
            .map(|pair| (pair[1].0 - pair[0].0, pair[1].1.clone()))
            .collect()
    }
}

fn within(share: f64, name: &str, found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= share * expected.abs(),
        "{name}: {found} for {expected}"
    );
}

#[test]
fn every_definition_is_taken_and_has_its_help() {
    let home = Home::new();
    let pmcd = pmcd(&home);
    let shown = run(pmcd.tool("pminfo").args(["-dtT", "nixl.derived"]));
    golden("derived_dtT.out", &shown);
    let text = std::fs::read_to_string(project(FILE)).expect("there");
    let names = text.lines().filter_map(|line| line.split_once(" = "));
    let defined = names.filter(|(name, _)| name.starts_with("nixl.") && !name.contains('('));
    let defined: Vec<&str> = defined.map(|(name, _)| name).collect();
    assert!(defined.len() >= 14, "{defined:?}");
    for name in defined {
        assert!(shown.contains(&format!("\n{name} [")), "{name}\n{shown}");
    }
}

#[test]
fn who_has_no_nixl_metrics_is_told_nothing_of_them() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    // The same definitions, of metrics that this pmcd does not have.
    let text = std::fs::read_to_string(project(FILE)).expect("there");
    let other = home.path("other.conf");
    std::fs::write(&other, text.replace("nixl.", "nixm.")).expect("written");
    let mut pminfo = pmcd.tool("pminfo");
    pminfo.env("PCP_DERIVED_CONFIG", other);
    let shown = run(pminfo.args(["-f", "pmcd.numagents"]));
    assert_eq!(shown.trim().lines().count(), 2, "{shown}");
}

#[test]
fn the_figures_of_an_interval_are_those_of_its_events() {
    let home = Home::new();
    let pmcd = pmcd(&home);
    let mut ring = ring(&home, &pmcd);
    // Before the first sample: in none of the figures but the 90th percentiles.
    ring.push_transfer(false, 1 << 30, 1000, 100);
    let mut archive = Archive::begin(&home, &pmcd, 4);
    archive.then(|| {
        for _ in 0..3 {
            assert_eq!(ring.push_transfer(false, 1 << 20, 1000, 100), 4);
        }
        assert_eq!(ring.push_transfer(true, 5 << 20, 3000, 300), 4);
        assert!(ring.push(Kind::Backend, 1));
    });
    archive.then(|| ());
    archive.then(|| assert_eq!(ring.push_transfer(true, 1 << 20, 0, 0), 4));
    let intervals = archive.intervals();
    let (seconds, figures) = &intervals[0];
    for (name, expected) in [
        ("mean.xfer_time", 1500.0),
        ("mean.post_time", 150.0),
        ("mean.size", 2_097_152.0),
        ("errors.ratio", 0.2),
        ("wire.tx", 3_145_728.0 / seconds),
        ("wire.rx", 5_242_880.0 / seconds),
        ("transfer.throughput", 8_388_608.0 / 0.006),
        ("vllm.transfers", 4.0),
        ("vllm.avg_xfer_time", 1.5),
        ("vllm.avg_post_time", 0.15),
        ("vllm.avg_size", 2.0),
        ("vllm.throughput", 8.0 / 0.006),
    ] {
        // What is lost to the digits of figures and times that are shown.
        within(1e-5, name, figures[name], expected);
    }
    // Of the five transfers of the last minute only the longest is as long as 90 percent.
    within(0.05, "P90", figures["vllm.p90_xfer_time"], 3.0);
    within(0.05, "P90", figures["vllm.p90_post_time"], 0.3);
    for (name, figure) in &intervals[1].1 {
        let is_of_longer = name.contains("p90") || name == "peers.silence";
        assert_eq!(*figure > 0.0, is_of_longer, "{name}: {figure}");
    }
    // A transfer too quick for the clock has a size and no throughput.
    let (_, figures) = &intervals[2];
    assert!((figures["vllm.avg_size"] - 1.0).abs() < 1e-6);
    assert_eq!(figures["transfer.throughput"].to_bits(), 0);
    assert_eq!(figures["vllm.throughput"].to_bits(), 0);
}

#[test]
fn the_manual_page_s_example_adds_up_ranges_as_prometheus_does() {
    let page = std::fs::read_to_string(project("pmdanixl.1")).expect("there");
    let from = page.find("my.within_25us =").expect("the example");
    let example = page[from..].lines().take_while(|line| *line != ".in");
    let example: String = example
        .map(|line| line.trim().replace("\\-", "-"))
        .collect();
    let home = Home::new();
    let definition = home.path("my.conf");
    std::fs::write(&definition, example + "\n").expect("written");
    let pmcd = Pmcd::start(&home);
    let mut ring = ring(&home, &pmcd);
    for time in [0, 10, 11, 25, 26, 1000, u64::MAX] {
        assert_eq!(ring.push_transfer(true, 1, time, 0), 4);
    }
    let mut pminfo = pmcd.tool("pminfo");
    pminfo.env("PCP_DERIVED_CONFIG", definition);
    let shown = run(pminfo.args(["-f", "my.within_25us"]));
    assert!(shown.trim().ends_with("value 4"), "{shown}");
}

#[test]
fn vllm_s_seven_figures_are_those_of_a_recorded_stream() {
    let stream = project("qa/streams/nixl-1.5.1.txt");
    let figures = run(Command::new("python3")
        .arg(project("qa/figures.py"))
        .arg(&stream));
    let expected: Value = serde_json::from_str(&figures).expect("JSON");
    let expected = expected["vllm"].as_object().expect("by name");
    let home = Home::new();
    let pmcd = pmcd(&home);
    let mut ring = ring(&home, &pmcd);
    let mut archive = Archive::begin(&home, &pmcd, 2);
    archive.then(|| {
        let text = std::fs::read_to_string(&stream).expect("recorded");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (kind, value) = line.split_once(' ').expect(line);
            let (kind, value) = (kind.parse().expect(line), value.parse().expect(line));
            assert!(ring.push_raw(kind, value), "{line}");
        }
    });
    let (_, told) = &archive.intervals()[0];
    let names = [
        ("transfers", "Num successful transfers", 0.0),
        ("avg_xfer_time", "Avg xfer time (ms)", 1e-6),
        ("p90_xfer_time", "P90 xfer time (ms)", 0.05),
        ("avg_post_time", "Avg post time (ms)", 1e-6),
        ("p90_post_time", "P90 post time (ms)", 0.05),
        ("avg_size", "Avg MB per transfer", 1e-6),
        ("throughput", "Throughput (MB/s)", 1e-6),
    ];
    assert_eq!(expected.len(), names.len());
    for (ours, theirs, share) in names {
        let expected = expected[theirs].as_f64().expect("a number");
        assert!(expected > 0.0, "{theirs}");
        within(share, theirs, told[&format!("vllm.{ours}")], expected);
    }
}
