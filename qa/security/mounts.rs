// SPDX-License-Identifier: GPL-2.0-or-later

//! File systems that another user has mounted, and that do not answer.

use crate::support::fleet::is_possible;
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, leave_out, run, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounts a file system whose server never answers. It is released when the process ends.
fn mount(server: &mut Process, at: &Path, mode: u32) {
    server.run("import os");
    server.run("fd = os.open('/dev/fuse', os.O_RDWR) if os.path.exists('/dev/fuse') else -1");
    if server.run("fd") == "-1" {
        leave_out("no FUSE here");
    }
    let options = format!("rootmode={mode:o},user_id=0,group_id=0,allow_other");
    let mounted = server.run(&format!(
        "fuse.LIBC.mount(b'fuse', os.fsencode({at:?}), b'fuse', 0, b'fd=%d,{options}' % fd)"
    ));
    if mounted != "0" {
        leave_out("FUSE cannot be mounted here");
    }
}

#[test]
fn mounts_that_do_not_answer_hide_no_other_directory_or_file() {
    // In mount and PID namespaces of its own.
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let at = |path: &str| -> PathBuf { home.path("pods").join(path) };
    for name in ["one", "two", "three"] {
        fs::create_dir_all(at(name).join("nixl")).expect("made");
    }
    let pattern = at("*/nixl");
    home.configure(&format!("[nixl]\ntelemetry_dir = {pattern:?}\n"));
    let mut ring = RingWriter::create(&at("one/nixl/agent"), Layout::V4, 64).expect("a ring");
    assert!(ring.push(Kind::TxBytes, 1));
    fs::copy(at("one/nixl/agent"), at("one/nixl/mounted")).expect("copied");
    // A tmpfs answers: an emptyDir of Kubernetes in memory.
    run(Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(at("three/nixl")));
    let mut theirs = RingWriter::create(&at("three/nixl/pod"), Layout::V4, 64).expect("a ring");
    assert!(theirs.push(Kind::TxBytes, 3));
    let mut servers = [Process::peer(), Process::peer()];
    mount(&mut servers[0], &at("two/nixl"), 0o40000);
    mount(&mut servers[1], &at("one/nixl/mounted"), 0o100_000);

    let mut link = Link::open(&home);
    // Longer than the time between two passes over all directories.
    for expected in 1..51 {
        wait_for("each event is counted", || {
            let sent = link.sent();
            (sent == [("agent".into(), expected), ("pod".into(), 3)].into()).then_some(())
        });
        assert!(ring.push(Kind::TxBytes, 1));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let left_out = link.values("control.directories.skipped").expect("a value");
    assert_eq!(left_out.values().copied().sum::<u64>(), 1);
    let reason = "a user or another host serves its file system, which may not answer";
    assert!(home.log().contains(reason), "{}", home.log());
    let (_, said) = home.check();
    let line = format!(
        "note: {} is not scanned: {reason}",
        at("two/nixl").display()
    );
    assert!(said.contains(&line), "{said}");
    assert!(said.contains("agent: ring v4"), "{said}");
    drop(link);
    drop(servers);
    for path in ["two/nixl", "one/nixl/mounted", "three/nixl"] {
        run(Command::new("umount").arg("--lazy").arg(at(path)));
    }
}
