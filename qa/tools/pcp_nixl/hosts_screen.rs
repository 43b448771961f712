// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl --hosts` on a terminal: keys, the report of one host, and the state of the terminal afterwards.

use super::hosts::Hosts;
use super::{pcp, python};
use crate::support::kill::while_stopped;
use crate::support::{Home, Pmcd, soon};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// Begin of a screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// `pcp nixl --hosts` on a terminal of twelve lines, and then the state of the terminal. Dropping it ends the command.
struct Terminal {
    script: Child,
    typescript: PathBuf,
}

impl Terminal {
    /// Starts the command with its process id in a file.
    fn start(home: &Home, pmcd: &Pmcd, hosts: &Hosts, name: &str) -> Self {
        Self::with_options(home, pmcd, hosts, name, "")
    }

    fn with_options(home: &Home, pmcd: &Pmcd, hosts: &Hosts, name: &str, options: &str) -> Self {
        let list = hosts.list(home, &[]);
        let typescript = home.path(name);
        let mut script = pcp(home, pmcd.tool("script"));
        script.env("LINES", "12").env("TERM", "xterm");
        script.env("PMCD_CONNECT_TIMEOUT", "1");
        // Ctrl-C is of the command only, and the shell goes on.
        let command = format!(
            "trap : INT; sh -c 'echo $$ >{0}.pid; exec pcp nixl -t 0.2 {options} -H {1}'; echo \"status $?\"; stty -a",
            typescript.display(),
            list.display()
        );
        script.args(["-qfec", &command]).arg(&typescript);
        let script = script.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Self {
            script: script.expect("it starts"),
            typescript,
        }
    }

    /// Types keys.
    fn keys(&mut self, keys: &str) {
        let input = self.script.stdin.as_mut().expect("piped");
        input.write_all(keys.as_bytes()).expect("it reads");
        input.flush().expect("it reads");
    }

    /// Waits until a screen that is complete has this text, or until the output after the last screen has it.
    fn shows(&self, part: &str) {
        let mut drawn = String::new();
        let found = soon(|| {
            drawn = std::fs::read_to_string(&self.typescript).unwrap_or_default();
            let (_, last) = drawn.rsplit_once(CLEAR)?;
            last.contains(part).then_some(())
        });
        let last = drawn.rsplit(CLEAR).next();
        assert!(found.is_some(), "{part:?} is not in {last:?}");
    }

    /// Waits for the end of the command, and checks that the terminal has echo and edits lines, as before.
    fn ends_with(&self, status: i32) {
        self.shows(&format!("\nstatus {status}\r\n"));
        for setting in [" icanon ", " echo "] {
            self.shows(setting);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal ends with its input, and the command with its terminal.
        drop(self.script.stdin.take());
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Line of a host in reverse video.
fn chosen(name: &str) -> String {
    format!("\x1b[7m{name} ")
}

#[test]
fn keys_choose_a_host_whose_report_enter_shows() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _ring = home.new_ring("steady", 64);
    pmcd.becomes(&[("steady", 0)]);
    let hosts = Hosts::start(&pmcd, [2, 2, 1]);
    let [answering, refusing, silent] = &hosts.names;
    let mut terminal = Terminal::start(&home, &pmcd, &hosts, "keys");
    // Those that do not answer come first.
    terminal.shows("2 of 5 hosts  ");
    terminal.keys("\x1b[5~");
    terminal.shows(&chosen(&refusing[0]));
    for key in ["j", "\x1b[B", "\x1bOB", "k", "\x1b[A", "j"] {
        terminal.keys(key);
    }
    terminal.shows(&chosen(&silent[0]));
    // A host that keeps its client waiting is left at once.
    terminal.keys("\r");
    terminal.shows(&format!("{}  ", silent[0]));
    terminal.shows("q: back to all hosts");
    terminal.keys("q");
    terminal.shows(&chosen(&silent[0]));
    terminal.keys("\x1b[6~");
    terminal.shows(&chosen(&answering[1]));
    terminal.keys("\r");
    terminal.shows("\r\nAGENT ");
    terminal.shows("\r\nsteady ");
    terminal.keys("\x1b");
    terminal.shows(&chosen(&answering[1]));
    terminal.keys("\x1b[5~\r");
    terminal.shows("Connection refused\r\nq: back");
    terminal.keys("q");
    terminal.shows(&chosen(&refusing[0]));
    terminal.keys("q");
    terminal.ends_with(0);
}

#[test]
fn key_leaves_the_report_of_a_host_that_stops_answering() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _ring = home.new_ring("steady", 64);
    pmcd.becomes(&[("steady", 0)]);
    let hosts = Hosts::start(&pmcd, [1, 0, 0]);
    let mut terminal = Terminal::start(&home, &pmcd, &hosts, "stopped");
    terminal.shows("1 of 1 host  ");
    // A function key of Linux's console is not Esc.
    terminal.keys("\x1b[[A\r");
    terminal.shows("\r\nAGENT ");
    // libpcp waits for two minutes here, and for ten seconds by default.
    while_stopped(&[pmcd.pid()], || {
        terminal.keys("q");
        terminal.shows("0 of 1 host  ");
    });
    terminal.shows("1 of 1 host  ");
    terminal.keys("q");
    terminal.ends_with(0);
}

#[test]
fn screen_of_peers_ends_by_a_key_above_the_prompt() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let hosts = Hosts::start(&pmcd, [1, 1, 0]);
    for (name, key) in [("left", "jk\r\x1b[5~q"), ("interrupted", "\x03")] {
        let mut terminal = Terminal::with_options(&home, &pmcd, &hosts, name, "-p");
        terminal.shows("1 of 2 hosts  ");
        terminal.shows("Connection refused");
        terminal.keys(key);
        terminal.ends_with(0);
    }
}

/// Of one line, of a few cells, and of more than there are hosts.
#[test]
fn screen_has_no_more_lines_and_cells_than_the_terminal() {
    let script = "
import re
rows = [nixl.Failure('host%d' % number, 'no route to it', None, None) for number in range(9)]
for table in (nixl.Overview, nixl.PeerTable):
    for height in range(1, 16):
        for width in (1, 2, 5, 20, 80):
            lines = table(list(rows), 0).lines(width, height, 'host7')
            cells = max(nixl.text_width(re.sub('\x1b.*?m', '', line)) for line in lines)
            assert len(lines) <= height and cells < max(width, 1), (width, lines)
            has_chosen = any('\x1b[7m' in line for line in lines)
            assert has_chosen == (height > 3 and table == nixl.Overview), (height, lines)
";
    python(script);
}

#[test]
fn column_that_sorts_stays_on_narrow_lines() {
    let script = "
class Row(nixl.Failure):
    def __init__(self, name):
        nixl.Failure.__init__(self, name, 'no route', 1, 93000)
for key in ('errors', 'rx_rate', None):
    print(nixl.Overview([Row('host')], 93000, key).lines(50)[2])
# The date is that of another day.
print(nixl.Overview([Row('host')], 0).lines(80)[3])
print(nixl.Overview([nixl.Failure('host', 'no route', 92990, 93000)], 0).lines(80)[3])
";
    let shown = python(script);
    let heads: Vec<_> = shown.lines().collect();
    assert!(heads[0].contains(" ERR "), "{shown}");
    assert!(
        heads[1].contains(" RX/s ") && !heads[1].contains(" ERR "),
        "{shown}"
    );
    assert!(!heads[2].contains(" RX/s "), "{shown}");
    assert!(
        heads[3].contains("no values since 1970-01-01 ") || heads[3].contains("1969-12-31 "),
        "{shown}"
    );
    assert!(!heads[4].contains("1970"), "{shown}");
}

/// A size that changes, or a stop that ends, has the screen drawn again at once.
#[test]
fn signal_of_a_terminal_is_as_good_as_a_key() {
    let script = "
import os, signal, threading
master, terminal = os.openpty()
keys = nixl.Keys(terminal)
with keys:
    for number in (signal.SIGWINCH, signal.SIGCONT):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        found = None
        while found is None:
            found = keys.next(3600)
        print(found == nixl.REDRAW)
";
    assert_eq!(python(script), "True\nTrue\n");
}

#[test]
fn terminal_is_restored_after_escape_and_signals() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let hosts = Hosts::start(&pmcd, [1, 0, 1]);
    for (name, key, status) in [("escape", "\x1b", 0), ("interrupt", "\x03", 0)] {
        let mut terminal = Terminal::start(&home, &pmcd, &hosts, name);
        terminal.shows("1 of 2 hosts  ");
        terminal.keys(key);
        terminal.ends_with(status);
    }
    let terminal = Terminal::start(&home, &pmcd, &hosts, "terminated");
    terminal.shows("1 of 2 hosts  ");
    let pid = std::fs::read_to_string(home.path("terminated.pid")).expect("written");
    let pid = nix::unistd::Pid::from_raw(pid.trim().parse().expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    terminal.ends_with(143);
}
