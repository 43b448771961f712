// SPDX-License-Identifier: GPL-2.0-or-later

//! The rule for agents that have fallen back to TCP, and configurations of the rules that it replaces.

use super::grows;
use crate::support::rule::{RULES, Rule, pmieconf, said_by};
use crate::support::share::{archive, text_of};
use crate::support::{Home, output, pcp, project, run, text};
use std::fs;
use std::path::PathBuf;

/// Agent with its share in four samples, its bytes and those of its peers in hundredths of a GiB per minute.
fn agent(name: &str, share: &str, moved: u64, peers: &[(&str, u64)]) -> String {
    let mut table = format!(
        "nixl.agent.tcp_share {name} {share}
         nixl.transfer.tx_bytes {name} {}
         nixl.transfer.rx_bytes {name} 0 0 0 0\n",
        grows(moved)
    );
    for (address, sent) in peers {
        table += &format!(
            "nixl.agent.peer.tcp.agent_share {name}::{address} {share}
             nixl.agent.peer.tcp.tx_bytes {name}::{address} {}
             nixl.agent.peer.tcp.rx_bytes {name}::{address} 0 0 0 0\n",
            grows(*sent)
        );
    }
    table
}

const SAYS: &str = "NIXL has fallen back to TCP: check UCX_TLS and RDMA devices";
/// Share in all four samples.
const FALLEN_BACK: &str = "1 1 1 1";
const WELL: &str = "0.004 0.004 0.004 0.004";

#[test]
fn agent_and_peer_are_named_when_most_bytes_go_over_tcp() {
    let rule = Rule::new("tcp_fallback");
    let well = agent("rank-1", WELL, 1000, &[("10.0.0.1", 4)]);
    let fallen_back = agent(
        "rank-2",
        "0 0.98 0.98 0.98",
        1000,
        &[("10.0.0.1", 980), ("10.0.0.9", 1)],
    );
    rule.fires(
        &format!("{well}{fallen_back}"),
        &format!("{SAYS} 98%[rank-2::10.0.0.1]@host"),
    );
    let both = agent(
        "rank-2",
        "1.25 1.25 1.25 1.25",
        1000,
        &[("10.0.0.1", 500), ("2001:db8::1", 750)],
    );
    rule.fires(
        &format!("{both}{well}"),
        &format!("{SAYS} 125%[rank-2::10.0.0.1]@host 125%[rank-2::2001:db8::1]@host"),
    );
}

#[test]
fn fast_slow_and_half_fallen_back_agents_are_not_reported() {
    let rule = Rule::new("tcp_fallback");
    let peer = [("10.0.0.1", 900)];
    rule.is_silent(&agent("well", WELL, 1000, &peer));
    rule.is_silent(&agent("half", "0.5 0.5 0.5 0.5", 1000, &peer));
    rule.is_silent(&agent("once", "0 0.9 0 0.9", 1000, &peer));
    // 9.4 MB/s.
    rule.is_silent(&agent("slow", FALLEN_BACK, 55, &[("10.0.0.1", 55)]));
    rule.is_silent(&agent("few", "- - - -", 1000, &peer));
    let lenient = Rule::new("tcp_fallback").with(&[("tcp_share", "95"), ("min_rate", "5")]);
    lenient.is_silent(&agent("most", "0.9 0.9 0.9 0.9", 1000, &peer));
    lenient.fires(
        &agent("slow", FALLEN_BACK, 55, &[("10.0.0.1", 55)]),
        &format!("{SAYS} 100%[slow::10.0.0.1]@host"),
    );
}

#[test]
fn agent_in_fallback_is_reported_beside_agents_without_a_share() {
    let rule = Rule::new("tcp_fallback");
    let fallen_back = agent("m", FALLEN_BACK, 1000, &[("10.0.0.1", 1000)]);
    for other in ["a", "z"] {
        let other = agent(other, "- - - -", 9000, &[]);
        let said = rule.says(&format!("{other}{fallen_back}"));
        assert_eq!(said, [format!("{SAYS} 100%[m::10.0.0.1]@host")]);
        let said = rule.says(&format!("{fallen_back}{other}"));
        assert_eq!(said, [format!("{SAYS} 100%[m::10.0.0.1]@host")]);
    }
}

#[test]
fn agent_in_fallback_is_named_when_another_gets_a_share() {
    let rule = Rule::new("tcp_fallback");
    // Only the last interval shows the fallback, and the share of the first agent begins in it.
    let new = agent("a", "- - - 0.004", 1000, &[("10.0.0.1", 4)]);
    let fallen_back = agent("m", "0 0 1 1", 1000, &[("10.0.0.1", 1000)]);
    let well = agent("n", WELL, 1000, &[("10.0.0.1", 4)]);
    let said = rule.says(&format!("{new}{fallen_back}{well}"));
    assert_eq!(said, [format!("{SAYS} 100%[m::10.0.0.1]@host")]);
}

/// A configuration of the two rules for hosts that there were before. Both are on, and all of their variables are set.
fn configuration(home: &Home) -> PathBuf {
    let config = home.path("pmie.conf");
    let text = text_of("qa/golden/pmie-host-rules.conf");
    let global = format!("{}/config/pmieconf/global", pcp("PCP_VAR_DIR"));
    let text = text.replace("RULES", project(RULES).to_str().expect("UTF-8"));
    fs::write(&config, text.replace("GLOBAL", &global)).expect("written");
    config
}

#[test]
fn earlier_configuration_gets_the_rule_and_loses_its_second() {
    let home = Home::new();
    let path = home.path("archive");
    // 51 MB/s.
    let table = agent("rank-2", FALLEN_BACK, 300, &[("10.0.0.1", 300)]);
    archive(&path, 60, &table);
    // What PCP's scripts run at each start of pmie, and what a user runs.
    for arguments in [&["-cF"][..], &["enable", "nixl.silent"]] {
        let config = configuration(&home);
        let changed = output(pmieconf(&home).args(arguments));
        assert!(changed.status.success(), "{}", text(&changed));
        // pmieconf says so once, and keeps the text of the rule as a comment.
        let change = text(&changed);
        assert!(
            change.contains("nixl.tcp_fallback_roce (deprecated"),
            "{change}"
        );
        let enabled = run(pmieconf(&home).args(["rules", "enabled"]));
        assert!(enabled.contains(" nixl.tcp_fallback "), "{enabled}");
        let set = run(pmieconf(&home).args(["list", "nixl.tcp_fallback"]));
        let set = set.split_whitespace().collect::<Vec<_>>().join(" ");
        let settings = "enabled = yes min_rate = 50 tcp_share = 60% delta = \"30 sec\"";
        assert!(set.ends_with(settings), "{set}");
        let again = output(pmieconf(&home).arg("-cF"));
        assert_eq!((again.status.success(), text(&again).trim()), (true, ""));
        let names = " 100%[rank-2::10.0.0.1]@host";
        assert_eq!(said_by(&config, &path), [format!("{SAYS}{names}")]);
    }
}

/// A process with its number of agents and its share in four samples. Its bytes over TCP are in hundredths of a GiB per
/// minute.
fn process(name: &str, agents: u32, share: &str, moved: u64) -> String {
    format!(
        "nixl.process.agents {name} {agents} {agents} {agents} {agents}
         nixl.process.tcp_share {name} {share}
         nixl.process.tcp.tx_bytes {name} {}
         nixl.process.tcp.rx_bytes {name} 0 0 0 0\n",
        grows(moved)
    )
}

#[test]
fn fallback_is_reported_once_by_agent_or_process() {
    let alone = agent("alone", FALLEN_BACK, 1000, &[("10.0.0.1", 1000)]);
    let shared = agent("first", "- - - -", 1000, &[]) + &agent("second", "- - - -", 1000, &[]);
    // Processes without a share come first and in between: values are paired by process.
    let processes = process("40_without_agents", 0, "- - - -", 3000)
        + &process("41_alone", 1, FALLEN_BACK, 1000)
        + &process("42_new", 2, "- - - -", 3000)
        + &process("43_shared", 2, "0.2 0.9 0.9 0.9", 1000);
    let table = alone + &shared + &processes;
    Rule::new("tcp_fallback").fires(&table, &format!("{SAYS} 100%[alone::10.0.0.1]@host"));
    let says = "NIXL agents of a process have fallen back to TCP: check UCX_TLS and RDMA devices";
    let rule = Rule::new("tcp_fallback_process");
    rule.fires(&table, &format!("{says} 90%[43_shared]@host"));
}

#[test]
fn processes_on_rdma_or_with_few_bytes_are_not_reported() {
    let rule = Rule::new("tcp_fallback_process");
    rule.is_silent(&process("well", 2, WELL, 4));
    rule.is_silent(&process("half", 2, "0.5 0.5 0.5 0.5", 1000));
    rule.is_silent(&process("once", 2, "0 0.9 0 0.9", 1000));
    // 9.4 MB/s.
    rule.is_silent(&process("slow", 2, FALLEN_BACK, 55));
    // 3.4 MB/s of NIXL beside other traffic.
    rule.is_silent(&process("other-traffic", 2, "50 50 50 50", 1000));
}

#[test]
fn earlier_configuration_works_until_pmieconf_changes_it() {
    let home = Home::new();
    let path = home.path("archive");
    let table = format!(
        "nixl.host.transfer.tx_bytes - {0}
         nixl.host.transfer.rx_bytes - 0 0 0 0
         infiniband.port.total.bytes mlx5_0:1 0 0 0 0
         network.interface.out.bytes eth0 {0}
         network.interface.in.bytes eth0 0 0 0 0",
        grows(1000)
    );
    archive(&path, 60, &table);
    assert_eq!(
        said_by(&configuration(&home), &path),
        ["NIXL moves data by TCP instead of InfiniBand 178956971bytes/s@host"]
    );
}
