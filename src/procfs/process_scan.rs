// SPDX-License-Identifier: GPL-2.0-or-later

//! Process scan: which processes have a file mapped shared and writable, as the producer of a ring has.
//!
//! The observer reads them (`observer`), and the daemon adds up what it finds.

use crate::base::file::{FileFacts, FileId};
use crate::procfs::facts::Facts;
use crate::procfs::facts::pods::Pods;
use crate::procfs::process::ProcessId;
use nix::sys::stat::makedev;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

pub mod library;
pub mod scanned;
use library::Libraries;
use scanned::ScannedProcess;

// Limits for each user, since any user can create any number of mappings, also of files with the inode numbers of
// others' rings.

/// Limit of names of one inode number in the processes of a user.
const MAX_MAPPINGS: usize = 1024;
/// Limit of what the mapped files of the processes of a user take, in bytes.
const MAX_USER_LEN: usize = 1 << 22;
/// What a mapped file takes beside its path.
const MAPPING_LEN: usize = 128;

/// What a process scan looks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScanRequest {
    /// Inode numbers of files. The scan finds the processes that have them mapped. `None`: all files.
    pub inodes: Option<HashSet<u64>>,
    /// Inode numbers of files among them. The scan reads facts of the processes that have them mapped.
    pub with_facts: HashSet<u64>,
    /// Owners of these files: the writer is likely a process of its file's owner.
    pub owners: HashSet<u32>,
    /// Directory with the logs of pods.
    pub pod_logs: PathBuf,
}

impl ScanRequest {
    /// True if the scan finds the processes that have this inode number mapped.
    #[must_use]
    pub fn includes(&self, ino: u64) -> bool {
        let inodes = self.inodes.as_ref();
        inodes.is_none_or(|inodes| inodes.contains(&ino))
    }
}

/// A process, with its user and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Process.
    pub id: ProcessId,
    /// Real user id.
    pub uid: u32,
    /// Name (`/proc/PID/comm`).
    pub command: String,
}

/// A process that has a file mapped shared and writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingProcess {
    /// Process.
    pub info: ProcessInfo,
    /// Where it has the file mapped. Of many places, the first ones.
    pub addresses: Vec<u64>,
}

/// A process with a NIXL backend loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NixlProcess {
    /// Process.
    pub info: ProcessInfo,
    /// Libraries of NIXL.
    pub libraries: Libraries,
}

/// Result of a process scan.
#[derive(Debug, Default)]
pub struct ProcessScan {
    /// Files whose writers the scan has looked for, as they were at the last check before it.
    pub files: HashMap<FileId, FileFacts>,
    /// What the scan looked for.
    pub request: ScanRequest,
    /// Processes by the inode number that they have mapped, each with device and path of the file.
    by_inode: HashMap<u64, Vec<(String, MappingProcess)>>,
    /// Number of them by inode number and user.
    counts: HashMap<(u64, u32), usize>,
    /// Bytes that they take, by user.
    lens: HashMap<u32, usize>,
    /// Facts of the processes that write the requested files.
    pub facts: HashMap<ProcessId, Facts>,
    /// Names of pods.
    pub pods: Pods,
    /// Processes with a NIXL backend loaded, except pmdanixl.
    pub nixl_processes: Vec<NixlProcess>,
    /// True if all processes were read, and all files that they have mapped are known here. A process can write to a
    /// file without mapping it (write(2)), as no agent does.
    pub is_complete: bool,
    /// True if processes are left to the next scan.
    pub has_postponed: bool,
}

impl ProcessScan {
    /// Returns a scan that has found nothing yet.
    #[must_use]
    pub fn of(files: HashMap<FileId, FileFacts>, request: ScanRequest) -> Self {
        Self {
            files,
            request,
            is_complete: true,
            ..Self::default()
        }
    }

    /// True if something of a process was found.
    #[must_use]
    pub fn has(&self, process: ProcessId) -> bool {
        self.processes().any(|known| known.info.id == process)
    }

    /// Adds a process.
    pub fn add(&mut self, scanned: ScannedProcess) {
        let ScannedProcess { process, .. } = scanned;
        self.is_complete &= scanned.is_complete;
        if scanned.libraries.has_backend() && process.is_agent() {
            self.nixl_processes.push(NixlProcess {
                info: process.clone(),
                libraries: scanned.libraries,
            });
        }
        let facts = scanned.facts.map(|facts| (process.id, facts));
        self.facts.extend(facts);
        for (inode, files) in scanned.files {
            let known = self.by_inode.entry(inode).or_default();
            let count = self.counts.entry((inode, process.uid)).or_default();
            let len = self.lens.entry(process.uid).or_default();
            for file in files {
                let addresses = size_of_val(&file.addresses[..]);
                let file_len = MAPPING_LEN + file.path.len() + addresses;
                if *count == MAX_MAPPINGS || *len + file_len > MAX_USER_LEN {
                    self.is_complete = false;
                    break;
                }
                (*count, *len) = (*count + 1, *len + file_len);
                let process = MappingProcess {
                    info: process.clone(),
                    addresses: file.addresses,
                };
                known.push((file.path, process));
            }
        }
    }

    /// Returns the processes that have one of the files mapped, each once for a file.
    pub fn processes(&self) -> impl Iterator<Item = &MappingProcess> {
        let known = self.by_inode.values().flatten();
        known.map(|(_, process)| process)
    }

    /// Returns the processes that have a file mapped. On btrfs and overlayfs the device number in maps differs from the
    /// one of stat(2). If no device number matches, the path decides, of processes of the owner and of root: in a mount
    /// namespace of its own, any user can make a file with this inode number at this path.
    #[must_use]
    pub fn processes_of(&self, file: &FileFacts, path: &Path) -> Vec<&MappingProcess> {
        let device = Some(file.id.dev);
        let known = self.by_inode.get(&file.id.ino).into_iter().flatten();
        let known = known.filter_map(|(path, process)| Some((path.split_once(' ')?, process)));
        // Two containers may have a file with one inode number at one path.
        let by_device = known
            .clone()
            .any(|((other, _), _)| device_number(other) == device);
        let found = known.filter(|((other, name), process)| match by_device {
            true => device_number(other) == device,
            false => path == Path::new(name) && [0, file.uid].contains(&process.info.uid),
        });
        found.map(|(_, process)| process).collect()
    }

    /// True if a process that could be an agent has a file with this inode number mapped, on any device.
    #[must_use]
    pub fn may_have_writer(&self, ino: u64) -> bool {
        let mut known = self.by_inode.get(&ino).into_iter().flatten();
        known.any(|(_, process)| process.info.is_agent())
    }

    /// Returns the processes with a NIXL backend loaded and none of these files mapped; `None` if processes were
    /// hidden.
    #[must_use]
    pub fn without_telemetry<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a FileFacts, &'a Path)>,
    ) -> Option<Vec<ProcessId>> {
        if self.nixl_processes.is_empty() {
            return self.is_complete.then(Vec::new);
        }
        let writers = files
            .into_iter()
            .flat_map(|(file, path)| self.processes_of(file, path));
        let writers: HashSet<ProcessId> = writers.map(|process| process.info.id).collect();
        let all = self.nixl_processes.iter().map(|process| process.info.id);
        let silent = all.filter(|process| !writers.contains(process));
        self.is_complete.then(|| silent.collect())
    }
}

/// Returns the processes that have mapped a file themselves. A forked process inherits mappings, at their addresses,
/// from one that has started before. Processes without random addresses (randomize_va_space, personality(2)) may look
/// like that.
#[must_use]
pub fn openers<'a>(processes: &[&'a MappingProcess]) -> Vec<&'a MappingProcess> {
    let mut all = processes.to_vec();
    all.sort_by_key(|process| (process.info.id.start, process.info.id.pid));
    let mut known = HashSet::new();
    all.retain(|process| {
        let new = process
            .addresses
            .iter()
            .filter(|&&address| known.insert(address));
        new.count() > 0
    });
    all
}

/// Returns the device number in a text of /proc/PID/maps.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let number = |hex| u64::from_str_radix(hex, 16).ok();
    Some(makedev(number(major)?, number(minor)?))
}

impl ProcessInfo {
    /// True if the process may be an agent: it is not pmdanixl, neither this process nor another one.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        let own = geteuid().as_raw();
        self.id.pid != std::process::id() && !self.is_pmdanixl(&[own])
    }

    /// True if the process is pmdanixl. Since any user can give a process this name, it must belong to root or one of
    /// `users`.
    #[must_use]
    pub fn is_pmdanixl(&self, users: &[u32]) -> bool {
        self.command == "pmdanixl" && (self.uid == 0 || users.contains(&self.uid))
    }
}

#[cfg(test)]
mod tests;
