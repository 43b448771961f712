// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon under dbpmda(1), PCP's debugger for PMDAs: the answer to every request equals a golden file.

use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, PMDANIXL, golden, needs_root};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

/// Two agents with known events, which live until their writers are dropped. Process scans are off, since their results
/// differ between machines.
fn two_agents(home: &Home) -> [RingWriter; 2] {
    home.set("proc_facts = false");
    let mut first = home.new_ring("decode-0", 64);
    let mut second = RingWriter::create(&home.ring("prefill 1"), Layout::V1, 64).expect("a ring");
    for (number, kind) in (1..).zip(Kind::ALL) {
        first.push(kind, number);
        if kind != Kind::EventsDropped {
            second.push(kind, 1000 * number);
        }
    }
    [first, second]
}

fn all_pmids() -> String {
    let pmids = pmdanixl::metrics::METRICS
        .iter()
        .map(|metric| format!("39.{}.{}", metric.cluster, metric.item));
    pmids.collect::<Vec<_>>().join("\n")
}

/// Metric names of a cluster.
fn pmids_of(cluster: u32) -> Vec<String> {
    let prefix = format!("39.{cluster}.");
    let pmids = all_pmids();
    let of = pmids.lines().filter(|pmid| pmid.starts_with(&prefix));
    of.map(str::to_owned).collect()
}

/// An agent with transfers of known sizes and times, and with errors.
fn busy_agent(home: &Home) -> RingWriter {
    home.set("proc_facts = false");
    let mut ring = home.new_ring("decode-0", 128);
    ring.push(Kind::MemoryRegistered, 1 << 30);
    for (read, bytes, xfer_us, post_us) in [
        (false, 4096, 8, 2),
        (false, 65_536, 120, 20),
        (true, 65_536, 130, 21),
        (true, 1 << 24, 2400, 300),
        (false, 1 << 34, 20_000_000, 26),
    ] {
        assert_eq!(ring.push_transfer(read, bytes, xfer_us, post_us), 4);
    }
    for (kind, value) in [
        (Kind::MemoryDeregistered, 1 << 20),
        (Kind::Backend, 1),
        (Kind::RemoteDisconnect, 1),
        (Kind::EventsDropped, 17),
    ] {
        assert!(ring.push(kind, value));
    }
    assert!(ring.push_raw(99, 1));
    ring
}

/// Output without the numbers that differ in each run.
fn masked(output: &str) -> String {
    let changing = ["nixl.agent.idle_time", "nixl.errors.last_time"];
    let (mut masked, mut changes) = (String::new(), false);
    for line in output.lines() {
        let is_metric = line.starts_with("  39.");
        changes = if is_metric {
            changing.iter().any(|name| line.contains(name))
        } else {
            changes
        };
        match line.split_once(" value ") {
            Some((start, _)) if changes => masked += &format!("{start} value MASKED"),
            _ => masked += line,
        }
        masked.push('\n');
    }
    masked
}

fn each(command: &str) -> String {
    let mut script = String::new();
    for pmid in all_pmids().lines() {
        script += &format!("{command} {pmid}\n");
    }
    script
}

#[test]
fn help_of_a_metric_and_an_indom_matches_golden() {
    let script = "text 39.0.0\ntext indom 39.6";
    golden("dbpmda_text.out", &Home::new().dbpmda(script));
}

#[test]
fn instance_requests_match_golden() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "instance 39.0\ninstance 39.0 0\ninstance 39.0 \"prefill%201\"\ninstance 39.0 7\ninstance 39.0 \"none\"\ninstance 39.5";
    golden("dbpmda_instance.out", &home.dbpmda(script));
}

#[test]
fn fetch_of_event_metrics_matches_golden() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let counters = (0..=3).flat_map(pmids_of).collect::<Vec<_>>().join(" ");
    let script = format!(
        "getdesc on\nfetch {counters}\nfetch 39.31.3 39.40.0 39.40.1 39.40.5 39.40.8 39.40.9"
    );
    golden("dbpmda_fetch.out", &home.dbpmda(&script));
}

#[test]
fn fetch_of_agent_host_and_peer_metrics_matches_golden() {
    needs_root();
    let home = Home::new();
    let _writer = busy_agent(&home);
    let fetch = |cluster| format!("fetch {}\n", pmids_of(cluster).join(" "));
    let clusters = [16, 17, 18, 19, 20, 21, 22, 23, 30, 31].map(fetch);
    // The drain that found the agents is not the last one before the fetch.
    let script = format!("getdesc on\nwait 1\n{}", clusters.concat());
    golden("dbpmda_fetch_agent.out", &masked(&home.dbpmda(&script)));
}

#[test]
fn bucket_requests_match_golden() {
    let home = Home::new();
    let _writer = busy_agent(&home);
    let mut script = "getdesc on\n".to_owned();
    for (indom, instance) in [
        (1, "decode-0::10-25"),
        (2, "decode-0::8589934592-inf"),
        (3, "decode-0::0-1000000"),
        (4, "decode-0::le-25"),
    ] {
        script += &format!(
            "instance 39.{indom}\ninstance 39.{indom} 1\ninstance 39.{indom} \"{instance}\"\n\
             instance 39.{indom} 21\ninstance 39.{indom} 64\ninstance 39.{indom} \"decode-0\"\n\
             label indom 39.{indom}\nlabel instances 39.{indom}\n"
        );
    }
    // A profile of one instance domain does not apply to another.
    script += "profile 39.1 none\nprofile 39.1 add 4\nprofile 39.1 add 63\nfetch 39.20.0 39.20.1\nfetch 39.22.0\n";
    script += "profile 39.2 none\nfetch 39.22.0\nfetch 39.20.4 39.22.1 39.23.5 39.24.0\nstore 39.20.0 \"1\"\n";
    // Each name with its whole subtree.
    script += "fetch 39.20.2 39.20.3\nprofile 39.4 none\nprofile 39.4 add 18\nfetch 39.20.2\n";
    golden("dbpmda_buckets.out", &home.dbpmda(&script));
}

#[test]
fn label_requests_match_golden() {
    let home = Home::new();
    let script = "label context\nlabel indom 39.0\nlabel cluster 39.0\nlabel item 39.0.0";
    let of_all = home.dbpmda(script);
    let home = Home::new();
    let _writers = two_agents(&home);
    let _odd = RingWriter::create(&home.ring("a \"b\" \\ \t é"), Layout::V3, 8).expect("a ring");
    golden(
        "dbpmda_label.out",
        &(of_all + &home.dbpmda("label instances 39.0")),
    );
}

#[test]
fn profile_requests_match_golden() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "getdesc on\nprofile 39.0 none\nfetch 39.0.0\nprofile 39.0 add 1\nfetch 39.0.0\nprofile 39.0 all\nprofile 39.0 delete 1\nfetch 39.0.0";
    golden("dbpmda_profile.out", &home.dbpmda(script));
}

#[test]
fn bad_requests_match_golden() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "desc 39.0.4\nfetch 39.0.4\nfetch 39.99.0\ntext 39.0.4\ntext indom 39.8\nlabel instances 39.8\n\
                  store 39.0.0 \"1\"\nstore 39.40.8 \"1\"\ngetdesc on\nfetch 39.0.0";
    golden("dbpmda_bad.out", &home.dbpmda(script));
}

#[test]
fn requests_cause_no_memory_error() {
    let home = Home::new();
    let _writers = two_agents(&home);
    // valgrind does not support the system calls of Landlock.
    home.set("");
    // Only definite leaks: libpcp_pmda has memory that stays reachable until the end.
    let wrapper = home.path("wrapper");
    let errors = home.path("valgrind");
    std::fs::create_dir(&errors).expect("made");
    let script = format!(
        "#!/bin/sh\nexec valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite \\\n    \
         --show-leak-kinds=definite --suppressions=\"{}\" --log-file={}/%p \"{PMDANIXL}\" \"$@\"\n",
        support::project("qa/valgrind.supp").display(),
        errors.display()
    );
    std::fs::write(&wrapper, script).expect("written");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let script = format!(
        "getdesc on\n{}{}text indom 39.0\ninstance 39.0\ninstance 39.0 7\nfetch {}\nlabel instances 39.0\n\
         profile 39.0 none\nfetch 39.0.0\nfetch 39.0.9\nstore 39.40.8 \"1\"\nfetch 39.0.0",
        each("desc"),
        each("text"),
        all_pmids().replace('\n', " ")
    );
    // An agent is published when its labels are known. dbpmda buffers its output in blocks, so the fetch is repeated
    // until the answer is visible.
    let mut dbpmda = home.start_dbpmda(&wrapper);
    let mut input = dbpmda.stdin.take().expect("piped");
    let output = BufReader::new(dbpmda.stdout.take().expect("piped"));
    let (sender, said) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut lines = output.lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line)).is_ok()
    });
    writeln!(input, "getdesc on").expect("dbpmda reads");
    support::wait_for("the daemon answers under valgrind", || {
        writeln!(input, "fetch 39.0.0").expect("dbpmda reads");
        let mut lines = said.try_iter();
        lines.any(|line| line.contains("value 1000")).then_some(())
    });
    writeln!(input, "{script}\nquit").expect("dbpmda reads");
    drop(input);
    let last = said.iter().last();
    assert!(last.is_some_and(|line| line.contains("quit")), "it ended");
    assert!(reader.join().expect("no panic"), "all was read");
    dbpmda.wait().expect("our child");
    support::wait_for("the daemon ends", || {
        home.log()
            .contains("pmcd has closed the connection")
            .then_some(())
    });
    home.wait_for_the_end_of_the_log();
    for log in std::fs::read_dir(&errors).expect("there") {
        let log = log.expect("there").path();
        let found = std::fs::read_to_string(&log).expect("valgrind's log");
        // valgrind reports system calls that it does not support (openat2). They fail with ENOSYS.
        let errors: Vec<&str> = found
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect();
        assert!(errors.is_empty(), "valgrind found errors: {errors:#?}");
    }
}
