//! Every input that the fuzzer found worth keeping, or that once was a finding, through the code that it fuzzes (`make fuzz`).

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Runs a target with each input of its corpus; names the one that it does not stand.
fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("qa/fuzz/corpus");
    let mut files: Vec<_> = fs::read_dir(corpus.join(target))
        .expect("a corpus")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{target}: the corpus is there");
    for file in files {
        let input = fs::read(&file).expect("readable");
        catch_unwind(AssertUnwindSafe(|| run(&input)))
            .unwrap_or_else(|_| panic!("{}: see above", file.display()));
    }
}

#[test]
fn rings_of_any_content_give_what_stands_in_them_and_no_more() {
    replay("ring", targets::ring::run);
}

#[test]
fn a_state_file_of_any_content_is_used_or_set_aside() {
    replay("state", targets::state::run);
}

#[test]
fn a_daemon_starts_with_any_state_and_any_ring() {
    replay("restart", targets::restart::run);
}

#[test]
fn stores_of_any_content_give_what_stands_in_them_and_no_more() {
    replay("store", targets::store::run);
}

#[test]
fn a_configuration_of_any_content_is_within_its_limits_or_refused_in_one_line() {
    replay("config", targets::config::run);
}

#[test]
fn the_file_of_instance_ids_is_right_afterwards_whatever_it_held() {
    replay("cache_file", targets::cache_file::run);
}

#[test]
fn instance_names_are_such_that_pcp_can_keep_them() {
    replay("name", targets::name::run);
}

#[test]
fn what_processes_and_files_are_called_tells_facts_or_nothing() {
    replay("facts", targets::facts::run);
}

#[test]
fn command_lines_pcp_conf_and_maps_of_any_content_are_read() {
    replay("options", targets::options::run);
    replay("pcp_conf", targets::pcp_conf::run);
    replay("maps", targets::maps::run);
}
