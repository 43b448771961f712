// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules of share/pmieconf: PCP's own pmieconf makes the configuration, and pmie evaluates it on archives.

mod fallback;
mod loss;
mod peers;

use crate::support::rule::{RULES, Rule, pmieconf};
use crate::support::share::{Logger, files_in, is_metric, names_in, text_of};
use crate::support::writer::Kind;
use crate::support::{Home, Pmcd, run, wait_for};
use std::os::unix::fs::FileExt;

#[test]
fn rules_are_off_by_default() {
    let home = Home::new();
    let disabled = run(pmieconf(&home).args(["rules", "disabled"]));
    for name in files_in(RULES) {
        assert!(disabled.contains(&format!(" nixl.{name} ")), "{disabled}");
    }
    let enabled = run(pmieconf(&home).args(["rules", "enabled"]));
    assert!(!enabled.contains("nixl."), "{enabled}");
    assert_eq!(files_in(RULES).len(), 16);
}

#[test]
fn rules_have_help_with_existing_metrics() {
    let home = Home::new();
    let rules = files_in(RULES);
    for name in &rules {
        let help = run(pmieconf(&home).args(["help", &format!("nixl.{name}")]));
        assert!(help.lines().count() > 5, "{help}");
        let file = text_of(&format!("{RULES}/{name}"));
        for metric in names_in(&file) {
            let is_rule = metric
                .strip_prefix("nixl.")
                .is_some_and(|name| rules.iter().any(|rule| rule == name));
            assert!(is_rule || is_metric(metric), "{name}: {metric}");
        }
    }
}

#[test]
fn memory_growth_in_six_intervals_is_reported() {
    let rule = Rule::new("memory_growth").every(600);
    let message = "NIXL registered memory grows without end [leak]@host";
    rule.fires(
        "nixl.memory.current leak 0 2e6 4e6 6e6 8e6 10e6 12e6 12e6
         nixl.memory.current fine 9e9 9e9 9e9 9e9 9e9 9e9 9e9 9e9"
            .replace("e6", "000000")
            .replace("e9", "000000000")
            .as_str(),
        message,
    );
    for steps in [
        // Memory is registered at the start, in a few steps.
        "0 4000000 8000000 90000000 90000000 90000000 90000000 90000000",
        // Memory is deregistered in between.
        "0 4000000 8000000 2000000 6000000 9000000 4000000 8000000",
        // The growth is below the threshold.
        "0 1000000 2000000 3000000 4000000 5000000 6000000 7000000",
        // The growth is shorter than six intervals.
        "0 0 0 2000000 4000000 6000000 8000000 10000000",
    ] {
        rule.is_silent(&format!("nixl.memory.current fine {steps}"));
    }
    let lenient = Rule::new("memory_growth")
        .every(600)
        .with(&[("threshold", "2")]);
    lenient
        .is_silent("nixl.memory.current leak 0 2000000 4000000 6000000 8000000 10000000 12000000");
}

#[test]
fn agent_that_comes_or_leaves_is_not_memory_growth() {
    // pmie changes its history when agents change. This must not look like a leak.
    Rule::new("memory_growth").every(600).is_silent(
        "nixl.memory.current first 9000000 9000000 9000000 9000000 - - - - - -
         nixl.memory.current second 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000
         nixl.memory.current third - - 90000000 90000000 90000000 90000000 90000000 90000000 90000000 90000000",
    );
}

const GIB: u64 = 1 << 30;

/// Counter that grows by so many hundredths of a GiB in each minute.
fn grows(hundredths: u64) -> String {
    let values = (0..4).map(|minute| (minute * hundredths * GIB / 100).to_string());
    values.collect::<Vec<_>>().join(" ")
}

#[test]
fn unsupported_file_is_reported() {
    let rule = Rule::new("unsupported").every(300);
    rule.fires(
        "nixl.control.files.unsupported - 0 0 2 2",
        "NIXL telemetry of an unsupported version 2files@host",
    );
    rule.is_silent("nixl.control.files.unsupported - 0 0 0 0");
    let lenient = Rule::new("unsupported")
        .every(300)
        .with(&[("threshold", "2")]);
    lenient.is_silent("nixl.control.files.unsupported - 0 0 2 2");
}

#[test]
fn transfer_that_is_in_flight_for_long_is_reported() {
    let rule = Rule::new("in_flight");
    rule.fires(
        "nixl.trace.oldest_age a::b 10 30001 60001
         nixl.trace.oldest_age a::c 10 20 30",
        "NIXL transfer is in flight for long [a::b]@host",
    );
    rule.is_silent(
        "nixl.trace.oldest_age a::b 30000 29999 - 10
         nixl.trace.oldest_age a::c 1 1 1 1",
    );
    let lenient = Rule::new("in_flight").with(&[("threshold", "90")]);
    lenient.is_silent("nixl.trace.oldest_age a::b 30001 60001 90000");
}

#[test]
fn silent_processes_are_reported_after_their_start() {
    let rule = Rule::new("no_telemetry").every(300);
    rule.fires(
        "nixl.host.processes.silent - 0 2 2 2",
        "NIXL in use without telemetry 2processes@host",
    );
    rule.is_silent("nixl.host.processes.silent - 0 2 2 0 2 2");
    let lenient = Rule::new("no_telemetry")
        .every(300)
        .with(&[("processes", "2")]);
    lenient.is_silent("nixl.host.processes.silent - 2 2 2 2");
    lenient.fires(
        "nixl.host.processes.silent - 2 3 3 3",
        "NIXL in use without telemetry 3processes@host",
    );
}

#[test]
fn missing_directory_is_reported_after_three_samples() {
    let rule = Rule::new("directory_missing");
    rule.fires(
        "nixl.control.directories.missing 0 1 1 1",
        "NIXL telemetry directory is missing 1directories@host",
    );
    rule.is_silent("nixl.control.directories.missing 0 1 1 0 1 1");
    let lenient = Rule::new("directory_missing").with(&[("threshold", "1")]);
    lenient.is_silent("nixl.control.directories.missing 0 1 1 1 1");
    lenient.fires(
        "nixl.control.directories.missing 1 1 2 2 2",
        "NIXL telemetry directory is missing 2directories@host",
    );
}

#[test]
fn missing_pmda_is_reported_after_two_samples() {
    let rule = Rule::new("pmda_down");
    let message = "pmdanixl does not answer: no values of NIXL status";
    // Exit status 9 and signal 9, by pmcd.
    for status in [2306, 589_826] {
        rule.fires(
            &format!(
                "pmcd.agent.status nixl 0 0 {status} {status} {status}
                 pmcd.agent.status linux 0 0 0 0 0"
            ),
            &format!("{message} {status}@host"),
        );
    }
    rule.is_silent(
        "pmcd.agent.status nixl 0 2 0 2 0
         pmcd.agent.status linux 0 2 2 2 2",
    );
    rule.is_silent("pmcd.agent.status linux 0 2 2 2 2");
}

#[test]
fn configuration_that_was_rejected_at_the_start_is_reported() {
    let rule = Rule::new("not_configured");
    let message = "pmdanixl reads no telemetry: its configuration was rejected @host";
    rule.fires("nixl.control.reloads - 0 0 0 0", message);
    rule.is_silent("nixl.control.reloads - 1 1 2 2");
}

#[test]
fn rules_fire_on_a_pmlogger_archive_with_problems() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = home.new_ring("worker", 64);
    let future = home.new_ring("future", 64);
    wait_for("both files are counted", || {
        (pmcd.sent().len() == 2).then_some(())
    });
    let path = home.path("archive");
    let pmlogger = Logger::start(&pmcd, &path);
    // A rate needs two values, and the steps of pmie begin before the first one.
    pmlogger.samples(3);
    while ring.push(Kind::TxBytes, 1) {}
    wait_for("the ring is empty", || (ring.pending() == 0).then_some(()));
    assert!(ring.push(Kind::Backend, 1));
    drop(future);
    std::fs::remove_file(home.ring("future")).expect("removed");
    let later = home.new_ring("future", 64);
    let file = std::fs::File::options()
        .write(true)
        .open(home.ring("future"));
    let versions = [6, 0, 0, 0, 6, 0, 0, 0];
    file.and_then(|file| file.write_all_at(&versions, 16))
        .expect("written");
    pmlogger.samples(4);
    drop(pmlogger);
    drop(later);
    for (name, said) in [
        ("ring_full", "NIXL telemetry is being lost: ring full. "),
        ("error_burst", "Burst of NIXL errors. "),
        (
            "unsupported",
            "NIXL telemetry of an unsupported version 1files@",
        ),
    ] {
        let rule = Rule::new(name).with(&[("delta", "\"1 sec\"")]);
        let says = rule.says_of(&home, &path);
        assert!(says.len() == 1 && says[0].starts_with(said), "{says:?}");
        assert_eq!(
            says[0].contains("[worker]@"),
            name != "unsupported",
            "{says:?}"
        );
    }
    for name in ["events_dropped", "silent", "straggler", "memory_growth"] {
        let rule = Rule::new(name).with(&[("delta", "\"1 sec\"")]);
        let says = rule.says_of(&home, &path);
        assert!(says.is_empty(), "{name}: {says:?}");
    }
}
