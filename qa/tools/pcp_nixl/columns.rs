// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl`: widths of columns, values and names.

use super::{minutes, of_archive, python};
use crate::support::share::archive;
use crate::support::{Home, run};
use serde_json::Value;

#[test]
fn narrow_lines_drop_last_columns_but_keep_the_chosen() {
    let home = Home::new();
    let path = minutes(&home);
    for (columns, key, head) in [
        ("79", "drop", "XFER/s    P50    P99    BW   ERR  FULL  DROP"),
        ("78", "bytes", "XFER/s    P50    P99    BW   ERR  FULL"),
        ("60", "err", "XFER/s    P50   ERR"),
        ("20", "bytes", "AGENT           STATE"),
        ("5", "drop", "AGENT           DROP"),
    ] {
        let mut narrow = of_archive(&home, &path, &["-t", "60", "-1", "-k", key]);
        let said = run(narrow.env("COLUMNS", columns));
        let found = said.lines().nth(1).expect("a head");
        assert!(found.ends_with(head), "{said}");
        let width: usize = columns.parse().expect("a number");
        let widest = said.lines().skip(1).map(|line| line.chars().count()).max();
        assert!(widest < Some(width.max(22)), "{said}");
    }
}

#[test]
fn values_fit_their_columns() {
    let script = "
values = [0] + [int(f * 10 ** e) for e in range(20) for f in (1, 1.00499, 3.14159, 9.949, 9.99, 9.9999)]
for column in nixl.COLUMNS[1:]:
    texts = [column.formatter(value) for value in values]
    assert max(map(len, texts)) <= column.width, (column.head, texts)
print([nixl.duration(10 ** e) for e in range(0, 17, 2)])
";
    assert_eq!(
        python(script).trim(),
        "['1us', '100us', '10.0ms', '1.00s', '100s', '2.78h', '278h', '1157d', '>9999d']"
    );
}

/// libpcp interpolates over samples without a value.
#[test]
fn archive_shows_no_value_from_before_a_pause() {
    let home = Home::new();
    let mut table = String::new();
    for (agent, pauses) in [("pauses", true), ("goes-on", false)] {
        for (metric, value) in [
            ("latency.xfer_time.p50", 100),
            ("latency.xfer_time.p99", 900),
            ("operation.bandwidth.p50", 5000),
            ("agent.tcp_share", 1),
        ] {
            let pause = if pauses { "-" } else { &*value.to_string() };
            table +=
                &format!("nixl.{metric} {agent} {value} {value} {pause} {pause} {value} {value}\n");
        }
        table += &format!("nixl.agent.state {agent} 1 1 1 1 1 1\n");
        table += &format!("nixl.transfer.tx_bytes {agent} 0 1 2 2 2 3\n");
    }
    // An agent that has gone comes again.
    table += "nixl.agent.state gone 1 1 - - 1 1\nnixl.transfer.tx_bytes gone 0 1 - - 0 1\n";
    let path = home.path("archive");
    archive(&path, 10, &table);
    // Between the samples as well.
    let mut json = of_archive(&home, &path, &["-t", "5", "-j", "-k", "agent"]);
    let reports = run(&mut json);
    let reports: Vec<Value> = reports
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(reports.len(), 10);
    for (number, report) in (1..).zip(&reports) {
        let has_paused = (4..8).contains(&number);
        let agents = report["agents"].as_array().expect("agents");
        assert_eq!(agents.len(), 3 - usize::from(has_paused), "{report}");
        for agent in agents.iter().filter(|agent| agent["agent"] != "gone") {
            let is_shown = agent["agent"] == "goes-on" || !has_paused;
            for key in [
                "xfer_time_p50_us",
                "xfer_time_p99_us",
                "bandwidth_p50_bytes_per_second",
                "tcp_share",
            ] {
                assert_eq!(!agent[key].is_null(), is_shown, "{number} {key}: {report}");
            }
        }
    }
}

#[test]
fn share_over_tcp_is_marked_above_half() {
    let home = Home::new();
    let mut table = String::new();
    for (agent, share) in [
        ("few", "-"),
        ("half", "0.5"),
        ("more", "0.51"),
        ("other-traffic", "12.3"),
        ("rdma", "0.0004"),
    ] {
        table += &format!(
            "nixl.agent.state {agent} 1 1
             nixl.transfer.tx_bytes {agent} 0 60000
             nixl.agent.tcp_share {agent} {share} {share}
             nixl.agent.server {agent} vllm%20prefill:8100 vllm%20prefill:8100
             nixl.agent.rank {agent} TP10 TP10\n"
        );
    }
    // "few" is an agent of a process with several, and "half" has a share of its own.
    table += "nixl.agent.pid few 41 41
        nixl.agent.pid half 42 42
        nixl.process.tcp_share 41 0.7 0.7
        nixl.process.tcp_share 42 0.9 0.9\n";
    let path = home.path("archive");
    archive(&path, 60, &table);
    let said = run(&mut of_archive(&home, &path, &["-t", "60", "-k", "tcp"]));
    let mut lines = said.lines().skip(1).map(str::split_whitespace);
    let head = lines.next().expect("a head").collect::<Vec<_>>().join(" ");
    assert_eq!(head, "AGENT SERVER STATE TX/s RX/s P99 TCP% FULL DROP");
    let shares = lines.map(|mut line| {
        let name = line.next().expect("a name").to_owned();
        // Behind the three words of the server, and four columns.
        (name, line.nth(7).expect("a share").to_owned())
    });
    let shares: Vec<_> = shares.collect();
    let shown = [
        ("other-traffic", "999!"),
        ("few", "70!"),
        ("more", "51!"),
        ("half", "50"),
        ("rdma", "0"),
    ];
    assert_eq!(
        shares,
        shown.map(|(name, share)| (name.into(), share.into()))
    );
    let said = run(&mut of_archive(
        &home,
        &path,
        &["-t", "60", "-1j", "-k", "tcp"],
    ));
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["agents"][0]["tcp_share"], 12.3);
    assert_eq!(report["agents"][0]["process_tcp_share"], Value::Null);
    assert_eq!(report["agents"][1]["tcp_share"], Value::Null);
    assert_eq!(report["agents"][1]["process_tcp_share"], 0.7);
}

#[test]
fn stalled_and_slow_agents_are_marked_in_the_state() {
    let home = Home::new();
    let mut table = String::new();
    for (agent, state, stall) in [
        ("hung", 2, "2"),
        ("suspect", 1, "1"),
        ("well", 1, "0"),
        ("unknown", 2, "-"),
    ] {
        table += &format!(
            "nixl.agent.state {agent} {state} {state}
             nixl.agent.stall.state {agent} {stall} {stall}
             nixl.transfer.tx_bytes {agent} 0 0\n"
        );
    }
    table += "nixl.latency.xfer_time.peer_ratio hung 9 9
        nixl.latency.xfer_time.peer_ratio well 3 3
        nixl.latency.xfer_time.peer_ratio unknown 3.1 3.1
        nixl.agent.stall.age hung 130000 190000
        nixl.agent.stall.peer hung 10.0.0.2 10.0.0.2
        nixl.agent.stall.reason hung 7%20bytes%20not%20read 7%20bytes%20not%20read\n";
    let path = home.path("archive");
    archive(&path, 60, &table);
    let said = run(&mut of_archive(&home, &path, &["-t", "60", "-k", "agent"]));
    let states = said.lines().skip(2).map(|line| {
        let mut words = line.split_whitespace();
        (
            words.next().expect("a name"),
            words.next().expect("a state"),
        )
    });
    let expected = [
        ("hung", "stall!"),
        ("suspect", "stall?"),
        ("unknown", "slow!"),
        ("well", "live"),
    ];
    assert_eq!(Vec::from_iter(states), expected);
    let said = run(&mut of_archive(
        &home,
        &path,
        &["-t", "60", "-1j", "-k", "agent"],
    ));
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let of = |key: &str| {
        report["agents"]
            .as_array()
            .expect("agents")
            .iter()
            .map(|agent| agent[key].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("stall"),
        [
            "stalled".into(),
            "suspect".into(),
            Value::Null,
            "none".into()
        ]
    );
    assert_eq!(of("state")[0], "idle");
    assert_eq!(of("peer_ratio")[..2], [9.0.into(), Value::Null]);
    assert_eq!(of("stall_age_ms")[..2], [190_000.into(), Value::Null]);
    assert_eq!(
        (&of("stall_peer")[0], &of("stall_reason")[0]),
        (&"10.0.0.2".into(), &"7 bytes not read".into())
    );
}

#[test]
fn character_widths_are_not_underestimated() {
    let script = "
import ctypes, locale
locale.setlocale(locale.LC_ALL, 'C.UTF-8')
libc = ctypes.CDLL(None)
libc.wcwidth.argtypes = [ctypes.c_wchar]
shown = [char for char in map(chr, range(0x20, sys.maxunicode + 1)) if char.isprintable()]
print([hex(ord(char)) for char in shown if libc.wcwidth(char) > nixl.text_width(char)])
# Marks with widths 0, 1 and 2; characters that are wide on some terminals only, and on newer ones only.
print([nixl.text_width(60 * char) for char in '\\u0301\\u0488\\u0903\\u302e\\u3248\\u4dc0'])
print([len(nixl.fitted(60 * char, 21)) for char in '\\u0903\\u302e'])
";
    assert_eq!(python(script), "[]\n[0, 0, 60, 120, 120, 120]\n[21, 12]\n");
}

#[test]
fn names_with_invisible_characters_are_distinguishable() {
    let script = "
print([nixl.printable(name) for name in ('a', 'größe-日本語', 'a\\x1b[2J', 'a\\u115f', 'a\\ufe0f', 'a\\U000e0100')])
invisible = [0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, *range(0x180b, 0x1810), 0x2800, 0x3164, *range(0xfe00, 0xfe10), 0xffa0, 0x1d159,
    *range(0x1d173, 0x1d17b), *range(0xe0000, 0xe1000)]
seen = {nixl.printable('a' + chr(char)) for char in invisible}
print(len(seen) == len(invisible) and all(name.startswith('a%') and name.isascii() for name in seen))
";
    assert_eq!(
        python(script),
        "['a', 'größe-日本語', 'a%1B[2J', 'a%E1%85%9F', 'a%EF%B8%8F', 'a%F3%A0%84%80']\nTrue\n"
    );
}

#[test]
fn names_are_complete_if_the_line_width_is_unknown() {
    let home = Home::new();
    // Another PMDA may send the first one.
    let names = ["ünïcode-日本語".to_owned(), "n".repeat(150)];
    let rows = names
        .each_ref()
        .map(|name| format!("nixl.transfer.tx_bytes {name} 0 1"));
    let path = home.path("archive");
    archive(&path, 60, &rows.join("\n"));
    let mut command = of_archive(&home, &path, &["-1", "-t", "60"]);
    command.env_remove("COLUMNS");
    let shown = run(&mut command);
    // The command also works on a terminal without these characters.
    let poor = run(command.env("PYTHONIOENCODING", "ascii"));
    assert!(poor.contains("n?code-"), "{poor}");
    command.env_remove("PYTHONIOENCODING");
    let said = run(command.arg("-j"));
    for name in names {
        assert!(shown.contains(&format!("\n{name} ")), "{shown}");
        assert!(
            serde_json::from_str::<Value>(&said).expect("JSON")["agents"]
                .as_array()
                .is_some_and(|agents| agents.iter().any(|agent| agent["agent"] == *name)),
            "{said}"
        );
    }
}
