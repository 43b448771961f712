// SPDX-License-Identifier: GPL-2.0-or-later

//! The sample producer in a separate process.

use super::{Home, example};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Process of the sample producer. Dropping it ends the process.
#[derive(Debug)]
pub struct Sample {
    child: Option<Child>,
}

impl Sample {
    /// Starts an agent with these options in the directory of rings of a home.
    pub fn start(home: &Home, name: &str, options: &str) -> Self {
        let program = example("producer");
        Self::start_as(Command::new(program), &home.rings(), name, options)
    }

    /// Starts an agent with a command that runs the producer with the added arguments, in any directory.
    pub fn start_as(mut command: Command, rings: &Path, name: &str, options: &str) -> Self {
        let child = command
            .arg("--dir")
            .arg(rings)
            .args(["--name", name])
            .args(options.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self {
            child: Some(child.expect("qa/producer is built")),
        }
    }

    /// Pid of the process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was started").id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Ends the process with SIGTERM. Returns the counts of what it wrote.
    pub fn end(mut self) -> Value {
        self.signal(Signal::SIGTERM);
        let child = self.child.take().expect("it was started");
        let output = child.wait_with_output().expect("our child");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("its line of JSON")
    }

    /// Ends the process with SIGKILL, and reaps it.
    pub fn kill(mut self) {
        super::kill::kill_child(self.child.as_mut().expect("it was started"));
        self.child = None;
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
