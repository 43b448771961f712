//! The sample producer as a process of its own.

use super::{Home, example};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An agent's process. Ends with the value.
#[derive(Debug)]
pub struct Sample {
    child: Option<Child>,
}

impl Sample {
    /// Starts an agent in the home's directory of rings, with these options.
    pub fn start(home: &Home, name: &str, options: &str) -> Self {
        let program = example("producer");
        Self::start_as(Command::new(program), &home.rings(), name, options)
    }

    /// The same by a command that comes to run the producer with the arguments it is given, in any directory.
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
            child: Some(child.expect("it was built")),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was started").id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Has it end as an agent does that is told to; what it has written, exactly.
    pub fn end(mut self) -> Value {
        self.signal(Signal::SIGTERM);
        let child = self.child.take().expect("it was started");
        let output = child.wait_with_output().expect("our child");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("its line of JSON")
    }

    /// Ends it with SIGKILL; nothing is left of it then.
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
