// SPDX-License-Identifier: GPL-2.0-or-later

//! Real NIXL in a long-running process, which starts and ends agents on request.

use super::Nixl;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// Process that starts and ends agents on request. Dropping it ends the process.
pub struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Nixl {
    /// Starts a process without agents. It flushes five times as often as NIXL does by default.
    pub fn serve(&self) -> Server {
        Server::of(self.command(&["--serve"]))
    }
}

impl Server {
    /// Starts the workload with this command, which must include `--serve`.
    pub fn of(mut workload: Command) -> Self {
        let mut child = workload
            .env("NIXL_TELEMETRY_RUN_INTERVAL", "20")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        Self {
            input: child.stdin.take().expect("piped"),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    /// Starts two agents, the initiator and its target.
    pub fn start(&mut self, options: &str) {
        writeln!(self.input, "{options}").expect("it reads");
    }

    /// Waits for the reports of the two agents that were started last. Returns `None` if the process has ended.
    pub fn done(&mut self) -> Option<[Value; 2]> {
        let mut agents = Vec::new();
        while agents.len() < 2 {
            let mut line = String::new();
            if self.output.read_line(&mut line).expect("text") == 0 {
                return None;
            }
            if line.starts_with('{') {
                let agent = serde_json::from_str(&line);
                agents.push(agent.unwrap_or_else(|err| panic!("{err}: {line}")));
            }
        }
        Some(agents.try_into().expect("two"))
    }

    /// Starts two agents. Waits until they have finished and all their events are read.
    pub fn run(&mut self, options: &str) -> [Value; 2] {
        self.start(&format!("{options} --drain-timeout 30"));
        let agents = self.done().expect("the process runs");
        for agent in &agents {
            assert_eq!(agent["flushed"], true, "NIXL itself lost events: {agent}");
            assert_eq!(agent["drained"], true, "{agent}");
        }
        agents
    }

    /// Ends the process and its agents with SIGKILL.
    pub fn kill(mut self) {
        super::kill::kill_child(&mut self.child);
    }

    /// Exit status of the process if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// True if the process has mapped a ring with this name.
    pub fn has_mapped(&self, name: &str) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        maps.is_ok_and(|maps| maps.lines().any(|line| line.ends_with(&format!("/{name}"))))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
