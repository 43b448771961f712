// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs the fuzzed code with every input of the fuzzer's corpus and every finding (`make fuzz` fuzzes).

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Runs a target with each input of its corpus. A panic names the input.
fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("qa/fuzz/corpus");
    let mut files: Vec<_> = fs::read_dir(corpus.join(target))
        .expect("a corpus")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(
        files.len() >= 5,
        "{target}: the corpus has at least 5 files"
    );
    for file in files {
        let input = fs::read(&file).expect("readable");
        catch_unwind(AssertUnwindSafe(|| run(&input)))
            .unwrap_or_else(|_| panic!("{}: see above", file.display()));
    }
}

#[test]
fn ring_corpus_gives_exactly_the_content_of_the_rings() {
    replay("ring", targets::ring::run);
}

#[test]
fn state_corpus_is_used_or_moved_aside() {
    replay("state", targets::state::run);
}

#[test]
fn restart_corpus_starts_with_any_state_and_ring() {
    replay("restart", targets::restart::run);
}

#[test]
fn store_corpus_gives_exactly_the_content_of_the_stores() {
    replay("store", targets::store::run);
}

#[test]
fn config_corpus_is_within_limits_or_rejected_in_one_line() {
    replay("config", targets::config::run);
}

#[test]
fn cache_file_corpus_leaves_a_valid_id_file() {
    replay("cache_file", targets::cache_file::run);
}

#[test]
fn name_corpus_gives_names_that_pcp_can_store() {
    replay("name", targets::name::run);
}

#[test]
fn facts_corpus_gives_valid_facts_or_none() {
    replay("facts", targets::facts::run);
}

#[test]
fn options_pcp_conf_and_maps_corpora_are_read() {
    replay("options", targets::options::run);
    replay("pcp_conf", targets::pcp_conf::run);
    replay("maps", targets::maps::run);
}
