// SPDX-License-Identifier: GPL-2.0-or-later

//! Opening a configured directory one component after the other.
//!
//! A symbolic link of another user in the path could lead the daemon to another directory, and the rings there would be
//! drained. So a link is followed only if other users can neither have made it nor replace it.

use super::PATH_FLAGS;
use crate::base::file::FileFacts;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Most links in one path, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Opens a directory with these flags of open(2). It is opened at once if no link is in the path, which openat2(2)
/// tells.
///
/// # Errors
/// Any of openat(2); ELOOP at a link that a user other than root and this process's user has made, or could replace.
pub fn open(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags);
    let how = how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    // ENOSYS before Linux 5.6.
    openat2(AT_FDCWD, path, how).or_else(|_| walk(path, flags))
}

/// Opens a path one component after the other, and checks each link before it is followed.
fn walk(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let mut left: VecDeque<OsString> = path.iter().map(OsStr::to_owned).collect();
    let mut links = 0;
    let mut fd = openat(AT_FDCWD, ".", PATH_FLAGS, Mode::empty())?;
    while let Some(name) = left.pop_front() {
        // The first component of an absolute path is "/", which openat(2) opens wherever it starts.
        let next = openat(
            &fd,
            name.as_os_str(),
            OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let stat = fstat(&next)?;
        if FileFacts::new(&stat).kind != SFlag::S_IFLNK {
            // If this is not a directory, the next openat(2) fails.
            fd = next;
            continue;
        }
        links += 1;
        let parent = fstat(&fd)?;
        let others_write = parent.st_mode & 0o022 != 0;
        if links > MAX_LINKS || !is_trusted(&stat) || !is_trusted(&parent) || others_write {
            return Err(Errno::ELOOP);
        }
        let target = readlinkat(&next, "")?;
        let target = Path::new(&target).iter().map(OsStr::to_owned);
        left = target.chain(left).collect();
    }
    // Fails with ENOTDIR if the path ends in something else than a directory.
    openat(&fd, ".", flags, Mode::empty())
}

fn is_trusted(stat: &FileStat) -> bool {
    [0, geteuid().as_raw()].contains(&stat.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file::LIST_FLAGS;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    fn open(path: &Path) -> nix::Result<OwnedFd> {
        super::open(path, LIST_FLAGS)
    }

    fn ino(fd: nix::Result<OwnedFd>) -> nix::Result<u64> {
        fd.and_then(|fd| fstat(&fd)).map(|stat| stat.st_ino)
    }

    #[test]
    fn path_with_trusted_links_leads_where_the_kernel_leads() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).expect("made");
        symlink("a/b", at("relative")).expect("made");
        symlink(at("a"), at("absolute")).expect("made");
        symlink("../../absolute/b/.", at("a/b/winding")).expect("made");
        let expected = fs::metadata(at("a/b")).expect("there").ino();
        for path in [
            "a/b",
            "a/b/",
            "a/./b",
            "a/b/../b",
            "relative",
            "absolute/b",
            "relative/winding",
        ] {
            for flags in [LIST_FLAGS, PATH_FLAGS] {
                assert_eq!(ino(super::open(&at(path), flags)), Ok(expected), "{path}");
                assert_eq!(ino(walk(&at(path), flags)), Ok(expected), "{path}");
            }
        }
        let root = fs::metadata("/").expect("there").ino();
        assert_eq!(ino(open(Path::new("/"))), Ok(root));
    }

    #[test]
    fn missing_path_file_and_link_loop_are_errors() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").expect("written");
        symlink("loop", at("loop")).expect("made");
        symlink("nowhere", at("dangling")).expect("made");
        for (path, errno) in [
            ("none", Errno::ENOENT),
            ("file", Errno::ENOTDIR),
            ("file/below", Errno::ENOTDIR),
            ("loop", Errno::ELOOP),
            ("dangling", Errno::ENOENT),
        ] {
            assert_eq!(ino(open(&at(path))), Err(errno), "{path}");
        }
    }

    #[test]
    fn link_that_others_made_or_could_replace_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("private")).expect("made");
        fs::create_dir(at("open")).expect("made");
        symlink("../private", at("open/link")).expect("made");
        assert!(open(&at("open/link")).is_ok(), "only we can change it");
        for mode in [0o777, 0o1777, 0o775] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(at("open"), mode).expect("ours");
            assert_eq!(ino(open(&at("open/link"))), Err(Errno::ELOOP));
            let below = ino(open(&at("open/link/../private")));
            assert_eq!(below, Err(Errno::ELOOP), "nor in the midst of a path");
        }
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o755)).expect("ours");
        assert!(open(&at("open")).is_ok(), "a directory is no link");
        if !geteuid().is_root() {
            return println!("left out: only root can give a link to another user");
        }
        lchown(at("open/link"), Some(1000), None).expect("root may");
        assert_eq!(ino(open(&at("open/link"))), Err(Errno::ELOOP));
        lchown(at("open/link"), Some(0), None).expect("root may");
        std::os::unix::fs::chown(at("open"), Some(1000), None).expect("root may");
        assert_eq!(ino(open(&at("open/link"))), Err(Errno::ELOOP));
        let real = ino(open(&at("private")));
        assert!(real.is_ok(), "without a link all is as it was");
    }
}
