// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents with names that are commands, options or escape sequences, in PCP's tools. PCP's own actions of pmie paste
//! instance names into a command line of sh(1).

use super::pcp_nixl::pcp;
use crate::support::rule::pmieconf;
use crate::support::share::DERIVED;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, output, project, run, text, wait_for};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

/// Texts with a meaning for a shell, a terminal, a tool of PCP or a format string.
const HOSTILE: [&str; 36] = [
    "$(>pwn)",
    "`>pwn`",
    ";>pwn;#",
    "|>pwn",
    "&>pwn&",
    ">pwn",
    "\n>pwn\n",
    "';>pwn;'",
    "\";>pwn;\"",
    "'$(>pwn)'",
    "(par)",
    "{a,b}",
    "${IFS}",
    "$((1",
    "*",
    "?",
    "[a-z]",
    "~root",
    "!!",
    "#",
    "\\",
    "--help",
    "-rf",
    "A=B",
    "%s%n",
    "%h%i%v",
    "%24%28",
    "a,b",
    "a::10.0.0.1",
    "a@b",
    "a~0123456789abcdef",
    "\u{1b}]0;pwn\u{7}",
    "\u{1b}[2J",
    "\r",
    "<script>pwn</script>",
    "größe\u{202e}\u{200b}日本",
];

/// Raw names: each ASCII character at both ends and in the middle, and the hostile texts alone, repeated and within
/// others.
fn raw_names() -> BTreeSet<String> {
    let ascii = (1..128_u8).map(char::from);
    let ascii = ascii.flat_map(|c| {
        [
            format!("{c}"),
            format!("{c}a"),
            format!("a{c}b"),
            format!("a{c}"),
        ]
    });
    let hostile = HOSTILE.map(|text| text.replace('/', "|"));
    let hostile = hostile.iter().flat_map(|text| {
        let (long, close) = (text.repeat(60 / text.len() + 2), format!("'\"){text}"));
        [
            text.clone(),
            format!("-{text}"),
            format!("a {text}"),
            close,
            long,
        ]
    });
    let names = ascii.chain(hostile);
    names
        .filter(|name| !name.contains('/') && !name.starts_with('.'))
        .collect()
}

/// Instance names that pminfo shows.
fn instances(pmcd: &Pmcd) -> BTreeSet<String> {
    pmcd.sent().into_keys().collect()
}

/// A pmie that is ended when it is dropped.
struct Pmie(Child);

impl Drop for Pmie {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a program that appends its arguments to a file.
fn recorder(home: &Home, name: &str) -> String {
    let (path, said) = (home.path(name), home.path(&format!("{name}.said")));
    let script = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >>{}\n", said.display());
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    path.display().to_string()
}

/// Starts pmie with our rule of errors and all of PCP's actions that run a shell. Their programs are replaced by
/// recorders, since mail and notices would leave the test.
fn start_pmie(home: &Home, pmcd: &Pmcd) -> Pmie {
    let mut pmieconf = pmieconf(home);
    let mut child = pmieconf
        .stdin(Stdio::piped())
        .spawn()
        .expect("pmieconf is installed");
    let commands =
        "enable nixl.error_burst\nmodify global syslog_action no\nmodify global user_action yes
modify global pcplog_action yes\nmodify global email_action yes
modify nixl.error_burst threshold 0\nmodify nixl.error_burst delta \"1 sec\"\nquit\n";
    let mut input = child.stdin.take().expect("piped");
    input.write_all(commands.as_bytes()).expect("it reads");
    drop(input);
    assert!(child.wait().expect("our child").success());
    let config = home.path("pmie.conf");
    let mut rules = fs::read_to_string(&config).expect("written");
    for (program, action) in [
        ("echo", "\"echo "),
        ("pmie_email", "\"pmie_email "),
        ("pmpost", "\"pmpost "),
    ] {
        let own = format!("\"{} ", recorder(home, program));
        assert!(rules.contains(action), "{rules}");
        rules = rules.replace(action, &own);
    }
    fs::write(&config, rules).expect("written");
    let cwd = home.path("cwd");
    fs::create_dir(&cwd).expect("made");
    let mut pmie = pmcd.tool("pmie");
    pmie.env("PCP_DERIVED_CONFIG", project(DERIVED))
        .current_dir(cwd);
    pmie.arg("-f")
        .arg("-l")
        .arg(home.path("pmie.log"))
        .arg("-c")
        .arg(config);
    Pmie(pmie.spawn().expect("pmie is installed"))
}

#[test]
fn hostile_names_are_text_for_every_tool() {
    let home = Home::new();
    home.set("proc_facts = false");
    let raw = raw_names();
    let rings = raw.iter().map(|name| {
        RingWriter::create(&home.ring(name), Layout::V4, 64)
            .unwrap_or_else(|err| panic!("{name:?}: {err}"))
    });
    let mut rings: Vec<_> = rings.collect();
    let pmcd = Pmcd::start(&home);
    wait_for("all are instances", || {
        (instances(&pmcd).len() == raw.len()).then_some(())
    });
    let names = instances(&pmcd);
    for name in &names {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+=-%~".contains(c);
        assert!(
            name.chars().all(is_plain) && !name.starts_with('-'),
            "{name}"
        );
    }
    check_tools(&home, &pmcd, &names);

    let pmie = start_pmie(&home, &pmcd);
    let said =
        |name: &str| fs::read_to_string(home.path(&format!("{name}.said"))).unwrap_or_default();
    // The names in what an action of pmie was given.
    let named = |program: &str| -> BTreeSet<String> {
        let said = said(program);
        let words: Vec<&str> = match program {
            "pmie_email" => { said.split(" agent: ").skip(1) }
                .filter_map(|rest| rest.split(' ').next())
                .collect(),
            _ => { said.lines() }
                .filter_map(|word| word.split_once('[')?.1.split_once("]@"))
                .map(|(name, _)| name)
                .collect(),
        };
        words.into_iter().map(str::to_owned).collect()
    };
    let programs = ["echo", "pmie_email", "pmpost"];
    wait_for("pmie has run its three actions", || {
        for ring in &mut rings {
            ring.push(Kind::Backend, 1);
        }
        let mut all = programs.into_iter().map(named);
        all.all(|found| found.is_superset(&names)).then_some(())
    });
    drop(pmie);
    let log = fs::read_to_string(home.path("pmie.log")).unwrap_or_default();
    assert!(
        !log.contains("Syntax error") && !log.contains("not found"),
        "{log}"
    );
    let left: Vec<_> = fs::read_dir(home.path("cwd"))
        .expect("there")
        .flatten()
        .collect();
    assert!(left.is_empty(), "a name was run as a command: {left:?}");
    for program in programs {
        assert_eq!(named(program), names, "{program}");
    }
}

/// Checks what else shows names: `pcp nixl`, pmval, pmrep and `--check`.
fn check_tools(home: &Home, pmcd: &Pmcd, names: &BTreeSet<String>) {
    let is_text = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    let mut table = pcp(home, pmcd.tool("pcp"));
    let shown = run(table.env("COLUMNS", "400").args(["nixl", "-1"]));
    assert!(is_text(&shown), "{shown:?}");
    let first = shown.lines().filter_map(|line| line.split(' ').next());
    let found: BTreeSet<_> = first.map(str::to_owned).collect();
    assert!(names.is_subset(&found), "{:?}", names.difference(&found));
    let list = names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(",");
    let mut pmval = pmcd.tool("pmval");
    let shown = output(pmval.args(["-s", "1", "-w", "400", "-i", &list, "nixl.agent.state"]));
    let shown = text(&shown);
    assert!(
        names.iter().all(|name| shown.contains(name.as_str())),
        "{shown}"
    );
    let (status, shown) = home.check();
    assert!(is_text(&shown), "{status}: {shown:?}");
}
