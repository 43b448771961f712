// SPDX-License-Identifier: GPL-2.0-or-later

//! The rule and the alert for an agent that has exited, which docs/tools.md and docs/grafana.md have for a reader's own
//! files.

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

#[test]
fn alerts_of_the_page_fire_for_their_cases() {
    let home = Home::new();
    let alerts = [
        "      - alert: NixlScrapeFails",
        "      - alert: NixlAgentExited",
    ];
    let alerts = alerts.map(|begin| block_from("docs/grafana.md", begin));
    let rules = home.path("rules.yml");
    let text = format!(
        "groups:\n  - name: page\n    rules:\n{}\n",
        alerts.join("\n")
    );
    fs::write(&rules, text).expect("written");
    let cases = home.path("cases.yml");
    let of_instance = "{alertname: NixlScrapeFails, eval_time: 6m, exp_alerts: [{exp_labels: {job: pcp-nixl, instance: 'h:44322'}, \
         exp_annotations: {summary: 'h:44322: no answer from pmproxy, or none within scrape_timeout'}}]}";
    let of_agent = "{alertname: NixlAgentExited, eval_time: 6m, exp_alerts: [{exp_labels: {hostname: node1, instname: ended}, \
         exp_annotations: {summary: 'ended on node1: its process has ended'}}]}";
    let text = format!(
        "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n  \
         - {{series: 'up{{job=\"pcp-nixl\",instance=\"h:44322\"}}', values: '0x10'}}\n  \
         - {{series: 'up{{job=\"pcp-nixl\",instance=\"i:44322\"}}', values: '1x10'}}\n  \
         - {{series: 'nixl_agent_state{{hostname=\"node1\",instname=\"ended\"}}', values: '1x4 3x6'}}\n  \
         - {{series: 'nixl_agent_state{{hostname=\"node1\",instname=\"runs\"}}', values: '2x10'}}\n  \
         alert_rule_test:\n  - {of_instance}\n  - {of_agent}\n"
    );
    fs::write(&cases, text).expect("written");
    run(Command::new("promtool").args(["test", "rules"]).arg(cases));
}
