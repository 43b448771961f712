//! The rules of share/pmieconf: PCP's own pmieconf makes the configuration, and pmie says on which archives they fire.

use crate::support::rule::{RULES, Rule, pmieconf};
use crate::support::share::{Logger, files_in, is_metric, names_in, text_of};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, TX_BYTES, run, wait_for};
use std::os::unix::fs::FileExt;

#[test]
fn all_rules_are_off_until_they_are_switched_on() {
    let home = Home::new();
    let disabled = run(pmieconf(&home).args(["rules", "disabled"]));
    for name in files_in(RULES) {
        assert!(disabled.contains(&format!(" nixl.{name} ")), "{disabled}");
    }
    let enabled = run(pmieconf(&home).args(["rules", "enabled"]));
    assert!(!enabled.contains("nixl."), "{enabled}");
    assert_eq!(files_in(RULES).len(), 12);
}

#[test]
fn each_rule_has_a_help_text_whose_metrics_exist() {
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
fn a_ring_that_is_found_full_is_told_once_and_an_old_loss_not_at_all() {
    let rule = Rule::new("ring_full");
    rule.fires(
        "nixl.ring.full lost 0 0 3 3 6 6
         nixl.ring.full fine 0 0 0 0 0 0",
        "NIXL telemetry is being lost: ring full 0.05full/s[lost]@host",
    );
    rule.is_silent(
        "nixl.ring.full before 7 7 7 7
         nixl.ring.full comes  - - 7 7",
    );
    let lenient = Rule::new("ring_full").with(&[("threshold", "3")]);
    lenient.is_silent("nixl.ring.full lost 0 0 3 3 6 6");
}

#[test]
fn an_agent_that_dropped_events_is_told_beside_one_that_cannot_tell() {
    let rule = Rule::new("events_dropped");
    rule.fires(
        "nixl.ring.dropped new 0 0 120 120
         nixl.ring.events  new 0 9 99  199
         nixl.ring.events  old 0 9 99  199",
        "NIXL telemetry is being lost: events dropped 2dropped/s[new]@host",
    );
    rule.is_silent("nixl.ring.dropped new 5 5 5 5");
    let lenient = Rule::new("events_dropped").with(&[("threshold", "120")]);
    lenient.is_silent("nixl.ring.dropped new 0 0 120 120");
}

#[test]
fn a_burst_of_errors_is_told_and_a_few_of_them_are_not() {
    let rule = Rule::new("error_burst");
    rule.fires(
        "nixl.errors.total burst  0 0 60 60
         nixl.errors.total steady 0 9 18 27",
        "Burst of NIXL errors 1errors/s[burst]@host",
    );
    rule.is_silent("nixl.errors.total steady 0 10 20 30");
    let strict = Rule::new("error_burst").with(&[("threshold", "0")]);
    strict.fires(
        "nixl.errors.total one 0 0 6 6",
        "Burst of NIXL errors 0.1errors/s[one]@host",
    );
}

#[test]
fn trouble_is_told_even_if_another_agent_comes_or_leaves_meanwhile() {
    for (name, metric) in [
        ("ring_full", "nixl.ring.full"),
        ("events_dropped", "nixl.ring.dropped"),
        ("error_burst", "nixl.errors.total"),
        ("remote_disconnect", "nixl.errors.remote_disconnect"),
    ] {
        for other in ["- - 0 0", "0 0 - -"] {
            let (before, behind) = (format!("{metric} a {other}"), format!("{metric} z {other}"));
            let said = Rule::new(name).says(&format!("{before}\n{metric} m 0 0 60 60\n{behind}"));
            assert!(
                said.len() == 1 && said[0].contains("[m]@"),
                "{name}: {said:?}"
            );
        }
    }
}

/// As where pmdanixl was started without its state under a running pmcd.
#[test]
fn counters_that_start_anew_are_no_trouble() {
    for (name, metric) in [
        ("ring_full", "nixl.ring.full"),
        ("events_dropped", "nixl.ring.dropped"),
        ("error_burst", "nixl.errors.total"),
        ("remote_disconnect", "nixl.errors.remote_disconnect"),
    ] {
        let rule = Rule::new(name);
        rule.is_silent(&format!("{metric} anew 100 100 0 0 0"));
        let said = rule.says(&format!("{metric} anew 100 100 0 0 60 60"));
        assert_eq!(said.len(), 1, "{name}, afterwards: {said:?}");
    }
}

#[test]
fn one_disconnect_is_told_and_other_errors_are_not() {
    let rule = Rule::new("remote_disconnect");
    rule.fires(
        "nixl.errors.remote_disconnect left 0 0 3 3
         nixl.errors.remote_disconnect fine 0 0 0 0",
        "NIXL agent lost a remote agent 0.05disconnects/s[left]@host",
    );
    rule.is_silent(
        "nixl.errors.remote_disconnect fine 2 2 2 2
         nixl.errors.total             fine 2 9 99 999",
    );
}

/// Two agents: the second is in that state, silent for so long, and has that many transfers, while the first works or not.
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
fn an_agent_that_is_silent_while_another_works_is_told() {
    let rule = Rule::new("silent");
    let long = "240000 300000 360000 420000";
    let told = "NIXL agent is silent while others work 360s[mute]@host";
    rule.fires(&pair(2, long, 7, true), told);
    // Its idle_after may be longer than the rule's patience.
    rule.fires(&pair(1, long, 7, true), told);
    // Not for long yet; exited; only ever a target of transfers; at night.
    rule.is_silent(&pair(2, "120000 180000 240000 300000", 7, true));
    rule.is_silent(&pair(3, long, 7, true));
    rule.is_silent(&pair(2, long, 0, true));
    rule.is_silent(&pair(2, long, 7, false));
    let at_night = Rule::new("silent").with(&[("busy", "-1")]);
    at_night.fires(&pair(2, long, 7, false), told);
}

/// Agents, how slow each is beside its peers, and how many transfers it completes in each minute.
fn ranks(ranks: &[(&str, &str, u32)]) -> String {
    let mut table = String::new();
    for (name, slowness, transfers) in ranks {
        let samples = u32::try_from(slowness.split(' ').count()).expect("few");
        let made = (0..samples).map(|sample| (sample * transfers).to_string());
        let made = made.collect::<Vec<_>>().join(" ");
        let none = vec!["0"; slowness.split(' ').count()].join(" ");
        table += &format!(
            "nixl.latency.xfer_time.slowness {name} {slowness}
             nixl.transfer.tx_requests {name} {made}
             nixl.transfer.rx_requests {name} {none}\n"
        );
    }
    table
}

#[test]
fn an_agent_that_is_far_slower_than_its_peers_is_told() {
    let rule = Rule::new("straggler");
    let engine = ranks(&[
        ("rank0", "1 1 0.4 0.4", 60),
        ("rank1", "1 1 0.4 0.4", 60),
        ("rank2", "1 1 4.1 4", 60),
    ]);
    let told = "NIXL agent is slower than its peers 4x[rank2]@host";
    rule.fires(&engine, told);
    // An agent without transfers has no median, whatever comes before and behind it.
    let none = "- - - -";
    for idle in ["another", "rank9"] {
        let idle = ranks(&[(idle, none, 0)]);
        rule.fires(&format!("{idle}{engine}"), told);
        rule.fires(&format!("{engine}{idle}"), told);
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
    these.fires(&engine, told);
}

#[test]
fn an_agent_that_is_slow_in_one_sample_only_is_not_told() {
    let rule = Rule::new("straggler");
    rule.is_silent(&ranks(&[
        ("rank0", "1 0.1 1 0.1 1", 60),
        ("rank1", "1 9 1 9 1", 60),
    ]));
    // Nor if it is there for that one only.
    rule.is_silent(&ranks(&[
        ("rank0", "1 0.1 1 1", 60),
        ("rank1", "- 9 - -", 60),
    ]));
    // Another one that comes or goes hides it not.
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
fn the_first_transfer_of_an_agent_makes_it_no_straggler() {
    // It is in the window for a minute, and so in two samples perhaps.
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

#[test]
fn memory_that_grows_in_six_intervals_on_end_is_told() {
    let rule = Rule::new("memory_growth").every(600);
    let told = "NIXL registered memory grows without end [leak]@host";
    rule.fires(
        "nixl.memory.current leak 0 2e6 4e6 6e6 8e6 10e6 12e6 12e6
         nixl.memory.current fine 9e9 9e9 9e9 9e9 9e9 9e9 9e9 9e9"
            .replace("e6", "000000")
            .replace("e9", "000000000")
            .as_str(),
        told,
    );
    for steps in [
        // Registered once at its start, in a few steps.
        "0 4000000 8000000 90000000 90000000 90000000 90000000 90000000",
        // Given back in between.
        "0 4000000 8000000 2000000 6000000 9000000 4000000 8000000",
        // By less than it takes.
        "0 1000000 2000000 3000000 4000000 5000000 6000000 7000000",
        // Not for six intervals yet.
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
fn who_comes_or_goes_meanwhile_has_nobody_else_s_memory() {
    // What pmie does with a history when the agents change must not make a leak of two that are none.
    Rule::new("memory_growth").every(600).is_silent(
        "nixl.memory.current first 9000000 9000000 9000000 9000000 - - - - - -
         nixl.memory.current second 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000 50000000
         nixl.memory.current third - - 90000000 90000000 90000000 90000000 90000000 90000000 90000000 90000000",
    );
}

const GIB: u64 = 1 << 30;

/// A counter that grows by that many GiB in each minute, by its hundredth parts.
fn grows(hundredths: u64) -> String {
    let values = (0..4).map(|minute| (minute * hundredths * GIB / 100).to_string());
    values.collect::<Vec<_>>().join(" ")
}

/// What agents write and the RDMA ports carry, each in hundredths of a GiB per minute, and what interfaces send.
fn moved(links: &str, nixl: u64, rdma: u64, interfaces: &[(&str, u64)]) -> String {
    let (nixl, rdma) = (grows(nixl), grows(rdma));
    let mut table = format!(
        "nixl.host.transfer.tx_bytes - {nixl}
         nixl.host.transfer.rx_bytes - 0 0 0 0
         {}\n",
        links.replace("RDMA", &rdma)
    );
    for (name, sent) in interfaces {
        let sent = grows(*sent);
        table += &format!(
            "network.interface.out.bytes {name} {sent}
             network.interface.in.bytes {name} 0 0 0 0\n"
        );
    }
    table
}

const INFINIBAND: &str = "infiniband.port.total.bytes mlx5_0:1 RDMA
         infiniband.port.total.bytes mlx5_1:1 0 0 0 0";
const BY_TCP: &str = "NIXL moves data by TCP instead of InfiniBand 178956971bytes/s@host";

#[test]
fn tcp_in_place_of_infiniband_is_told() {
    let rule = Rule::new("tcp_fallback");
    let by = |nixl, rdma, network| moved(INFINIBAND, nixl, rdma, &[("lo", 0), ("eth0", network)]);
    rule.fires(&by(1000, 50, 1050), BY_TCP);
    // As it should be; inside of the host; too little; by TCP in part.
    rule.is_silent(&by(1000, 1020, 10));
    rule.is_silent(&by(1000, 5, 10));
    rule.is_silent(&by(100, 0, 110));
    rule.is_silent(&by(1000, 500, 550));
    rule.is_silent(&by(1000, 50, 890));
    // No port is watched: nothing can be said.
    rule.is_silent(&moved("", 1000, 0, &[("eth0", 1050)]));
    let strict = Rule::new("tcp_fallback").with(&[
        ("rdma_share", "60"),
        ("tcp_share", "50"),
        ("min_rate", "10"),
    ]);
    strict.fires(&by(1000, 500, 550), BY_TCP);
}

#[test]
fn a_busy_loopback_is_no_fallback_to_tcp() {
    let busy = [("lo", 9000), ("eth0", 3)];
    Rule::new("tcp_fallback").is_silent(&moved(INFINIBAND, 1000, 5, &busy));
    let all = Rule::new("tcp_fallback").with(&[("left_out", "\"^(none)\"")]);
    all.fires(&moved(INFINIBAND, 1000, 5, &busy), BY_TCP);
}

#[test]
fn what_pods_send_counts_once_whatever_it_passes() {
    let by = |share| {
        let names = ["eth0", "cni0", "veth1a2b", "docker0", "br-7f", "cali3"];
        moved(INFINIBAND, 1000, 5, &names.map(|name| (name, share)))
    };
    let rule = Rule::new("tcp_fallback");
    rule.is_silent(&by(300));
    // A bond sends what its members do.
    let bond = [("bond0", 800), ("eth0", 400), ("eth1", 400)];
    rule.is_silent(&moved(INFINIBAND, 1000, 5, &bond));
    // Between pods of the host.
    let inside = [
        ("eth0", 3),
        ("cni0", 2000),
        ("veth1", 1000),
        ("veth2", 1000),
    ];
    rule.is_silent(&moved(INFINIBAND, 1000, 5, &inside));
    // The same way, and it is NIXL.
    rule.fires(&by(1050), BY_TCP);
    let bond = [("bond0", 1050), ("eth0", 525), ("eth1", 525)];
    rule.fires(&moved(INFINIBAND, 1000, 5, &bond), BY_TCP);
}

#[test]
fn what_comes_in_is_no_fallback_of_what_is_written() {
    let (nixl, less) = (grows(1000), grows(20));
    let table = |written: &str, read: &str, sent: &str, came: &str| {
        format!(
            "nixl.host.transfer.tx_bytes - {written}
             nixl.host.transfer.rx_bytes - {read}
             network.interface.out.bytes eth0 {sent}
             network.interface.in.bytes eth0 {came}
             infiniband.port.total.bytes mlx5_0:1 0 0 0 0"
        )
    };
    let none = "0 0 0 0";
    let rule = Rule::new("tcp_fallback");
    rule.is_silent(&table(&nixl, none, &less, &nixl));
    rule.is_silent(&table(none, &nixl, &nixl, &less));
    rule.fires(&table(&nixl, none, &nixl, &less), BY_TCP);
    let told = rule.says(&table(none, &nixl, &less, &nixl));
    assert_eq!(told.len(), 1, "what is read comes in: {told:?}");
}

#[test]
fn tcp_in_place_of_roce_is_told() {
    // Words of four bytes.
    let links = "rocestat.hw.xmit.port_xmit_data mlx5_0_1 RDMA
         rocestat.hw.rcv.port_rcv_data mlx5_0_1 0 0 0 0";
    let rule = Rule::new("tcp_fallback_roce");
    let told = "NIXL moves data by TCP instead of RoCE 178956971bytes/s@host";
    let by = |rdma, network| moved(links, 1000, rdma, &[("lo", 9000), ("eth0", network)]);
    rule.fires(&by(24, 1050), told);
    rule.is_silent(&by(26, 1050));
    rule.is_silent(&by(255, 10));
    rule.is_silent(&by(5, 10));
    rule.is_silent(&moved("", 1000, 0, &[("eth0", 1050)]));
}

#[test]
fn unsupported_file_is_reported() {
    let rule = Rule::new("unsupported").every(300);
    rule.fires(
        "nixl.agents.unsupported - 0 0 2 2",
        "NIXL telemetry of an unsupported version 2files@host",
    );
    rule.is_silent("nixl.agents.unsupported - 0 0 0 0");
    let lenient = Rule::new("unsupported")
        .every(300)
        .with(&[("threshold", "2")]);
    lenient.is_silent("nixl.agents.unsupported - 0 0 2 2");
}

#[test]
fn processes_without_telemetry_are_told_when_they_are_not_just_starting() {
    let rule = Rule::new("no_telemetry").every(300);
    rule.fires(
        "nixl.agents.silent - 0 2 2 2",
        "NIXL in use without telemetry 2processes@host",
    );
    rule.is_silent("nixl.agents.silent - 0 2 2 0 2 2");
    let lenient = Rule::new("no_telemetry")
        .every(300)
        .with(&[("processes", "2")]);
    lenient.is_silent("nixl.agents.silent - 2 2 2 2");
    lenient.fires(
        "nixl.agents.silent - 2 3 3 3",
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
fn rules_fire_on_what_pmlogger_has_written_of_agents_in_trouble() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut ring = RingWriter::create(&home.ring("worker"), Layout::V4, 64).expect("a ring");
    let future = RingWriter::create(&home.ring("future"), Layout::V4, 64).expect("a ring");
    wait_for("both are found", || {
        (pmcd.values(TX_BYTES).len() == 2).then_some(())
    });
    let path = home.path("archive");
    let pmlogger = Logger::start(&pmcd, &path);
    // A rate takes two values, and pmie's steps begin before the first.
    pmlogger.samples(3);
    while ring.push(Kind::TxBytes, 1) {}
    wait_for("the ring is emptied", || {
        (ring.pending() == 0).then_some(())
    });
    assert!(ring.push(Kind::RemoteDisconnect, 1));
    drop(future);
    std::fs::remove_file(home.ring("future")).expect("removed");
    let later = RingWriter::create(&home.ring("future"), Layout::V4, 64).expect("a ring");
    let file = std::fs::File::options()
        .write(true)
        .open(home.ring("future"));
    let versions = [5, 0, 0, 0, 5, 0, 0, 0];
    file.and_then(|file| file.write_all_at(&versions, 16))
        .expect("written");
    pmlogger.samples(4);
    drop(pmlogger);
    drop(later);
    for (name, said) in [
        ("ring_full", "NIXL telemetry is being lost: ring full "),
        ("remote_disconnect", "NIXL agent lost a remote agent "),
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
