// SPDX-License-Identifier: GPL-2.0-or-later

use super::scanned::{MAX_LINE, MAX_PATHS, read_line, shared_mapping};
use super::*;
use crate::base::file::list_names_at;
use crate::shm;
use nix::sys::stat::{major, minor};
use std::io::BufReader;

impl ProcessScan {
    /// Reads all processes.
    pub(crate) fn run(files: &[&FileFacts], inodes: Option<HashSet<u64>>) -> Self {
        let request = ScanRequest {
            inodes,
            with_facts: files.iter().map(|facts| facts.id.ino).collect(),
            ..ScanRequest::default()
        };
        let files = files.iter().map(|facts| (facts.id, **facts)).collect();
        let mut scan = Self::of(files, request);
        let names = list_names_at(Path::new("/proc")).expect("there");
        for pid in names.iter().filter_map(|name| name.to_str()?.parse().ok()) {
            let process = ScannedProcess::read(pid, &scan.request, &mut |_| true);
            process.into_iter().for_each(|process| scan.add(process));
        }
        scan
    }

    /// Returns a result in which these processes have a file mapped, each at an address.
    pub(crate) fn of_processes(
        facts: &FileFacts,
        path: &Path,
        processes: &[(ProcessId, u64)],
    ) -> Self {
        let (major, minor) = (major(facts.id.dev), minor(facts.id.dev));
        let path = format!("{major:02x}:{minor:02x} {}", path.display());
        let process = |&(id, address): &(ProcessId, u64)| MappingProcess {
            info: ProcessInfo {
                id,
                uid: facts.uid,
                command: "python3".into(),
            },
            addresses: vec![address],
        };
        let mapped = processes.iter().map(|one| (path.clone(), process(one)));
        Self {
            files: [(facts.id, *facts)].into(),
            by_inode: [(facts.id.ino, mapped.collect())].into(),
            ..Self::default()
        }
    }
}

impl ScannedProcess {
    /// Returns a process of a user with a file mapped.
    pub(crate) fn with_file(pid: u32, uid: u32) -> Self {
        let mut scanned = Self {
            process: ProcessInfo {
                uid,
                ..ProcessInfo::unnamed(ProcessId { pid, start: 1 })
            },
            files: HashMap::new(),
            facts: None,
            libraries: Libraries::default(),
            is_complete: true,
            len: 0,
        };
        scanned.add("fe:00 /ring".into(), 7, 1);
        scanned
    }
}

/// Returns a file, its mapping, and its fstat(2).
fn mapped() -> (tempfile::NamedTempFile, shm::Mapping, FileFacts) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(4096).expect("room");
    let mapping = shm::Mapping::new(file.as_file(), 512).expect("mapped");
    let stat = nix::sys::stat::fstat(file.as_file()).expect("open");
    (file, mapping, FileFacts::new(&stat))
}

#[test]
fn only_writable_shared_mappings_of_files_count() {
    let line =
        "7f0a1c000000-7f0a1c011000 rw-s 00000000 fe:00 131203                     /var/tmp/my ring";
    assert_eq!(
        shared_mapping(line.as_bytes()),
        Some(("fe:00 /var/tmp/my ring".into(), 131_203))
    );
    for other in [
        "7f0a1c000000-7f0a1c011000 r--s 00000000 fe:00 131203   /var/tmp/ring",
        "7f0a1c000000-7f0a1c011000 rw-p 00000000 fe:00 131203   /usr/lib/libc.so.6",
        "7ffd3e5f2000-7ffd3e613000 rw-s 00000000 00:00 0        [anon]",
        "",
        "rubbish",
    ] {
        assert_eq!(shared_mapping(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn inode_number_on_two_file_systems_is_two_files() {
    let process = |pid, uid| MappingProcess {
        info: ProcessInfo {
            id: ProcessId { pid, start: 1 },
            uid,
            command: "python3".into(),
        },
        addresses: Vec::new(),
    };
    let known = vec![
        ("00:1b /memfd:other".into(), process(1, 0)),
        ("fe:00 /var/tmp/ring".into(), process(2, 7)),
        // btrfs: the device number differs from the one of stat(2).
        ("00:30 /srv/ring".into(), process(3, 4242)),
        ("00:30 /srv/ring".into(), process(5, 0)),
        // Another user's file at this path in a mount namespace.
        ("00:32 /srv/ring".into(), process(6, 7)),
        // Another container's file at this path.
        ("00:31 /var/tmp/ring".into(), process(4, 0)),
    ];
    let process_scan = ProcessScan {
        by_inode: [(7, known)].into(),
        is_complete: true,
        ..ProcessScan::default()
    };
    let (.., facts) = mapped();
    let pids = |dev, ino, path: &str| -> Vec<u32> {
        let file = FileFacts {
            id: FileId { dev, ino },
            uid: 4242,
            ..facts
        };
        let found = process_scan.processes_of(&file, Path::new(path));
        found
            .into_iter()
            .map(|process| process.info.id.pid)
            .collect()
    };
    let device = nix::sys::stat::makedev;
    assert_eq!(pids(device(0xfe, 0), 7, "/var/tmp/ring"), [2]);
    assert_eq!(pids(device(0, 0x2f), 7, "/srv/ring"), [3, 5]);
    assert_eq!(pids(device(0, 0x2f), 8, "/srv/ring"), [0; 0]);
}

#[test]
fn inherited_mappings_are_those_of_the_process_that_started_first() {
    let process = |(pid, start, addresses): (u32, u64, &[u64])| MappingProcess {
        info: ProcessInfo {
            id: ProcessId { pid, start },
            ..ProcessInfo::default()
        },
        addresses: addresses.to_vec(),
    };
    let openers = |all: &[(u32, u64, &[u64])]| {
        let all = Vec::from_iter(all.iter().map(|&one| process(one)));
        let found = openers(&Vec::from_iter(&all));
        Vec::from_iter(found.iter().map(|process| process.info.id.pid))
    };
    // Children of a process, also of one that has ended.
    assert_eq!(openers(&[(9, 2, &[1]), (7, 1, &[1]), (8, 1, &[1])]), [7]);
    // A child that maps the file itself as well.
    assert_eq!(openers(&[(9, 2, &[1, 2]), (7, 1, &[1])]), [7, 9]);
    assert_eq!(openers(&[(9, 2, &[2]), (7, 1, &[1])]), [7, 9]);
}

#[test]
fn scan_finds_the_mapping_of_this_process() {
    let (file, mapping, facts) = mapped();
    let process_scan = ProcessScan::run(&[&facts], Some([facts.id.ino].into()));
    let found = process_scan.processes_of(&facts, file.path());
    // A child of another test has the mapping as well, until execve(2).
    let is_ours = |process: &&&MappingProcess| process.info.id.pid == std::process::id();
    assert_eq!(found.iter().filter(is_ours).count(), 1, "{found:?}");
    // This process is not an agent.
    let ours = ProcessId::of(std::process::id()).expect("this one");
    assert_eq!(process_scan.facts.get(&ours), None);
    drop(mapping);
    assert!(
        ProcessScan::run(&[], None)
            .processes_of(&facts, file.path())
            .is_empty()
    );
}

#[test]
fn scan_keeps_requested_inodes_only() {
    let files = [mapped(), mapped()];
    let [asked, other] = files.each_ref().map(|(.., facts)| facts.id.ino);
    let process_scan = ProcessScan::run(&[], Some([asked].into()));
    let found: Vec<u64> = process_scan.by_inode.keys().copied().collect();
    assert_eq!(found, [asked]);
    let all = ProcessScan::run(&[], None);
    assert!(
        [asked, other]
            .iter()
            .all(|ino| all.by_inode.contains_key(ino))
    );
}

#[test]
fn mappings_are_limited_for_each_user() {
    let scanned = |pid| ScannedProcess {
        process: ProcessInfo::unnamed(ProcessId { pid, start: 1 }),
        files: HashMap::new(),
        facts: None,
        libraries: Libraries::default(),
        is_complete: true,
        len: 0,
    };
    let mut process_scan = ProcessScan {
        is_complete: true,
        ..ProcessScan::default()
    };
    for pid in 0..=1024 {
        assert_eq!(process_scan.by_inode.get(&7).map_or(0, Vec::len), pid);
        assert!(process_scan.is_complete);
        let mut scanned = scanned(u32::try_from(pid).expect("small"));
        assert!(scanned.add("fe:00 /ring".into(), 7, 1));
        process_scan.add(scanned);
    }
    assert_eq!(process_scan.by_inode[&7].len(), MAX_MAPPINGS);
    assert!(!process_scan.is_complete);
    // Another user's is noted, and of this user one of another file.
    let mut others = scanned(7);
    others.process.uid = 4242;
    assert!(others.add("fe:00 /ring".into(), 7, 1));
    process_scan.add(others);
    assert_eq!(process_scan.by_inode[&7].len(), MAX_MAPPINGS + 1);
    for inode in 8..10_000 {
        let mut long = scanned(8);
        assert!(long.add("x".repeat(4096), inode, 1));
        process_scan.add(long);
    }
    let noted = process_scan.by_inode.values().flatten();
    let len: usize = noted.map(|(path, _)| path.len()).sum();
    assert!(
        len <= 2 * MAX_USER_LEN && process_scan.by_inode[&8].len() == 1,
        "{len}"
    );
    let mut scanned = scanned(1);
    let paths = (0..100).map(|number| scanned.add(format!("fe:00 /{number}"), 8, 1));
    assert_eq!(paths.filter(|&has_room| has_room).count(), MAX_PATHS);
    assert!(scanned.add("fe:00 /3".into(), 8, 2), "it is known");
    assert_eq!(scanned.files[&8][3].addresses, [1, 2]);
    assert!(scanned.add("fe:00 /ring".into(), 9, 1), "another inode");
}

#[test]
fn long_line_of_maps_is_cut() {
    let long = format!("a{}\nb\n", "x".repeat(1 << 20));
    let (mut maps, mut line) = (BufReader::new(long.as_bytes()), Vec::new());
    assert!(read_line(&mut maps, &mut line).expect("read"));
    assert_eq!(line.len() as u64, MAX_LINE);
    assert!(read_line(&mut maps, &mut line).expect("read"));
    assert_eq!(line, b"b\n");
    assert!(!read_line(&mut maps, &mut line).expect("read"));
}

#[test]
fn own_process_and_pmdanixl_are_not_agents() {
    let process = |pid, uid, command: &str| ProcessInfo {
        id: ProcessId { pid, start: 1 },
        uid,
        command: command.into(),
    };
    let own = geteuid().as_raw();
    for (process, is_pmdanixl, is_agent) in [
        (process(u32::MAX, 0, "pmdanixl"), true, false),
        (process(u32::MAX, own, "pmdanixl"), own == 0, false),
        (process(u32::MAX, 4242, "pmdanixl"), true, true),
        (process(u32::MAX, 4243, "pmdanixl"), false, true),
        (process(u32::MAX, 0, "python3"), false, true),
        (process(std::process::id(), 0, "python3"), false, false),
    ] {
        let found = (process.is_pmdanixl(&[4242]), process.is_agent());
        assert_eq!(found, (is_pmdanixl, is_agent), "{process:?}");
    }
}

#[test]
fn nixl_process_without_an_attached_file_has_no_telemetry() {
    let (file, _mapping, facts) = mapped();
    let [writer, silent] = [1, 2].map(|pid| ProcessId { pid, start: 1 });
    let mut found = ProcessScan::of_processes(&facts, file.path(), &[(writer, 1)]);
    let files = || [(&facts, file.path())];
    assert_eq!(found.without_telemetry(files()), None);
    found.is_complete = true;
    assert_eq!(found.without_telemetry(files()), Some(Vec::new()));
    let nixl_process = |id| NixlProcess {
        info: ProcessInfo {
            id,
            ..ProcessInfo::default()
        },
        libraries: Libraries::default(),
    };
    found.nixl_processes = [writer, silent].map(nixl_process).into();
    assert_eq!(found.without_telemetry(files()), Some(vec![silent]));
    found.is_complete = false;
    assert_eq!(found.without_telemetry(files()), None, "one may be hidden");
    assert!(found.has(writer) && !found.has(silent));
}
