// SPDX-License-Identifier: GPL-2.0-or-later

//! The timeline `nixl.events.records`: by `pcp nixl --events` and pmevent, live and from an archive.

use super::pcp_nixl::pcp;
use crate::support::share::{Logger, tool};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, output, run, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;

const RECORDS: &str = "nixl.events";

/// Program that reads the timeline.
#[derive(Clone, Copy, Debug)]
enum Reader {
    /// `pcp nixl --events --json`.
    PcpNixl,
    Pmevent,
}

/// A client that writes the timeline to a file. Dropping it ends the client.
struct Client {
    reader: Reader,
    child: Child,
    file: PathBuf,
}

impl Client {
    /// Starts a client that reads in this interval.
    fn start(home: &Home, pmcd: &Pmcd, reader: Reader, interval: &str) -> Self {
        let file = home.path(&format!("{reader:?}-{interval}"));
        let mut command = match reader {
            Reader::PcpNixl => pcp(home, pmcd.tool("pcp")),
            Reader::Pmevent => pmcd.tool("pmevent"),
        };
        match reader {
            Reader::PcpNixl => command.args(["nixl", "--events", "--json", "-t", interval]),
            Reader::Pmevent => command.args(["-t", interval, "nixl.events.records"]),
        };
        command.stdout(File::create(&file).expect("created"));
        let child = command
            .spawn()
            .expect("PCP is installed: scripts/setup check");
        Self {
            reader,
            child,
            file,
        }
    }

    fn events(&self) -> Vec<Event> {
        let shown = fs::read_to_string(&self.file).expect("written");
        match self.reader {
            Reader::PcpNixl => events_of(&shown),
            Reader::Pmevent => events_of_pmevent(&shown),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kind, agent and value of an event.
pub(super) type Event = (String, String, u64);

/// Events of the output of `pcp nixl --events --json`.
fn events_of(lines: &str) -> Vec<Event> {
    // The client may be writing the last line.
    let lines = lines
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| event[name].as_str().expect(name).to_owned();
        let (kind, agent) = (word("kind"), word("agent"));
        // No process of the test has the title of an engine.
        assert_eq!(word("server"), "", "{line}");
        let said = word("text");
        assert!(
            said.starts_with(&agent) && event["timestamp"].as_f64() > Some(0.0),
            "{line}"
        );
        (kind, agent, event["value"].as_u64().expect("a number"))
    };
    lines.map(event).collect()
}

/// Events of the output of pmevent.
fn events_of_pmevent(shown: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut event = (String::new(), String::new(), 0);
    // The client may be writing the last line. The text is the last parameter of an event.
    let lines = shown
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    for line in lines {
        let Some(parameter) = line.trim().strip_prefix("nixl.events.") else {
            continue;
        };
        let (name, value) = parameter.split_once(' ').expect("a value");
        let word = value.trim_matches('"').to_owned();
        match name {
            "kind" => event.0 = word,
            "agent" => event.1 = word,
            "value" => event.2 = word.parse().expect("a number"),
            "text" => events.push(std::mem::take(&mut event)),
            _ => {}
        }
    }
    events
}

/// Makes things happen, one after the other.
struct Script<'a> {
    pmcd: &'a Pmcd,
    expected: Vec<Event>,
}

impl Script<'_> {
    /// Waits until one more event is recorded, which is to be this one.
    fn then(&mut self, kind: &str, agent: &str, value: u64) {
        self.expected
            .push((kind.to_owned(), agent.to_owned(), value));
        let wanted = self.expected.len() as u64;
        wait_for(&format!("{kind} of {agent} is recorded"), || {
            let recorded = self.pmcd.values("nixl.events.count")[""];
            assert!(
                recorded <= wanted,
                "{}",
                run(self.pmcd.tool("pminfo").args(["-f", "nixl.events.last"]))
            );
            (recorded == wanted).then_some(())
        });
    }
}

/// A ring of an agent that runs and has transferred.
fn agent(home: &Home, name: &str) -> RingWriter {
    let mut ring = home.new_ring(name, 16);
    assert_eq!(ring.push_transfer(false, 4096, 100, 10), 4);
    ring
}

/// 20 events of two agents and of the host. Returns them.
pub(super) fn play(home: &Home, pmcd: &Pmcd) -> Vec<Event> {
    let mut script = Script {
        pmcd,
        expected: Vec::new(),
    };
    script.then("configuration", "", 1);
    let mut first = agent(home, "first");
    script.then("appeared", "first", 1);
    let mut second = agent(home, "second");
    script.then("appeared", "second", 1);
    for ring in [(&mut first, "first"), (&mut second, "second")] {
        ring.0.push(Kind::Backend, 3);
        script.then("errors", ring.1, 3);
        ring.0.push(Kind::EventsDropped, 5);
        script.then("lost", ring.1, 5);
    }
    while second.push(Kind::TxBytes, 1) {}
    script.then("ring_full", "second", 1);
    script.then("ring_full_end", "second", 1);
    pmcd.configure(home, "slow_transfer_us = 1000");
    script.then("configuration", "", 2);
    first.push_transfer(false, 4096, 1001, 10);
    script.then("slow_transfer", "first", 1001);
    second.push_transfer(true, 4096, 5000, 10);
    script.then("slow_transfer", "second", 5000);
    second.push_transfer(true, 4096, 1000, 10);
    home.set("no_such_key = 1");
    fs::copy(home.conf(), pmcd.path("etc/nixl/nixl.conf")).expect("copied");
    assert!(
        !output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]))
            .status
            .success()
    );
    script.then("configuration_rejected", "", 2);
    pmcd.configure(home, "");
    script.then("configuration", "", 3);
    // A ring of version 6.
    let made = home.path("made");
    drop(RingWriter::create(&made, Layout::V4, 16).expect("a ring"));
    let file = File::options().write(true).open(&made).expect("there");
    let versions = [6, 0, 0, 0, 6, 0, 0, 0];
    file.write_all_at(&versions, 16).expect("written");
    fs::rename(made, home.ring("future")).expect("moved");
    script.then("unsupported", "", 1);
    drop(first);
    script.then("exited", "first", 1);
    let mut first = agent(home, "first");
    script.then("restarted", "first", 2);
    first.push(Kind::NotFound, 2);
    script.then("errors", "first", 2);
    drop(first);
    script.then("exited", "first", 2);
    drop(second);
    script.then("exited", "second", 1);
    script.expected
}

#[test]
fn twenty_events_reach_each_client_once_in_order() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let archive = home.path("archive");
    let config = format!("log mandatory on 1 sec {{ {RECORDS} nixl.control.version }}\n");
    let logger = Logger::start_configured(pmcd.tool("pmlogger"), &archive, &config);
    let clients = [
        (Reader::Pmevent, "0.2"),
        (Reader::Pmevent, "0.5"),
        (Reader::PcpNixl, "0.5"),
        // Slow ones.
        (Reader::Pmevent, "7"),
        (Reader::PcpNixl, "7"),
    ];
    let clients = clients.map(|(reader, interval)| Client::start(&home, &pmcd, reader, interval));
    let expected = play(&home, &pmcd);
    assert_eq!(expected.len(), 20, "{expected:#?}");
    for client in &clients {
        let complete = || (client.events().len() >= expected.len()).then_some(());
        wait_for("a client has all events", complete);
        assert_eq!(client.events(), expected);
    }
    // A client that begins now reads all, and pmevent too.
    let mut late = pcp(&home, pmcd.tool("pcp"));
    let late = run(late.args(["nixl", "--events", "--json", "-1"]));
    assert_eq!(events_of(&late), expected);
    let shown = run(pmcd
        .tool("pmevent")
        .args(["-s", "1", "nixl.events.records"]));
    assert_eq!(events_of_pmevent(&shown), expected);
    logger.samples(3);
    drop(logger);
    in_archive(&home, &archive, &expected);
}

/// Checks the timeline of an archive.
fn in_archive(home: &Home, archive: &Path, expected: &[Event]) {
    let shown = run(tool("pmevent")
        .arg("-a")
        .arg(archive)
        .arg("nixl.events.records"));
    assert_eq!(events_of_pmevent(&shown), expected);
    let of = |options: &[&str]| {
        let mut command = pcp(home, tool("pcp"));
        command
            .arg("-a")
            .arg(archive)
            .args(["nixl", "-z", "--events"]);
        run(command.args(options))
    };
    assert_eq!(events_of(&of(&["--json"])), expected);
    let lines = of(&[]);
    let lines = Vec::from_iter(lines.lines());
    assert_eq!(lines.len(), expected.len());
    assert!(
        lines[3].contains(" errors           first: 3 errors NIXL_ERR_BACKEND"),
        "{}",
        lines[3]
    );
    // From the fifth event to the tenth, by their times of day.
    let time = |line: &str, more: u32| {
        let (_, clock) = line.split_once(' ').expect("a date");
        let (whole, rest) = clock.split_once('.').expect("milliseconds");
        let millis: u32 = rest[..3].parse().expect("three digits");
        // The line has the time rounded down.
        format!("@{whole}.{:03}", (millis + more).min(999))
    };
    let (from, upto) = (time(lines[4], 0), time(lines[9], 1));
    let part = of(&["-S", &from, "-T", &upto]);
    assert_eq!(Vec::from_iter(part.lines()), lines[4..10]);
}

#[test]
fn client_that_reads_late_is_told_what_it_has_missed() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let readers = [Reader::PcpNixl, Reader::Pmevent];
    let clients = readers.map(|reader| Client::start(&home, &pmcd, reader, "0.1"));
    for client in &clients {
        wait_for("the client has read", || client.events().first().map(drop));
        client.signal(Signal::SIGSTOP);
    }
    // Events of the host, which have no limit for each user. Each takes more than 200 bytes of the 256 KiB.
    let key = "x".repeat(100);
    home.set(&format!("{key} = 1"));
    fs::copy(home.conf(), pmcd.path("etc/nixl/nixl.conf")).expect("copied");
    let stores = "nixl.control.reload 1\n";
    while pmcd.values("nixl.events.count")[""] < 800 {
        for _ in 0..50 {
            let _ = output(pmcd.tool("pmstore").args(stores.split_whitespace()));
        }
    }
    let recorded = pmcd.values("nixl.events.count")[""];
    for client in &clients {
        client.signal(Signal::SIGCONT);
        let mut missed = 0;
        wait_for("the client reads the rest", || {
            let events = client.events();
            let of_missed = events.iter().filter(|event| event.0 == "missed");
            missed = of_missed.map(|event| event.2).sum::<u64>();
            let read = events.len() as u64 - u64::from(missed > 0);
            (read + missed == recorded).then_some(())
        });
        assert!(missed > 0, "{:?}", client.reader);
    }
}

#[test]
fn events_go_on_after_the_pmda_or_pmcd_did_not_answer() {
    let home = Home::new();
    let _ring = home.new_ring("steady", 64);
    let mut pmcd = Pmcd::start(&home);
    let client = Client::start(&home, &pmcd, Reader::PcpNixl, "0.1");
    let begins = |count: usize| {
        wait_for("each start is printed once", || {
            let events = client.events();
            let starts = events.iter().filter(|(kind, ..)| kind == "configuration");
            let starts = starts.count();
            assert!(starts <= count, "{events:?}");
            (starts == count).then_some(())
        });
    };
    begins(1);
    let signal = |pid: u32, signal| {
        let pid = i32::try_from(pid).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    };
    signal(pmcd.pmda_pid(), Signal::SIGKILL);
    // pmcd restarts PMDAs that have ended, once a request has shown it.
    wait_for("another daemon", || {
        signal(pmcd.pid(), Signal::SIGHUP);
        pmcd.tool("pminfo")
            .args(["-f", "nixl.control.version"])
            .output()
            .is_ok_and(|said| text(&said).contains("value"))
            .then_some(())
    });
    begins(2);
    pmcd.kill();
    pmcd.start_anew();
    begins(3);
}
