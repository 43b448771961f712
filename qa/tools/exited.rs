// SPDX-License-Identifier: GPL-2.0-or-later

//! The rule and the alert for an agent that has exited, which are off: docs/tools.md has the rule, and the alert is a
//! comment of the rules file.

use crate::support::rule::said_by;
use crate::support::share::{archive, text_of};
use crate::support::{Home, run};
use std::fs;
use std::process::Command;

/// Lines of a page from the one with this text up to the end of its block.
fn block_from(page: &str, begin: &str) -> String {
    let text = text_of(page);
    let at = text
        .find(begin)
        .unwrap_or_else(|| panic!("{page}: {begin}"));
    let block = text[at..].split("\n```").next().expect("a block");
    block.to_owned()
}

#[test]
fn rule_of_the_page_reports_an_agent_that_has_exited() {
    let home = Home::new();
    let rule = block_from("docs/tools.md", "some_inst nixl.agent.state == 3");
    let config = home.path("exited.conf");
    fs::write(
        &config,
        rule.replace("syslog 10 min", "shell 10 min \"echo \""),
    )
    .expect("written");
    let path = home.path("archive");
    archive(
        &path,
        60,
        "nixl.agent.state ended 1 2 3 3
         nixl.agent.state runs 1 2 2 0",
    );
    assert_eq!(
        said_by(&config, &path),
        ["NIXL agent has exited ended@host"]
    );
}

/// The rules file with the alert that is a comment.
fn rules_with_exited() -> String {
    let rules = text_of("share/prometheus/nixl.rules.yml");
    let (others, exited) = rules
        .split_once("      # - alert: NixlAgentExited\n")
        .expect("the comment");
    let is_comment = |line: &&str| line.starts_with("      # ");
    let alert = exited.lines().take_while(is_comment);
    let alert: Vec<_> = alert.map(|line| line.replacen("# ", "", 1)).collect();
    let rest: Vec<_> = exited.lines().skip_while(is_comment).collect();
    format!(
        "{others}      - alert: NixlAgentExited\n{}\n{}\n",
        alert.join("\n"),
        rest.join("\n")
    )
}

#[test]
fn alert_in_a_comment_fires_for_an_agent_that_has_exited() {
    let home = Home::new();
    fs::write(home.path("rules.yml"), rules_with_exited()).expect("written");
    let cases = home.path("cases.yml");
    let exited = "{alertname: NixlAgentExited, eval_time: 6m, exp_alerts: [{\
         exp_labels: {severity: warning, hostname: node1, instname: ended}, \
         exp_annotations: {summary: 'ended on node1: its process has ended', \
         runbook: 'docs/troubleshooting.md#what-happened-at-031207'}}]}";
    let text = format!(
        "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n  \
         - {{series: 'nixl_agent_state{{hostname=\"node1\",instname=\"ended\"}}', values: '1x4 3x6'}}\n  \
         - {{series: 'nixl_agent_state{{hostname=\"node1\",instname=\"runs\"}}', values: '2x10'}}\n  \
         alert_rule_test:\n  - {exited}\n"
    );
    fs::write(&cases, text).expect("written");
    run(Command::new("promtool").args(["test", "rules"]).arg(cases));
}
