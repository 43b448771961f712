// SPDX-License-Identifier: GPL-2.0-or-later

//! Unusual files in a telemetry directory: names with characters special to PCP, and files that are not rings. Each
//! file must be rejected for its own reason and stay unchanged. The values of other agents must stay exact.

use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, needs_root, wait_for};
use nix::sys::stat::{Mode, SFlag, mknod};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Makes a v4 ring of 8 events with one word of its header changed to `value`.
fn ring_but(path: &Path, word: usize, value: u64) {
    drop(RingWriter::create(path, Layout::V4, 8).expect("a ring"));
    let mut bytes = fs::read(path).expect("there");
    bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
    fs::write(path, bytes).expect("written");
}

fn both_versions(version: u64) -> u64 {
    (version << 32) | version
}

/// Fills a directory with one file of each kind. Returns the names and the reasons of the rejections.
fn hostile(dir: &Path) -> Vec<(&'static str, &'static str)> {
    let at = |name: &str| dir.join(name);
    mknod(
        &at("fifo"),
        SFlag::S_IFIFO,
        Mode::S_IRUSR | Mode::S_IWUSR,
        0,
    )
    .expect("a FIFO");
    // The device number of /dev/full.
    mknod(
        &at("device"),
        SFlag::S_IFCHR,
        Mode::S_IRUSR | Mode::S_IWUSR,
        nix::sys::stat::makedev(1, 7),
    )
    .expect("root");
    fs::create_dir(at("directory")).expect("made");
    drop(RingWriter::create(&dir.join("../elsewhere"), Layout::V4, 8).expect("a ring"));
    std::os::unix::fs::symlink("../elsewhere", at("symlink")).expect("made");
    drop(RingWriter::create(&dir.join("../twice"), Layout::V4, 8).expect("a ring"));
    fs::hard_link(dir.join("../twice"), at("hardlink")).expect("made");
    fs::write(at("empty"), "").expect("written");
    fs::write(at("zeros"), [0; 168]).expect("written");
    fs::write(at("blank"), [0; 4096]).expect("written");
    fs::write(at("odd-size"), [7; 169]).expect("written");
    ring_but(&at("capacity"), 3, 1000);
    ring_but(&at("capacity-zero"), 3, 0);
    ring_but(&at("capacity-huge"), 3, 1 << 63);
    ring_but(&at("mask"), 4, 0);
    ring_but(&at("write-pos"), 0, 8);
    ring_but(&at("read-pos"), 1, u64::MAX);
    ring_but(&at("version-6"), 2, both_versions(6));
    // The header of the pull request nixl#2018: capacity, versions and mask in words 1 to 3, 64 words in all.
    let header = [0, 8, both_versions(5), 7];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(512 + 8 * 16, 0);
    fs::write(at("version-5"), bytes).expect("written");
    ring_but(&at("version-negative"), 2, both_versions(0xffff_ffff));
    ring_but(&at("versions-differ"), 2, (3 << 32) | 4);
    drop(RingWriter::create(&at("pos-in-a-hole"), Layout::V4, 4096).expect("a ring"));
    let sparse = fs::OpenOptions::new().write(true).open(at("pos-in-a-hole"));
    let sparse = sparse.expect("there");
    sparse
        .write_all_at(&4000_u64.to_le_bytes(), 0)
        .expect("written");
    // A v4 ring with version 1 in its header: the size does not fit.
    ring_but(&at("size"), 2, both_versions(1));
    let mut notes = b"notes of a man".to_vec();
    notes.resize(16, b' ');
    notes.extend([2, 0, 0, 0]);
    notes.resize(168, b'n');
    fs::write(at("text"), notes).expect("written");
    vec![
        ("fifo", "is not a regular file"),
        ("device", "is not a regular file"),
        ("directory", "is not a regular file"),
        ("symlink", "is not a regular file"),
        (
            "hardlink",
            "has 2 hard links, and a ring or a store has one; remove the others",
        ),
        ("empty", "not a ring: no ring has 0 bytes"),
        ("zeros", "header is not written"),
        (
            "blank",
            "not a ring: it has no version, and no ring has 4096 bytes",
        ),
        ("odd-size", "not a ring: no ring has 169 bytes"),
        ("capacity", "capacity 1000 is not a power of two"),
        ("capacity-zero", "capacity 0 is not a power of two"),
        (
            "capacity-huge",
            "168 bytes do not fit version 4 with 9223372036854775808 slots",
        ),
        ("mask", "mask 0 does not belong to capacity 8"),
        (
            "write-pos",
            "positions read=0 write=8 lie outside capacity 8",
        ),
        (
            "read-pos",
            "positions read=18446744073709551615 write=0 lie outside capacity 8",
        ),
        (
            "pos-in-a-hole",
            "4000 events are pending, but the file has fewer allocated blocks than these take",
        ),
        (
            "version-6",
            "ring version 6 is not supported; this build reads 1 to 4: upgrade pmdanixl, or use a release of NIXL",
        ),
        (
            "version-5",
            "ring version 5 is not supported; this build reads 1 to 4: upgrade pmdanixl, or use a release of NIXL",
        ),
        ("version-negative", "not a ring: version -1"),
        (
            "versions-differ",
            "not a ring: version 4 and expected version 3 differ",
        ),
        ("size", "168 bytes do not fit version 1 with 8 slots"),
        ("text", "not a ring: version 2 and expected version"),
    ]
}

/// True if a file of [`hostile`] may be a ring, so that the log and `--check` warn of it.
fn may_be_ring(name: &str) -> bool {
    let parts = [
        "capacity",
        "hardlink",
        "mask",
        "pos",
        "version-5",
        "version-6",
        "version-fork",
        "size",
    ];
    parts.iter().any(|part| name.contains(part)) && name != "odd-size"
}

/// Name, bytes and times of all regular files below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let files = fs::read_dir(dir)
        .expect("there")
        .map(|entry| entry.expect("there").path());
    let regular = files.filter(|path| path.symlink_metadata().expect("there").is_file());
    regular
        .map(|path| {
            let modified = path
                .metadata()
                .and_then(|meta| meta.modified())
                .expect("there");
            (path.clone(), (fs::read(path).expect("there"), modified))
        })
        .collect()
}

#[test]
fn check_lists_a_reason_for_every_file_and_changes_none() {
    needs_root();
    let home = Home::new();
    let expected = hostile(&home.rings());
    let (before, outside) = (contents(&home.rings()), contents(&home.path(".")));
    let (status, output) = home.check();
    assert_eq!(
        status, 1,
        "an agent of an unknown version is a problem:\n{output}"
    );
    for (name, reason) in &expected {
        let level = if may_be_ring(name) { "problem: " } else { "" };
        let line = format!("  {level}{name}: rejected: {reason}");
        assert!(
            output.lines().any(|shown| shown.starts_with(&line)),
            "no line {line:?} in\n{output}"
        );
    }
    let problems = output.matches("  problem: ").count();
    let files = expected.len();
    let last = format!("0 rings, {files} files rejected, {problems} problems");
    assert!(output.contains(&last), "{output}");
    assert!(
        contents(&home.rings()) == before && contents(&home.path(".")) == outside,
        "a file was changed"
    );
}

#[test]
fn hostile_files_are_left_unchanged_by_the_daemon() {
    needs_root();
    let home = Home::new();
    let expected = hostile(&home.rings());
    let (before, outside) = (contents(&home.rings()), contents(&home.path(".")));
    let mut healthy = home.new_ring("healthy", 64);
    healthy.push(Kind::TxBytes, 1);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("healthy", 1)]);
    let unsupported = pmcd.values("nixl.control.files.unsupported")[""];
    assert_eq!(unsupported, 2, "the rings of versions 5 and 6");
    // Renamed files are checked again, and rejected again.
    for turn in 2..4 {
        fs::rename(home.ring("mask"), home.ring("mask-moved")).expect("there");
        fs::rename(home.ring("mask-moved"), home.ring("mask")).expect("there");
        healthy.push(Kind::TxBytes, 1);
        assert_eq!(pmcd.sent()["healthy"], turn);
    }
    // The two files of zeros are not counted yet: their agents may be starting.
    assert!(pmcd.values("nixl.control.files.rejections")[""] >= expected.len() as u64 - 2);
    let log = pmcd.log();
    for (name, reason) in expected {
        // Only files that may be rings are logged.
        let logged = log.contains(&format!("/{name}\": rejected: {reason}"));
        assert_eq!(logged, may_be_ring(name), "{name}\n{log}");
    }
    assert_eq!(
        log.matches("/mask\": rejected").count(),
        1,
        "one line for each file and reason:\n{log}"
    );
    drop(healthy);
    let mut after = contents(&home.rings());
    after.remove(&home.ring("healthy"));
    assert!(after == before, "a rejected file was changed");
    assert!(
        contents(&home.path("."))
            .iter()
            .all(|(path, file)| path.ends_with("nixl.log") || outside.get(path) == Some(file))
    );
}

#[test]
fn file_that_is_completed_later_is_attached_then() {
    let home = Home::new();
    fs::write(home.ring("slow"), "").expect("written");
    let pmcd = Pmcd::start(&home);
    assert!(pmcd.sent().is_empty());
    // NIXL sets the size first and writes the header later, which does not change the directory.
    fs::OpenOptions::new()
        .write(true)
        .open(home.ring("slow"))
        .expect("there")
        .set_len(40 + 64 * 16)
        .expect("room");
    let found = wait_for("the file of zeros is listed", || {
        Some(home.check().1).filter(|text| text.contains("header is not written"))
    });
    assert!(found.contains("slow"));
    let mut ring = home.new_ring("slow", 64);
    ring.push(Kind::TxBytes, 8);
    wait_for("the agent is found", || {
        pmcd.sent()
            .get("slow")
            .filter(|&&value| value == 8)
            .copied()
    });
}

#[test]
fn files_with_odd_names_are_separate_instances() {
    let home = Home::new();
    let long = "L".repeat(255);
    let names: [(&OsStr, &str); 9] = [
        (OsStr::new("worker"), "worker"),
        (OsStr::new("worker 1"), "worker%201"),
        (OsStr::new("worker 2"), "worker%202"),
        (OsStr::new("[x]"), "%5Bx%5D"),
        (OsStr::new("a\tb"), "a%09b"),
        (OsStr::new(&long), ""),
        (OsStr::from_bytes(b"\xff\xfe"), "%FF%FE"),
        (OsStr::new("%FF%FE"), "%25FF%25FE"),
        (OsStr::new("new\nline"), "new%0Aline"),
    ];
    let mut writers = Vec::new();
    let mut expected = BTreeMap::new();
    for (value, (raw, instance)) in (1..).zip(names) {
        let mut writer = home.new_ring(raw, 16);
        writer.push(Kind::TxBytes, value);
        writers.push(writer);
        let cut = format!("{}~", "L".repeat(183));
        expected.insert(
            if instance.is_empty() {
                cut
            } else {
                instance.to_owned()
            },
            value,
        );
    }
    let pmcd = Pmcd::start(&home);
    let shown = |values: BTreeMap<String, u64>| -> BTreeMap<String, u64> {
        values
            .into_iter()
            .map(|(name, value)| {
                (
                    name.split_inclusive('~')
                        .next()
                        .unwrap_or_default()
                        .to_owned(),
                    value,
                )
            })
            .collect()
    };
    // An instance is published when its labels are known.
    wait_for("all are instances", || {
        (pmcd.sent().len() == expected.len()).then_some(())
    });
    assert_eq!(shown(pmcd.sent()), expected);
    let instances = pmcd.sent();
    // Each instance changes alone.
    for (value, writer) in (1..).zip(&mut writers) {
        writer.push(Kind::TxBytes, 100);
        let now = pmcd.sent();
        for (name, before) in &instances {
            let moved = if *before <= value { 100 } else { 0 };
            assert_eq!(now[name], before + moved, "{name}");
        }
    }
    // The file of the ids has all names.
    let cache = pmcd.path("var/config/pmda/39.0");
    wait_for("the ids are saved", || {
        let saved = fs::read_to_string(&cache).ok()?;
        let has = |name: &String| {
            saved
                .lines()
                .any(|line| line.ends_with(&format!(" {name}")))
        };
        instances.keys().all(has).then_some(())
    });
}

#[test]
fn owners_setting_limits_files_to_the_listed_users() {
    needs_root();
    let home = Home::new();
    let (mut ours, mut theirs) = (home.new_ring("ours", 16), home.new_ring("theirs", 16));
    std::os::unix::fs::chown(home.ring("theirs"), Some(4242), None).expect("root");
    ours.push(Kind::TxBytes, 1);
    theirs.push(Kind::TxBytes, 1);
    home.set("owners = [4242]");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("theirs", 1)]);
    assert_eq!(ours.pending(), 1);
}

#[test]
fn max_agents_limits_rings_and_prefers_live_agents() {
    let home = Home::new();
    home.set("max_agents = 2\nretain = \"0s\"");
    let mut writers: Vec<RingWriter> = ["a", "b", "c"].map(|name| home.new_ring(name, 16)).into();
    writers
        .iter_mut()
        .for_each(|writer| assert!(writer.push(Kind::TxBytes, 1)));
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("a", 1), ("b", 1)]);
    assert!(
        pmcd.log()
            .contains("/c\": rejected: max_agents (2) is reached; raise max_agents in nixl.conf"),
        "{}",
        pmcd.log()
    );
    drop(writers.remove(0));
    wait_for("the third agent replaces the first", || {
        let values = pmcd.sent();
        (values.keys().collect::<Vec<_>>() == ["b", "c"]).then_some(())
    });
}
