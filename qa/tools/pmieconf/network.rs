// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules that compare the bytes of NIXL with those of the network interfaces.

use super::grows;
use crate::support::rule::Rule;

/// Bytes of agents and of RDMA ports, each in hundredths of a GiB per minute, and bytes sent by interfaces.
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
fn tcp_instead_of_infiniband_is_reported() {
    let rule = Rule::new("tcp_fallback");
    let by = |nixl, rdma, network| moved(INFINIBAND, nixl, rdma, &[("lo", 0), ("eth0", network)]);
    rule.fires(&by(1000, 50, 1050), BY_TCP);
    // Correct; inside the host; too little; partly by TCP.
    rule.is_silent(&by(1000, 1020, 10));
    rule.is_silent(&by(1000, 5, 10));
    rule.is_silent(&by(100, 0, 110));
    rule.is_silent(&by(1000, 500, 550));
    rule.is_silent(&by(1000, 50, 890));
    // Without metrics of ports, the rule stays silent.
    rule.is_silent(&moved("", 1000, 0, &[("eth0", 1050)]));
    let strict = Rule::new("tcp_fallback").with(&[
        ("rdma_share", "60"),
        ("tcp_share", "50"),
        ("min_rate", "10"),
    ]);
    strict.fires(&by(1000, 500, 550), BY_TCP);
}

#[test]
fn busy_loopback_is_not_reported_as_tcp() {
    let busy = [("lo", 9000), ("eth0", 3)];
    Rule::new("tcp_fallback").is_silent(&moved(INFINIBAND, 1000, 5, &busy));
    let all = Rule::new("tcp_fallback").with(&[("left_out", "\"^(none)\"")]);
    all.fires(&moved(INFINIBAND, 1000, 5, &busy), BY_TCP);
}

#[test]
fn pod_traffic_counts_once_on_any_path() {
    let by = |share| {
        let names = ["eth0", "cni0", "veth1a2b", "docker0", "br-7f", "cali3"];
        moved(INFINIBAND, 1000, 5, &names.map(|name| (name, share)))
    };
    let rule = Rule::new("tcp_fallback");
    rule.is_silent(&by(300));
    // A bond counts the bytes of its members again.
    let bond = [("bond0", 800), ("eth0", 400), ("eth1", 400)];
    rule.is_silent(&moved(INFINIBAND, 1000, 5, &bond));
    // Between pods on the host.
    let inside = [
        ("eth0", 3),
        ("cni0", 2000),
        ("veth1", 1000),
        ("veth2", 1000),
    ];
    rule.is_silent(&moved(INFINIBAND, 1000, 5, &inside));
    // Between pods, and with NIXL.
    rule.fires(&by(1050), BY_TCP);
    let bond = [("bond0", 1050), ("eth0", 525), ("eth1", 525)];
    rule.fires(&moved(INFINIBAND, 1000, 5, &bond), BY_TCP);
}

#[test]
fn incoming_traffic_is_not_reported_as_fallback() {
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
    let message = rule.says(&table(none, &nixl, &less, &nixl));
    assert_eq!(message.len(), 1, "reads are received bytes: {message:?}");
}

#[test]
fn tcp_instead_of_roce_is_reported() {
    // Words of four bytes.
    let links = "rocestat.hw.xmit.port_xmit_data mlx5_0_1 RDMA
         rocestat.hw.rcv.port_rcv_data mlx5_0_1 0 0 0 0";
    let rule = Rule::new("tcp_fallback_roce");
    let message = "NIXL moves data by TCP instead of RoCE 178956971bytes/s@host";
    let by = |rdma, network| moved(links, 1000, rdma, &[("lo", 9000), ("eth0", network)]);
    rule.fires(&by(24, 1050), message);
    rule.is_silent(&by(26, 1050));
    rule.is_silent(&by(255, 10));
    rule.is_silent(&by(5, 10));
    rule.is_silent(&moved("", 1000, 0, &[("eth0", 1050)]));
}
