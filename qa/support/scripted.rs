// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes that run lines of Python code (qa/processes/transport/process.py), and that use NIXL for the daemon.

use super::{Home, command_within, project};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A process that runs Python code. Dropping it ends the process.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process that uses NIXL.
    pub fn start(home: &Home) -> Self {
        Self::with_files(&[], &libraries(home))
    }

    /// Starts a process that does not use NIXL.
    pub fn peer() -> Self {
        Self::with_files(&[], &[])
    }

    /// Starts a process, with a command prefix, that has files mapped.
    pub fn with_files(within: &[String], files: &[PathBuf]) -> Self {
        let mut child = command_within(within, "/usr/bin/python3")
            .arg(project("qa/processes/transport/process.py"))
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut process = Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        };
        assert_eq!(process.line(), "ready");
        process
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Begins to run a line of code, of which [`Self::line`] returns the value.
    pub fn begin(&mut self, code: &str) {
        let input = self.input.as_mut().expect("open until the end");
        writeln!(input, "{code}").expect("it reads");
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("UTF-8");
        assert!(line.ends_with('\n'), "the process has ended");
        line.trim_end().to_owned()
    }

    /// Runs a line of code. Returns the value of an expression.
    pub fn run(&mut self, code: &str) -> String {
        self.begin(code);
        self.line()
    }

    /// Runs a line of code that returns a number.
    pub fn number(&mut self, code: &str) -> u32 {
        self.run(code).parse().expect("a number")
    }

    /// Traffic of connections, which a variable has, as the kernel counts it for the process itself.
    pub fn counts(&mut self, variable: &str) -> Tcp {
        let said = self.run(&format!("counts({variable})"));
        let numbers: Vec<u64> = { said.split(' ') }
            .map(|number| number.parse().expect("a number"))
            .collect();
        Tcp {
            sent: numbers[0],
            received: numbers[1],
            retransmits: numbers[2],
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files with the names of NIXL's libraries.
pub fn libraries(home: &Home) -> [PathBuf; 2] {
    ["libnixl.so", "libplugin_UCX.so"].map(|name| {
        let path = home.path(name);
        fs::write(&path, [0; 4096]).expect("written");
        path
    })
}

/// Row of a process in `nixl.process.tcp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    pub sent: u64,
    pub received: u64,
    pub retransmits: u64,
}

/// Workers of all observers, by their state.
pub fn workers() -> Vec<(u32, char)> {
    with_option(b"--observer-worker")
}

/// Tracers of all daemons, by their state.
pub fn tracers() -> Vec<(u32, char)> {
    with_option(b"--observer-tracer")
}

/// Observers of all daemons, by their state.
pub fn observers() -> Vec<(u32, char)> {
    with_option(b"--observer")
}

/// Processes of pmdanixl with this option, by their state. One that has ended and waits for its parent is left out.
fn with_option(option: &[u8]) -> Vec<(u32, char)> {
    let names = fs::read_dir("/proc").expect("there").flatten();
    let pids = names.filter_map(|name| name.file_name().to_str()?.parse().ok());
    let process = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_meant = line == [b"pmdanixl\0", option, b"\0"].concat();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let state = stat.split_once(" (pmdanixl) ")?.1.chars().next()?;
        is_meant.then_some((pid, state))
    };
    pids.filter_map(process).collect()
}
