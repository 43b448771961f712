// SPDX-License-Identifier: GPL-2.0-or-later

//! Directory of a process in /proc.

use crate::base::file::LIST_FLAGS;
use crate::procfs::process::{ProcessId, ProcessStat};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Limit of a short file, in bytes. `status` and `limits` have about 1,500; the rest of `status` is the list of its
/// groups.
const MAX_TEXT: u64 = 1 << 16;

/// Why a process was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its group is skipped.
    #[error("its group is skipped")]
    Skipped,
    /// It has ended, or /proc does not allow it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Process with an open directory in /proc. After its end, nothing of this directory can be read, also if a later
/// process has its id.
#[derive(Debug)]
pub struct ProcessDir {
    id: ProcessId,
    directory: OwnedFd,
}

impl ProcessDir {
    /// Opens the process that has this id now.
    ///
    /// # Errors
    /// There is none, or /proc hides it.
    pub fn open(pid: u32) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open(&*format!("/proc/{pid}"), flags, Mode::empty())?;
        let mut process = Self {
            id: ProcessId { pid, start: 0 },
            directory,
        };
        process.id = process.stat()?.id;
        Ok(process)
    }

    /// Opens a process.
    ///
    /// # Errors
    /// It has ended, or /proc hides it.
    pub fn of(id: ProcessId) -> io::Result<Self> {
        let process = Self::open(id.pid)?;
        match process.id == id {
            true => Ok(process),
            false => Err(Errno::ESRCH.into()),
        }
    }

    /// Returns the process if `may_read` says that it may be read.
    ///
    /// # Errors
    /// It says no ([`ReadError::Skipped`]).
    pub fn allowed_by(
        self,
        may_read: &mut dyn FnMut(ProcessId) -> bool,
    ) -> Result<Self, ReadError> {
        match may_read(self.id) {
            true => Ok(self),
            false => Err(ReadError::Skipped),
        }
    }

    /// The process.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns what its `stat` says now.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn stat(&self) -> io::Result<ProcessStat> {
        ProcessStat::read(self.id.pid, self.file("stat")?)
    }

    /// True if the process still runs, as [`ProcessId::is_running`].
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.stat().is_ok_and(|now| !now.has_ended())
    }

    /// Opens a file of the directory.
    ///
    /// # Errors
    /// The process has ended, or its file may not be read.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::empty())?.into())
    }

    /// Returns the first bytes of a file of the directory.
    ///
    /// # Errors
    /// Those of [`ProcessDir::file`].
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.file(name)?.take(limit).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Returns a short file of the directory as text; empty if it cannot be read.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let content = self.read(name, MAX_TEXT).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }

    /// Returns the target of a link of the directory.
    ///
    /// # Errors
    /// The process has ended, or its links may not be read.
    pub fn link(&self, name: &str) -> io::Result<PathBuf> {
        Ok(readlinkat(&self.directory, name)?.into())
    }

    /// Returns what stat(2) says of a file of the directory, or of the target of its link.
    ///
    /// # Errors
    /// The process has ended, or its files may not be read.
    pub fn metadata(&self, name: &str) -> io::Result<FileStat> {
        Ok(fstatat(&self.directory, name, AtFlags::empty())?)
    }

    /// Opens the root directory of the process.
    ///
    /// # Errors
    /// The process has ended, or its files may not be read.
    pub fn root(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        Ok(openat(&self.directory, "root", flags, Mode::empty())?)
    }

    /// Returns the inode number of a namespace of the process. `kind` is a name in its `ns`.
    ///
    /// # Errors
    /// The process has ended, or may not be read.
    pub fn namespace(&self, kind: &str) -> io::Result<u64> {
        Ok(self.metadata(&format!("ns/{kind}"))?.st_ino)
    }

    /// Returns the real user id of the process; `None` if /proc does not tell.
    #[must_use]
    pub fn uid(&self) -> Option<u32> {
        let status = self.text("status");
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        uids.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Returns how often the first thread of the process has given up the processor; `None` if /proc does not tell.
    #[must_use]
    pub fn switches(&self) -> Option<u64> {
        let status = self.text("status");
        let count = |name| {
            let count = status.lines().find_map(|line| line.strip_prefix(name))?;
            count.trim().parse::<u64>().ok()
        };
        count("voluntary_ctxt_switches:")?.checked_add(count("nonvoluntary_ctxt_switches:")?)
    }

    /// Lists the open files of the process, at most so many.
    ///
    /// # Errors
    /// The process has ended, or its files may not be read.
    pub fn descriptors(&self, most: usize) -> io::Result<Descriptors> {
        let directory = openat(&self.directory, "fd", LIST_FLAGS, Mode::empty())?;
        let mut directory = Dir::from_fd(directory)?;
        // `.` and `..` are not numbers.
        let numbers = directory.iter().filter_map(|entry| match entry {
            Ok(entry) => Some(Ok(entry.file_name().to_str().ok()?.parse().ok()?)),
            Err(errno) => Some(Err(errno)),
        });
        let numbers = numbers.take(most).collect::<nix::Result<_>>()?;
        Ok(Descriptors { directory, numbers })
    }
}

/// Open files of a process.
#[derive(Debug)]
pub struct Descriptors {
    directory: Dir,
    /// Their descriptors.
    pub numbers: Vec<RawFd>,
}

impl Descriptors {
    /// Returns each descriptor, and what it is when it is reached (proc_pid_fd(5)). A file that was closed meanwhile is
    /// left out.
    ///
    /// # Errors
    /// The process has ended, or its files may not be read.
    pub fn targets(&self) -> impl Iterator<Item = io::Result<(RawFd, OsString)>> {
        let targets = self.numbers.iter().map(|&fd| {
            let target = readlinkat(self.directory.as_fd(), &*fd.to_string());
            (fd, target)
        });
        targets.filter_map(|(fd, target)| match target {
            Ok(target) => Some(Ok((fd, target))),
            Err(Errno::ENOENT) => None,
            Err(errno) => Some(Err(errno.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::process::has_ended;
    use std::process::Command;

    #[test]
    fn ended_process_cannot_be_read() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let process = ProcessDir::open(child.id()).expect("it runs");
        let earlier = ProcessId {
            start: process.id().start - 1,
            ..process.id()
        };
        assert!(ProcessDir::of(earlier).is_err_and(|err| has_ended(&err)));
        assert!(process.is_running() && process.uid().is_some() && process.switches().is_some());
        let files = process.descriptors(2).expect("ours");
        assert_eq!(files.numbers.len(), 2, "of at least three");
        child.kill().expect("it runs");
        child.wait().expect("our child");
        assert!(!process.is_running() && process.uid().is_none() && process.switches().is_none());
        let errors = [
            process.file("maps").map(drop),
            process.metadata("root/dev").map(drop),
            process.namespace("pid").map(drop),
            process.descriptors(2).map(drop),
            ProcessDir::of(process.id()).map(drop),
        ];
        for found in errors {
            assert!(found.as_ref().is_err_and(has_ended), "{found:?}");
        }
    }
}
