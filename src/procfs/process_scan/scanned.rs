// SPDX-License-Identifier: GPL-2.0-or-later

//! What a process scan reads of one process.

use crate::procfs::facts::Facts;
use crate::procfs::process::{ProcessId, has_ended};
use crate::procfs::process_dir::{ProcessDir, ReadError};
use crate::procfs::process_scan::library::Libraries;
use crate::procfs::process_scan::{ProcessInfo, ScanRequest};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

// Limits, since any user can create any number of mappings, of files with names of any length.

/// Limit of names, with their devices, of one inode number in one process.
pub(super) const MAX_PATHS: usize = 16;
/// Limit of a name in comm, in bytes. The kernel has 16, and longer ones for its own threads.
pub const MAX_COMMAND: u64 = 64;
/// Limit of what the files of a process take, in bytes.
const MAX_LEN: usize = 1 << 21;
/// What a file takes beside its path, and an address.
const FILE_LEN: usize = 64;
const ADDRESS_LEN: usize = 16;
/// Limit of a line of maps, in bytes. A path that open(2) accepts has at most 4,096.
pub(super) const MAX_LINE: u64 = 8192;

/// What a scan reads of a process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannedProcess {
    /// The process. Name and user are empty if nothing else was found.
    pub process: ProcessInfo,
    /// Requested files that it has mapped, by inode number. One process may have that of several file systems.
    pub files: HashMap<u64, Vec<MappedFile>>,
    /// Facts, if it has a file mapped whose writers are requested.
    pub facts: Option<Facts>,
    /// Libraries of NIXL.
    pub libraries: Libraries,
    /// False if it may have more files mapped.
    pub is_complete: bool,
    /// Bytes that its files take.
    #[serde(skip)]
    pub len: usize,
}

/// File that a process has mapped shared and writable.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Device and path, as in maps.
    pub path: String,
    /// Where the process has it mapped. Of many places, the first ones.
    pub addresses: Vec<u64>,
}

impl ScannedProcess {
    /// Reads a process. Can block. `may_read` is called before the process and each ancestor is read, and says whether
    /// it may be.
    ///
    /// # Errors
    /// The process has ended, or may not be read.
    pub fn read(
        pid: u32,
        request: &ScanRequest,
        may_read: &mut dyn FnMut(ProcessId) -> bool,
    ) -> Result<Self, ReadError> {
        let directory = ProcessDir::open(pid)?.allowed_by(may_read)?;
        let id = directory.id();
        // Empty if the first thread of the process has ended, although others may run. It must not make the scan
        // incomplete: any user can start such a process.
        let mut maps = BufReader::new(directory.file("maps")?);
        let mut scanned = Self {
            process: ProcessInfo::unnamed(id),
            files: HashMap::new(),
            facts: None,
            libraries: Libraries::default(),
            is_complete: true,
            len: 0,
        };
        // If the process ends meanwhile, what was read until then stays.
        if let Err(err) = scanned.read_maps(&mut maps, request) {
            scanned.is_complete &= has_ended(&err);
        }
        // Only for processes with a requested mapping or with NIXL, which are few.
        if !scanned.files.is_empty() || scanned.libraries.has_backend() {
            scanned.process.name(&directory);
        }
        let mut inodes = scanned.files.keys();
        if inodes.any(|inode| request.with_facts.contains(inode)) && scanned.process.is_agent() {
            scanned.facts = Facts::of_process(&directory, may_read);
        }
        Ok(scanned)
    }

    /// True if anything was found that a scan looks for.
    #[must_use]
    pub fn has_something(&self) -> bool {
        !self.files.is_empty() || self.libraries.has_backend()
    }

    fn read_maps(&mut self, maps: &mut impl BufRead, request: &ScanRequest) -> io::Result<()> {
        let mut line = Vec::new();
        while read_line(maps, &mut line)? {
            let mapping = shared_mapping(&line);
            if let Some((path, inode)) = mapping.filter(|(_, inode)| request.includes(*inode)) {
                self.is_complete &= self.add(path, inode, address(&line));
            }
            self.libraries.add_line(&line);
        }
        Ok(())
    }

    /// Adds a mapping. Returns false if a limit is reached.
    pub fn add(&mut self, path: String, inode: u64, address: u64) -> bool {
        let files = self.files.entry(inode).or_default();
        let count = files.len();
        match files.iter_mut().find(|file| file.path == path) {
            Some(file) if file.addresses.len() < MAX_PATHS => {
                self.len += ADDRESS_LEN;
                file.addresses.push(address);
            }
            Some(_) => {}
            None if count == MAX_PATHS || self.len >= MAX_LEN => return false,
            None => {
                self.len += FILE_LEN + path.len();
                files.push(MappedFile {
                    path,
                    addresses: vec![address],
                });
            }
        }
        true
    }
}

impl ProcessInfo {
    /// Returns a process whose user and name were not read.
    pub(super) fn unnamed(id: ProcessId) -> Self {
        Self {
            id,
            // A user id that cannot exist (chown(2): -1 means no change).
            uid: u32::MAX,
            command: String::new(),
        }
    }

    /// Reads user and name.
    fn name(&mut self, directory: &ProcessDir) {
        self.uid = directory.uid().unwrap_or(self.uid);
        let command = directory.read("comm", MAX_COMMAND).unwrap_or_default();
        String::from_utf8_lossy(&command)
            .trim_end()
            .clone_into(&mut self.command);
    }
}

/// Returns `device path` and inode of a line of maps, if it is a writable shared mapping of a file (proc_pid_maps(5)).
#[must_use]
pub fn shared_mapping(line: &[u8]) -> Option<(String, u64)> {
    // Most of the thousands of lines end here.
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

/// Returns the first address in a line of maps.
fn address(line: &[u8]) -> u64 {
    let end = line.iter().position(|&byte| byte == b'-').unwrap_or(0);
    let text = std::str::from_utf8(&line[..end]).unwrap_or_default();
    u64::from_str_radix(text, 16).unwrap_or_default()
}

/// Reads the next line of maps, cut to [`MAX_LINE`] bytes. Returns false at the end.
pub(super) fn read_line(maps: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    maps.by_ref().take(MAX_LINE).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        maps.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}
