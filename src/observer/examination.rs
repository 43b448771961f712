// SPDX-License-Identifier: GPL-2.0-or-later

//! What `--check` asks for beside a process scan: processes that use NIXL, and the running daemon.

use crate::base::file::{FileFacts, FileId};
use crate::base::text;
use crate::observer::protocol::{Found, Reply};
use crate::observer::{sockets, version};
use crate::procfs::ancestors;
use crate::procfs::facts::command::{CommandLine, MAX_CMDLINE};
use crate::procfs::facts::environ::Environ;
use crate::procfs::facts::telemetry;
use crate::procfs::process::{ProcessId, own_namespace};
use crate::procfs::process_dir::{ProcessDir, ReadError};
use crate::procfs::process_scan::NixlProcess;
use crate::procfs::process_scan::scanned::MAX_COMMAND;
use crate::trace::libraries;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Variables of UCX that are read: transports and network devices.
pub const UCX_TLS: &str = "UCX_TLS";
/// See [`UCX_TLS`].
pub const UCX_NET_DEVICES: &str = "UCX_NET_DEVICES";
/// Capability with which RLIMIT_MEMLOCK does not matter: CAP_IPC_LOCK of linux/capability.h.
const IPC_LOCK: u64 = 1 << 14;
/// Limit of what is read of /proc/PID/fdinfo/FD, in bytes. The lock is in one of its first lines.
const MAX_FDINFO: u64 = 1 << 12;
/// Names in /proc/PID/limits.
const OPEN_FILES: &str = "Max open files";
const MEMLOCK: &str = "Max locked memory";

/// What is to be examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A process that uses NIXL.
    Nixl {
        /// Process.
        process: NixlProcess,
        /// True if a socket is read, to find out whether that may be.
        may_copy: bool,
    },
    /// A process of pmdanixl, and its user.
    Daemon(ProcessId, u32),
}

impl Subject {
    /// Process to read.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        match self {
            Self::Nixl { process, .. } => process.info.id,
            Self::Daemon(process, _) => *process,
        }
    }

    /// Its user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        match self {
            Self::Nixl { process, .. } => process.info.uid,
            Self::Daemon(_, uid) => *uid,
        }
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Examination {
    /// Process that uses NIXL.
    Nixl(Box<NixlExamination>),
    /// A process of pmdanixl, by its process id.
    Daemon(u32, DaemonExamination),
}

/// Process that uses NIXL.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NixlExamination {
    /// What the process scan has found.
    pub found: NixlProcess,
    /// Version of NIXL.
    pub version: Option<String>,
    /// Process title or program name, without arguments.
    pub command: String,
    /// Environment of the process or of its nearest ancestor with a readable one, and the process id of that process.
    pub environment: Option<(u32, Environ)>,
    /// The directories of [`telemetry::directories`] in that environment, as far as the process has them.
    pub directories: [Option<FileId>; 2],
    /// True if the process is in another mount namespace than this one.
    pub is_in_other_namespace: bool,
    /// True if the process is in another network namespace than this one.
    pub is_in_other_network: bool,
    /// Number of RDMA devices that it has open, or the errno why its sockets cannot be read.
    pub devices: Result<usize, i32>,
    /// True if its root directory has no /dev/infiniband.
    pub lacks_infiniband: bool,
    /// Limit of locked memory in bytes. `None`: there is none for it.
    pub memlock_limit: Option<u64>,
    /// Why its libnixl cannot be traced, if it cannot.
    pub traceable: Result<(), String>,
}

/// The daemon.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonExamination {
    /// What it was started with, or why that cannot be read.
    pub start: Result<DaemonStart, String>,
    /// Files that it has open, each with true if it has locked the file.
    pub open_files: Vec<(FileId, bool)>,
    /// Limit of open files. `None`: it is not known.
    pub open_files_limit: Option<usize>,
}

/// What a daemon was started with.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStart {
    /// Command line.
    pub words: Vec<OsString>,
    /// Working directory.
    pub directory: OsString,
    /// `NIXL_TELEMETRY_DIR` and `NIXL_TELEMETRY_MULTIPROC_DIR`.
    pub variables: [Option<String>; 2],
}

/// Examines something. Can block. `may_read` is called before a process is read, and says whether it may be.
///
/// # Errors
/// The process has ended, or may not be read.
pub fn read(
    subject: &Subject,
    may_read: &mut dyn FnMut(ProcessId) -> bool,
) -> Result<Reply, ReadError> {
    let examination = match subject {
        Subject::Nixl { process, may_copy } => NixlExamination::read(process, *may_copy, may_read)
            .map(|read| Examination::Nixl(read.into())),
        Subject::Daemon(process, _) => DaemonExamination::read(*process, may_read)
            .map(|read| Examination::Daemon(process.pid, read)),
    };
    examination.map(|found| Reply::Found(Found::Examined(found)))
}

impl NixlExamination {
    fn read(
        found: &NixlProcess,
        may_copy: bool,
        may_read: &mut dyn FnMut(ProcessId) -> bool,
    ) -> Result<Self, ReadError> {
        let directory = ProcessDir::of(found.info.id)?.allowed_by(may_read)?;
        let line = directory.read("cmdline", MAX_CMDLINE)?;
        let line = CommandLine::parse(&line);
        let command = match line.and_then(|line| line.shown()) {
            Some(command) => command,
            None => {
                // The command line is empty, because the process has overwritten it.
                let comm = directory.read("comm", MAX_COMMAND)?;
                text::printable(OsStr::from_bytes(comm.trim_ascii_end()))
            }
        };
        let names = [&telemetry::NAMES[..], &[UCX_TLS, UCX_NET_DEVICES]].concat();
        let own = Environ::of(&directory, &names).ok();
        let own = own.map(|environ| (found.info.id.pid, environ));
        let environment = own.or_else(|| {
            ancestors::of(&directory).find_map(|one| {
                let environ = may_read(one.id()).then(|| Environ::of(&one, &names));
                Some((one.id().pid, environ?.ok()?))
            })
        });
        let named = environment.as_ref();
        let named = named.map_or([None; 2], |(_, environ)| telemetry::directories(environ));
        let library = found.libraries.core.as_deref();
        let is_other = |kind| directory.namespace(kind).ok() != own_namespace(kind).ok();
        // One socket shows whether they can be read.
        let files = sockets::read(&directory, usize::from(may_copy));
        let infiniband = directory.metadata("root/dev/infiniband");
        Ok(Self {
            version: library.and_then(|library| version::of_library(&directory, library.as_ref())),
            traceable: libraries::check(found.info.id, library).map_err(|err| err.to_string()),
            found: found.clone(),
            command,
            directories: named.map(|path| file_id(&directory, Path::new(path?)).ok()),
            environment,
            is_in_other_namespace: is_other("mnt"),
            is_in_other_network: is_other("net"),
            devices: { files.map(|files| files.rdma_devices) }
                .map_err(|err| err.raw_os_error().unwrap_or(libc::EIO)),
            lacks_infiniband: infiniband.is_err_and(|err| err.kind() == ErrorKind::NotFound),
            memlock_limit: limit(&directory.text("limits"), MEMLOCK)
                .filter(|_| !may_lock_memory(&directory.text("status"))),
        })
    }
}

impl DaemonExamination {
    fn read(id: ProcessId, may_read: &mut dyn FnMut(ProcessId) -> bool) -> Result<Self, ReadError> {
        let process = ProcessDir::of(id)?.allowed_by(may_read)?;
        Ok(Self {
            start: DaemonStart::read(&process).map_err(|err| err.to_string()),
            open_files: open_files(&process),
            // The soft limit, which the daemon has raised.
            open_files_limit: limit(&process.text("limits"), OPEN_FILES),
        })
    }
}

impl DaemonStart {
    fn read(process: &ProcessDir) -> io::Result<Self> {
        let environ = Environ::of(process, &telemetry::NAMES)?;
        let line = process.read("cmdline", MAX_CMDLINE)?;
        let words = line.strip_suffix(b"\0").unwrap_or(&line);
        let words = words.split(|&byte| byte == 0);
        let words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let directory = process.link("cwd")?.into_os_string();
        if !process.is_running() {
            return Err(ErrorKind::NotFound.into());
        }
        let variables = telemetry::directories(&environ);
        Ok(Self {
            words: words.collect(),
            directory,
            variables: variables.map(|value| value.map(str::to_owned)),
        })
    }
}

/// Returns the file that a process has at an absolute path.
fn file_id(process: &ProcessDir, path: &Path) -> io::Result<FileId> {
    let path = path.strip_prefix("/").map_err(|_| Errno::ENOENT)?;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let path = Path::new(".").join(path);
    let file = openat2(process.root()?, &path, how)?;
    Ok(FileFacts::new(&fstat(&file)?).id)
}

/// Returns the files that a process has open, each with true if the process has locked it.
fn open_files(process: &ProcessDir) -> Vec<(FileId, bool)> {
    let files = process.descriptors(usize::MAX);
    let files = files.map(|files| files.numbers).unwrap_or_default();
    let files = files.into_iter().filter_map(|fd| {
        let stat = process.metadata(&format!("fd/{fd}")).ok()?;
        // /proc/locks shows no process for an open file description lock.
        // It cannot be read if the file was closed meanwhile.
        let info = process.read(&format!("fdinfo/{fd}"), MAX_FDINFO).ok()?;
        let is_locked = String::from_utf8_lossy(&info).contains("OFDLCK");
        Some((FileFacts::new(&stat).id, is_locked))
    });
    files.collect()
}

/// Returns a soft limit in /proc/PID/limits. `None`: there is none.
fn limit<T: std::str::FromStr>(limits: &str, name: &str) -> Option<T> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// True if /proc/PID/status has CAP_IPC_LOCK among the effective capabilities.
fn may_lock_memory(status: &str) -> bool {
    let mut lines = status.lines();
    let caps = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let caps = caps.and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok());
    caps.is_some_and(|caps| caps & IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limit_is_read_unless_the_process_may_exceed_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             95942                95942                processes \n\
            Max open files            1024                 1048576              files     \n\
            Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(limit(limits, OPEN_FILES), Some(1024));
        assert_eq!(limit(limits, MEMLOCK), Some(8_388_608));
        let unlimited = limits.replace("8388608  ", "unlimited");
        assert_eq!(limit::<u64>(&unlimited, MEMLOCK), None);
        assert_eq!(limit::<u64>("", MEMLOCK), None);
        assert!(may_lock_memory("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lock_memory("Name:\tx\nCapEff:\t0000000010080002\n"));
        assert!(!may_lock_memory(""));
    }
}
