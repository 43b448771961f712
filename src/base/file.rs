// SPDX-License-Identifier: GPL-2.0-or-later

//! Identity of a file, and what stat(2) and readdir(3) return for it.

use crate::base::words::words;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Flags of open(2) to list a directory.
pub const LIST_FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK);
/// Upper bound of the granularity of file times. The kernel takes them from a clock that ticks every 10 ms or faster.
pub const FILE_TIME_GRANULARITY: Duration = Duration::from_millis(20);

/// Device and inode number, which identify a file under any name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FileId {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}
words!(FileId: dev, ino);

/// The fields of stat(2) that the daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Identity of the file.
    pub id: FileId,
    /// Size in bytes.
    pub size: u64,
    /// User id of the owner.
    pub uid: u32,
    /// Number of hard links.
    pub links: u64,
    /// File type, as in `st_mode`.
    pub kind: SFlag,
    /// Time of the last change of data or attributes (ctime): seconds and nanoseconds.
    pub changed: (i64, i64),
    /// Time of the last change of data (mtime): seconds and nanoseconds.
    pub modified: (i64, i64),
}

impl FileFacts {
    /// True if it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == SFlag::S_IFREG
    }

    /// Takes the facts from a result of stat(2).
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

/// Opens a name in an open directory. A symbolic link is not followed, and neither is a mount: a user may have mounted
/// a file system there that does not answer.
///
/// # Errors
/// Any of openat2(2); EXDEV at a mount.
pub fn open_entry(directory: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags);
    match openat2(directory, name, how.resolve(ResolveFlag::RESOLVE_NO_XDEV)) {
        // Before Linux 5.6, or where a filter of system calls does not know it.
        Err(Errno::ENOSYS | Errno::EPERM) => openat(directory, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// Returns the facts of a name in an open directory. A symbolic link is not followed.
///
/// # Errors
/// Those of [`open_entry`]; ENOENT if the file is gone.
pub fn facts(directory: &OwnedFd, name: &OsStr) -> nix::Result<FileFacts> {
    let file = open_entry(directory, name, OFlag::O_PATH)?;
    fstat(&file).map(|stat| FileFacts::new(&stat))
}

/// Returns the birth time of a file: seconds and nanoseconds. Both are zero if the file system has no birth times.
#[must_use]
pub fn birth_time(meta: &Metadata) -> (i64, i64) {
    let born = meta.created().ok();
    let born = born.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    born.map_or((0, 0), |time| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        (seconds, time.subsec_nanos().into())
    })
}

/// True if the file is on a file system of one of these types (statfs(2)).
pub fn is_on(file: &File, types: &[FsType]) -> bool {
    fstatfs(file).is_ok_and(|found| types.contains(&found.filesystem_type()))
}

/// Returns the names in a directory without `.` and `..`. They are sorted, so that every scan has the same order.
///
/// # Errors
/// Any of open(2) and readdir(3).
pub fn list_names_at(directory: &Path) -> nix::Result<Vec<OsString>> {
    let mut dir = Dir::open(directory, LIST_FLAGS, Mode::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The time in seconds and nanoseconds of the clock that file times are taken from. A change from now on has this time
/// or a later one.
#[must_use]
pub fn clock() -> (i64, i64) {
    // Without a clock nothing is known to be older.
    clock_gettime(ClockId::CLOCK_REALTIME_COARSE)
        .map_or((0, 0), |time| (time.tv_sec(), time.tv_nsec()))
}

/// True if a time of a file (seconds and nanoseconds) is less than an age ago, or still to come.
#[must_use]
pub fn is_younger_than((seconds, nanoseconds): (i64, i64), age: Duration) -> bool {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let time = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    // A Duration has less than 2^94 ns.
    let [now, age] = [now, age].map(|time| time.as_nanos() as i128);
    now - time < age
}
