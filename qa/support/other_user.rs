// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs that run as another user, in a directory that all users may write to.

use super::writer::{Kind, RingWriter};
use super::{Home, example, needs_root};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

pub const STRANGER: u32 = 4243;
/// User id of the victim.
pub const VICTIM: u32 = 4242;

/// A home with a directory of rings that all users may write to. It has no sticky bit, like the volumes of Kubernetes.
pub fn shared_home() -> Home {
    needs_root();
    let home = Home::new();
    open_to_all(home.dir(), 0o755);
    open_to_all(&home.rings(), 0o777);
    home
}

pub fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Makes a ring of a user, with one event of 1 byte.
pub fn ring(home: &Home, uid: u32, name: &str) -> RingWriter {
    let mut ring = home.new_ring(name, 64);
    chown(home.ring(name), Some(uid), None).expect("root may");
    assert!(ring.push(Kind::TxBytes, 1));
    ring
}

/// A program that runs as another user in the directory of rings, until [`OtherUser::end`].
pub struct OtherUser {
    child: Child,
    input: Option<ChildStdin>,
}

impl OtherUser {
    pub fn start(home: &Home, program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new("setpriv")
            .args([
                &format!("--reuid={STRANGER}"),
                &format!("--regid={STRANGER}"),
                "--clear-groups",
                program,
            ])
            .args(arguments)
            .current_dir(home.rings())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv starts");
        let input = child.stdin.take();
        Self { child, input }
    }

    /// Starts `qa/other_user`, and waits until it is ready.
    pub fn does(home: &Home, action: &[&str]) -> Self {
        // A copy that all users may run: the build directory may be closed to them.
        let copy = home.path("other_user");
        if !copy.exists() {
            fs::copy(example("other_user"), &copy).expect("copied");
            open_to_all(&copy, 0o755);
        }
        let mut started = Self::start(home, copy.to_str().expect("UTF-8"), action);
        started.says("ready\n");
        started
    }

    /// Ends the program. Returns the number of actions that it printed.
    pub fn times(self) -> u64 {
        let said = self.end();
        said.trim().parse().expect("a number")
    }

    /// Waits until the program prints this text next.
    pub fn says(&mut self, expected: &str) {
        let mut said = vec![0; expected.len()];
        let output = self.child.stdout.as_mut().expect("piped");
        output.read_exact(&mut said).expect("output");
        assert_eq!(String::from_utf8_lossy(&said), expected);
    }

    /// Closes the input of the program and waits for its end. Returns its remaining output.
    pub fn end(mut self) -> String {
        drop(self.input.take());
        let mut said = String::new();
        let output = self.child.stdout.as_mut().expect("piped");
        output.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("it ran").success(), "{said}");
        said
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        drop(self.input.take());
        // Some programs do not end with their input.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a shell script as the other user, and waits for its end.
pub fn shell(home: &Home, script: &str) {
    OtherUser::start(home, "sh", &["-ec", script]).end();
}
