// SPDX-License-Identifier: GPL-2.0-or-later

//! Files of libnixl, each with programs at its functions.

use super::programs::{self, Probe};
use super::protocol::{LibraryFailure, TracedProcess};
use super::symbols::Symbols;
use crate::base::file::{FileFacts, FileId};
use crate::procfs::process::ProcessId;
use crate::procfs::process_dir::ProcessDir;
use crate::rights::privilege;
use crate::shm::bpf::{self, Attached, Method};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Limits of files with programs, of all users and of one. The user is that of the process that was found first.
const MAX_LIBRARIES: usize = 64;
const MAX_LIBRARIES_OF_USER: usize = 16;
/// The programs of a file are detached when no process has used the file for this long: engines restart.
const UNUSED_TIME: Duration = Duration::from_secs(600);

/// A program that was loaded.
#[derive(Debug)]
pub struct LoadedProbe {
    function: &'static str,
    at_return: bool,
    program: OwnedFd,
}

/// A file of libnixl.
#[derive(Debug)]
struct Library {
    /// Its programs, or nothing if it cannot be probed.
    attached: Vec<Attached>,
    uid: u32,
    used: Instant,
}

/// All files of libnixl, and the processes that use them.
#[derive(Debug)]
pub struct Libraries {
    method: Method,
    probes: Vec<LoadedProbe>,
    files: HashMap<FileId, Library>,
    /// Processes whose file is known. `None`: it cannot be opened.
    processes: HashMap<ProcessId, Option<FileId>>,
}

impl Libraries {
    /// Loads programs.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_PERFMON, or the kernel rejects a program.
    pub fn new(method: Method, probes: Vec<Probe>) -> Result<Self> {
        let load = |probe: Probe| {
            Ok(LoadedProbe {
                function: probe.function,
                at_return: probe.at_return,
                program: bpf::load(&probe.code, method)?,
            })
        };
        Ok(Self {
            method,
            probes: probes.into_iter().map(load).collect::<Result<_>>()?,
            files: HashMap::new(),
            processes: HashMap::new(),
        })
    }

    /// Returns the number of files with programs.
    #[must_use]
    pub fn len(&self) -> usize {
        let attached = self.files.values().filter(|one| !one.attached.is_empty());
        attached.count()
    }

    /// True if no file has programs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Attaches the programs to the files of processes that are new. `before` is called before each file, since that
    /// can block. Returns the files that cannot be probed.
    pub fn update(
        &mut self,
        processes: &[TracedProcess],
        now: Instant,
        mut before: impl FnMut(ProcessId),
    ) -> Vec<LibraryFailure> {
        let ids: HashSet<ProcessId> = processes.iter().map(|process| process.id).collect();
        self.processes.retain(|id, _| ids.contains(id));
        for file in self.processes.values().flatten() {
            if let Some(library) = self.files.get_mut(file) {
                library.used = now;
            }
        }
        self.files
            .retain(|_, library| now < library.used + UNUSED_TIME);
        let mut failures = Vec::new();
        for process in processes {
            if self.processes.contains_key(&process.id) {
                continue;
            }
            before(process.id);
            if let Err(err) = self.add(process, now) {
                failures.push(LibraryFailure {
                    process: process.clone(),
                    why: err.to_string(),
                });
            }
        }
        failures
    }

    fn add(&mut self, process: &TracedProcess, now: Instant) -> Result<()> {
        self.processes.insert(process.id, None);
        let library = open(process.id, &process.library)?;
        let id = FileFacts::new(&fstat(&library)?).id;
        self.processes.insert(process.id, Some(id));
        if self.files.contains_key(&id) {
            return Ok(());
        }
        self.make_room(process.uid)?;
        // A file that cannot be probed has a row as well, so that it is named once.
        let row = self.files.entry(id).or_insert(Library {
            attached: Vec::new(),
            uid: process.uid,
            used: now,
        });
        // The same file, whatever is at its path meanwhile.
        let path = format!("/proc/self/fd/{}", library.as_raw_fd());
        let symbols = Symbols::read(&reopen(&library)?)?;
        let attach = |probe: &LoadedProbe| {
            let offset = symbols.offset(probe.function)?;
            bpf::attach(
                &probe.program,
                Path::new(&path),
                offset,
                probe.at_return,
                self.method,
            )
        };
        row.attached = privilege::raised(|| self.probes.iter().map(attach).collect::<Result<_>>())?;
        Ok(())
    }

    /// Checks that a user may have one more file. Detaches one that no process uses, if it has to.
    fn make_room(&mut self, uid: u32) -> Result<()> {
        let used: HashSet<FileId> = self.processes.values().copied().flatten().collect();
        let is_full = |files: &HashMap<FileId, Library>| {
            let of_user = files.values().filter(|library| library.uid == uid).count();
            files.len() >= MAX_LIBRARIES || of_user >= MAX_LIBRARIES_OF_USER
        };
        if is_full(&self.files) {
            self.files.retain(|id, _| used.contains(id));
        }
        match is_full(&self.files) {
            true => Err(Error::other(format!(
                "{MAX_LIBRARIES_OF_USER} files of libnixl of uid {uid}, or {MAX_LIBRARIES} in all, are in use"
            ))),
            false => Ok(()),
        }
    }
}

/// Checks that the libnixl of a process has all functions that are probed. Can block.
///
/// # Errors
/// What is missing, or why the file cannot be read.
pub fn check(process: ProcessId, library: Option<&OsStr>) -> Result<()> {
    let library = library.ok_or(ErrorKind::NotFound)?;
    let symbols = Symbols::read(&reopen(&open(process, library)?)?)?;
    let mut functions = programs::FUNCTIONS.iter();
    functions.try_for_each(|function| symbols.offset(function).map(drop))
}

/// Opens a regular file for reading that is open as a path.
fn reopen(path: &OwnedFd) -> Result<File> {
    let stat = fstat(path)?;
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(Error::other("it is not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", path.as_raw_fd()))
}

/// Opens the libnixl of a process as a path only, so that nothing happens if it is a device.
fn open(process: ProcessId, library: &OsStr) -> Result<OwnedFd> {
    let path = Path::new(library);
    if library.as_encoded_bytes().ends_with(b" (deleted)") {
        return Err(Error::new(
            ErrorKind::NotFound,
            "the file was replaced since the process began: restart the process",
        ));
    }
    // The path of a mapped file has no links. A link that the process has put there since could lead anywhere.
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let path = path.strip_prefix("/").map_err(|_| Errno::ENOENT)?;
    Ok(openat2(ProcessDir::of(process)?.root()?, path, how)?)
}
