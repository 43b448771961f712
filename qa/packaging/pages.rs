// SPDX-License-Identifier: GPL-2.0-or-later

//! README.md and the pages of docs/ for users: their commands run, their links are valid, and the metrics, log messages
//! and tests that they name exist.

mod collector;
mod cost;
mod counts;
mod limits;
mod support;
mod testing;

use crate::support::sample::Sample;
use crate::support::share::{files_in, is_metric, link, names_in, text_of};
use crate::support::{Home, PMDANIXL, Pmcd, example, is_alone, needs_root, project, run, wait_for};
use std::fs;
use std::path::Path;

const README: &str = "README.md";
const ENABLING: &str = "docs/enabling-nixl.md";
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";

/// Limit of the size of README.md, in bytes.
const README_LIMIT: usize = 9 * 1024;

/// Endings of file names that begin like metrics.
const FILES: [&str; 9] = [
    ".1", ".5", ".conf", ".log", ".md", ".new", ".png", ".prev", ".yml",
];

/// README.md, CHANGELOG.md and the pages of docs/.
fn pages() -> Vec<String> {
    let docs = files_in("docs").into_iter();
    let docs = docs.filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = docs.map(|name| format!("docs/{name}")).collect();
    pages.extend([README.to_owned(), "CHANGELOG.md".to_owned()]);
    pages
}

/// Fenced blocks of a page in this language (`""`: without a language).
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = text_of(page);
    let mut parts = text.split("\n```");
    let mut found = Vec::new();
    parts.next();
    while let Some(block) = parts.next() {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        if first == language {
            found.push(rest.to_owned());
        }
        parts.next();
    }
    found
}

/// The only block of a page with this text.
fn block_with(page: &str, part: &str) -> String {
    let found = blocks(page, "").into_iter();
    let found: Vec<_> = found.filter(|block| block.contains(part)).collect();
    let [block] = &found[..] else {
        panic!("{page}: {} blocks with {part:?}", found.len());
    };
    block.clone()
}

/// Command of a page with the directories and files of this test, with the program under test, and without sudo.
fn command_here(home: &Home, command: &str) -> String {
    let conf = home.conf();
    let rings = home.path("shm");
    [
        ("sudo ", ""),
        ("/etc/pcp/nixl/nixl.conf", conf.to_str().expect("UTF-8")),
        ("/dev/shm/nixl", rings.to_str().expect("UTF-8")),
        ("$PCP_PMDAS_DIR/nixl/pmdanixl", PMDANIXL),
        ("/var/lib/pcp/pmdas/nixl/pmdanixl", PMDANIXL),
    ]
    .iter()
    .fold(command.to_owned(), |text, (from, to)| {
        text.replace(from, to)
    })
}

/// Output of a command for this pmcd.
fn typed(home: &Home, pmcd: &Pmcd, command: &str) -> String {
    let mut shell = pmcd.tool("sh");
    shell.env("HOME", home.dir()).env("COLUMNS", "80");
    run(shell.arg("-c").arg(command_here(home, command)))
}

#[test]
fn quick_start_commands_show_an_agent() {
    needs_root();
    // --check also names problems of processes of other tests.
    if !is_alone() {
        return;
    }
    let home = Home::new();
    home.configure(&text_of("nixl.conf"));
    link("share/pcp/pcp-nixl", &home.path(".pcp/bin/pcp-nixl"));

    let setup = block_with(README, "install -d -m 1777");
    let (install, setup): (Vec<&str>, Vec<&str>) = setup
        .lines()
        .partition(|command| command.contains("./Install"));
    assert_eq!((setup.len(), install.len()), (2, 1));
    // A second run changes nothing: a key that is there twice is an error.
    for command in setup.iter().chain(&setup) {
        let command = command_here(&home, &format!("set -e; {command}"));
        run(std::process::Command::new("sh").arg("-c").arg(command));
    }
    // In place of Install, which has a test of its own.
    let pmcd = Pmcd::start(&home);

    let commands = block_with(README, "pminfo -f");
    let commands: Vec<&str> = commands.lines().collect();
    let [check, pminfo, pcp_nixl] = commands[..] else {
        panic!("{commands:?}");
    };
    // Without an agent, --check prints the variables of the page.
    let variables = block_with(README, "NIXL_TELEMETRY_DIR=");
    let advice = typed(&home, &pmcd, check);
    for variable in variables.lines() {
        let variable = command_here(&home, variable);
        assert!(advice.contains(&variable), "{variable}\n{advice}");
    }

    let producer = std::process::Command::new(example("producer"));
    let _agent = Sample::start_as(producer, &home.path("shm"), "worker", "--rate 100");
    wait_for("the agent has transferred", || {
        let shown = typed(&home, &pmcd, pminfo);
        let mut values = shown
            .lines()
            .filter_map(|line| line.split_once("\"worker\"] value "));
        let is_shown = values.any(|(_, value)| value != "0");
        is_shown.then_some(())
    });
    let shown = typed(&home, &pmcd, check);
    assert!(shown.contains("  worker: ring v"), "{shown}");
    // Without -1, the command does not end.
    let (pcp_nixl, _) = pcp_nixl.split_once('#').expect("a comment");
    let shown = typed(&home, &pmcd, &format!("{pcp_nixl} -1"));
    assert!(shown.contains("worker"), "{shown}");
}

#[test]
fn make_run_hints_work_in_a_second_shell() {
    needs_root();
    // --check also names problems of processes of other tests.
    if !is_alone() {
        return;
    }
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _agent = Sample::start(&home, "worker", "--rate 100");
    let script = text_of("scripts/run");
    let (_, hint) = script.split_once("in a second shell").expect("the hint");
    let (hint, _) = hint.split_once("\nEOF\n").expect("its end");
    let commands = hint.lines().filter(|line| line.starts_with("    "));
    let pcp = pmcd.path("env");
    let pcp = pcp.parent().expect("a directory").display().to_string();
    let commands: Vec<String> = commands
        .map(|line| {
            line.replace("$work/pcp", &pcp)
                .replace("$built/pmdanixl", PMDANIXL)
        })
        .collect();
    assert_eq!(commands.len(), 3, "{hint}");
    wait_for("both show the agent", || {
        let mut shell = std::process::Command::new("sh");
        let said = run(shell.arg("-c").arg(commands.join("\n")));
        let shown = [
            "or \"worker\"] value ",
            "  worker: ring v",
            "daemon: pid ",
            ", drained by pid ",
        ];
        shown.iter().all(|part| said.contains(part)).then_some(())
    });
}

#[test]
fn enabling_page_commands_and_configurations_are_accepted() {
    needs_root();
    let home = Home::new();
    fs::create_dir(home.path("shm")).expect("made");
    fs::create_dir(home.path("stores")).expect("made");
    let configurations = blocks(ENABLING, "toml");
    assert_eq!(configurations.len(), 2);
    for configuration in configurations {
        let stores = home.path("stores");
        let configuration = command_here(&home, &configuration)
            .replace("/run/nixl-stores", stores.to_str().expect("UTF-8"));
        home.configure(&configuration);
        let (status, said) = home.check();
        assert_eq!(status, 0, "{configuration}\n{said}");
        assert!(!said.contains("warning: "), "{said}");
    }
    let pmcd = Pmcd::start(&home);
    // qa/recipes/run tests Install after the change of a directory.
    let commands = block_with(ENABLING, "./Install");
    let (_, check) = commands.split_once("sudo ./Install)\n").expect("first");
    assert!(typed(&home, &pmcd, check).contains("0 problems"));
    // The quick start has the same variables.
    let rings = block_with(ENABLING, "EXPORTER=BUFFER");
    assert_eq!(rings, block_with(README, "EXPORTER=BUFFER"));
}

#[test]
fn troubleshooting_page_shows_the_real_configuration_error() {
    let home = Home::new();
    let shown = block_with(TROUBLESHOOTING, "retain = \"long\"");
    home.configure("[nixl]\n\nretain = \"long\"\n");
    let (status, said) = home.check();
    assert_ne!(status, 0);
    let conf = home.conf();
    let conf = conf.to_str().expect("UTF-8");
    let said = said.replace(conf, "/etc/pcp/nixl/nixl.conf");
    assert!(said.contains(shown.trim()), "{said}");
}

#[test]
fn readme_is_within_its_limit() {
    let size = text_of(README).len();
    assert!(size <= README_LIMIT, "{size} bytes");
}

/// Anchor of a heading.
fn anchor(heading: &str) -> String {
    let name = heading.trim_start_matches('#').trim().to_lowercase();
    name.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// True if a file of the project exists, and has the heading of the link.
fn leads_somewhere(file: &Path, heading: &str) -> bool {
    let is_heading = |line: &str| line.starts_with('#') && anchor(line) == heading;
    match heading {
        "" => file.exists(),
        _ => fs::read_to_string(file).is_ok_and(|text| text.lines().any(is_heading)),
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut count, mut broken) = (0, Vec::new());
    for page in pages() {
        let text = text_of(&page);
        let targets = text.split("](").skip(1);
        let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let below = Path::new(&page).parent().expect("it is below the project");
            let file = match file {
                "" => project(&page),
                file => project("").join(below).join(file),
            };
            if !leads_somewhere(&file, heading) {
                broken.push(format!("{page}: {target}"));
            }
            count += 1;
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count > 50, "{count} links");
}

#[test]
fn metrics_named_by_the_pages_exist() {
    for page in pages() {
        // The changelog may have removed names.
        if page == "CHANGELOG.md" {
            continue;
        }
        for name in names_in(&text_of(&page)) {
            let is_file = FILES.iter().any(|ending| name.ends_with(ending));
            let rule = name.strip_prefix("nixl.").unwrap_or_default();
            let is_rule = files_in("share/pmieconf/nixl")
                .iter()
                .any(|file| file == rule);
            let is_known = is_file || is_rule || name == "nixl" || is_metric(name);
            assert!(is_known, "{page}: {name}");
        }
    }
}

/// Adds all Rust files below a directory.
fn add_code(directory: &str, text: &mut String) {
    for name in files_in(directory) {
        let path = format!("{directory}/{name}");
        if project(&path).is_dir() {
            add_code(&path, text);
        } else if name.ends_with(".rs") {
            text.push_str(&text_of(&path));
        }
    }
}

/// Sources of the daemon, with each string literal on one line, and its scripts.
fn sources() -> String {
    let mut text = String::new();
    add_code("src", &mut text);
    text.push_str(&text_of("Install"));
    text.push_str(&text_of("Upgrade"));
    let mut lines = text.split("\\\n");
    let mut joined = lines.next().unwrap_or_default().to_owned();
    lines.for_each(|line| joined.push_str(line.trim_start()));
    joined
}

/// Parts of a message between the words in capitals, which are placeholders for values.
fn fixed_parts(message: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in message.split_inclusive(' ') {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_value = bare.chars().all(|c| c.is_ascii_uppercase() || c == ':');
        match is_value && !bare.is_empty() {
            true => parts.push(String::new()),
            false => parts.last_mut().expect("one").push_str(word),
        }
    }
    let parts = parts.iter().map(|part| part.trim().to_owned());
    parts.filter(|part| part.len() > 6).collect()
}

#[test]
fn log_messages_of_the_troubleshooting_page_exist() {
    let page = text_of(TROUBLESHOOTING);
    let (_, tables) = page.split_once("## Log messages").expect("its tables");
    let sources = sources();
    let mut count = 0;
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `"));
    for cell in rows.filter_map(|row| row.split(" | ").next()) {
        for message in format!("`{cell}").split('`').skip(1).step_by(2) {
            // These are followed by the rest of another message.
            let rest = ["rejected: ", "its ring "]
                .iter()
                .find_map(|start| message.strip_prefix(start));
            for part in fixed_parts(rest.unwrap_or(message)) {
                assert!(sources.contains(&part), "{message}: {part:?}");
                count += 1;
            }
        }
    }
    assert!(count > 40, "{count} parts of messages");
}

#[test]
fn tests_named_by_the_threats_page_exist() {
    let page = text_of("docs/threats.md");
    let mut tests = sources();
    add_code("qa", &mut tests);
    let is_test = |name: &&str| {
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && name.matches('_').count() > 3
    };
    let names: Vec<&str> = page.split('`').filter(is_test).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("fn {name}(")), "{name}");
    }
}
