// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules about counters that should stand still: full rings, dropped events, errors. Rules on a running pmcd.

use crate::support::kill::{kill_for_a_minute, while_stopped};
use crate::support::rule::{Rule, configure, lose_and_leave, said_by};
use crate::support::share::{DERIVED, Logger};
use crate::support::{Home, Pmcd, output, project, wait_for};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Name of a rule, its message, its counter by agent and of the host, and a text behind its values.
type Loss = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

const LOSSES: [Loss; 3] = [
    (
        "ring_full",
        "NIXL telemetry is being lost: ring full. If no agent is named, pcp nixl -e shows it:",
        "nixl.ring.full",
        "nixl.host.ring.full",
        "full/s",
    ),
    (
        "events_dropped",
        "NIXL telemetry is being lost: events dropped. If no agent is named, pcp nixl -e shows it:",
        "nixl.queue.dropped",
        "nixl.host.queue.dropped",
        "dropped/s",
    ),
    (
        "error_burst",
        "Burst of NIXL errors. If no agent is named, pcp nixl -e shows them:",
        "nixl.errors.total",
        "nixl.host.errors.total",
        "errors/s",
    ),
];

#[test]
fn agent_that_loses_is_named_and_an_old_loss_is_not_reported() {
    for (name, message, counter, host, unit) in LOSSES {
        let rule = Rule::new(name);
        rule.fires(
            &format!(
                "{counter} lost 0 0 60 60 120 120
                 {counter} fine 0 0 0 0 0 0
                 {host} - 0 0 60 60 120 120"
            ),
            &format!("{message} 1{unit}[lost]@host"),
        );
        rule.is_silent(&format!(
            "{counter} before 700 700 700 700
             {counter} comes  - - 700 700
             {host} - 9000 9000 9000 9000"
        ));
    }
}

#[test]
fn agent_with_drops_is_reported_beside_one_without_values() {
    let (name, message, ..) = LOSSES[1];
    Rule::new(name).fires(
        "nixl.queue.dropped new 0 0 120 120
         nixl.ring.events  new 0 9 99  199
         nixl.ring.events  old 0 9 99  199
         nixl.host.queue.dropped - 0 0 120 120",
        &format!("{message} 2dropped/s[new]@host"),
    );
}

#[test]
fn events_that_another_reader_takes_are_reported() {
    let rule = Rule::new("events_taken");
    rule.fires(
        "nixl.ring.foreign_reads shared 0 0 120 120
         nixl.ring.foreign_reads alone  9 9 9   9",
        "NIXL telemetry is being lost: another reader takes events 2taken/s[shared]@host",
    );
    rule.is_silent(
        "nixl.ring.foreign_reads before 700 700 700 700
         nixl.ring.foreign_reads comes  -   -   700 700",
    );
    let lenient = Rule::new("events_taken").with(&[("threshold", "120")]);
    lenient.is_silent("nixl.ring.foreign_reads shared 0 0 120 120");
}

#[test]
fn threshold_is_for_each_agent_and_for_all_together() {
    let table = |(_, _, counter, host, _): Loss, other: &str, sum: &str| {
        format!(
            "{counter} one 0 10 20 30
             {counter} other {other}
             {host} - {sum}"
        )
    };
    for loss in LOSSES {
        let (name, message, ..) = loss;
        let rule = Rule::new(name).with(&[("threshold", "10")]);
        rule.is_silent(&table(loss, "0 0 0 0", "0 10 20 30"));
        rule.fires(&table(loss, "0 1 2 3", "0 11 22 33"), message);
        let strict = Rule::new(name).with(&[("threshold", "9")]);
        let said = strict.says(&table(loss, "0 0 0 0", "0 10 20 30"));
        assert!(said.len() == 1 && said[0].contains("[one]@"), "{said:?}");
    }
    let (name, ..) = LOSSES[2];
    Rule::new(name).is_silent(&table(LOSSES[2], "0 0 0 0", "0 10 20 30"));
}

/// Only the sums of the host have what such an agent lost, whether it is there in one sample or in none.
#[test]
fn loss_of_an_agent_without_two_samples_is_reported_once() {
    for (name, message, counter, host, _) in LOSSES {
        let rule = Rule::new(name);
        let sum = format!("{host} - 5 5 65 65 65");
        for samples in ["- - 60 - -", "- - 60 60 60", "- - - - -"] {
            let new = format!("{sum}\n{counter} new {samples}");
            for other in ["5 5 5 5 5", "5 - - - -"] {
                rule.fires(&format!("{new}\n{counter} fine {other}"), message);
            }
        }
    }
}

/// Its first interval has no rate, and a message without its name would delay the next one.
#[test]
fn new_agent_that_goes_on_losing_is_named() {
    for (name, message, counter, host, unit) in LOSSES {
        for other in ["5 5 5 5 5", "- - - - -"] {
            Rule::new(name).fires(
                &format!(
                    "{host} - 5 5 65 125 185
                     {counter} new - - 60 120 180
                     {counter} fine {other}"
                ),
                &format!("{message} 1{unit}[new]@host"),
            );
        }
    }
}

#[test]
fn problem_is_reported_while_other_agents_come_or_leave() {
    for (name, _, counter, host, _) in LOSSES {
        for other in ["- - 0 0", "0 0 - -"] {
            let said = Rule::new(name).says(&format!(
                "{counter} a {other}
                 {counter} m 0 0 60 60
                 {counter} z {other}
                 {host} - 0 0 60 60"
            ));
            assert!(
                said.len() == 1 && said[0].contains("[m]@"),
                "{name}: {said:?}"
            );
        }
    }
}

/// The counters decrease, as after a start of pmdanixl without its state under a running pmcd.
#[test]
fn counter_reset_is_not_reported() {
    for (name, _, counter, host, _) in LOSSES {
        let rule = Rule::new(name);
        let both = |values: &str| format!("{counter} reset {values}\n{host} - {values}");
        rule.is_silent(&both("100 100 0 0 0"));
        let said = rule.says(&both("100 100 0 0 60 60"));
        assert_eq!(said.len(), 1, "{name}, afterwards: {said:?}");
    }
}

/// pmie on a running pmcd, with its messages in a file. Dropping it ends pmie.
struct Live {
    pmie: Child,
    said: PathBuf,
}

impl Live {
    fn start(home: &Home, pmcd: &Pmcd, config: &Path) -> Self {
        let said = home.path("said");
        let log = File::create(&said).expect("made");
        let mut pmie = pmcd.tool("stdbuf");
        pmie.args(["-oL", "pmie", "-v", "-f", "-l", "-", "-c"]);
        pmie.arg(config).env("PCP_DERIVED_CONFIG", project(DERIVED));
        pmie.stdin(Stdio::null());
        pmie.stdout(log.try_clone().expect("a copy")).stderr(log);
        Self {
            pmie: pmie.spawn().expect("stdbuf(1)"),
            said,
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).expect("there")
    }

    /// Waits until each of these rules was evaluated twice.
    fn has_evaluated(&self, rules: &[&str]) {
        wait_for("pmie evaluates the rules", || {
            let said = self.said();
            let is_twice = |name: &&str| said.matches(&format!("nixl.{name}: ")).count() > 1;
            rules.iter().all(is_twice).then_some(())
        });
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.pmie.kill();
        let _ = self.pmie.wait();
    }
}

#[test]
fn loss_between_two_samples_is_reported_live_and_from_an_archive() {
    let home = Home::new();
    home.set("retain = \"0s\"");
    let pmcd = Pmcd::start(&home);
    let rules = LOSSES.map(|(name, ..)| Rule::new(name).with(&[("delta", "\"1 sec\"")]));
    let config = configure(&home, &rules);
    let messages = LOSSES.map(|(_, message, ..)| message);

    // No other agent is there.
    let live = Live::start(&home, &pmcd, &config);
    live.has_evaluated(&LOSSES.map(|(name, ..)| name));
    while_stopped(&[live.pmie.id()], || lose_and_leave(&home, &pmcd));
    let said = wait_for("pmie reports each loss", || {
        let said = live.said();
        let is_said = |message: &&str| said.contains(&format!("\n{message}\n"));
        messages.iter().all(is_said).then_some(said)
    });
    for message in messages {
        assert_eq!(said.matches(message).count(), 1, "{said}");
    }
    drop(live);

    // On an archive, pmie needs the instance domain of agents.
    let _other = home.new_ring("other", 64);
    let path = home.path("archive");
    let pmlogger = Logger::start(&pmcd, &path);
    pmcd.becomes(&[("other", 0)]);
    pmlogger.samples(3);
    while_stopped(&[pmlogger.pid()], || lose_and_leave(&home, &pmcd));
    pmlogger.samples(3);
    drop(pmlogger);
    let mut said = said_by(&config, &path);
    said.sort_by_key(|said| messages.iter().position(|message| message == said));
    assert_eq!(said, messages);
}

#[test]
fn killed_pmda_is_reported_with_its_status() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let rule = Rule::new("pmda_down").with(&[("delta", "\"1 sec\"")]);
    let live = Live::start(&home, &pmcd, &configure(&home, &[rule]));
    live.has_evaluated(&["pmda_down"]);
    assert!(!live.said().contains("does not answer"), "{}", live.said());
    kill_for_a_minute(&pmcd);
    // A new client makes pmcd notice the end.
    let _ = output(pmcd.tool("pminfo").arg("pmcd.agent.status"));
    let message = "\npmdanixl does not answer: no values of NIXL status ";
    let status = wait_for("pmie reports it", || {
        let said = live.said();
        let (status, _) = said.split_once(message)?.1.split_once('@')?;
        status.parse::<i32>().ok()
    });
    assert_eq!(status >> 16, libc::SIGKILL, "{status}");
}
