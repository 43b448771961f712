//! Which file a file is, and what stat(2) and readdir(3) tell of it.

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// To list a directory.
pub const LIST_FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK);
/// More than a tick of the clock that file times are taken from (10 ms at most).
pub const FILE_TIME_GRANULARITY: Duration = Duration::from_millis(20);
/// Which file it is, whatever its names: device and inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// What stat(2) tells of a file, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Which file it is.
    pub id: FileId,
    /// Bytes.
    pub size: u64,
    /// Owner's user id.
    pub uid: u32,
    /// Names that the file has.
    pub links: u64,
    /// Type, as in `st_mode`.
    pub kind: SFlag,
    /// When data or attributes last changed: seconds and nanoseconds.
    pub changed: (i64, i64),
    /// When data last changed: seconds and nanoseconds.
    pub modified: (i64, i64),
}

impl FileFacts {
    /// True if it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == SFlag::S_IFREG
    }

    /// The facts in what stat(2) filled in.
    #[must_use]
    #[allow(
        clippy::useless_conversion,
        reason = "the types of some fields differ between architectures"
    )]
    pub fn new(stat: &FileStat) -> Self {
        Self {
            id: FileId {
                dev: stat.st_dev,
                ino: stat.st_ino,
            },
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            uid: stat.st_uid,
            links: u64::from(stat.st_nlink),
            kind: SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
        }
    }
}

/// What stat(2) tells of a name in an open directory; a symbolic link is not followed.
///
/// # Errors
/// What fstatat(2) says; ENOENT where the file is gone again.
pub fn facts(directory: &OwnedFd, name: &OsStr) -> nix::Result<FileFacts> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| FileFacts::new(&stat))
}

/// When a file was made: seconds and nanoseconds; zeros where the file system does not tell.
#[must_use]
pub fn birth_time(meta: &Metadata) -> (i64, i64) {
    let born = meta.created().ok();
    let born = born.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    born.map_or((0, 0), |time| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        (seconds, time.subsec_nanos().into())
    })
}

/// The names in an open directory, `.` and `..` left out, sorted so that every scan goes the same way.
///
/// # Errors
/// What readdir(3) says.
pub fn list_names(directory: &OwnedFd) -> nix::Result<Vec<OsString>> {
    let mut dir = Dir::openat(directory, ".", LIST_FLAGS, Mode::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from(OsStr::from_bytes(&name)));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The names in the directory at this path, as [`names`] has them.
///
/// # Errors
/// What open(2) and readdir(3) say.
pub fn names_at(directory: &Path) -> nix::Result<Vec<OsString>> {
    list_names(&open(directory, LIST_FLAGS, Mode::empty())?)
}

/// Whether a time of a file (seconds and nanoseconds) is less than an age ago, or still to come.
#[must_use]
pub fn is_younger_than((seconds, nanoseconds): (i64, i64), age: Duration) -> bool {
    let Ok((seconds, nanoseconds)) =
        u64::try_from(seconds).and_then(|s| Ok((s, u32::try_from(nanoseconds)?)))
    else {
        return false;
    };
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    SystemTime::now()
        .duration_since(time)
        .map_or(true, |past| past < age)
}
