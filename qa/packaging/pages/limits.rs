// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits and times on the pages are the constants of the code.

use crate::support::share::text_of;

/// Source file below src, constants with their values there, page, and what the page says about them.
type Limit = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static [&'static str],
);

const LIMITS: [Limit; 22] = [
    (
        "ring.rs",
        &[("BATCH", "1 << 12")],
        "pmdanixl.1",
        &["events of a batch 4,096"],
    ),
    (
        "event.rs",
        &[("MAX_VALUE", "(1 << 56) - 1")],
        "pmdanixl.1",
        &["2^56\\-1"],
    ),
    (
        "config.rs",
        &[("MAX_CAPACITY", "1 << 22")],
        "pmdanixl.1",
        &["max_capacity\\f1, 4,194,304"],
    ),
    (
        "collector/new_names.rs",
        &[("BURST", "4096"), ("INTERVAL", "Duration::from_millis(20)")],
        "pmdanixl.1",
        &["4,096 or more at once, then 50 a second"],
    ),
    (
        "collector/expiry.rs",
        &[("MORE_RECORDS", "1024")],
        "pmdanixl.1",
        &["max_agents\\f1 + 1,024"],
    ),
    (
        "discovery/scan/rejected.rs",
        &[("MAX_FILES", "1 << 17")],
        "pmdanixl.1",
        &["131,072"],
    ),
    (
        "discovery/directory/expansion.rs",
        &[("MAX_NAMES", "1 << 16")],
        "pmdanixl.1",
        &["65,536 for each user"],
    ),
    (
        "discovery/scan.rs",
        &[
            ("PAUSE_FACTOR", "20"),
            ("MAX_PAUSE", "Duration::from_secs(5)"),
        ],
        "pmdanixl.1",
        &["20 times its scan time, up to 5 s"],
    ),
    (
        "transport/peers.rs",
        &[("MAX_PUBLISHED_PEERS", "16"), ("MAX_PEERS", "272")],
        "pmdanixl.1",
        &["16, those with most bytes; the sums of the 256 after them are kept"],
    ),
    (
        "observer/supervisor.rs",
        &[
            ("SOFT_TIMEOUT", "Duration::from_millis(700)"),
            ("HARD_TIMEOUT", "Duration::from_secs(10)"),
        ],
        "pmdanixl.1",
        &["set aside after 0.7 s and killed after 10 s"],
    ),
    (
        "observer/workers.rs",
        &[("MAX_BLOCKED", "8")],
        "pmdanixl.1",
        &["with 8 no user"],
    ),
    (
        "observer/workers.rs",
        &[("SKIP_TIME", "Duration::from_secs(600)")],
        "docs/troubleshooting.md",
        &["for at least ten minutes"],
    ),
    (
        "observer/queues.rs",
        &[("MAX_CONNECTIONS", "4096")],
        "pmdanixl.1",
        &["of a process 4,096"],
    ),
    (
        "timeline.rs",
        &[("MAX_BYTES", "256 << 10"), ("MAX_OF_USER", "MAX_BYTES / 4")],
        "pmdanixl.1",
        &["256 KiB, of one user 64 KiB in a minute"],
    ),
    (
        "timeline.rs",
        &[
            ("MAX_BYTES", "256 << 10"),
            ("MAX_OF_USER", "MAX_BYTES / 4"),
            ("LAST", "32"),
        ],
        "docs/tools.md",
        &[
            "At most 256 KiB are kept",
            "beyond 64 KiB in a minute",
            "the last 32 events as JSON",
        ],
    ),
    (
        "agents/agent/noted/compared.rs",
        &[("MAX_TCP_SHARE", "0.5"), ("MAX_RATIO", "3.0")],
        "docs/tools.md",
        &[
            "more than half of the bytes of the last minute went over TCP",
            "more than three times as long",
        ],
    ),
    (
        "stats/slow_transfers.rs",
        &[("KEPT", "8")],
        "nixl.conf.5",
        &["the first eight in a minute"],
    ),
    (
        "transport/stall.rs",
        &[
            ("STALLED_FACTOR", "4"),
            ("MAX_PERIOD", "Duration::from_secs(300)"),
        ],
        "docs/metrics.md",
        &[
            "The same for four times `stalled_after`",
            "grows with the silence, to five minutes",
        ],
    ),
    (
        "transport/share.rs",
        &[("MIN_BYTES", "1 << 20")],
        "docs/troubleshooting.md",
        &["moved less than 1 MiB"],
    ),
    (
        "discovery/name.rs",
        &[("MAX_LEN", "200"), ("PREFIX_LEN", "183")],
        "docs/metrics.md",
        &["more than 200 bytes", "its first 183"],
    ),
    (
        "store/format.rs",
        &[("LEN", "6_800")],
        "docs/enabling-nixl.md",
        &["a file of 6,800 bytes"],
    ),
    (
        "journal/record.rs",
        &[("RECORD_WORDS", "1536")],
        "docs/debugging.md",
        &["12,288 bytes each"],
    ),
];

/// Value of a constant in a source file.
fn value<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = rest.split(';').next()?.split_once(" = ")?;
    Some(value)
}

#[test]
fn limits_on_the_pages_are_those_of_the_code() {
    for (file, constants, page, said) in LIMITS {
        let source = text_of(&format!("src/{file}"));
        let text = text_of(page);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (name, expected) in constants {
            let found = value(&source, name);
            assert_eq!(
                found,
                Some(*expected),
                "src/{file}: {name} changed: see {page}"
            );
        }
        for said in said {
            assert!(
                text.contains(said),
                "{page} does not say {said:?}: see src/{file}"
            );
        }
    }
}
