// SPDX-License-Identifier: GPL-2.0-or-later

//! Hosts on one network, each with its own pmcd, pmdanixl and pmlogger: PCP's time series over all of them
//! (docs/fleet.md). `make fleet` shows the answer of each query, and the values on both sides of a disconnection.

use crate::support::fleet::{HOSTS, Host, Network, is_possible, logged};
use crate::support::share::{self, text_of};
use crate::support::{TX_BYTES, project, run, soon, wait_for};

const HOST_TX_BYTES: &str = "nixl.host.transfer.tx_bytes";

/// Commands in docs/fleet.md below a comment with that name.
fn documented(name: &str) -> String {
    let text = text_of("docs/fleet.md");
    let mark = format!("<!-- qa/tools/fleet.rs: {name} -->\n```\n");
    let rest = text.split_once(&mark).unwrap_or_else(|| panic!("{mark}")).1;
    rest.split_once("```").expect("an end").0.to_owned()
}

/// Starts all hosts.
fn start(network: &Network) -> [Host; 3] {
    std::thread::scope(|scope| {
        let started = HOSTS.map(|name| scope.spawn(move || network.host(name)));
        started.map(|host| host.join().expect("it starts"))
    })
}

/// Waits until a query has this many bytes as its newest values, by agent, and prints them.
fn becomes(central: &Host, query: &str, expected: &[(&str, u64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), *bytes))
        .collect();
    let mut last = Vec::new();
    let became = soon(|| {
        last = central.newest(query);
        (last == expected).then_some(())
    });
    assert!(became.is_some(), "{query}: {last:?}");
    println!("\n{}: {query}[samples:1]", central.name);
    for (name, bytes) in last {
        // A total of a host has no instances.
        let name = if name.is_empty() { "total" } else { &name };
        println!("    {name:10} {bytes:>10}");
    }
}

/// Prints values with the times between which they stay equal.
fn show(what: &str, values: &[(String, u64)]) {
    println!("\n{what}");
    for run in values.chunk_by(|(_, one), (_, next)| one == next) {
        let ((from, value), (to, _)) = (&run[0], &run[run.len() - 1]);
        let until = if run.len() > 1 { to } else { "" };
        println!("    {from} {until:15} {value:>10}");
    }
}

#[test]
#[ignore = "three hosts in namespaces"]
fn pmseries_has_totals_by_host_by_label_and_overall() {
    if !is_possible() {
        return;
    }
    let network = Network::start();
    let [a, b, c] = &start(&network);
    let _agents = [
        a.agent("worker", 1, 1_000),
        b.agent("worker", 2, 10_000),
        b.agent("second", 1, 300_000),
        c.agent("worker", 4, 1_000_000),
    ];
    let _redis = a.redis("127.0.0.1");
    let loggers = [a.logger(), a.farm_logger(b), a.farm_logger(c)];
    for logger in &loggers {
        logger.samples(1);
    }
    let _pmproxy = a.pmproxy("localhost:6379");

    let of = |label: &str, value: &str| format!("{TX_BYTES}{{{label}==\"{value}\"}}");
    becomes(a, &of("hostname", "a"), &[("worker", 1_000)]);
    let both = [("second", 300_000), ("worker", 20_000)];
    becomes(a, &of("hostname", "b"), &both);
    becomes(a, &of("hostname", "c"), &[("worker", 4_000_000)]);
    // A label of one agent matches the series of its host, with all agents there.
    becomes(a, &of("nixl_agent", "second"), &both);
    becomes(a, &of("rack", "rack-2"), &[("worker", 4_000_000)]);
    let first = [("second", 300_000), ("worker", 1_000), ("worker", 20_000)];
    becomes(a, &of("rack", "rack-1"), &first);
    let machine = format!("{:032x}", 3);
    becomes(a, &of("machineid", &machine), &[("worker", 4_000_000)]);
    // Totals of a host, and of all hosts.
    for (host, bytes) in [("a", 1_000), ("b", 320_000), ("c", 4_000_000)] {
        let query = format!("{HOST_TX_BYTES}{{hostname==\"{host}\"}}");
        becomes(a, &query, &[("", bytes)]);
    }
    let expected = [("", 1_000), ("", 320_000), ("", 4_000_000)];
    becomes(a, HOST_TX_BYTES, &expected);
    let sum = a.shell(&documented("sum"), &[]);
    println!("\n{}    {}", documented("sum"), sum.trim());
    assert_eq!(sum.trim(), "4321000");
    let sum = HOSTS.map(|host| format!("{HOST_TX_BYTES}{{hostname==\"{host}\"}}[samples:1]"));
    let sum = sum.join(" + ");
    let added = a.series(&sum).into_values();
    let added: Vec<_> = added.map(|values| values[0].1).collect();
    println!("\n{sum}\n    {added:?}");
    assert_eq!(added, [4_321_000]);
}

#[test]
#[ignore = "three hosts in namespaces"]
fn archive_of_a_disconnected_host_completes_its_series() {
    if !is_possible() {
        return;
    }
    let network = Network::start();
    let [a, b, _] = &start(&network);
    let _worker = b.agent("worker", 1, 1_000);
    let _redis = a.redis("127.0.0.1");
    let (farm, local) = (a.farm_logger(b), b.logger());
    farm.samples(1);
    let pmproxy = a.pmproxy("localhost:6379");
    let query = format!("{HOST_TX_BYTES}{{hostname==\"b\"}}");
    becomes(a, &query, &[("", 1_000)]);

    let says = |what: &str| a.logger_log("b").contains(what).then_some(());
    network.connect(b, false);
    wait_for("the farm has lost the connection", || {
        says("Lost connection to PMCD")
    });
    // Twelve transfers that the farm does not record.
    let _meanwhile = b.agent("meanwhile", 12, 5);
    b.pmcd.becomes(&[("meanwhile", 60), ("worker", 1_000)]);
    local.samples(2);
    network.connect(b, true);
    wait_for("the farm is connected again", || {
        says("re-established connection")
    });
    becomes(a, &query, &[("", 1_060)]);
    farm.samples(2);

    // Values in the archive of the farm, and in that of the host.
    let in_between = |values: &[(String, u64)]| {
        let found = values
            .iter()
            .filter(|(_, value)| (1_001..1_060).contains(value));
        found.cloned().collect::<Vec<_>>()
    };
    let series = || {
        let mut found = a.series(&format!("{query}[samples:1000]"));
        let (_, mut values) = found.pop_first().expect("one");
        assert!(found.is_empty(), "{found:?}");
        values.reverse();
        values
    };
    let of_farm = logged(&a.archive("b"), HOST_TX_BYTES);
    show("b was cut off: the archive of the farm", &of_farm);
    assert_eq!(in_between(&of_farm), []);
    let before = series();
    show(&format!("b was cut off: {query}"), &before);
    assert_eq!(in_between(&before), []);
    let own = logged(&b.archive("b"), HOST_TX_BYTES);
    show("b was cut off: its own archive", &own);
    let missing = in_between(&own);
    assert!(!missing.is_empty(), "{own:?}");

    // Redis rejects values that are older than its newest: loading the unchanged archive adds nothing.
    let copy = a.home.path("copy");
    std::fs::create_dir(&copy).expect("made");
    drop(local);
    let from = b.archive("b");
    for part in ["0", "meta", "index"] {
        let name = copy.join("archive").with_extension(part);
        std::fs::copy(from.with_extension(part), name).expect("copied");
    }
    let archive = copy.join("archive");
    let archive = archive.to_str().expect("UTF-8");
    let extract = ["-S", "+1sec", archive];
    run(share::tool("pmlogextract")
        .args(extract)
        .arg(copy.join("early")));
    let load = format!("nixl{{source.path: \"{}\"}}", copy.join("early").display());
    a.pmseries(&["--load", &load]);
    assert_eq!(in_between(&series()), []);

    let pid = pmproxy.pid().to_string();
    let whole = copy.join("whole");
    let variables = [
        ("HOST", "b"),
        ("ARCHIVE", archive),
        ("WHOLE", whole.to_str().expect("UTF-8")),
        ("PMPROXY", &pid),
    ];
    let said = a.shell(&documented("complete"), &variables);
    assert!(said.contains("archive records"), "{said:?}");
    let now = series();
    // All values of its own archive, except for the first second, which may have two samples on a slow machine.
    let mut own = logged(&from, HOST_TX_BYTES);
    let gone = own.iter().position(|value| *value == now[0]);
    let own = own.split_off(gone.filter(|gone| *gone <= 2).expect("a beginning"));
    show(&format!("completed from that: {query}"), &now);
    assert_eq!(in_between(&now), missing);
    assert!(now.starts_with(&own), "{own:?}\n{now:?}");
    // New values of the farm follow.
    wait_for("new values are there", || {
        (series().len() > own.len() + 2).then_some(())
    });
}

#[test]
#[ignore = "three hosts in namespaces"]
fn pmproxy_on_each_host_bridges_a_short_disconnection() {
    if !is_possible() {
        return;
    }
    let network = Network::start();
    let [a, b, _] = &start(&network);
    let _worker = b.agent("worker", 1, 1_000);
    let _redis = a.redis("0.0.0.0");
    let local = b.logger();
    local.samples(1);
    let _pmproxy = b.pmproxy("10.77.0.1:6379");
    let query = format!("{HOST_TX_BYTES}{{hostname==\"b\"}}");
    becomes(a, &query, &[("", 1_000)]);
    network.connect(b, false);
    let _meanwhile = b.agent("meanwhile", 12, 5);
    b.pmcd.becomes(&[("meanwhile", 60), ("worker", 1_000)]);
    local.samples(2);
    let cut = a.newest(&query);
    assert_eq!(cut, [(String::new(), 1_000)], "no new value arrives");
    network.connect(b, true);
    becomes(a, &query, &[("", 1_060)]);
    let found = a.series(&format!("{query}[samples:1000]"));
    let mut values = found.into_values().next().expect("one");
    values.reverse();
    let own = logged(&b.archive("b"), HOST_TX_BYTES);
    show("b was cut off for a moment: its own archive", &own);
    show(&format!("b was cut off for a moment: {query}"), &values);
    let from = own.iter().position(|value| *value == values[0]);
    let from = from.expect("the first value is in the archive too");
    assert!(own[from..].starts_with(&values), "{own:?}\n{values:?}");
}

#[test]
#[ignore = "three hosts in namespaces"]
fn slow_host_is_found_in_the_series_of_three() {
    if !is_possible() {
        return;
    }
    let network = Network::start();
    let [a, b, c] = &start(&network);
    // An agent of SGLang is on one host only, and the name of the last tells no engine.
    let names = ["kvbm-worker-0", "kvbm-worker-1", "unknown"];
    let sglang = "hicache_nixl_4fa1c2de-0b6e-4d0e-9a53-77d0c6a18200";
    let of_host = |host: &Host, names: &[&str], time| {
        let rings = names
            .iter()
            .map(|name| (host.home.new_ring(name, 4096), time));
        rings.collect::<Vec<_>>()
    };
    let mut rings = of_host(a, &names, 100);
    rings.extend(of_host(b, &names, 120));
    rings.extend(of_host(c, &names, 1_200));
    rings.extend(of_host(c, &[sglang], 9_000));
    let mut transfer = || {
        for (ring, time) in &mut rings {
            ring.push_transfer(false, 65_536, *time, 20);
        }
    };
    transfer();
    let _redis = a.redis("127.0.0.1");
    let loggers = [a.logger(), a.farm_logger(b), a.farm_logger(c)];
    for logger in &loggers {
        logger.samples(1);
    }
    let _pmproxy = a.pmproxy("localhost:6379");
    let mut said = String::new();
    let found = soon(|| {
        // A median is of the last minute.
        transfer();
        said = a.shell(&documented("slow"), &[]);
        let lines = said.lines().filter_map(|line| line.split_once(' '));
        // Times are right to 5 percent.
        let ten = lines.filter(|(ratio, _)| (9.0..11.0).contains(&ratio.parse().unwrap_or(0.0)));
        let mut agents: Vec<_> = ten.map(|(_, agent)| agent).collect();
        agents.sort_unstable();
        let expected = ["c kvbm-worker-0 kvbm", "c kvbm-worker-1 kvbm"];
        (agents == expected && said.lines().count() == expected.len()).then_some(())
    });
    assert!(found.is_some(), "{said}");
    println!("\n{}{said}", documented("slow"));

    // All agents of c are slow, and the last host of the list is not there.
    let list = a.home.path("hosts");
    std::fs::write(&list, "a\nb\nc\n10.77.0.9\n").expect("written");
    let command = project("share/pcp/pcp-nixl");
    let command = format!("{} -1 -H {}", command.display(), list.display());
    let found = soon(|| {
        transfer();
        said = a.shell(&command, &[]);
        let lines: Vec<_> = said.lines().collect();
        let has = |line: usize, begin: &str, part: &str| {
            let line = lines.get(line);
            line.is_some_and(|line| line.starts_with(begin) && line.contains(part))
        };
        let first = has(3, "10.77.0.9 no values", "") && has(4, "c ", " all kvbm ");
        (has(1, "standing out: no answer 1, slow 1", "") && first).then_some(())
    });
    assert!(found.is_some(), "{said}");
    println!("\npcp nixl -1 -H hosts\n{said}");
}
