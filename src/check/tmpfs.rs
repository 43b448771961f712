// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: telemetry directories on a tmpfs that is nearly full. On a full tmpfs, SIGBUS kills an application that
//! needs a new page for a file.

use crate::base::text;
use crate::base::tmpfs::Space;
use crate::check::WARNING;
use crate::discovery::directory::Directory;
use nix::libc::dev_t;
use nix::sys::stat::{fstat, stat};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

/// Percentage of a tmpfs above which the check warns.
const NEARLY_FULL: u8 = 90;

/// Prints a warning for each tmpfs of these directories that is nearly full.
///
/// # Errors
/// The output cannot be written.
pub fn warn(directories: &[Directory], out: &mut impl Write) -> io::Result<()> {
    let mut seen = HashSet::new();
    for directory in directories {
        let Ok(fd) = directory.open() else {
            continue;
        };
        let device = fstat(&fd).map_or(0, |stat| stat.st_dev);
        // Each tmpfs has one warning.
        let space = seen.insert(device).then(|| Space::of_tmpfs(&fd)).flatten();
        let Some(space) = space.filter(|space| space.is_over(NEARLY_FULL)) else {
            continue;
        };
        let mount = text::printable(mount_point(&directory.path, device));
        writeln!(
            out,
            "{WARNING}the tmpfs {mount} is more than {NEARLY_FULL} % full: {space}. SIGBUS kills an application that finds no room for its ring or store; remove files there, or enlarge it: mount -o remount,size=SIZE {mount}"
        )?;
    }
    Ok(())
}

/// Returns the highest directory of a path that is on the device.
fn mount_point(path: &Path, device: dev_t) -> &Path {
    let is_on_it = |path: &&Path| stat(*path).is_ok_and(|stat| stat.st_dev == device);
    path.ancestors().take_while(is_on_it).last().unwrap_or(path)
}
