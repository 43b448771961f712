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
fn rules_of_an_earlier_configuration_become_the_new_rule() {
    let home = Home::new();
    let path = home.path("archive");
    // 51 MB/s.
    let table = agent("rank-2", FALLEN_BACK, 300, &[("10.0.0.1", 300)]);
    archive(&path, 60, &table);
    // What PCP's scripts run at each start of pmie, and what a user runs.
    for arguments in [&["-cF"][..], &["enable", "nixl.silent"]] {
        let config = configuration(&home);
        let changed = output(pmieconf(&home).args(arguments));
        assert!(
            changed.status.success() && changed.stderr.is_empty(),
            "{}",
            text(&changed)
        );
        let enabled = run(pmieconf(&home).args(["rules", "enabled"]));
        for rule in ["tcp_fallback", "tcp_fallback_roce"] {
            assert!(enabled.contains(&format!(" nixl.{rule} ")), "{enabled}");
            let set = run(pmieconf(&home).args(["list", &format!("nixl.{rule}")]));
            let set = set.split_whitespace().collect::<Vec<_>>().join(" ");
            let settings = "enabled = yes min_rate = 50 tcp_share = 60% delta = \"30 sec\"";
            assert!(set.ends_with(settings), "{set}");
        }
        let said = said_by(&config, &path);
        assert_eq!(said.len(), 2, "{said:?}");
        let names = " 100%[rank-2::10.0.0.1]@host";
        assert_eq!(said[0], format!("{SAYS}{names}"));
        let rule = ", and enable the rule tcp_fallback in place of tcp_fallback_roce";
        assert_eq!(said[1], format!("{SAYS}{rule}{names}"));
    }
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
