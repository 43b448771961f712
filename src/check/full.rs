//! `--check`: telemetry directories on a tmpfs that is nearly full. When it is full, SIGBUS kills an application that needs a new page
//! for a file there.

use crate::base::tmpfs::Space;
use crate::find::directory::Directory;
use nix::libc::dev_t;
use nix::sys::stat::{fstat, makedev, stat};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Percentage of a tmpfs above which the check warns.
const NEARLY_FULL: u8 = 90;

/// Prints a warning for each tmpfs of these directories that is nearly full.
///
/// # Errors
/// The output cannot be written.
pub fn warn(directories: &[Directory], out: &mut impl Write) -> io::Result<()> {
    let mountinfo = fs::read("/proc/self/mountinfo").unwrap_or_default();
    // Only a tmpfs is asked for its space: statfs(2) waits for the server of NFS or FUSE.
    let mut tmpfs = mounted(&String::from_utf8_lossy(&mountinfo));
    for directory in directories {
        let Ok(fd) = directory.open() else {
            continue;
        };
        let device = fstat(&fd).map_or(0, |stat| stat.st_dev);
        // Removed, so that each tmpfs has one warning.
        let space = tmpfs.remove(&device).then(|| Space::of_tmpfs(&fd));
        let Some(space) = space.flatten().filter(|space| space.is_over(NEARLY_FULL)) else {
            continue;
        };
        let mount = mount_point(&directory.path, device).display();
        writeln!(
            out,
            "warning: the tmpfs {mount} is more than {NEARLY_FULL} % full: {space}. SIGBUS kills an application that finds no room for its ring or store; remove files there, or enlarge it: mount -o remount,size=SIZE {mount}"
        )?;
    }
    Ok(())
}

/// Returns the devices of all tmpfs in a mountinfo (proc_pid_mountinfo(5)).
fn mounted(mountinfo: &str) -> HashSet<dev_t> {
    let device = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        kind.starts_with("tmpfs ").then_some(device)
    };
    mountinfo.lines().filter_map(device).collect()
}

/// Returns the highest directory of a path that is on the device.
fn mount_point(path: &Path, device: dev_t) -> &Path {
    let is_on_it = |path: &&Path| stat(*path).is_ok_and(|stat| stat.st_dev == device);
    path.ancestors().take_while(is_on_it).last().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_three_kinds_yields_devices_of_tmpfs() {
        let mountinfo = "\
            22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            25 22 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw\n\
            41 22 0:35 /a\\040-\\040b /mnt/x rw - tmpfs none rw,size=64k\n\
            42 22 0:36 / /mnt/y rw - fuse.tmpfs x rw\n\
            truncated\n";
        let expected = [makedev(0, 23), makedev(0, 35)];
        assert_eq!(mounted(mountinfo), HashSet::from(expected));
    }
}
