// SPDX-License-Identifier: GPL-2.0-or-later

//! File systems that a user or another host serves. Their server may not answer, and whoever opens a directory there
//! waits for it.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Their types (proc_pid_mountinfo(5)), and beginnings of types.
const TYPES: [&str; 10] = [
    "fuse", "nfs", "cifs", "smb", "ceph", "lustre", "afs", "9p", "beegfs", "gpfs",
];

/// Mounts of this process, as they were read last: for each its number, and true if it is served.
#[derive(Debug, Default)]
struct Mounts {
    file: Option<File>,
    known: HashMap<u64, bool>,
}

static MOUNTS: LazyLock<Mutex<Mounts>> = LazyLock::new(Mutex::default);

/// True if an open directory is on such a file system. Does not wait for its server. Where /proc does not tell, it is
/// taken for another one.
pub fn is_served(directory: &OwnedFd) -> bool {
    let Some(mount) = mount_of(directory) else {
        return false;
    };
    let mut mounts = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if mounts.have_changed() || !mounts.known.contains_key(&mount) {
        mounts.read();
    }
    mounts.known.get(&mount).copied().unwrap_or_default()
}

/// Returns the number of the mount that has an open file (proc_pid_fdinfo(5)).
fn mount_of(file: &OwnedFd) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mut lines = info.lines();
    let number = lines.find_map(|line| line.strip_prefix("mnt_id:"))?;
    number.trim().parse().ok()
}

impl Mounts {
    /// True if mounts have changed since the last call, or were not read yet.
    fn have_changed(&self) -> bool {
        let Some(file) = &self.file else {
            return true;
        };
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
        poll(&mut fds, PollTimeout::ZERO) != Ok(0)
    }

    fn read(&mut self) {
        self.known.clear();
        if self.file.is_none() {
            self.file = File::open("/proc/self/mountinfo").ok();
        }
        let mut text = Vec::new();
        if let Some(file) = &mut self.file {
            let _ = file.rewind().and_then(|()| file.read_to_end(&mut text));
        }
        let text = String::from_utf8_lossy(&text);
        self.known.extend(text.lines().filter_map(mount));
    }
}

/// Returns the number of a mount, and whether it is served, from its line in mountinfo.
fn mount(line: &str) -> Option<(u64, bool)> {
    let number = line.split(' ').next()?.parse().ok()?;
    // The fields before have no end of their own, but a blank in them is escaped.
    let (_, rest) = line.split_once(" - ")?;
    let is_served = TYPES.iter().any(|name| rest.starts_with(name));
    Some((number, is_served))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_mounts_are_told() {
        let line =
            |rest: &str| format!("36 35 0:41 / /pods/a\\040-\\040b rw,noatime master:1 - {rest}");
        for (rest, expected) in [
            ("fuse fuse rw,user_id=0,allow_other", Some((36, true))),
            ("fuse.sshfs host:/ rw", Some((36, true))),
            ("nfs4 host:/x rw", Some((36, true))),
            ("tmpfs tmpfs rw,size=1k", Some((36, false))),
            ("ext4 /dev/fuse rw", Some((36, false))),
        ] {
            assert_eq!(mount(&line(rest)), expected, "{rest}");
        }
        assert_eq!(mount("x"), None);
        let proc = File::open("/proc").expect("there").into();
        assert!(mount_of(&proc).is_some() && !is_served(&proc));
    }
}
