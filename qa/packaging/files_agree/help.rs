// SPDX-License-Identifier: GPL-2.0-or-later

//! Help texts of the metrics and instance domains: the file `help`, in the format of newhelp(1).

use pmdanixl::metrics::{INDOMS, METRICS};

/// An entry of the file.
pub struct Help {
    /// `NIXL.SERIAL` of an instance domain, or the name of a metric.
    name: String,
    /// Short text, in the line with the name.
    pub oneline: String,
    text: String,
}

/// The entries of the file.
pub fn entries() -> Vec<Help> {
    let file = std::fs::read_to_string(super::project("help")).expect("help");
    let entries = file.split("\n@ ").skip(1).map(|entry| {
        let (line, text) = entry.split_once('\n').expect("a text");
        let (name, oneline) = line.split_once(' ').expect("a short text");
        Help {
            name: name.into(),
            oneline: oneline.into(),
            text: text.trim_end().into(),
        }
    });
    entries.collect()
}

#[test]
fn each_indom_and_metric_has_help_in_the_order_of_the_table() {
    let indoms = INDOMS.map(|serial| format!("NIXL.{serial}")).into_iter();
    let metrics = METRICS.iter().map(|metric| format!("nixl.{}", metric.name));
    let found = entries().into_iter().map(|entry| entry.name);
    assert!(
        found.eq(indoms.chain(metrics)),
        "help misses or has an entry"
    );
}

#[test]
fn help_of_each_metric_fits_a_terminal() {
    for Help {
        name,
        oneline,
        text,
    } in entries().iter().skip(INDOMS.len())
    {
        assert!(
            !oneline.is_empty() && oneline.len() <= 60 && !oneline.ends_with('.'),
            "{name}: {oneline}"
        );
        let fits = |line: &str| line.len() <= 80 && !line.starts_with(['@', '#']);
        assert!(
            text.ends_with('.') && text.lines().count() <= 6 && text.lines().all(fits),
            "{name}: {text}"
        );
    }
}

#[test]
fn help_of_bucket_and_buckets_begins_with_the_difference() {
    for entry in entries() {
        let other = match entry.name.rsplit_once("_time.") {
            Some((time, "bucket")) => format!("{time}_time.buckets"),
            Some((time, "buckets")) => format!("{time}_time.bucket"),
            _ => continue,
        };
        let begin: Vec<&str> = entry.text.lines().take(2).collect();
        let begin = begin.join(" ");
        assert!(begin.contains(&format!(" while {other} ")), "{begin}");
    }
}

#[test]
fn help_entries_are_within_the_limit_of_newhelp() {
    // newhelp(1) cuts them off, the line with the name counted in.
    const MOST: usize = 1000;
    for entry in entries() {
        let bytes = [&entry.name, &entry.oneline, &entry.text].map(|part| part.len() + 1);
        assert!(bytes.iter().sum::<usize>() <= MOST, "{}", entry.name);
    }
}

#[test]
fn help_of_a_host_sum_names_what_it_sums() {
    let entries = entries();
    let of = |name: &str| entries.iter().find(|entry| entry.name == name);
    for host in METRICS
        .iter()
        .filter(|metric| metric.cluster == 30 && metric.item < 20)
    {
        let name = format!("nixl.{}", host.name);
        let (sum, of) = (of(&name), of(&name.replace(".host.", ".")));
        let (sum, of) = (sum.expect("an entry"), of.expect("an entry"));
        assert_eq!(sum.oneline, format!("{}, all agents", of.oneline));
        assert!(
            sum.text.starts_with(&format!("Sum of {}\n", of.name)),
            "{name}"
        );
    }
}

#[test]
fn help_of_each_latency_says_what_to_check() {
    let entries = entries();
    let latencies = entries.iter().filter(|entry| {
        let figure = entry.name.rsplit('.').next().unwrap_or_default();
        let figures = ["p50", "p90", "p99", "max", "slowness"];
        entry.name.starts_with("nixl.latency.") && figures.contains(&figure)
    });
    let (told, silent): (Vec<_>, Vec<_>) =
        latencies.partition(|entry| entry.text.contains("check "));
    let silent: Vec<&str> = silent.iter().map(|entry| &*entry.name).collect();
    assert_eq!((told.len(), silent), (9, vec![]));
}

#[test]
fn shared_explanations_are_in_the_help_of_agents_only() {
    for shared in ["NIXL_TELEMETRY_ENABLED_METRICS", "Never average"] {
        let has = |entry: &Help| entry.text.contains(shared);
        let found: Vec<bool> = entries().iter().map(has).collect();
        assert!(found[0] && !found[1..].contains(&true), "{shared}");
    }
}
