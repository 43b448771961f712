//! Which processes have a file mapped shared and writable, as far as /proc shows them: a ring's producer does.
//!
//! A host may run thousands of processes, and one that does inference has thousands of mappings: that takes its time, in a thread
//! of its own.

use crate::base::file::{FileFacts, FileId, list_names_at};
use crate::procfs::ancestors;
use crate::procfs::facts::Facts;
use crate::procfs::facts::pods::Pods;
use crate::procfs::process::{INIT_PID, ProcessId, ProcessStat, has_ended, sees_host};
use crate::procfs::scan_threads::ScanContext;
use nix::unistd::{Uid, User, geteuid};
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod library;
mod locks;
use library::Libraries;
use locks::Locks;

// Any user may have as many mappings as he likes, of files with names of any length.

/// Places at which one process may have an inode mapped, on several file systems or by several names.
const MAX_PATHS: usize = 16;
/// Processes that may have an inode mapped.
const MAX_MAPPING_PROCESSES: usize = 1024;
/// Bytes of a line of maps that are looked at; a path has 4,096 at most where it can be opened by it.
const MAX_LINE: u64 = 8192;
/// Bytes of /proc/locks: some hundred thousand locks.
const MAX_LOCKS_TEXT: u64 = 16 << 20;

/// What a process scan is to find out.
#[derive(Debug, Default)]
pub struct ScanRequest {
    /// Files, as they were before the scan: what their owners are called, and facts of the processes that write them.
    pub files: HashMap<FileId, FileFacts>,
    /// Inodes of these and other files whose writers are request; `None`: all.
    pub inodes: Option<HashSet<u64>>,
    /// Where pods have their logs.
    pub pod_logs: PathBuf,
}

impl ScanRequest {
    /// True if the processes are request that have this inode mapped.
    #[must_use]
    pub fn includes(&self, ino: u64) -> bool {
        let inodes = self.inodes.as_ref();
        inodes.is_none_or(|inodes| inodes.contains(&ino))
    }
}

/// A process that has a file mapped shared and writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingProcess {
    /// Which process.
    pub id: ProcessId,
    /// Process id of its parent.
    pub parent: u32,
    /// Real user id.
    pub uid: u32,
    /// What it is called (`/proc/PID/comm`).
    pub command: String,
}

/// Writable shared mappings of files, by what each process has.
#[derive(Debug, Default)]
pub struct ProcessScan {
    /// What was to be found out.
    pub request: ScanRequest,
    by_inode: HashMap<u64, Vec<(String, MappingProcess)>>,
    /// What is known of the processes that write the files.
    pub facts: HashMap<ProcessId, Facts>,
    /// What the owners of the files are called.
    pub user_names: HashMap<u32, String>,
    /// What pods are called.
    pub pods: Pods,
    /// Processes that have a NIXL backend loaded, without those of this program, and the path of libnixl as each sees it.
    pub nixl_processes: Vec<(ProcessId, PathBuf)>,
    /// Who has locked a store; `None`: not all of it is shown.
    locks: Option<Locks>,
    /// Whether no process was hidden: then a file that nobody has mapped is one that nobody writes to.
    pub is_complete: bool,
    /// How long it took to look.
    pub duration: Duration,
}

#[cfg(test)]
impl ProcessScan {
    /// As if these processes had been seen to have a file mapped, each with its parent.
    pub(crate) fn of_processes(
        facts: &FileFacts,
        path: &Path,
        processes: &[(ProcessId, u32)],
    ) -> Self {
        let path = format!("{} {}", device(facts.id.dev), path.display());
        let process = |&(id, parent): &(ProcessId, u32)| MappingProcess {
            id,
            parent,
            uid: facts.uid,
            command: "python3".into(),
        };
        let mapped = processes.iter().map(|one| (path.clone(), process(one)));
        Self {
            request: ScanRequest {
                files: [(facts.id, *facts)].into(),
                ..ScanRequest::default()
            },
            by_inode: [(facts.id.ino, mapped.collect())].into(),
            ..Self::default()
        }
    }
}

impl ProcessScan {
    /// Looks through all processes that may be read.
    #[must_use]
    pub fn run(request: ScanRequest, context: &ScanContext) -> Self {
        let started = Instant::now();
        let names = list_names_at(Path::new("/proc")).unwrap_or_default();
        let pids = names.iter().filter_map(|name| name.to_str()?.parse().ok());
        let pids: Vec<u32> = pids.collect();
        let users: HashSet<u32> = request.files.values().map(|file| file.uid).collect();
        let host = sees_host();
        let mut scan = Self {
            // Where processes are hidden (hidepid), so is the first.
            is_complete: host && pids.contains(&INIT_PID),
            locks: locks()
                .filter(|_| host)
                .zip(request.inodes.as_ref())
                .map(|(text, inodes)| Locks::parse(&text, |ino| inodes.contains(&ino))),
            // Asked for here, since it may take as long as a server on the network likes.
            user_names: users.into_iter().map(|uid| (uid, user_name(uid))).collect(),
            pods: Pods::read(&request.pod_logs),
            request,
            ..Self::default()
        };
        for pid in pids {
            if let Err(err) = scan.read_process(pid, context) {
                // It may have anything mapped. The first process of the host is no agent, and some kernels show it to nobody.
                let is_init = pid == INIT_PID && err.kind() == ErrorKind::PermissionDenied;
                scan.is_complete &= has_ended(&err) || is_init;
            }
        }
        scan.duration = started.elapsed();
        scan
    }

    fn read_process(&mut self, pid: u32, context: &ScanContext) -> io::Result<()> {
        let stat = ProcessStat::of(pid)?;
        let id = stat.id;
        if !context.may_read(id) {
            return Err(ErrorKind::TimedOut.into());
        }
        let maps = File::open(format!("{}/maps", stat.proc_dir()?))?;
        // Most processes have nothing of the kind mapped.
        let process = LazyCell::new(|| {
            let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            MappingProcess {
                id,
                parent: stat.parent,
                // No user has this id (chown(2): -1 means no change).
                uid: ancestors::uid(pid).unwrap_or(u32::MAX),
                command: String::from_utf8_lossy(&command).trim_end().to_owned(),
            }
        });
        let (mut maps, mut line) = (BufReader::new(maps), Vec::new());
        let (mut mapped, mut libraries) = (HashSet::new(), Libraries::default());
        // A process may end at any point; what was read of it until then may stay.
        while read_line(&mut maps, &mut line)? {
            let mapping = shared_mapping(&line);
            if let Some((path, ino)) = mapping.filter(|(_, ino)| self.request.includes(*ino)) {
                mapped.insert(ino);
                self.is_complete &= self.add(path, ino, &process);
            }
            libraries.note(&line);
        }
        if let Some(core) = libraries.of_backend().filter(|_| process.is_agent()) {
            self.nixl_processes.push((id, core));
        }
        let mut files = self.request.files.keys();
        if files.any(|file| mapped.contains(&file.ino)) && process.is_agent() {
            // An ancestor that blocks is what the scan waits for then.
            let facts = Facts::of_process(id, &mut |ancestor| context.may_read(ancestor));
            self.facts.extend(facts.map(|facts| (id, facts)));
        }
        Ok(())
    }

    /// Notes that a process has an inode mapped. Returns false if there is no room for that.
    fn add(&mut self, path: String, ino: u64, process: &MappingProcess) -> bool {
        let known = self.by_inode.entry(ino).or_default();
        let own = known.iter().rev();
        let own = own.take_while(|(_, other)| other.id == process.id);
        // The same inode number may be another file system's as well.
        let paths = Vec::from_iter(own.map(|(path, _)| path));
        if paths.contains(&&path) {
            return true;
        }
        let has_room = known.len() < MAX_MAPPING_PROCESSES && paths.len() < MAX_PATHS;
        if has_room {
            known.push((path, process.clone()));
        }
        has_room
    }

    /// The processes that have this file mapped. Device numbers in maps are those of the file system, which for some
    /// (btrfs, overlayfs) differ from the ones that stat(2) gives: then the path decides.
    #[must_use]
    pub fn processes_of(&self, file: FileId, path: &Path) -> Vec<&MappingProcess> {
        let device = device(file.dev);
        let known = self.by_inode.get(&file.ino).into_iter().flatten();
        let known = known.filter_map(|(path, process)| Some((path.split_once(' ')?, process)));
        // Two containers may have a file of the same number at the same path.
        let by_device = known.clone().any(|((other, _), _)| other == device);
        let found = known.filter(|((other, name), _)| match by_device {
            true => *other == device,
            false => path == Path::new(name),
        });
        found.map(|(_, process)| process).collect()
    }

    /// The process that has locked a store, which its agent does for as long as it lives. `None`: none has, or it is not known.
    #[must_use]
    pub fn lock_holder(&self, file: FileId) -> Option<ProcessId> {
        self.locks.as_ref()?.holder(&device(file.dev), file.ino)
    }

    /// True if certainly no process has locked a file with this inode number.
    #[must_use]
    pub fn is_unlocked(&self, ino: u64) -> bool {
        self.locks.as_ref().is_some_and(|locks| !locks.has(ino))
    }

    /// Whether a file with this inode number is mapped by a process that could be an agent, on whatever device it seems to be.
    #[must_use]
    pub fn may_have_writer(&self, ino: u64) -> bool {
        let mut known = self.by_inode.get(&ino).into_iter().flatten();
        known.any(|(_, process)| process.is_agent())
    }

    /// The processes that have a NIXL backend loaded and none of these files mapped; `None`: not all processes were seen.
    #[must_use]
    pub fn without_telemetry<'a>(
        &self,
        files: impl IntoIterator<Item = (FileId, &'a Path)>,
    ) -> Option<Vec<ProcessId>> {
        let writers = files
            .into_iter()
            .flat_map(|(id, path)| self.processes_of(id, path));
        let writers: HashSet<ProcessId> = writers.map(|process| process.id).collect();
        let all = self.nixl_processes.iter().map(|(process, _)| *process);
        let silent = all.filter(|process| !writers.contains(process));
        self.is_complete.then(|| silent.collect())
    }
}

/// Those of these processes that were not forked from another of them: a process that is forked has what its parent had mapped.
#[must_use]
pub fn topmost<'a>(processes: &[&'a MappingProcess]) -> Vec<&'a MappingProcess> {
    let pids: HashSet<u32> = processes.iter().map(|process| process.id.pid).collect();
    let all = processes.iter().copied();
    all.filter(|process| !pids.contains(&process.parent))
        .collect()
}

/// A device number as /proc/PID/maps and /proc/locks have it.
fn device(dev: u64) -> String {
    let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    format!("{major:02x}:{minor:02x}")
}

/// The next line of maps, without what is beyond its first bytes; whether there is one.
fn read_line(maps: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    maps.by_ref().take(MAX_LINE).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        maps.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}

/// What /proc/locks says, all at one go, since locks come and go while it is read; `None` where it is too long for that.
fn locks() -> Option<String> {
    let mut text = String::new();
    let file = File::open("/proc/locks").ok()?;
    file.take(MAX_LOCKS_TEXT).read_to_string(&mut text).ok()?;
    ((text.len() as u64) < MAX_LOCKS_TEXT).then_some(text)
}

impl MappingProcess {
    /// Whether it may be an agent: neither this process nor another pmdanixl, which only reads.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        let own = geteuid().as_raw();
        self.id.pid != std::process::id() && !self.is_pmdanixl(&[own])
    }

    /// True if it is pmdanixl. Since any user can give a process this name, it must be a process of root or of one of `users`.
    #[must_use]
    pub fn is_pmdanixl(&self, users: &[u32]) -> bool {
        self.command == "pmdanixl" && (self.uid == 0 || users.contains(&self.uid))
    }
}

/// A user's name, or its number where it has none.
fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// `device path` and inode of a line of maps, if it is a writable shared mapping of a file (proc_pid_maps(5)).
#[must_use]
pub fn shared_mapping(line: &[u8]) -> Option<(String, u64)> {
    // Most lines are none, and there are many.
    let mode = line.split(|&byte| byte == b' ').nth(1)?;
    if !(mode.starts_with(b"rw") && mode.ends_with(b"s")) {
        return None;
    }
    let line = String::from_utf8_lossy(line);
    let mut fields = line.trim_end_matches('\n').splitn(6, ' ').skip(3);
    let (device, ino) = (fields.next()?, fields.next()?.parse().ok()?);
    let path = fields.next().unwrap_or_default().trim_start();
    (ino != 0).then(|| (format!("{device} {path}"), ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm;

    fn scan(files: &[&FileFacts], inodes: Option<HashSet<u64>>) -> ProcessScan {
        let request = ScanRequest {
            files: files.iter().map(|file| (file.id, **file)).collect(),
            inodes,
            pod_logs: PathBuf::new(),
        };
        ProcessScan::run(request, &ScanContext::new(Vec::new()).0)
    }

    /// A file, mapped, and what stat(2) tells of it.
    fn mapped() -> (tempfile::NamedTempFile, shm::Mapping, FileFacts) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(4096).expect("room");
        let mapping = shm::Mapping::new(file.as_file(), 512).expect("mapped");
        let stat = nix::sys::stat::fstat(file.as_file()).expect("open");
        (file, mapping, FileFacts::new(&stat))
    }

    #[test]
    fn only_writable_shared_mappings_of_files_count() {
        let line = "7f0a1c000000-7f0a1c011000 rw-s 00000000 fe:00 131203                     /var/tmp/my ring";
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
    fn one_inode_number_on_two_file_systems_is_two_files() {
        let process = |pid| MappingProcess {
            id: ProcessId { pid, start: 1 },
            parent: 0,
            uid: 0,
            command: "python3".into(),
        };
        let known = vec![
            ("00:1b /memfd:other".into(), process(1)),
            ("fe:00 /var/tmp/ring".into(), process(2)),
            // btrfs: another device number than stat(2) gives.
            ("00:30 /srv/ring".into(), process(3)),
            // Another container's, which sees it at the same path.
            ("00:31 /var/tmp/ring".into(), process(4)),
        ];
        let process_scan = ProcessScan {
            by_inode: [(7, known)].into(),
            is_complete: true,
            ..ProcessScan::default()
        };
        let pids = |dev, ino, path: &str| -> Vec<u32> {
            let found = process_scan.processes_of(FileId { dev, ino }, Path::new(path));
            found.into_iter().map(|process| process.id.pid).collect()
        };
        let device = nix::sys::stat::makedev;
        assert_eq!(pids(device(0xfe, 0), 7, "/var/tmp/ring"), [2]);
        assert_eq!(pids(device(0, 0x2f), 7, "/srv/ring"), [3]);
        assert_eq!(pids(device(0, 0x2f), 8, "/srv/ring"), [0; 0]);
    }

    #[test]
    fn processes_without_their_children_are_those_of_other_parents() {
        let process = |(pid, parent)| MappingProcess {
            id: ProcessId { pid, start: 1 },
            parent,
            uid: 0,
            command: "python3".into(),
        };
        let all = [(7, 1), (9, 7), (8, 9), (5, 4), (3, 0)].map(process);
        let left = topmost(&Vec::from_iter(&all));
        let left = left.iter().map(|process| process.id.pid);
        assert_eq!(Vec::from_iter(left), [7, 5, 3]);
    }

    #[test]
    fn this_process_is_found_by_what_it_has_mapped() {
        let (file, mapping, facts) = mapped();
        let process_scan = scan(&[&facts], Some([facts.id.ino].into()));
        let found = process_scan.processes_of(facts.id, file.path());
        // A child that another test makes has it as well, until it starts its program.
        let is_ours = |process: &&&MappingProcess| process.id.pid == std::process::id();
        assert_eq!(found.iter().filter(is_ours).count(), 1, "{found:?}");
        // It is no agent.
        let ours = ProcessId::of(std::process::id()).expect("this one");
        assert_eq!(process_scan.facts.get(&ours), None);
        drop(mapping);
        assert!(
            scan(&[], None)
                .processes_of(facts.id, file.path())
                .is_empty()
        );
    }

    #[test]
    fn only_what_is_asked_for_is_kept() {
        let files = [mapped(), mapped()];
        let [asked, other] = files.each_ref().map(|(.., facts)| facts.id.ino);
        let process_scan = scan(&[], Some([asked].into()));
        let found: Vec<u64> = process_scan.by_inode.keys().copied().collect();
        assert_eq!(found, [asked]);
        let all = scan(&[], None);
        assert!(
            [asked, other]
                .iter()
                .all(|ino| all.by_inode.contains_key(ino))
        );
    }

    #[test]
    fn an_inode_that_too_many_have_mapped_is_not_known_whole() {
        let process = |pid| MappingProcess {
            id: ProcessId { pid, start: 1 },
            parent: 0,
            uid: 0,
            command: "python3".into(),
        };
        let mut process_scan = ProcessScan::default();
        let added = (0..2000).map(|pid| process_scan.add("fe:00 /ring".into(), 7, &process(pid)));
        assert_eq!(
            added.filter(|&has_room| has_room).count(),
            MAX_MAPPING_PROCESSES
        );
        assert_eq!(process_scan.by_inode[&7].len(), MAX_MAPPING_PROCESSES);
        let paths =
            (0..100).map(|number| process_scan.add(format!("fe:00 /{number}"), 8, &process(1)));
        assert_eq!(paths.filter(|&has_room| has_room).count(), MAX_PATHS);
        assert!(
            process_scan.add("fe:00 /3".into(), 8, &process(1)),
            "it is known"
        );
    }

    #[test]
    fn a_line_is_cut_where_no_path_that_can_be_opened_goes_on() {
        let long = format!("a{}\nb\n", "x".repeat(1 << 20));
        let (mut maps, mut line) = (BufReader::new(long.as_bytes()), Vec::new());
        assert!(read_line(&mut maps, &mut line).expect("read"));
        assert_eq!(line.len() as u64, MAX_LINE);
        assert!(read_line(&mut maps, &mut line).expect("read"));
        assert_eq!(line, b"b\n");
        assert!(!read_line(&mut maps, &mut line).expect("read"));
    }
}
