// SPDX-License-Identifier: GPL-2.0-or-later

//! Opening of the state file, so that no user except its owner can write to it.

use nix::fcntl::{OFlag, open as open_directory, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, getegid, geteuid};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, fchown};
use std::path::Path;

/// Opens or creates the file, and its directory if that is missing. A file that root opens becomes root's. The
/// directory above belongs to PCP's user, and links there must not lead root elsewhere.
///
/// # Errors
/// The file cannot be opened, or other users may write to it or to its directory.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let directory = path.parent().ok_or(ErrorKind::InvalidInput)?;
    let made = fs::DirBuilder::new().mode(0o755).create(directory);
    made.or_else(|err| match err.kind() {
        ErrorKind::AlreadyExists => Ok(()),
        _ => Err(err),
    })?;
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = open_directory(directory, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    let directory = File::from(directory);
    let uid = geteuid();
    fault_of_directory(&directory.metadata()?, uid).map_or(Ok(()), reject)?;
    let flags = flags | OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = openat(&directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let file = File::from(file);
    let meta = file.metadata()?;
    fault_of_file(&meta, uid).map_or(Ok(()), reject)?;
    if meta.uid() != uid.as_raw() {
        // The account of an earlier nixl.conf could shorten it. `user` gets it again before this process becomes that
        // user.
        fchown(&file, Some(uid.as_raw()), Some(getegid().as_raw()))?;
    }
    Ok(file)
}

fn reject(fault: &str) -> io::Result<()> {
    Err(io::Error::other(fault))
}

/// Why [`open`] by this user would reject the open file or its directory. `None` if it would not, or if stat(2) fails.
pub(super) fn fault(file: &File, path: &Path, uid: Uid) -> Option<&'static str> {
    let directory = path.parent().map(fs::symlink_metadata);
    let of_directory = directory.and_then(|meta| fault_of_directory(&meta.ok()?, uid));
    of_directory.or_else(|| fault_of_file(&file.metadata().ok()?, uid))
}

fn fault_of_directory(meta: &Metadata, uid: Uid) -> Option<&'static str> {
    if !meta.is_dir() || meta.uid() != uid.as_raw() {
        return Some("its directory is not a directory of this user; remove it");
    }
    (meta.mode() & 0o022 != 0)
        .then_some("other users may write to its directory; run chmod go-w on the directory")
}

fn fault_of_file(meta: &Metadata, uid: Uid) -> Option<&'static str> {
    // A file of root may have been given to the user that the PMDA runs as.
    let ours = uid.is_root() || meta.uid() == uid.as_raw();
    if !meta.is_file() || meta.nlink() != 1 || !ours {
        return Some("is not a file of this user with one name; remove it");
    }
    (meta.mode() & 0o022 != 0).then_some("other users may write to it; run chmod go-w on it")
}

/// True if the next start finds this file by its path. Also true if that is not known.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let named = fs::symlink_metadata(path).map(id);
    match (named, file.metadata().map(id)) {
        (Ok(named), Ok(ours)) => named == ours,
        (Err(err), _) => !matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_others_may_change_is_rejected() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "precious").expect("written");
        fs::hard_link(at("file"), at("link")).expect("made");
        std::os::unix::fs::symlink(at("file"), at("symlink")).expect("made");
        fs::create_dir(at("directory")).expect("made");
        std::os::unix::fs::symlink(dir.path(), at("elsewhere")).expect("made");
        for name in ["link", "symlink", "directory", "elsewhere/state"] {
            assert!(open(&at(name)).is_err(), "{name}");
        }
        fs::write(at("open"), "").expect("written");
        let set_mode = |path: &Path, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(path, mode).expect("ours");
        };
        // What opening rejects is also a fault of a file that is open.
        let rejected = |path: &Path, held: &File| {
            let rejected = open(path).err().map(|err| err.to_string());
            assert_eq!(rejected.as_deref(), fault(held, path, geteuid()));
            rejected
        };
        let held = open(&at("open")).expect("ours");
        assert_eq!(rejected(&at("open"), &held), None);
        set_mode(&at("open"), 0o666);
        let why = rejected(&at("open"), &held).expect("another user may write to it");
        assert!(why.contains("chmod"), "{why}");
        set_mode(&at("open"), 0o600);
        set_mode(dir.path(), 0o777);
        let why = rejected(&at("open"), &held).expect("another user may replace it");
        assert!(why.contains("its directory"), "{why}");
        assert_eq!(fs::read(at("file")).expect("there"), b"precious");
    }

    #[test]
    fn directory_of_another_user_is_a_fault() {
        let dir = tempfile::tempdir().expect("a directory");
        let meta = dir.path().metadata().expect("ours");
        let other = Uid::from_raw(geteuid().as_raw() + 1);
        assert_eq!(fault_of_directory(&meta, geteuid()), None);
        assert!(fault_of_directory(&meta, other).is_some());
        let file = tempfile::tempfile().expect("a file");
        let meta = file.metadata().expect("ours");
        assert!(
            fault_of_directory(&meta, geteuid()).is_some(),
            "no directory"
        );
    }

    #[test]
    fn file_of_an_earlier_user_becomes_that_of_root() -> io::Result<()> {
        if !geteuid().is_root() {
            println!("left out: a file of another user: only root can make one");
            return Ok(());
        }
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("state");
        fs::write(&path, "totals")?;
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534))?;
        let file = open(&path)?;
        let meta = file.metadata()?;
        assert_eq!((meta.uid(), meta.gid()), (0, getegid().as_raw()));
        assert_eq!(fs::read(&path)?, b"totals");
        Ok(())
    }

    #[test]
    fn file_is_in_place_while_its_name_and_directory_are() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        let path = at("nixl/state");
        let state = open(&path)?;
        assert!(is_at(&state, &path));
        fs::rename(at("nixl"), at("moved"))?;
        assert!(!is_at(&state, &path), "its directory was moved");
        fs::create_dir(at("nixl"))?;
        assert!(!is_at(&state, &path), "another directory is there");
        fs::remove_dir(at("nixl"))?;
        fs::rename(at("moved"), at("nixl"))?;
        assert!(is_at(&state, &path));
        fs::rename(&path, at("old"))?;
        assert!(!is_at(&state, &path), "the file was renamed");
        fs::write(&path, "")?;
        assert!(!is_at(&state, &path), "another file has its name");
        Ok(())
    }

    #[test]
    fn new_file_can_be_opened_by_its_owner_alone() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("nixl/state");
        open(&path)?;
        assert_eq!(path.metadata()?.mode() & 0o777, 0o600);
        Ok(())
    }
}
