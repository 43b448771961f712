// SPDX-License-Identifier: GPL-2.0-or-later

//! docs/tutorial.md and README.md: the documented output of a command is its real output for the archives in
//! docs/tutorial.

use crate::support::share::{files_in, is_metric, link, text_of, tool};
use crate::support::{Home, output, pcp, project, run, text};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const TUTORIAL: &str = "docs/tutorial.md";
/// Language of the blocks that are run. A line that begins with `$ ` is a command, and its output follows.
const RUN: &str = "```console";

/// Part of the tutorial: a line, or a command without its output.
enum Part<'a> {
    Text(&'a str),
    Command(&'a str),
}

fn parts(tutorial: &str) -> Vec<Part<'_>> {
    let (mut parts, mut runs) = (Vec::new(), false);
    for line in tutorial.lines() {
        let command = line.strip_prefix("$ ").filter(|_| runs);
        if line.starts_with("```") {
            runs = line == RUN;
            parts.push(Part::Text(line));
        } else if let Some(command) = command {
            parts.push(Part::Command(command));
        } else if !runs {
            parts.push(Part::Text(line));
        }
    }
    parts
}

/// Runs commands in the directory of the archives, as a user with share/ installed.
struct User {
    home: Home,
}

impl User {
    fn new() -> Self {
        let home = Home::new();
        link("share/dstat", &home.path(".pcp/dstat"));
        link("share/pmrep", &home.path("etc/pmrep"));
        link("share/pcp/pcp-nixl", &home.path(".pcp/bin/pcp-nixl"));
        // pmieconf splits a path with a space into two.
        link("share/pmieconf/nixl", &home.path("rules/nixl"));
        fs::create_dir(home.path("archive")).expect("made");
        for file in files_in("docs/tutorial") {
            let place = home.path("archive").join(&file);
            symlink(project("docs/tutorial").join(file), place).expect("made");
        }
        Self { home }
    }

    fn run(&self, command: &str) -> String {
        let global = format!("{}/config/pmieconf/global", pcp("PCP_VAR_DIR"));
        let rules = self.home.path("rules/nixl");
        let mut shell = Command::new("timeout");
        shell
            .args(["120", "sh", "-c", command])
            .current_dir(self.home.path("archive"))
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .env("HOME", self.home.path(""))
            .env("XDG_RUNTIME_DIR", self.home.runtime_dir())
            .env("PCP_DERIVED_CONFIG", project("share/derived"))
            .env("PCP_SYSCONF_DIR", self.home.path("etc"))
            .env("QT_QPA_PLATFORM", "offscreen")
            .env("PMIECONF_PATH", format!("{}:{global}", rules.display()));
        let shown = text(&output(&mut shell));
        let lines = shown.lines().map(str::trim_end);
        // Messages of Qt about the missing screen.
        let lines = lines.filter(|line| !line.contains("propagateSizeHints"));
        lines.fold(String::new(), |all, line| all + line + "\n")
    }
}

/// Runs the commands of a page and compares its text. Returns the number of commands.
fn compare(page: &str) -> u32 {
    let user = User::new();
    let expected = text_of(page);
    let (mut found, mut commands) = (String::new(), 0);
    for part in parts(&expected) {
        match part {
            Part::Text(line) => writeln!(found, "{line}").expect("a string"),
            Part::Command(command) => {
                let prints = user.run(command);
                write!(found, "$ {command}\n{prints}").expect("a string");
                commands += 1;
            }
        }
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(project(page), &found).expect("written");
        return commands;
    }
    let pairs = found.lines().zip(expected.lines());
    for (number, (found, expected)) in pairs.enumerate() {
        let line = number + 1;
        assert_eq!(found, expected, "{page}:{line}; BLESS=1 accepts the output");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
    commands
}

#[test]
fn tutorial_commands_print_the_documented_output() {
    assert!(compare(TUTORIAL) > 10);
}

#[test]
fn readme_commands_print_the_documented_output() {
    assert_eq!(compare("README.md"), 1);
}

/// Metrics of PCP's PMDA for InfiniBand, which is in a separate package on Debian.
const INFINIBAND: [&str; 3] = [
    "infiniband.port.rate",
    "infiniband.port.total.bytes",
    "infiniband.port.total.errors",
];

/// Names in a text that begin with that word and a dot.
fn names_below<'a>(text: &'a str, top: &str) -> Vec<&'a str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '/';
    let words = text.split(|c| !is_name(c));
    let names = words.filter(|word| {
        let rest = word.strip_prefix(top);
        rest.is_some_and(|rest| {
            rest.starts_with('.') && rest.ends_with(|c: char| c.is_alphanumeric())
        })
    });
    names.collect()
}

#[test]
fn metrics_named_by_the_tutorial_exist() {
    let tutorial = text_of(TUTORIAL);
    let mut names = names_below(&tutorial, "nixl");
    names.extend(names_below(&tutorial, "nixl_derived"));
    names.retain(|name| {
        !["nixl.straggler", "nixl.tcp_fallback", "nixl.md", "nixl.png"].contains(name)
    });
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(is_metric(name), "{name}");
    }
    let pmns = |file: &str| format!("{}/pmns/{file}", pcp("PCP_VAR_DIR"));
    for (top, file) in [("network", "root_linux"), ("cgroup", "root_proc")] {
        let names = names_below(&tutorial, top);
        assert!(!names.is_empty(), "{top}");
        for name in names {
            run(tool("pminfo").arg("-n").arg(pmns(file)).arg(name));
        }
    }
    let nvidia = format!("{}/nvidia/pmns", pcp("PCP_PMDAS_DIR"));
    let nvidia = fs::read_to_string(nvidia).expect("PCP has it");
    for name in names_below(&tutorial, "nvidia") {
        let leaf = name.rsplit('.').next().expect("a name");
        assert!(nvidia.contains(&format!("    {leaf}\t")), "{name}");
    }
    for name in names_below(&tutorial, "infiniband") {
        assert!(INFINIBAND.contains(&name), "{name}");
    }
}

#[test]
fn readme_installation_matches_the_install_test() {
    let commands = |text: &str| {
        let lines = text.lines().skip_while(|line| *line != "make build");
        let lines = lines.take_while(|line| !line.starts_with("```"));
        let lines = lines.filter_map(|line| line.split('#').next());
        let commands = lines.flat_map(|line| line.split("&&"));
        let commands = commands.map(|command| command.replace("sudo ", ""));
        commands
            .map(|command| command.trim().to_owned())
            .collect::<Vec<_>>()
    };
    // Between these commands, the page makes a directory.
    let readme = text_of("README.md");
    // qa/packages/deb installs and uses what scripts/deb makes.
    let (package, _) = readme.split_once("\nmake build\n").expect("the second way");
    assert!(
        package.contains("\nmake deb\nsudo apt-get install ./target/packages/pmdanixl_*.deb\n")
    );
    assert!(text_of("scripts/deb").contains("target/packages/pmdanixl_"));
    let mut lines = readme.lines();
    let install = lines.find(|line| line.contains("./Install"));
    let install = format!("make build\n{}", install.expect("a command"));
    let mut listed = commands(&readme);
    listed.extend_from_slice(&commands(&install)[1..]);
    assert_eq!(listed.len(), 5, "{listed:?}");
    // The tutorial also restarts pmlogger, for the archives.
    assert_eq!(listed, commands(&text_of(TUTORIAL))[..listed.len()]);
    // The steps of the Makefile, in their order.
    let (makefile, test) = (text_of("Makefile"), text_of("qa/install.sh"));
    let of_make = |target: &str| {
        let (_, recipe) = makefile.split_once(&format!("\n{target}:\n\t@"))?;
        recipe.split('\n').next()
    };
    let install = of_make("install").expect("a target of the Makefile");
    let run = [
        "install_files() {",
        install,
        "install_pmda() {",
        "in_pmda ./Install",
        "check \"Install\" install_pmda",
    ];
    let mut rest = &test[..];
    for command in run {
        let (_, behind) = rest
            .split_once(command)
            .unwrap_or_else(|| panic!("{command}"));
        rest = behind;
    }
}
