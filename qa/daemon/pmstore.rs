// SPDX-License-Identifier: GPL-2.0-or-later

//! pmstore(1) of the settings that only root can change at run time, and metrics of the daemon's own cost, with a real
//! pmcd.

mod requests;

use crate::support::pdu::Figures;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, Pmcd, needs_root, output, run, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const INTERVAL: &str = "nixl.control.drain.interval";
const SWITCH: &str = "nixl.control.debug";
const READ_AGAIN: &str = "nixl.control.reload";
/// Number of configurations that were taken.
const RELOADS: &str = "nixl.control.reloads";

const PERMISSION: &str = "status -12387";

fn value(pmcd: &Pmcd, metric: &str) -> u64 {
    pmcd.values(metric)[""]
}

fn store(pmcd: &Pmcd, metric: &str, value: &str) {
    run(pmcd.tool("pmstore").args([metric, value]));
}

/// Output of a pmstore that must fail.
fn rejection(mut pmstore: Command, metric: &str, value: &str) -> String {
    let output = output(pmstore.args([metric, value]));
    let text = text(&output);
    assert!(!output.status.success(), "{metric} {value}: {text}");
    text
}

/// Number of drains of a ring in one second without a fetch. Each event is written as soon as the ring is empty.
fn drains_in_a_second(ring: &mut RingWriter) -> u64 {
    let (end, mut drains) = (Instant::now() + Duration::from_secs(1), 0);
    while Instant::now() < end {
        if ring.pending() == 0 {
            assert!(ring.push(Kind::TxBytes, 1));
            drains += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    drains
}

#[test]
#[ignore = "counts drains in a second"]
fn interval_of_a_reload_applies_at_once() {
    let home = Home::new();
    let mut ring = home.new_ring("agent", 64);
    home.set("drain_interval = \"1s\"");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("agent", 0)]);
    assert_eq!(value(&pmcd, INTERVAL), 1000);
    let slow = drains_in_a_second(&mut ring);
    assert!(slow <= 12, "{slow} drains in a second");
    let text = format!(
        "[nixl]\ntelemetry_dir = {:?}\ndrain_interval = \"5ms\"\n",
        home.rings()
    );
    fs::write(pmcd.path("etc/nixl/nixl.conf"), text).expect("written");
    store(&pmcd, READ_AGAIN, "1");
    assert_eq!((value(&pmcd, INTERVAL), value(&pmcd, RELOADS)), (5, 2));
    wait_for("the short interval applies", || {
        (drains_in_a_second(&mut ring) >= 40).then_some(())
    });
}

#[test]
fn pmstore_switches_debug_messages_on_and_off() {
    needs_root();
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let rejections = || value(&pmcd, "nixl.control.files.rejections");
    let is_rejection_logged = |name: &str| {
        let before = rejections();
        fs::write(home.ring(name), "no ring").expect("written");
        wait_for("the file is rejected", || {
            (rejections() > before).then_some(())
        });
        let message = format!("{name}\": rejected");
        pmcd.log()
            .lines()
            .any(|line| line.contains("Debug: ") && line.contains(&message))
    };
    assert_eq!(value(&pmcd, SWITCH), 0);
    assert!(!is_rejection_logged("before"), "{}", pmcd.log());
    store(&pmcd, SWITCH, "1");
    assert_eq!(value(&pmcd, SWITCH), 1);
    assert!(is_rejection_logged("meanwhile"), "{}", pmcd.log());
    store(&pmcd, SWITCH, "0");
    assert_eq!(value(&pmcd, SWITCH), 0);
    assert!(!is_rejection_logged("after"), "{}", pmcd.log());
}

#[test]
fn only_root_on_the_local_socket_can_store() {
    needs_root();
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    // By default, pmcd itself rejects pmStore requests over TCP. These rules make it pass them to the daemon.
    let conf = pmcd.path("etc/pmcd.conf");
    let lines = fs::read_to_string(&conf).expect("there");
    let (agents, _) = lines.split_once("[access]").expect("access rules");
    fs::write(&conf, format!("{agents}[access]\nallow \"*\" : all;\n")).expect("written");
    let pid = i32::try_from(pmcd.pid()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGHUP).expect("it runs");
    store(&pmcd, SWITCH, "1");
    let rejected_requests = || {
        pmcd.log()
            .matches("pmStore request rejected: pmcd has not authenticated the client as root")
            .count()
    };
    let by_tcp = || {
        let mut pmstore = pmcd.tool("pmstore");
        pmstore.args(["-h", "localhost"]);
        pmstore
    };
    wait_for("pmcd has read its access rules", || {
        let _ = rejection(by_tcp(), READ_AGAIN, "1");
        (rejected_requests() > 0).then_some(())
    });
    for (metric, shown) in [(SWITCH, SWITCH), (READ_AGAIN, RELOADS)] {
        let before = value(&pmcd, shown);
        for (client, pmstore) in [
            ("another user", pmcd.tool_as(65_534, "pmstore")),
            ("root by TCP", by_tcp()),
        ] {
            let before = rejected_requests();
            let output = rejection(pmstore, metric, "0");
            assert!(
                output.contains("No permission"),
                "{metric}, {client}: {output}"
            );
            assert_eq!(
                rejected_requests(),
                before + 1,
                "{metric}, {client}: the request reached the daemon"
            );
        }
        assert_eq!(value(&pmcd, shown), before, "{metric}");
    }
    // A rejected request does not affect later requests of root.
    store(&pmcd, READ_AGAIN, "0");
    assert_eq!(value(&pmcd, RELOADS), 2);
}

#[test]
fn pmstore_of_bad_values_or_other_metrics_is_rejected() {
    needs_root();
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let before = value(&pmcd, SWITCH);
    for out in ["2", "50", "4294967295"] {
        let said = rejection(pmcd.tool("pmstore"), SWITCH, out);
        assert!(said.contains("Bad input to pmstore"), "{out}: {said}");
    }
    assert_eq!(value(&pmcd, SWITCH), before);
    for other in [
        INTERVAL,
        "nixl.control.version",
        "nixl.control.places.taken",
        "nixl.control.memory",
    ] {
        let said = rejection(pmcd.tool("pmstore"), other, "1");
        assert!(said.contains("No permission"), "{other}: {said}");
    }
}

#[test]
fn control_metrics_show_the_work_and_cost_of_the_daemon() {
    let home = Home::new();
    home.set("retain = \"0s\"");
    let pmcd = Pmcd::start(&home);
    let of = |name: &str| value(&pmcd, &format!("nixl.control.{name}"));
    let mut rings = ["one", "two"].map(|name| home.new_ring(name, 1024));
    for ring in &mut rings {
        for _ in 0..300 {
            assert!(ring.push(Kind::TxBytes, 1));
        }
    }
    pmcd.becomes(&[("one", 300), ("two", 300)]);
    let mut lines = 0;
    let mut figures = || {
        store(&pmcd, SWITCH, "1");
        let figures = wait_for("the figures are logged", || {
            let log = pmcd.log();
            let figures = Figures::lines(&log).nth(lines);
            figures.map(Figures::read)
        });
        store(&pmcd, SWITCH, "0");
        lines += 1;
        figures
    };
    let expected = Figures {
        events: 600,
        attached: 2,
        agents: 2,
        rejected: 0,
    };
    assert_eq!(figures(), expected);
    // CPU time and memory in /proc of the daemon, and of the processes that look at others, which are counted
    // later.
    let pid = pmcd.pmda_pid();
    let fields = |pid: u32| -> Option<Vec<u64>> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after) = stat.rsplit_once(") ")?;
        let fields = after.split(' ').skip(1);
        // Fields that are negative are of no interest.
        Some(
            fields
                .map(|field| field.trim().parse().unwrap_or_default())
                .collect(),
        )
    };
    let family = || {
        let names = fs::read_dir("/proc").expect("there").flatten();
        let pids = names.filter_map(|name| name.file_name().to_str()?.parse::<u32>().ok());
        let all: Vec<_> = pids
            .filter_map(|pid| Some((pid, fields(pid)?[0])))
            .collect();
        let mut family = vec![pid];
        let mut known = 0;
        while known < family.len() {
            let parent = u64::from(family[known]);
            family.extend(
                all.iter()
                    .filter(|(_, of)| *of == parent)
                    .map(|(pid, _)| pid),
            );
            known += 1;
        }
        family
    };
    let ticks = |pid: u32| fields(pid).map_or(0, |fields| fields[10] + fields[11]);
    // /proc counts user and system time in ticks of 10 ms. Each of the two may lack one tick.
    let (low, said) = (10_000 * ticks(pid), of("cpu_time"));
    let family = family();
    let high = 10_000 * family.iter().copied().map(ticks).sum::<u64>();
    let missing = 20_000 * family.len() as u64;
    assert!(
        (low.saturating_sub(20_000)..=high + missing).contains(&said),
        "{low} {said} {high}"
    );
    let page = run(Command::new("getconf").arg("PAGESIZE"));
    let page: u64 = page.trim().parse().expect("a number");
    let resident = |pid: &u32| -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * page)
    };
    let own = resident(&pid).expect("it runs");
    let all: u64 = family.iter().filter_map(resident).sum();
    let said = of("memory");
    let expected_memory = own - own / 10..=all + all / 10;
    assert!(expected_memory.contains(&said), "{own} {said} {all}");
    // A removed file detaches the ring. The record of the agent stays.
    let [one, two] = rings;
    drop(one);
    fs::remove_file(home.ring("one")).expect("there");
    wait_for("the ring is detached", || {
        let expected = Figures {
            attached: 1,
            ..expected
        };
        (figures() == expected).then_some(())
    });
    drop(two);
}
