//! The agent under dbpmda(1), PCP's own debugger for agents: every request, compared with checked-in output.

mod support;

use std::os::unix::fs::PermissionsExt;
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, PMDANIXL, golden};

/// Two agents with known events; the writers stay alive as long as the test wants.
fn two_agents(home: &Home) -> [RingWriter; 2] {
    let mut first = RingWriter::create(&home.ring("decode-0"), Layout::V4, 64).expect("a ring");
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

fn each(command: &str) -> String {
    all_pmids()
        .lines()
        .map(|pmid| format!("{command} {pmid}\n"))
        .collect()
}

#[test]
fn desc() {
    golden("dbpmda_desc.out", &Home::new().dbpmda(&each("desc")));
}

#[test]
fn text() {
    let script = each("text") + "text indom 39.0\n";
    golden("dbpmda_text.out", &Home::new().dbpmda(&script));
}

#[test]
fn instance() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "instance 39.0\ninstance 39.0 0\ninstance 39.0 \"prefill%201\"\ninstance 39.0 7\ninstance 39.0 \"none\"\ninstance 39.1";
    golden("dbpmda_instance.out", &home.dbpmda(script));
}

#[test]
fn fetch() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let counters = all_pmids()
        .lines()
        .filter(|pmid| {
            pmid.starts_with("39.0")
                || pmid.starts_with("39.1.")
                || pmid.starts_with("39.2.")
                || pmid.starts_with("39.3.")
        })
        .collect::<Vec<_>>()
        .join(" ");
    let script = format!(
        "getdesc on\nfetch {counters}\nfetch 39.31.3 39.40.0 39.40.1 39.40.5 39.40.8 39.40.9"
    );
    golden("dbpmda_fetch.out", &home.dbpmda(&script));
}

#[test]
fn label() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let _odd = RingWriter::create(&home.ring("a \"b\" \\ \t é"), Layout::V3, 8).expect("a ring");
    let script = "label context\nlabel indom 39.0\nlabel cluster 39.0\nlabel item 39.0.0\nlabel instances 39.0";
    golden("dbpmda_label.out", &home.dbpmda(script));
}

#[test]
fn profile() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "getdesc on\nprofile 39.0 none\nfetch 39.0.0\nprofile 39.0 add 1\nfetch 39.0.0\nprofile 39.0 all\nprofile 39.0 delete 1\nfetch 39.0.0";
    golden("dbpmda_profile.out", &home.dbpmda(script));
}

#[test]
fn bad_requests() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let script = "desc 39.0.4\nfetch 39.0.4\nfetch 39.99.0\ntext 39.0.4\ntext indom 39.7\nlabel instances 39.7\n\
                  store 39.0.0 \"1\"\nstore 39.40.8 \"1\"\ngetdesc on\nfetch 39.0.0";
    golden("dbpmda_bad.out", &home.dbpmda(script));
}

#[test]
fn no_memory_error_in_any_request() {
    let home = Home::new();
    let _writers = two_agents(&home);
    let errors = home.path("valgrind.out");
    // Of leaks only the definite ones: what libpcp_pmda keeps for ever can be reached.
    let wrapper = home.path("wrapper");
    let script = format!(
        "#!/bin/sh\nexec valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite \\\n    \
         --show-leak-kinds=definite --log-file={} {PMDANIXL} \"$@\"\n",
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
    let output = home.dbpmda_with(&wrapper, &script);
    assert!(
        output.contains("value 1000"),
        "the agent answered under valgrind:\n{output}"
    );
    support::wait_for("the agent ends by itself", 20, || {
        home.log()
            .contains("pmcd has closed the connection")
            .then_some(())
    });
    support::wait_for("valgrind ends", 20, || {
        home.log().contains("Log finished").then_some(())
    });
    assert_eq!(
        std::fs::read_to_string(&errors).expect("valgrind's log"),
        "",
        "valgrind found errors"
    );
}
