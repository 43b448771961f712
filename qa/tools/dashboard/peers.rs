// SPDX-License-Identifier: GPL-2.0-or-later

//! Who talks to whom: the matrix of pairs on the page. `PICTURES=1` makes the picture of the documentation.

use super::chromium::Chromium;
use crate::support::fleet::{Holder, is_possible};
use crate::support::pmproxy::Pmproxy;
use crate::support::scripted::{Process, libraries};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, command_within, leave_out, project, run};
use std::path::Path;

/// Cells with a pair, by row and column: the classes and the title.
const CELLS: &str = "Object.fromEntries([...document.querySelectorAll('.matrix tbody td')].filter((cell) => cell.title).map((cell) =>
    [cell.title.split(': ')[0], `${[...cell.classList].sort().join(' ')}: ${cell.title.split(': ').slice(1).join(': ')}`]))";

const NOTE: &str = "document.querySelector('#peers .note').textContent";

/// The pair with a slow link.
const SLOW: &str = "vllm TP2 and 10.78.0.2";

/// Two namespaces with two links between them: 10.77.0.1 and 10.77.0.2, .3, and a slow one with losses, 10.78.0.1 and
/// 10.78.0.2.
struct Network {
    near: Holder,
    far: Holder,
}

impl Network {
    fn start(home: &Home) -> Self {
        let space = |name: &str| Holder::start(&["--net"], "ip link set lo up", &home.path(name));
        let (near, far) = (space("near"), space("far"));
        let pid = far.pid();
        let links = format!(
            "for link in 0 1; do
                ip link add eth$link type veth peer name eth$link netns {pid}
                ip address add 10.7$((7 + link)).0.1/24 dev eth$link
                ip link set eth$link up
            done"
        );
        shell(&near, &links);
        let addresses =
            "for address in 10.77.0.2/24 10.77.0.3/24; do ip address add $address dev eth0; done
            ip address add 10.78.0.2/24 dev eth1; ip link set eth0 up; ip link set eth1 up";
        shell(&far, addresses);
        let slow = "qdisc add dev eth1 root tbf rate 2mbit burst 5kb limit 10kb";
        let slow = command_within(&near.enter(&["--net"]), "tc")
            .args(slow.split(' '))
            .status();
        if !slow.is_ok_and(|status| status.success()) {
            leave_out("no tbf here (tc-tbf(8))");
        }
        Self { near, far }
    }
}

fn shell(space: &Holder, script: &str) {
    run(command_within(&space.enter(&["--net"]), "sh").args(["-euc", script]));
}

/// Starts the process of an agent, with the title of a rank.
fn agent(home: &Home, within: &[String], rank: u32) -> Process {
    let path = home.ring(format!("agent-{rank}"));
    let mut ring = RingWriter::create(&path, Layout::V4, 64).expect("room");
    assert!(ring.push(Kind::TxBytes, 1));
    let [library, plugin] = libraries(home);
    let mut process = Process::with_files(within, &[library, plugin, path]);
    process.run(&format!("set_title(b'VLLM::Worker_TP{rank}')"));
    process.run("def pump(connection, size): [(connection.sendall(bytes(size)), time.sleep(0.02)) for _ in range(10 ** 9)]");
    process
}

/// Sends on connections to a server, so many bytes every 20 ms, until the end of the process.
fn send(process: &mut Process, count: u32, host: &str, port: u32, size: u32) {
    let start = "threading.Thread(target=pump, args=(one, SIZE), daemon=True).start()"
        .replace("SIZE", &size.to_string());
    process.run(&format!(
        "[{start} for one in connect('{host}', {port}, {count})]"
    ));
}

/// Address of a network interface of this machine. `None`: it has no route.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // No packet is sent.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[test]
#[ignore = "takes Chromium, and two namespaces: scripts/check-full dashboard"]
fn page_shows_who_talks_to_whom_and_marks_a_slow_pair() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let network = Network::start(&home);
    let near = network.near.enter(&["--net"]);
    let mut agents = [
        agent(&home, &[], 0),
        agent(&home, &[], 1),
        agent(&home, &near, 2),
        agent(&home, &near, 3),
        agent(&home, &near, 4),
    ];
    let own = own_address().unwrap_or_else(|| "127.0.0.1".into());
    let port = agents[1].number(&format!("serve('{own}')"));
    send(&mut agents[0], 1, &own, port, 200_000);
    let mut peer = Process::with_files(&network.far.enter(&["--net"]), &[]);
    let port = peer.number("serve('0.0.0.0')");
    send(&mut agents[2], 1, "10.77.0.2", port, 100_000);
    send(&mut agents[2], 4, "10.78.0.2", port, 20_000);
    send(&mut agents[3], 1, "10.77.0.2", port, 50_000);
    send(&mut agents[3], 1, "10.77.0.3", port, 20_000);
    // PCP's PMDA for Linux has the addresses of the host.
    let pmcd = Pmcd::start_within(&home, "pcp", &[], &["--kernel"], |_: &Path| ());
    let proxy = Pmproxy::start(&home, &pmcd);

    let mut page = Chromium::start(1280, 1000);
    page.open(&format!("host={}", proxy.address()));
    let pairs = format!("Object.keys({CELLS}).join()");
    let expected = [
        "vllm TP0 and vllm TP1",
        "vllm TP1 and vllm TP0",
        "vllm TP2 and 10.77.0.2",
        SLOW,
        "vllm TP3 and 10.77.0.2",
        "vllm TP3 and 10.77.0.3",
    ];
    page.until(
        "each pair has a cell",
        &format!("{pairs} === '{}'", expected.join(",")),
    );
    page.until(
        "the slow pair is marked, and no other one sends much again",
        &format!(
            "(() => {{ const cells = {CELLS}; const lossy = Object.keys(cells).filter((pair) => cells[pair].startsWith('lossy'));
                return lossy.join() === '{SLOW}' && /^lossy slow: .*over 1 %.*over 1 ms and 3 times the median/.test(cells['{SLOW}']); }})()"
        ),
    );
    page.until(
        "both ends of a pair on this host have its rate",
        &format!(
            r"(() => {{ const cells = {CELLS}; const moves = (pair, what) => new RegExp(what + ' [1-9][0-9.]* MB/s').test(cells[pair]);
                return moves('vllm TP0 and vllm TP1', 'sent') && moves('vllm TP1 and vllm TP0', 'received'); }})()"
        ),
    );
    let note = page.text(NOTE);
    assert!(
        note.starts_with("TCP only: traffic over RDMA, ") && note.contains("◆ and red: over 1 %"),
        "{note}"
    );
    page.evaluate(&format!(
        "[...document.querySelectorAll('.matrix td')].find((cell) => cell.title.startsWith('{SLOW}')).click()"
    ));
    page.until(
        "a click shows all figures",
        &format!("{NOTE}.startsWith('{SLOW}: sent ')"),
    );

    for (width, height) in [(390, 844), (800, 265)] {
        page.resize(width, height);
        page.evaluate("document.querySelector('#peers').scrollIntoView()");
        page.until(
            "nothing but the matrix scrolls sideways",
            "document.documentElement.scrollWidth <= innerWidth",
        );
        page.until(
            "the names of agents stay in sight",
            "(() => { const area = document.querySelector('.matrix'); area.scrollLeft = 1e6;
                return document.querySelector('.matrix tbody th').getBoundingClientRect().left >= area.getBoundingClientRect().left; })()",
        );
    }
    if std::env::var_os("PICTURES").is_some() {
        // The end of the page.
        page.evaluate(
            "(() => { document.querySelector('.matrix').scrollLeft = 0; scrollTo(0, 1e6); })()",
        );
        page.picture(&project("docs/images/dashboard-peers.webp"));
    }

    // An agent has its own row, or the reason for none.
    page.resize(1280, 1000);
    let choose = |name: &str| {
        format!(
            "[...document.querySelectorAll('.name button')].find((one) => one.textContent === '{name}').click()"
        )
    };
    page.evaluate(&choose("agent-3"));
    assert_eq!(page.text(&pairs), expected[4..].join(","));
    page.evaluate(&choose("agent-3"));
    page.evaluate(&choose("agent-4"));
    assert_eq!(page.text(&pairs), "");
    let note = page.text(NOTE);
    assert!(
        note.starts_with("No peers: these agents have no TCP "),
        "{note}"
    );
    assert!(note.contains("RDMA, NVLink and shared memory"), "{note}");
    assert_eq!(page.complaints(), [""; 0]);
}
