//! The state file as a file: opened so that nobody but its owner can have a hand in it.

use crate::config::Account;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, stat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What is copied at most before it is overwritten.
const MAX_COPY: u64 = 1 << 26;

/// The file, opened but neither locked nor looked into, and its directory, which only its owner can write to.
#[derive(Debug)]
pub struct StateFile {
    pub(super) file: File,
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl StateFile {
    /// Opens the file, or makes it. Its directory is made if it is missing; the one above belongs to PCP's user, who must
    /// not lead root astray.
    ///
    /// # Errors
    /// It cannot be had, or others can write to it or its directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let made = fs::DirBuilder::new().mode(0o755).create(directory);
        made.or_else(|err| match err.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(err),
        })?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = File::from(open(directory, flags, Mode::empty())?);
        let meta = directory.metadata()?;
        if meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other(
                "its directory is not one that only this user can write to; remove it",
            ));
        }
        let file = open_in(&directory, name, OFlag::O_RDWR | OFlag::O_CREAT)?;
        let meta = file.metadata()?;
        // Root's may have been handed over to the user that the PMDA runs under.
        let ours = geteuid().is_root() || meta.uid() == geteuid().as_raw();
        if !meta.is_file() || meta.nlink() != 1 || !ours || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other(
                "is not a file that only this user can write to; remove it",
            ));
        }
        Ok(Self {
            file,
            directory: directory.into(),
            name: name.into(),
            path: path.to_owned(),
        })
    }

    /// Empties it: what it has is not to be used.
    ///
    /// # Errors
    /// What ftruncate(2) says.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Whether the next start finds it by its name; also where that cannot be told.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match (self.file.metadata(), self.named()) {
            (Ok(ours), Ok(named)) => named == Some((ours.dev(), ours.ino())),
            _ => true,
        }
    }

    /// Device and inode of what has its name now; `None`: nothing has, or its directory is not where it was.
    fn named(&self) -> nix::Result<Option<(u64, u64)>> {
        let none = |errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => Ok(None),
            errno => Err(errno),
        };
        let place = |stat: FileStat| Some((stat.st_dev, stat.st_ino));
        let here = place(fstat(&self.directory)?);
        let there = self
            .path
            .parent()
            .map_or(Ok(None), |path| stat(path).map(place).or_else(none))?;
        let name = self.name.as_os_str();
        let file = fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        Ok(file.map(place).or_else(none)?.filter(|_| here == there))
    }

    /// Makes it another user's.
    ///
    /// # Errors
    /// What fchown(2) says.
    pub fn hand_over(&self, account: &Account) -> io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(account.uid), Some(account.gid))
    }

    /// Copies it to a file beside it with `.bad` behind its name, for whoever wants to know what happened.
    pub(super) fn keep_aside(&self) -> io::Result<()> {
        let mut name = self.name.clone();
        name.push(".bad");
        match unlinkat(
            &self.directory,
            name.as_os_str(),
            UnlinkatFlags::NoRemoveDir,
        ) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut copy = open_in(&self.directory, &name, flags)?;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        io::copy(&mut file.take(MAX_COPY), &mut copy).map(drop)
    }
}

fn open_in(directory: impl AsFd, name: &OsStr, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_ours_alone_is_not_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "precious").expect("written");
        fs::hard_link(at("file"), at("link")).expect("made");
        std::os::unix::fs::symlink(at("file"), at("symlink")).expect("made");
        fs::create_dir(at("directory")).expect("made");
        std::os::unix::fs::symlink(dir.path(), at("elsewhere")).expect("made");
        for name in ["link", "symlink", "directory", "elsewhere/state"] {
            assert!(StateFile::open(&at(name)).is_err(), "{name}");
        }
        fs::write(at("open"), "").expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(at("open"), mode).expect("ours");
        assert!(StateFile::open(&at("open")).is_err());
        assert_eq!(fs::read(at("file")).expect("there"), b"precious");
    }

    #[test]
    fn file_is_in_place_while_its_name_and_directory_are() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        let path = at("nixl/state");
        let state = StateFile::open(&path)?;
        assert!(state.is_in_place());
        fs::rename(at("nixl"), at("moved"))?;
        assert!(!state.is_in_place(), "nothing is where its directory was");
        fs::create_dir(at("nixl"))?;
        assert!(!state.is_in_place(), "another directory is there");
        fs::remove_dir(at("nixl"))?;
        fs::rename(at("moved"), at("nixl"))?;
        assert!(state.is_in_place());
        fs::rename(&path, at("old"))?;
        assert!(!state.is_in_place(), "nothing has its name");
        fs::write(&path, "")?;
        assert!(!state.is_in_place(), "another file has its name");
        Ok(())
    }

    #[test]
    fn new_file_can_be_opened_by_its_owner_alone() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("nixl/state");
        StateFile::open(&path)?;
        assert_eq!(path.metadata()?.mode() & 0o777, 0o600);
        Ok(())
    }
}
