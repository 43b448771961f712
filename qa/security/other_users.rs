// SPDX-License-Identifier: GPL-2.0-or-later

//! Actions of another user in a directory that all users may write to: locks, links, exchanged names, and use of shared
//! limits. A program with that user's id does them.

use crate::support::other_user::{OtherUser, VICTIM, open_to_all, ring, shared_home, shell};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Pmcd, output, run, text, wait_for};
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

#[test]
fn lock_of_another_user_does_not_block_a_ring() {
    let home = shared_home();
    let mut victim = ring(&home, VICTIM, "victim");
    let lock = OtherUser::start(
        &home,
        "flock",
        &["--exclusive", "victim", "sh", "-c", "echo locked; cat"],
    );
    let inode =
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(home.ring("victim")).expect("there"));
    wait_for("the ring is locked", || {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let mut lines = locks.lines();
        let is_it = |line: &str| line.contains("FLOCK") && line.contains(&format!(":{inode} "));
        lines.any(is_it).then_some(())
    });
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("victim", 1)]);
    assert_eq!(pmcd.values("nixl.ring.foreign_reads")["victim"], 0);
    assert!(victim.push(Kind::TxBytes, 1));
    pmcd.becomes(&[("victim", 2)]);
    assert_eq!(victim.pending(), 0, "the ring is drained");
    assert_eq!(lock.end(), "locked\n");
}

/// Each name changes between two files all the time, also between stat(2) and open(2).
#[test]
fn exchanged_names_lead_to_no_other_file() {
    let home = shared_home();
    let private = home.path("private");
    fs::create_dir(&private).expect("made");
    let mut secret = RingWriter::create(&private.join("secret"), Layout::V4, 64).expect("a ring");
    assert!(secret.push(Kind::TxBytes, 9));
    let before = fs::read(private.join("secret")).expect("there");
    let mut victim = ring(&home, VICTIM, "victim");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("victim", 1)]);
    let link = private.join("secret");
    shell(
        &home,
        &format!(
            "ln -s {} link; ln -s {} way; mkfifo fifo; mkdir directory; : > file",
            link.display(),
            private.display()
        ),
    );
    let pairs = [["victim", "link"], ["fifo", "way"], ["directory", "file"]];
    let exchanging = pairs.map(|[a, b]| OtherUser::does(&home, &["exchange", a, b]));
    let mut sent = 1;
    for _ in 0..200 {
        sent += u64::from(victim.push(Kind::TxBytes, 1));
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(!pmcd.sent().contains_key("secret"));
    }
    for exchange in exchanging {
        let times = exchange.times();
        assert!(times > 100, "{times}");
    }
    wait_for("all that was sent is counted", || {
        let values = pmcd.sent();
        (values.get("victim") == Some(&sent)).then_some(())
    });
    assert_eq!(fs::read(private.join("secret")).expect("there"), before);
    assert_eq!(pmcd.sent().len(), 1);
}

#[test]
fn rings_of_one_user_leave_room_for_other_users() {
    let home = shared_home();
    home.set("max_agents = 20\nproc_facts = false");
    drop(RingWriter::create(&home.path("template"), Layout::V4, 16).expect("a ring"));
    open_to_all(&home.path("template"), 0o644);
    // One process has all the files open.
    let script =
        "for i in $(seq 100 160); do cp ../template taken-$i; done; exec tail -q -f taken-*";
    let _holds = OtherUser::start(&home, "sh", &["-ec", script]);
    wait_for("all the files are there", || {
        home.ring("taken-160").exists().then_some(())
    });
    let pmcd = Pmcd::start(&home);
    let _victims: Vec<RingWriter> = (0..3)
        .map(|number| ring(&home, VICTIM, &format!("victim-{number}")))
        .collect();
    wait_for("the rings of the victim are attached", || {
        let values = pmcd.sent();
        let victims = values
            .iter()
            .filter(|(name, _)| name.starts_with("victim-"));
        (victims.filter(|(_, value)| **value == 1).count() == 3).then_some(())
    });
    assert!(pmcd.values("nixl.control.places.taken")[""] <= 20);
    assert_eq!(pmcd.values("nixl.control.places.max")[""], 20);
}

/// A reader such as a backup has the file of an exited agent open. The agent must still be evicted.
#[test]
fn exited_agents_held_by_a_reader_are_evicted() {
    let home = shared_home();
    home.set("max_agents = 2\nretain = \"1s\"");
    let exited = ["old-0", "old-1"].map(|name| ring(&home, VICTIM, name));
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("old-0", 1), ("old-1", 1)]);
    drop(exited);
    pmcd.becomes(&[]);
    let script = "exec 3< old-0 4< old-1; echo open; cat";
    let mut reads = OtherUser::start(&home, "sh", &["-ec", script]);
    reads.says("open\n");
    let _new = ring(&home, VICTIM, "new");
    pmcd.becomes(&[("new", 1)]);
}

#[test]
fn directories_of_one_user_leave_room_for_other_users() {
    let home = shared_home();
    let pods = home.path("pods");
    fs::create_dir(&pods).expect("made");
    open_to_all(&pods, 0o777);
    shell(
        &home,
        "cd ../pods; for i in $(seq 1000 1300); do mkdir -p pod-$i/nixl; done",
    );
    let own = pods.join("victim/nixl");
    fs::create_dir_all(&own).expect("made");
    for path in [pods.join("victim"), own.clone()] {
        chown(path, Some(VICTIM), None).expect("root may");
    }
    let mut ring = RingWriter::create(&own.join("agent"), Layout::V4, 64).expect("a ring");
    chown(own.join("agent"), Some(VICTIM), None).expect("root may");
    assert!(ring.push(Kind::TxBytes, 5));
    home.configure(&format!(
        "[nixl]\nmax_directories = 16\nproc_facts = false\ntelemetry_dir = \"{}/*/nixl\"\n",
        pods.display()
    ));
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("agent", 5)]);
    let watched = || pmcd.values("nixl.control.directories.watched")[""];
    let left_out = || pmcd.values("nixl.control.directories.skipped")[""];
    wait_for("all directories were found", || {
        (left_out() == 301 - 15).then_some(())
    });
    assert_eq!(watched(), 16);
    let open = fs::read_dir(format!("/proc/{}/fd", pmcd.pmda_pid())).expect("root may");
    assert!(
        open.count() < 16 + 64,
        "at most one descriptor for each watched directory"
    );
    let (status, said) = home.check();
    let expected = "problem: patterns: 286 matching directories are not scanned: max_directories (16) is reached; raise it in nixl.conf";
    assert!(status == 1 && said.contains(expected), "{said}");
}

#[test]
fn log_lines_of_one_user_leave_room_for_others() {
    let home = shared_home();
    // Files with the size of a ring and an invalid header. One name is long, and each of its characters is escaped in
    // the log.
    let name = "\u{200b}".repeat(70);
    shell(
        &home,
        &format!(
            "for i in $(seq 100 400); do head -c 168 /dev/zero | tr '\\0' '\\4' > bad-$i; printf '\\4\\0\\0\\0\\4\\0\\0\\0\\3' | dd of=bad-$i bs=1 seek=16 conv=notrunc status=none; done; cp bad-100 {name}"
        ),
    );
    let pmcd = Pmcd::start(&home);
    wait_for("all are rejected", || {
        let rejected = pmcd.values("nixl.control.files.rejections")[""];
        (rejected >= 302).then_some(())
    });
    // Messages that only root can cause are not limited.
    for _ in 0..40 {
        pmcd.configure(&home, "retain = \"2h\"");
    }
    let log = pmcd.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let (about_files, own) = (lines(": rejected: "), lines("configuration read again"));
    // 60 lines of one minute, and 60 of the next.
    assert!((1..=2 * 60).contains(&about_files), "{about_files}\n{log}");
    assert!(lines("are not logged in this minute") >= 1, "{log}");
    assert_eq!(own, 40, "{log}");
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(700), "{longest:?}");
}

#[test]
fn configuration_that_is_a_fifo_or_endless_is_rejected() {
    let home = shared_home();
    let mut victim = ring(&home, VICTIM, "victim");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("victim", 1)]);
    let conf = pmcd.path("etc/nixl/nixl.conf");
    for (sent, make) in [(2, "mkfifo"), (3, "head -c 2000000 /dev/zero >")] {
        fs::remove_file(&conf).expect("there");
        let script = format!("{make} {}", conf.display());
        run(Command::new("sh").args(["-ec", &script]));
        let stored = output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
        assert!(text(&stored).contains("Bad input to pmstore"), "{stored:?}");
        let why = run(pmcd
            .tool("pminfo")
            .args(["-f", "nixl.control.config_error"]));
        assert!(why.contains("nixl.conf: "), "{why}");
        assert!(victim.push(Kind::TxBytes, 1));
        pmcd.becomes(&[("victim", sent)]);
    }
}
