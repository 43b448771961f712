//! The files that PCP reads, and what people read, say what the metric table says.

use pmdanixl::metrics::render;
use pmdanixl::metrics::{DOMAIN, METRICS, ROOT};
use std::path::{Path, PathBuf};

fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Compares a checked-in file with what it should be; `BLESS=1` writes it.
fn agrees(file: &str, expected: &str) {
    let path = project(file);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, expected).expect("the project's directory can be written to");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{file} is stale: run `BLESS=1 cargo test --test files_agree`"
    );
}

#[test]
fn pmns_is_what_the_table_gives() {
    agrees("pmns", &render::pmns());
}

#[test]
fn help_is_what_the_table_gives() {
    agrees("help", &render::help());
}

#[test]
fn domain_h_has_the_tables_domain() {
    let text = std::fs::read_to_string(project("domain.h")).expect("domain.h");
    let domain = text
        .lines()
        .find_map(|line| line.strip_prefix("#define NIXL "));
    assert_eq!(domain.map(str::trim), Some(DOMAIN.to_string().as_str()));
}

#[test]
fn the_manual_page_has_every_option() {
    let page = std::fs::read_to_string(project("pmdanixl.1")).expect("pmdanixl.1");
    for option in pmdanixl::config::options::OPTIONS {
        // `\f3\-c\f1 \f2file\f1, \f3\-\-config\f1=\f2file\f1`: bold names, and a value in italics.
        let short = option.short.map(|short| format!("\\f3\\-{short}\\f1"));
        let end = option.value.map_or("", |_| "=\\f2");
        let long = format!("\\f3\\-\\-{}\\f1{end}", option.long);
        for name in short.into_iter().chain([long]) {
            assert!(page.contains(&name), "pmdanixl.1 does not have {name}");
        }
    }
}

#[test]
fn the_manual_page_names_every_metric_and_configuration_key() {
    let page = std::fs::read_to_string(project("pmdanixl.1")).expect("pmdanixl.1");
    for metric in METRICS {
        let name = format!("{ROOT}.{}", metric.name);
        assert!(page.contains(&name), "pmdanixl.1 does not name {name}");
    }
    for key in [
        "user",
        "telemetry_dir",
        "multiproc_dir",
        "drain_interval",
        "retain",
        "remember",
        "idle_after",
        "histogram_buckets_us",
        "max_agents",
        "max_capacity",
        "max_directories",
        "owners",
        "observe",
        "remove_exited_after",
        "proc_facts",
    ] {
        assert!(
            page.contains(&format!(".B {key}\n")),
            "pmdanixl.1 does not describe {key}"
        );
    }
}
