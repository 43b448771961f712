// SPDX-License-Identifier: GPL-2.0-or-later

//! pmStore requests as PDUs without pmcd: invalid values, and users without the right.

use super::PERMISSION;
use crate::support::pdu::{Link, Sent};
use crate::support::{Home, PMDANIXL, output, text};
use pmdanixl::metrics::{DEBUG, METRICS, RELOAD};
use std::process::Command;

/// Error codes of PCP (pmapi.h).
const CONV: &str = "status -12362";

const BADSTORE: &str = "status -12400";
const PMID: &str = "status -12358";

fn linked(home: &Home, args: &[&str]) -> Link {
    let mut command = Command::new(PMDANIXL);
    command.args(args);
    Link::start(home, command).expect("it starts")
}

fn control(link: &mut Link) -> Vec<u64> {
    let names = ["control.debug", "control.reloads"];
    let values = link.fetch(&names).expect("values");
    values.into_iter().map(|of| of[&u32::MAX]).collect()
}

#[test]
fn pmstore_with_wrong_value_count_or_type_changes_nothing() {
    let home = Home::new();
    let mut link = linked(&home, &[]);
    link.be_user(0).expect("sent");
    let before = control(&mut link);
    let one = |number| Sent::Numbers(vec![number]);
    let cases = [
        (Sent::Numbers(vec![]), BADSTORE),
        (Sent::Numbers(vec![1, 1]), BADSTORE),
        // PM_TYPE_U64, PM_TYPE_DOUBLE, PM_TYPE_STRING, and a PM_TYPE_U32 that is not in place.
        (Sent::Block(3, vec![0, 1]), CONV),
        (Sent::Block(5, vec![0x3ff0_0000, 0]), CONV),
        (Sent::Block(6, vec![u32::from_be_bytes(*b"1\0\0\0")]), CONV),
        (Sent::Block(1, vec![1]), CONV),
    ];
    for name in ["control.debug", "control.reload"] {
        for (sent, expected) in &cases {
            let rejection = link.store(&[(name, sent.clone())]).expect_err("rejection");
            assert_eq!(rejection.to_string(), *expected, "{name}: {sent:?}");
        }
    }
    // A request with a rejected value changes nothing, also not the values before it.
    for (second, sent, expected) in [
        ("control.debug", one(2), BADSTORE),
        ("control.version", one(2), PERMISSION),
    ] {
        let stores = [("control.debug", one(1)), (second, sent)];
        let rejection = link.store(&stores).expect_err("rejection");
        assert_eq!(rejection.to_string(), expected, "{second}");
    }
    let nowhere = link.store_pmids(&[((39 << 22) | 999, one(1))]);
    assert_eq!(nowhere.expect_err("rejection").to_string(), PMID);
    assert_eq!(control(&mut link), before);
    let stores = [("control.debug", one(1)), ("control.reload", one(7))];
    link.store(&stores).expect("accepted");
    assert_eq!(control(&mut link), [1, 2]);
}

#[test]
fn root_can_store_to_no_other_metric() {
    let home = Home::new();
    let mut link = linked(&home, &[]);
    link.be_user(0).expect("sent");
    for metric in METRICS.iter() {
        if [DEBUG, RELOAD].contains(&(metric.cluster, metric.item)) {
            continue;
        }
        let rejection = link.store(&[(metric.name, Sent::Numbers(vec![1]))]);
        let rejection = rejection.expect_err("rejection").to_string();
        assert_eq!(rejection, PERMISSION, "{}", metric.name);
    }
}

#[test]
fn pmstore_of_an_unknown_or_other_user_is_rejected() {
    let home = Home::new();
    let mut link = linked(&home, &[]);
    let store = |link: &mut Link| {
        let done = link.store(&[("control.debug", Sent::Numbers(vec![1]))]);
        done.map_err(|err| err.to_string())
    };
    assert_eq!(store(&mut link), Err(PERMISSION.into()));
    link.be_user(1000).expect("sent");
    assert_eq!(store(&mut link), Err(PERMISSION.into()));
    assert_eq!(control(&mut link)[0], 0);
    link.be_user(0).expect("sent");
    assert_eq!(store(&mut link), Ok(()));
    assert_eq!(control(&mut link)[0], 1);
}

#[test]
fn pmstore_is_judged_by_its_own_sender() {
    let home = Home::new();
    let mut link = linked(&home, &[]);
    let (root, user) = (1, 2);
    for (sender, uid) in [(root, 0), (user, 1000)] {
        link.sender = sender;
        link.be_user(uid).expect("sent");
    }
    let name = "control.debug";
    for (asks, fetches, stores, expected) in [
        (root, user, user, Err(PERMISSION.to_owned())),
        (root, root, user, Err(PERMISSION.to_owned())),
        (user, root, root, Ok(())),
        (user, user, root, Ok(())),
    ] {
        link.sender = asks;
        link.describe(name).expect("an answer");
        link.sender = fetches;
        link.fetch(&[name]).expect("an answer");
        link.sender = stores;
        let stored = link.store(&[(name, Sent::Numbers(vec![1]))]);
        assert_eq!(stored.map_err(|err| err.to_string()), expected);
    }
}

#[test]
fn debug_option_starts_debug_and_pmstore_ends_it() {
    let home = Home::new();
    let mut link = linked(&home, &["-D", "appl0"]);
    assert_eq!(control(&mut link)[0], 1);
    link.be_user(0).expect("sent");
    link.store(&[("control.debug", Sent::Numbers(vec![0]))])
        .expect("accepted");
    assert_eq!(control(&mut link)[0], 0);
}

#[test]
fn check_warns_of_a_changed_or_rejected_file() {
    let home = Home::new();
    let mut link = linked(&home, &[]);
    link.be_user(0).expect("sent");
    // The first answer comes from a daemon with a state file.
    control(&mut link);
    let check = || {
        let mut check = Command::new(PMDANIXL);
        check.env("PCP_RUN_DIR", home.path("run"));
        text(&output(check.args(["--check", "-c"]).arg(home.conf())))
    };
    let outdated = "has changed since the daemon read it";
    let said = check();
    assert!(
        said.contains("daemon: pid ") && !said.contains(outdated),
        "{said}"
    );
    home.set("retain = \"1m\"");
    let said = check();
    assert!(said.contains(outdated), "{said}");
    link.store(&[("control.reload", Sent::Numbers(vec![1]))])
        .expect("the file is right");
    let said = check();
    assert!(
        said.contains("daemon: pid ") && !said.contains(outdated),
        "{said}"
    );
    home.set("retain = \"soon\"");
    let said = check();
    assert!(said.contains(outdated), "{said}");
    let rejected = "the daemon has rejected ";
    link.store(&[("control.reload", Sent::Numbers(vec![1]))])
        .expect_err("the file has a mistake");
    let said = check();
    assert!(
        said.contains(rejected) && !said.contains(outdated),
        "{said}"
    );
    home.set("retain = \"2m\"");
    let said = check();
    assert!(
        said.contains(outdated) && !said.contains(rejected),
        "{said}"
    );
    link.store(&[("control.reload", Sent::Numbers(vec![1]))])
        .expect("the file is right again");
    let said = check();
    assert!(
        !said.contains(outdated) && !said.contains(rejected),
        "{said}"
    );
    assert!(link.end().success());
}
