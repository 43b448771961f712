// SPDX-License-Identifier: GPL-2.0-or-later

//! Files for PCP and for readers, compared with the metric table.

mod render;

use crate::support::share::text_of;
use crate::support::{agrees, project, run};
use std::process::Command;

#[test]
fn rendered_files_match_the_metric_table() {
    const MARK: &str = "not edited by hand from here on. -->\n";
    let page = text_of("docs/metrics.md");
    let (by_hand, _) = page.split_once(MARK).expect(MARK);
    for (file, text) in [
        ("domain.h", render::domain()),
        ("pmns", render::pmns()),
        ("help", render::help()),
        (
            "docs/metrics.md",
            [by_hand, MARK, &render::reference()].concat(),
        ),
    ] {
        agrees(file, &text);
    }
}

#[test]
fn manual_page_has_every_option() {
    let page = text_of("pmdanixl.1");
    let usage = pmdanixl::config::options::USAGE.split_whitespace();
    for name in usage.filter(|word| word.starts_with('-')) {
        // `\f3\-c\f1 \f2file\f1, \f3\-\-config\f1=\f2file\f1`: bold names, and a value in italics.
        let name = name.trim_end_matches(',').replace('-', "\\-");
        let name = match name.split_once('=') {
            Some((name, _)) => format!("\\f3{name}\\f1=\\f2"),
            None => format!("\\f3{name}\\f1"),
        };
        assert!(page.contains(&name), "pmdanixl.1 does not have {name}");
    }
}

#[test]
fn machine_code_check_finds_its_source_lines() {
    let script = project("qa/matrix/machine_code.py");
    run(Command::new(script).current_dir(project(".")));
}

#[test]
fn nixl_conf_5_describes_every_key() {
    let page = text_of("nixl.conf.5");
    let conf = text_of("nixl.conf");
    // `#: key = value` for each key. The tests of the configuration compare these lines with the parsed values.
    let keys = conf
        .lines()
        .filter_map(|line| line.strip_prefix("#: ")?.split_once(" = "));
    let mut count = 0;
    for (key, _) in keys {
        let entry = format!("\n.TP\n.B {key}\n");
        assert!(page.contains(&entry), "nixl.conf.5 does not describe {key}");
        count += 1;
    }
    assert!(count > 10, "nixl.conf names {count} keys");
}
