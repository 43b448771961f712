// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules that compare an agent with its peers.

use crate::support::rule::Rule;

/// Two agents. The second has a state, an idle time and a number of transfers. The first works or not.
fn pair(state: u8, idle: &str, transfers: u8, works: bool) -> String {
    let host = if works { "0 60 120 180" } else { "5 5 5 5" };
    format!(
        "nixl.agent.state busy 1 1 1 1
         nixl.agent.state mute {state} {state} {state} {state}
         nixl.agent.idle_time busy 0 0 0 0
         nixl.agent.idle_time mute {idle}
         nixl.transfer.tx_requests busy {host}
         nixl.transfer.tx_requests mute {transfers} {transfers} {transfers} {transfers}
         nixl.transfer.rx_requests busy 0 0 0 0
         nixl.transfer.rx_requests mute 0 0 0 0
         nixl.host.transfer.tx_requests - {host}
         nixl.host.transfer.rx_requests - 0 0 0 0"
    )
}

#[test]
fn silent_agent_beside_a_busy_one_is_reported() {
    let rule = Rule::new("silent");
    let long = "240000 300000 360000 420000";
    let message = "NIXL agent is silent while others work 360s[mute]@host";
    rule.fires(&pair(2, long, 7, true), message);
    // idle_after may be longer than the time of the rule.
    rule.fires(&pair(1, long, 7, true), message);
    // Silent for a short time; exited; only a target of transfers; no agent works.
    rule.is_silent(&pair(2, "120000 180000 240000 300000", 7, true));
    rule.is_silent(&pair(3, long, 7, true));
    rule.is_silent(&pair(2, long, 0, true));
    rule.is_silent(&pair(2, long, 7, false));
    let at_night = Rule::new("silent").with(&[("busy", "-1")]);
    at_night.fires(&pair(2, long, 7, false), message);
}

#[test]
fn stalled_agent_is_reported() {
    let table = "nixl.agent.stall.state hung 0 1 1 2 2
        nixl.agent.stall.state well 0 0 1 1 0
        nixl.agent.stall.state unread - - - - -";
    let rule = Rule::new("stalled").every(30);
    rule.fires(table, "NIXL transfers have stalled [hung]@host");
    let suspects = Rule::new("stalled").every(30).with(&[("state", "1")]);
    let said = suspects.says(table);
    assert_eq!(said, ["NIXL transfers have stalled [hung]@host"]);
    rule.is_silent("nixl.agent.stall.state well 0 1 1 0 0");
}

/// Agents with their peer ratio and their number of transfers in each minute.
fn ranks(ranks: &[(&str, &str, u32)]) -> String {
    let mut table = String::new();
    for (name, ratio, transfers) in ranks {
        let samples = u32::try_from(ratio.split(' ').count()).expect("few");
        let made = (0..samples).map(|sample| (sample * transfers).to_string());
        let made = made.collect::<Vec<_>>().join(" ");
        let none = vec!["0"; ratio.split(' ').count()].join(" ");
        table += &format!(
            "nixl.latency.xfer_time.peer_ratio {name} {ratio}
             nixl.transfer.tx_requests {name} {made}
             nixl.transfer.rx_requests {name} {none}\n"
        );
    }
    table
}

#[test]
fn agent_far_slower_than_its_peers_is_reported() {
    let rule = Rule::new("straggler");
    let engine = ranks(&[
        ("rank0", "1 1 0.4 0.4", 60),
        ("rank1", "1 1 0.4 0.4", 60),
        ("rank2", "1 1 4.1 4", 60),
    ]);
    let message = "NIXL agent is slower than its peers 4x[rank2]@host";
    rule.fires(&engine, message);
    // An agent without transfers has no median, before or after the others in the table.
    let none = "- - - -";
    for idle in ["another", "rank9"] {
        let idle = ranks(&[(idle, none, 0)]);
        rule.fires(&format!("{idle}{engine}"), message);
        rule.fires(&format!("{engine}{idle}"), message);
    }
    rule.is_silent(&ranks(&[
        ("rank0", "0.4 0.4 0.4", 60),
        ("rank1", "2.9 2.9 2.9", 60),
    ]));
    rule.is_silent(&ranks(&[("alone", none, 60)]));
    let strict = Rule::new("straggler").with(&[("factor", "2")]);
    strict.fires(
        &ranks(&[("rank0", "0.4 0.4", 60), ("rank1", "2.5 2.5", 60)]),
        "NIXL agent is slower than its peers 2.50x[rank1]@host",
    );
    let others = Rule::new("straggler").with(&[("agents", "\"^(rank[01]|kvbm)\"")]);
    others.is_silent(&engine);
    let these = Rule::new("straggler").with(&[("agents", "\"^rank[0-9]\"")]);
    these.fires(&engine, message);
}

#[test]
fn agent_slow_in_one_sample_is_not_reported() {
    let rule = Rule::new("straggler");
    rule.is_silent(&ranks(&[
        ("rank0", "1 0.1 1 0.1 1", 60),
        ("rank1", "1 9 1 9 1", 60),
    ]));
    // An agent that exists in one sample only.
    rule.is_silent(&ranks(&[
        ("rank0", "1 0.1 1 1", 60),
        ("rank1", "- 9 - -", 60),
    ]));
    // Another agent that starts or exits does not hide the slow one.
    for other in ["- - 1 1", "1 1 - -", "- 1 - 1"] {
        let said = rule.says(&ranks(&[
            ("a", other, 60),
            ("rank1", "9 9 9 9", 60),
            ("z", other, 60),
        ]));
        assert!(
            said.len() == 1 && said[0].contains(" 9x[rank1]@"),
            "{said:?}"
        );
    }
}

#[test]
fn first_transfer_of_an_agent_is_not_reported_as_slow() {
    // The transfer is in the window for a minute, and so maybe in two samples.
    let first = ranks(&[
        ("rank0", "1 0.01 0.01 1", 1000),
        ("rank1", "- 350 350 -", 1),
    ]);
    Rule::new("straggler").is_silent(&first);
    let any = Rule::new("straggler").with(&[("minimum", "0")]);
    any.fires(
        &first,
        "NIXL agent is slower than its peers 350x[rank1]@host",
    );
    let busy = Rule::new("straggler").with(&[("minimum", "59")]);
    let table = ranks(&[("rank0", "1 1 1", 60), ("rank1", "5 5 5", 60)]);
    busy.fires(&table, "NIXL agent is slower than its peers 5x[rank1]@host");
    let busier = Rule::new("straggler").with(&[("minimum", "60")]);
    busier.is_silent(&table);
}
