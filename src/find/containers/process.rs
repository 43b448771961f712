//! One process of another mount namespace: what it has mapped, where it was told to write, and the way into its directories.

use crate::find::containers::Why;
use crate::find::directory::{Inside, LIST, PASS, names};
use crate::producer::facts::cgroup::Cgroup;
use crate::producer::facts::environ::Directories;
use crate::producer::survey::shared_mapping;
use crate::producer::writer::Writer;
use crate::store::is_store_name;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::sys::statfs::{self, FsType, fstatfs};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is read of its environment, its control groups and its mounts, in bytes.
const ENVIRON: u64 = 256 << 10;
const CGROUP: u64 = 64 << 10;
const MOUNTINFO: u64 = 256 << 10;
/// How many of its mappings may be telemetry.
const MAX_FILES: usize = 4096;
/// What the kernel shows behind a file that has no name any more.
const DELETED: &str = " (deleted)";

/// File systems that answer by themselves: none of them waits for a server or for a process that may keep us waiting. In a user
/// namespace of its own anybody can mount some of the others, and overlays of them; that is why those are left alone.
const LOCAL: [FsType; 8] = [
    statfs::TMPFS_MAGIC,
    // ext2 and ext3 as well.
    statfs::EXT4_SUPER_MAGIC,
    statfs::XFS_SUPER_MAGIC,
    statfs::BTRFS_SUPER_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
    // ramfs, f2fs and zfs.
    FsType(0x8584_58f6),
    FsType(0xf2f5_2010),
    FsType(0x2fc1_2fc1),
];

/// A process that has files mapped as a producer of telemetry has.
#[derive(Clone, Debug)]
pub struct Process {
    /// Which one.
    pub writer: Writer,
    /// Its mount namespace.
    pub mnt: u64,
    /// Whether its user namespace is ours.
    pub is_ours: bool,
    /// Path and inode of each of its writable shared mappings of files, each once.
    files: Vec<(String, u64)>,
}

/// The number of a namespace of a process; of this one for "self".
///
/// # Errors
/// It may not be looked at, or is gone.
pub fn namespace(process: &str, kind: &str) -> io::Result<u64> {
    let link = fs::read_link(format!("/proc/{process}/ns/{kind}"))?;
    let number = link.to_str().and_then(|link| link.split_once(":["));
    let number = number.and_then(|(_, number)| number.strip_suffix(']')?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Process {
    /// Looks at what it has mapped; `None`: nothing that could be telemetry. May wait for as long as the process likes.
    ///
    /// # Errors
    /// It may not be looked at, or is gone.
    pub fn read(writer: Writer, mnt: u64, is_ours: bool) -> io::Result<Option<Self>> {
        let maps = File::open(format!("/proc/{}/maps", writer.pid))?;
        let (mut maps, mut line, mut files) = (BufReader::new(maps), Vec::new(), Vec::new());
        while maps.read_until(b'\n', &mut line)? > 0 && files.len() < MAX_FILES {
            if let Some((place, ino)) = shared_mapping(&line) {
                let path = place.split_once(' ').map_or("", |(_, path)| path);
                // A store is made without a name, and is shown so for ever after it got one.
                let path = match path.strip_suffix(DELETED) {
                    Some(path) if is_unnamed(path, ino) => path,
                    Some(_) => "",
                    None => path,
                };
                let may_be = path.starts_with('/')
                    && !path.starts_with("/memfd:")
                    && !path.starts_with("/dev/nvidia");
                if may_be && files.last().is_none_or(|(last, _)| last != path) {
                    files.push((path.to_owned(), ino));
                }
            }
            line.clear();
        }
        files.sort_unstable();
        files.dedup();
        Ok((!files.is_empty()).then_some(Self {
            writer,
            mnt,
            is_ours,
            files,
        }))
    }

    /// Its control groups and its mounts; none if it is gone: another may have got its number while they were read.
    #[must_use]
    pub fn place(&self) -> (Cgroup, Vec<u8>) {
        let pid = self.writer.pid;
        let read = |file: &str, limit: u64| -> io::Result<Vec<u8>> {
            let mut content = Vec::new();
            let file = File::open(format!("/proc/{pid}/{file}"))?;
            file.take(limit).read_to_end(&mut content)?;
            Ok(content)
        };
        let (cgroup, mounts) = (read("cgroup", CGROUP), read("mountinfo", MOUNTINFO));
        match Writer::of(pid) {
            Ok(now) if now == self.writer => {
                let cgroup = Cgroup::parse(&cgroup.unwrap_or_default());
                (cgroup, mounts.unwrap_or_default())
            }
            _ => (Cgroup::default(), Vec::new()),
        }
    }

    /// Whether it seems to have a file of a directory mapped, by the paths that it sees.
    #[must_use]
    pub fn seems_to_use(&self, directory: &Path) -> bool {
        let mut files = self.files.iter();
        files.any(|(path, _)| Path::new(path).parent() == Some(directory))
    }

    /// Opens a directory as the process sees it; `None`: it has no file of that directory mapped, or is another process by now.
    /// No link leads out of the process's root, and the kernel's own (`/proc/PID/cwd`) are not followed at all.
    ///
    /// # Errors
    /// Why it is left alone.
    pub fn open(&self, directory: &Path) -> Result<Option<Inside>, Why> {
        let pid = self.writer.pid;
        let is_same = || Writer::of(pid).is_ok_and(|now| now == self.writer);
        // A process may change both at any time, and mount there what it likes.
        let is_in = |kind, expected: io::Result<u64>| {
            let now = namespace(&pid.to_string(), kind).ok();
            now.is_some() && now == expected.ok()
        };
        let is_where_it_was =
            || is_in("mnt", Ok(self.mnt)) && is_in("user", namespace("self", "user"));
        if !is_same() {
            return Ok(None);
        }
        let root = format!("/proc/{pid}/root");
        let opened = open(root.as_str(), PASS, Mode::empty())
            .and_then(|root| open_beneath(&root, directory));
        // What was opened in the meantime may be another's that got its number, or in a namespace that it has entered since: whoever
        // leaves our user namespace does not come back.
        if !is_where_it_was() || !is_same() {
            return Ok(None);
        }
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(Why::Open(errno)),
        };
        let kind = fstatfs(&fd).map_err(Why::Open)?.filesystem_type();
        if !LOCAL.contains(&kind) {
            return Err(Why::FileSystem(kind.0));
        }
        if !self.has_mapped_one_of(&fd) {
            return Ok(None);
        }
        Inside::new(fd).map(Some).map_err(Why::Open)
    }

    /// Whether it has a file of an open directory mapped: by name and inode, since device numbers in maps are not always those
    /// of stat(2), and paths are not those that it was told where there are links in them.
    fn has_mapped_one_of(&self, directory: &OwnedFd) -> bool {
        let is_file = |name: &OsStr, is_it: &dyn Fn(u64) -> bool| {
            let stat = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| {
                let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
                kind == SFlag::S_IFREG && is_it(stat.st_ino)
            })
        };
        let has_name = self.files.iter().any(|(path, ino)| {
            let name = Path::new(path).file_name();
            name.is_some_and(|name| is_file(name, &|found| found == *ino))
        });
        if has_name {
            return true;
        }
        let files = self.files.iter();
        let unnamed: HashSet<u64> = files
            .filter(|(path, ino)| is_unnamed(path, *ino))
            .map(|(_, ino)| *ino)
            .collect();
        if unnamed.is_empty() {
            return false;
        }
        let names = names(directory).unwrap_or_default().into_iter();
        let mut stores = names.filter(|name| is_store_name(name)).take(MAX_FILES);
        stores.any(|name| is_file(&name, &|found| unnamed.contains(&found)))
    }
}

/// Whether a path is that of a file that was made without a name (O_TMPFILE), as the kernel shows it: its directory, and `#INODE`.
fn is_unnamed(path: &str, ino: u64) -> bool {
    let name = path.rsplit_once('/').map(|(_, name)| name);
    name.and_then(|name| name.strip_prefix('#')) == Some(&ino.to_string())
}

/// Where a process was told to write; nowhere if it is gone, and another has its number.
#[must_use]
pub fn told(process: Writer) -> Directories {
    let environ = File::open(format!("/proc/{}/environ", process.pid));
    let told = environ.and_then(|file| Directories::read(file.take(ENVIRON)));
    match Writer::of(process.pid) {
        Ok(now) if now == process => told.unwrap_or_default(),
        _ => Directories::default(),
    }
}

/// Opens a directory below another as if that were the root.
fn open_beneath(root: &OwnedFd, directory: &Path) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(LIST).resolve(resolve);
    openat2(root, directory, how)
}

/// Whether the kernel has openat2(2), and lets us use it.
///
/// # Errors
/// What it says.
pub fn can_open_beneath() -> nix::Result<()> {
    let root = open("/", PASS, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(&root, "/", how).map(drop)
}

#[cfg(test)]
impl Process {
    /// One that has nothing mapped.
    pub fn of_test(writer: Writer, mnt: u64) -> Self {
        Self {
            writer,
            mnt,
            is_ours: true,
            files: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm;
    use std::os::unix::fs::symlink;

    fn opened(root: &Path, directory: &str) -> nix::Result<OwnedFd> {
        let root = open(root, PASS, Mode::empty()).expect("there");
        open_beneath(&root, Path::new(directory))
    }

    #[test]
    fn no_link_leads_out_of_the_root_and_the_kernels_own_lead_nowhere() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("etc/here")).expect("made");
        for (target, link) in [("/etc", "absolute"), ("../../../../../etc", "upwards")] {
            symlink(target, at(link)).expect("made");
        }
        for path in ["/etc", "/absolute", "/upwards", "/../../etc/../absolute"] {
            let fd = opened(dir.path(), path).expect("there");
            let names = crate::find::directory::names(&fd).expect("a list");
            assert_eq!(names, ["here"], "{path}");
        }
        // Not there in this root, though it is in ours.
        symlink("/proc/self", at("out")).expect("made");
        assert_eq!(opened(dir.path(), "/out").err(), Some(Errno::ENOENT));
        let root = Path::new("/");
        for magic in ["/proc/self/cwd", "/proc/self/root", "/proc/self/fd/0"] {
            assert_eq!(opened(root, magic).err(), Some(Errno::ELOOP), "{magic}");
        }
        assert!(opened(root, "/proc/self").is_ok() && can_open_beneath().is_ok());
    }

    #[test]
    fn nothing_is_said_of_a_process_whose_number_another_has_got() {
        let ours = Writer::of(std::process::id()).expect("this one");
        let before = Writer {
            start: ours.start + 1,
            ..ours
        };
        assert!(!Process::of_test(ours, 1).place().1.is_empty(), "mounts");
        assert_eq!(
            Process::of_test(before, 1).place(),
            (Cgroup::default(), Vec::new())
        );
        let mut told = std::process::Command::new("sleep")
            .arg("600")
            .env("NIXL_TELEMETRY_DIR", "/there")
            .spawn()
            .expect("sleep(1) is there");
        // Between fork and exec it has our environment.
        let now = || Writer::of(told.id()).expect("it runs");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while super::told(now()).is_empty() {
            assert!(std::time::Instant::now() < end, "it was told");
        }
        let before = Writer {
            start: now().start + 1,
            ..now()
        };
        assert!(super::told(before).is_empty());
        told.kill().expect("it runs");
        told.wait().expect("our child");
    }

    #[test]
    fn a_directory_is_taken_only_of_the_same_process_and_with_a_file_of_it_mapped() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("other")).expect("made");
        let file = File::create_new(dir.path().join("ring")).expect("made");
        file.set_len(4096).expect("room");
        let mapping = File::options()
            .read(true)
            .write(true)
            .open(dir.path().join("ring"));
        let mapping = shm::Mapping::new(&mapping.expect("there"), 512).expect("mapped");
        let ours = Writer::of(std::process::id()).expect("this one");
        let mnt = namespace("self", "mnt").expect("ours");
        let process = Process::read(ours, mnt, true)
            .expect("ours")
            .expect("it has one");
        let found = process.open(dir.path()).expect("a local file system");
        assert!(found.is_some() && process.seems_to_use(dir.path()));
        assert!(matches!(process.open(&dir.path().join("other")), Ok(None)));
        assert!(matches!(process.open(Path::new("/no-such")), Ok(None)));
        assert!(matches!(
            process.open(Path::new("/proc")),
            Err(Why::FileSystem(0x9fa0))
        ));
        let elsewhere = Process {
            mnt: mnt + 1,
            ..process.clone()
        };
        assert!(
            matches!(elsewhere.open(dir.path()), Ok(None)),
            "it was in another namespace when it was looked at"
        );
        let earlier = Writer {
            start: ours.start - 1,
            ..ours
        };
        let process = Process {
            writer: earlier,
            ..process
        };
        assert!(matches!(process.open(dir.path()), Ok(None)));
        drop(mapping);
    }
}
