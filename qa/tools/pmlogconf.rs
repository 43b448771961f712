// SPDX-License-Identifier: GPL-2.0-or-later

//! The groups of share/pmlogconf: the result of PCP's own pmlogconf, and what pmlogger then writes.

use crate::support::share::{DERIVED, files_in, link, names_in, text_of};
use crate::support::writer::RingWriter;
use crate::support::{Home, Pmcd, output, pcp, project, run, text, wait_for};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const GROUPS: &str = "share/pmlogconf/nixl";
/// Metrics that no group logs: those for pmStore requests, and repetitions of other metrics.
const LEFT_OUT: [&str; 9] = [
    "nixl.events.count",
    "nixl.events.last",
    "nixl.control.debug",
    "nixl.control.reload",
    "nixl.latency.xfer_time.bucket",
    "nixl.latency.post_time.bucket",
    "nixl.host.latency.xfer_time.bucket",
    "nixl.trace.xfer_time.bucket",
    "nixl.host.latency.post_time.bucket",
];

/// A pmcd with tools that use the groups, and with an agent that has transferred.
fn pmcd(home: &Home) -> (Pmcd, RingWriter) {
    let pmcd = Pmcd::start(home);
    link(GROUPS, &pmcd.path("var/config/pmlogconf/nixl"));
    let mut ring = home.new_ring("worker", 64);
    assert_eq!(ring.push_transfer(false, 4096, 100, 10), 4);
    wait_for("the agent is found", || pmcd.sent().get("worker").copied());
    (pmcd, ring)
}

/// Makes or updates a configuration with pmlogconf, as PCP's scripts do at each start of pmlogger. Returns the lines of
/// our groups: name, switch and interval.
fn configure(pmcd: &Pmcd, config: &Path) -> Vec<String> {
    run(pmcd.tool("pmlogconf").args(["-c", "-q", "-r"]).arg(config));
    let text = fs::read_to_string(config).expect("written");
    let lines = text.lines().filter_map(|line| line.strip_prefix("#+ "));
    let ours = lines.filter(|line| line.starts_with("nixl/"));
    ours.map(|line| line.trim_end_matches(':').to_owned())
        .collect()
}

/// Lines of all of our groups, with the detail switched on (`y`) or off (`n`).
fn all_groups(detail: &str) -> [String; 3] {
    [("detail", detail), ("summary", "y"), ("transport", "y")]
        .map(|(group, switch)| format!("nixl/{group}:{switch}:default"))
}

/// Metrics of a group.
fn metrics_of(pmcd: &Pmcd, group: &str) -> BTreeSet<String> {
    let file = text_of(&format!("{GROUPS}/{group}"));
    let names = file.lines().filter_map(|line| line.strip_prefix('\t'));
    let shown = run(pmcd.tool("pminfo").args(names));
    shown.lines().map(|line| line.trim().to_owned()).collect()
}

/// Writes three samples with pmlogger and that configuration.
fn log(pmcd: &Pmcd, home: &Home, config: &Path) -> PathBuf {
    let archive = home.path("archive");
    let mut pmlogger = pmcd.tool("pmlogger");
    pmlogger.arg("-c").arg(config);
    pmlogger.arg("-l").arg(home.path("pmlogger.log"));
    run(pmlogger.args(["-t", "1sec", "-s", "3"]).arg(&archive));
    archive
}

/// Names of our metrics in an archive.
fn logged(pmcd: &Pmcd, archive: &Path) -> BTreeSet<String> {
    let mut pminfo = pmcd.tool("pminfo");
    let shown = run(pminfo.arg("-a").arg(archive).arg("nixl"));
    shown.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn primary_pmlogger_logs_two_groups_and_optional_detail() {
    let home = Home::new();
    let (pmcd, _ring) = pmcd(&home);
    let config = home.path("pmlogger.conf");
    let groups = configure(&pmcd, &config);
    assert_eq!(groups, all_groups("n"));
    let mut expected = metrics_of(&pmcd, "summary");
    expected.append(&mut metrics_of(&pmcd, "transport"));
    assert_eq!(logged(&pmcd, &log(&pmcd, &home, &config)), expected);

    // The command of docs/tools.md. Later updates by PCP's scripts keep the switch.
    let text = fs::read_to_string(&config).expect("written");
    let text = text.replace("#+ nixl/detail:n:", "#+ nixl/detail:y:");
    fs::write(&config, text).expect("written");
    for _ in 0..2 {
        let groups = configure(&pmcd, &config);
        assert_eq!(groups, all_groups("y"));
    }
    let home = Home::new();
    expected.append(&mut metrics_of(&pmcd, "detail"));
    assert_eq!(logged(&pmcd, &log(&pmcd, &home, &config)), expected);
}

#[test]
fn existing_pmlogger_gets_the_new_groups() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let other = "#pmlogconf-setup 2.0\nident pmcd\nprobe pmcd.version exists ? include : exclude\n\tpmcd.version\n";
    fs::create_dir_all(pmcd.path("var/config/pmlogconf/tools")).expect("made");
    fs::write(pmcd.path("var/config/pmlogconf/tools/pcp"), other).expect("written");
    let config = home.path("pmlogger.conf");
    assert!(configure(&pmcd, &config).is_empty());
    link(GROUPS, &pmcd.path("var/config/pmlogconf/nixl"));
    let groups = configure(&pmcd, &config);
    assert_eq!(groups, all_groups("n"));
}

#[test]
fn pmlogconf_without_nixl_adds_nothing() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    // The groups with metrics that this pmcd does not have.
    let place = pmcd.path("var/config/pmlogconf/nixl");
    fs::create_dir_all(&place).expect("made");
    for group in files_in(GROUPS) {
        let text = text_of(&format!("{GROUPS}/{group}")).replace("nixl.", "nixm.");
        fs::write(place.join(group), text).expect("written");
    }
    let config = home.path("pmlogger.conf");
    configure(&pmcd, &config);
    let text = fs::read_to_string(&config).expect("written");
    assert!(!text.contains("nixm."), "{text}");
}

#[test]
fn every_metric_is_in_one_group() {
    let home = Home::new();
    let (pmcd, _ring) = pmcd(&home);
    let mut found = BTreeSet::from(LEFT_OUT.map(str::to_owned));
    for group in files_in(GROUPS) {
        for metric in metrics_of(&pmcd, &group) {
            assert!(!found.contains(&metric), "{group}: {metric} is there twice");
            found.insert(metric);
        }
    }
    let all = run(pmcd.tool("pminfo").arg("nixl"));
    let all: BTreeSet<String> = all.lines().map(str::to_owned).collect();
    assert_eq!(found, all);
}

#[test]
fn default_groups_have_all_inputs_of_derived_metrics_and_rules() {
    let home = Home::new();
    let (pmcd, _ring) = pmcd(&home);
    let config = home.path("pmlogger.conf");
    configure(&pmcd, &config);
    let archive = log(&pmcd, &home, &config);
    let mut pminfo = pmcd.tool("pminfo");
    pminfo.env("PCP_DERIVED_CONFIG", project(DERIVED));
    let described = run(pminfo.arg("-d").arg("-a").arg(&archive).arg("nixl_derived"));
    for name in names_in(&text_of(DERIVED)) {
        if name.starts_with("nixl_derived.") && text_of(DERIVED).contains(&format!("\n{name} = ")) {
            assert!(
                described.contains(&format!("\n{name}\n    Data Type")),
                "{name}\n{described}"
            );
        }
    }
    let global = format!("{}/config/pmieconf/global", pcp("PCP_VAR_DIR"));
    let rules = project("share/pmieconf/nixl");
    let mut pmieconf = pmcd.tool("pmieconf");
    pmieconf
        .arg("-r")
        .arg(format!("{}:{global}", rules.display()));
    run(pmieconf
        .arg("-f")
        .arg(home.path("pmie.conf"))
        .args(["enable", "nixl"]));
    let mut pmie = pmcd.tool("pmie");
    pmie.env("PCP_DERIVED_CONFIG", project(DERIVED));
    pmie.arg("-C").arg("-a").arg(&archive);
    let checked = output(pmie.arg("-c").arg(home.path("pmie.conf")));
    let said = text(&checked);
    // Nothing here has peers by TCP, so their instance domain is not in the archive.
    let has_instances = |line: &&str| !line.ends_with("instance domain not available in archive");
    let missing = said.lines().filter(|line| !names_in(line).is_empty());
    let missing = missing.filter(has_instances);
    let missing: Vec<_> = missing.collect();
    assert!(checked.status.success() && missing.is_empty(), "{said}");
}
