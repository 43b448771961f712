// SPDX-License-Identifier: GPL-2.0-or-later

//! 100,000 unrelated files beside the rings, with the system calls counted by strace(1): each file costs two stat(2),
//! one in the listing and one before it would be opened, even if new files appear.

use crate::support::pdu::Link;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, PMDANIXL, in_memory, wait_for};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const FILES: usize = 100_000;
/// Limit for the checks of a new file that may belong to an agent which is starting.
const AGAIN: usize = 100;
/// Longer than the clock tick that is the resolution of file times. A younger file is checked twice.
const TICK: Duration = Duration::from_millis(100);

/// A home with a directory of [`FILES`] files.
fn crowded() -> (Home, TempDir) {
    let (home, directory) = (Home::new(), in_memory());
    for file in 0..FILES {
        File::create(directory.path().join(format!("junk-{file}"))).expect("room");
    }
    std::thread::sleep(TICK);
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {:?}\ndrain_interval = \"1ms\"\n",
        directory.path()
    ));
    (home, directory)
}

/// Output file of strace(1) with the system calls that name a file.
struct Trace(PathBuf);

impl Trace {
    const OPTIONS: [&str; 5] = ["-f", "-qq", "-s", "64", "--trace=%file"];

    /// Number of calls that name an unrelated file, and number of calls that open the directory by its name.
    fn counts(&self, directory: &Path) -> (usize, usize) {
        let trace = fs::read(&self.0).unwrap_or_default();
        let trace = String::from_utf8_lossy(&trace);
        let opened = format!("\"{}\"", directory.display());
        (
            trace.matches("\"junk-").count(),
            trace.matches(&opened).count(),
        )
    }

    /// Waits until the directory was opened `passes` times more. Returns the number of calls that name an unrelated
    /// file.
    fn passes(&self, directory: &Path, passes: usize) -> usize {
        let (_, before) = self.counts(directory);
        wait_for("the next passes over the directory", || {
            let (calls, now) = self.counts(directory);
            (now >= before + passes).then_some(calls)
        })
    }
}

#[test]
#[ignore = "100,000 files"]
fn unrelated_file_costs_two_calls_and_is_not_opened() {
    let (home, directory) = crowded();
    let trace = Trace(home.path("trace"));
    let mut traced = Command::new("strace");
    traced.args(["-D", "--seccomp-bpf"]).args(Trace::OPTIONS);
    traced.arg("-o").arg(&trace.0).arg(PMDANIXL);
    let mut link = Link::start(&home, traced).expect("it starts");
    wait_for("all files were checked", || {
        let rejected = link
            .fetch(&["control.files.rejections"])
            .expect("an answer");
        (rejected[0][&u32::MAX] >= FILES as u64).then_some(())
    });
    trace.passes(directory.path(), 1);
    let (calls, _) = trace.counts(directory.path());
    assert_eq!(calls, 2 * FILES);
    assert!(link.end().success());
    let text = fs::read_to_string(&trace.0).expect("text");
    let opened = text
        .lines()
        .find(|line| line.contains("open") && line.contains("\"junk-") && !line.contains("O_PATH"));
    assert_eq!(opened, None);
}

/// strace(1) attached to a running process. Dropping it ends strace.
struct Attached(Child);

impl Attached {
    fn new(pid: u32, trace: &Trace) -> Self {
        let tracer = Command::new("strace")
            .args(Trace::OPTIONS)
            .arg("-o")
            .arg(&trace.0)
            .args(["-p", &pid.to_string()])
            .stderr(Stdio::null())
            .spawn();
        Self(tracer.expect("strace is installed: scripts/setup check"))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "100,000 files"]
fn unrelated_files_are_not_checked_again_for_a_new_ring() {
    let (home, directory) = crowded();
    let mut link = Link::open(&home);
    wait_for("all files were checked", || {
        let rejected = link
            .fetch(&["control.files.rejections"])
            .expect("an answer");
        (rejected[0][&u32::MAX] >= FILES as u64).then_some(())
    });
    let trace = Trace(home.path("trace"));
    let tracer = Attached::new(link.pid(), &trace);
    // 10 passes have another listing of the unchanged directory.
    assert_eq!(trace.passes(directory.path(), 10), 0);
    let path = directory.path().join("agent");
    let mut ring = RingWriter::create(&path, Layout::V4, 64).expect("a ring");
    ring.push(Kind::TxBytes, 7);
    File::create(directory.path().join("junk-more")).expect("room");
    wait_for("the agent is found", || {
        let values = link.sent();
        (values.get("agent") == Some(&7)).then_some(())
    });
    let text = fs::read_to_string(&trace.0).expect("text");
    // An agent may be about to set the size of an empty file, so a young empty file is checked in each tick.
    let met = text.matches("\"junk-more\"").count();
    assert!((1..=AGAIN).contains(&met), "{met} checks of the new file");
    assert_eq!(text.matches("\"junk-").count(), met);
    drop(tracer);
    assert!(link.end().success());
}
