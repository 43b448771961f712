// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes: whether one holds a file, by lease; whether one still runs, by /proc.

use crate::base::file::is_on;
use crate::shm::{Lease, LeaseKind};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::statfs::OVERLAYFS_SUPER_MAGIC;
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt;

/// Process id of the init process.
pub const INIT_PID: u32 = 1;
/// Inode number of the PID namespace that shows all processes of the host (PROC_PID_INIT_INO of Linux's
/// include/linux/proc_ns.h).
const HOST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What other processes do with a file, as far as the kernel and /proc tell. Of several files of an agent, the greatest
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// No other process has the file open: the agent that wrote it has exited.
    #[default]
    Gone,
    /// Processes have the file open, and none of them can write it.
    Readers,
    /// Neither the kernel nor /proc tells.
    Unknown,
    /// A process has the file open: the agent, or a process that reads the file.
    Held,
    /// A process can write the file.
    Writing,
}

impl Presence {
    /// Asks the kernel for a lease on a file, and returns what that tells of other processes. With
    /// [`LeaseKind::NoWriter`], only processes that may write count.
    #[must_use]
    pub fn by_lease(file: &File, kind: LeaseKind) -> Self {
        match Lease::acquire(file, kind) {
            // overlayfs grants a lease although processes have the file of the lower layer mapped.
            Ok(_) if is_on(file, &[OVERLAYFS_SUPER_MAGIC]) => Self::Unknown,
            Ok(_) => Self::Gone,
            Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => Self::of_holder(kind),
            Err(_) => Self::Unknown,
        }
    }

    /// Returns what a process tells that prevents a lease.
    #[must_use]
    pub fn of_holder(kind: LeaseKind) -> Self {
        match kind {
            LeaseKind::Exclusive => Self::Held,
            LeaseKind::NoWriter => Self::Writing,
        }
    }
}

/// Returns the inode number of a namespace of this process. `kind` is a name in /proc/self/ns.
///
/// # Errors
/// /proc cannot be read.
pub fn own_namespace(kind: &str) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/self/ns/{kind}"))?.ino())
}

/// True if the PID namespace of this process shows all processes of the host.
#[must_use]
pub fn sees_host() -> bool {
    own_namespace("pid").is_ok_and(|own| own == HOST_PID_NAMESPACE)
}

/// A process. Its start time distinguishes it from a later process with the same id.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks after boot (field 22 of /proc/PID/stat).
    pub start: u64,
}

impl ProcessId {
    /// Returns the process that has this id now.
    ///
    /// # Errors
    /// There is none, or it may not be read.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(ProcessStat::of(pid)?.id)
    }

    /// True if a process has this id: this process, its zombie, or a later process.
    #[must_use]
    pub fn has_process(&self) -> bool {
        let pid = i32::try_from(self.pid).map(Pid::from_raw);
        // Signal 0 is not sent. EPERM means that the process exists.
        pid.is_ok_and(|pid| pid.as_raw() > 0 && kill(pid, None) != Err(Errno::ESRCH))
    }

    /// True if this process still runs. A zombie does not run. A process that may not be read counts as not running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        ProcessStat::of(self.pid).is_ok_and(|now| now.id == *self && !now.has_ended())
    }
}

/// Fields of /proc/PID/stat (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    /// Process that the line describes.
    pub id: ProcessId,
    /// Process id of the parent; 0 if the parent is outside of this PID namespace.
    pub parent: u32,
    state: u8,
    threads: u64,
    /// CPU time, in clock ticks.
    ticks: u64,
}

impl ProcessStat {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Self::read(pid, File::open(format!("/proc/{pid}/stat"))?)
    }

    /// Reads the file `stat` of a process.
    pub(crate) fn read(pid: u32, mut file: File) -> io::Result<Self> {
        // One read(2), since each writer is checked once a second. A line of 52 numbers is shorter than the buffer.
        let mut line = [0; 2048];
        let len = file.read(&mut line)?;
        Self::parse(pid, &line[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads fields 3, 4, 14, 15, 20 and 22. Field 2, the command in brackets, may contain any byte.
    fn parse(pid: u32, stat: &[u8]) -> Option<Self> {
        let close = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[close + 1..]).ok()?;
        // The first word is field 3.
        let mut fields = rest.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        let user: u64 = fields.nth(9)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let threads = fields.nth(4)?.parse().ok()?;
        let start = fields.nth(1)?.parse().ok()?;
        Some(Self {
            id: ProcessId { pid, start },
            parent,
            state,
            threads,
            ticks: user.saturating_add(system),
        })
    }

    /// True if a signal or a debugger has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// True if the first thread of the process waits in the kernel, and no signal ends the wait.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state == b'D'
    }

    /// True if no thread of the process is left. A process whose first thread alone has ended is a zombie as well, and
    /// runs.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// What processes use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time since their start, in microseconds.
    pub cpu: u64,
    /// Resident memory in bytes, mapped files included.
    pub memory: u64,
}

impl Usage {
    /// Returns what a process uses; nothing if it has ended.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let variable = |variable| sysconf(variable).ok().flatten();
        let number =
            |variable_of| variable(variable_of).and_then(|value| u64::try_from(value).ok());
        let ticks = ProcessStat::of(pid).map_or(0, |stat| stat.ticks);
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let per_second = number(SysconfVar::CLK_TCK).unwrap_or(100).max(1);
        Self {
            cpu: ticks.saturating_mul(1_000_000) / per_second,
            memory: resident_pages(&statm)
                .unwrap_or_default()
                .saturating_mul(number(SysconfVar::PAGE_SIZE).unwrap_or_default()),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
    }
}

/// Parses the second field of /proc/PID/statm: resident pages (proc_pid_statm(5)).
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// True if this error of /proc means that the process, or the thread, has ended.
pub(crate) fn has_ended(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_statm_has_no_value() {
        assert_eq!(resident_pages("2044 631 563 9 0 136 0\n"), Some(631));
        for text in ["", "2044", "2044 -1", "2044 x 3", "1 99999999999999999999"] {
            assert_eq!(resident_pages(text), None, "{text:?}");
        }
    }

    #[test]
    fn process_runs_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("it starts");
        let writer = ProcessId::of(child.id()).expect("it runs");
        assert!(writer.is_running() && writer.start > 0);
        let other = ProcessId {
            start: writer.start - 1,
            ..writer
        };
        assert!(!other.is_running(), "an earlier one of the same id");
        assert!(writer.has_process() && other.has_process());
        child.kill().expect("it runs");
        // A zombie does not run.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while writer.is_running() {
            assert!(std::time::Instant::now() < end);
        }
        assert!(writer.has_process(), "it was not waited for");
        child.wait().expect("our child");
        assert!(!writer.is_running() && !writer.has_process());
        for pid in [0, u32::MAX, 1 << 31] {
            // kill(2) would take these for the process group or all processes.
            assert!(!ProcessId { pid, start: 1 }.has_process());
        }
    }

    #[test]
    fn command_may_contain_brackets_and_blanks() {
        let stat = b"7 (a) R (b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 9\n";
        let stat = ProcessStat::parse(7, stat).expect("a process");
        let process = ProcessId {
            pid: 7,
            start: 4242,
        };
        assert_eq!((stat.id, stat.parent), (process, 1));
        assert!(!stat.has_ended());
        let zombie = ProcessStat {
            state: b'Z',
            ..stat
        };
        assert!(zombie.has_ended());
        let headless = ProcessStat {
            threads: 2,
            ..zombie
        };
        assert!(!headless.has_ended());
        let cut = b"7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 1";
        for other in [&b""[..], b"7 (a", b"7 (a) S 1", cut] {
            assert_eq!(ProcessStat::parse(7, other), None);
        }
    }

    #[test]
    fn host_is_seen_where_its_kernel_threads_are() {
        let command = fs::read("/proc/2/comm").unwrap_or_default();
        assert_eq!(sees_host(), command == b"kthreadd\n");
    }

    #[test]
    fn only_errors_of_an_ended_process_say_so() {
        for (errno, expected) in [
            (libc::ENOENT, true),
            (libc::ESRCH, true),
            (libc::EACCES, false),
            (libc::EIO, false),
        ] {
            let err = io::Error::from_raw_os_error(errno);
            assert_eq!(has_ended(&err), expected, "{err}");
        }
    }
}
