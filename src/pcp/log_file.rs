//! The log file, which standard error becomes.
//!
//! The log of the run before stays beside it as `*.prev`. A log that a living process writes is not replaced: a second
//! daemon, which waits for the end of the first, appends its lines, which have its process id.

use super::ffi::Pmda;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::ffi::{c_int, c_short};
use std::fs::{self, File, OpenOptions};
use std::io::{self, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a log up to which a second daemon appends to it. Each run writes at most 16 MiB.
const MAX_SHARED: u64 = 64 << 20;

/// Makes standard error the log file of the command line. Where the file cannot be opened, standard error stays what it is.
pub fn open(pmda: &mut Pmda) {
    let Some(path) = pmda.log_path() else {
        pmda.open_log();
        return;
    };
    if let Some(file) = in_use(&path) {
        if nix::unistd::dup2_stderr(&file).is_ok() {
            hold(&file);
            tracing::info!(
                "log {path:?}: another process writes it; the lines of this one are appended"
            );
            return;
        }
    }
    let kept = keep_previous(&path);
    pmda.open_log();
    // Standard error was pmcd's before.
    if let Err((name, err)) = kept {
        tracing::warn!("log before: cannot be kept as {name:?} ({err}); remove what is there");
    }
    if let Some(file) = opened(&path) {
        // A second daemon may write to this file too: each line goes to its end.
        let _ = fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND));
        hold(&file);
    }
}

/// Duplicates standard error if it is this file, and not what pmcd has passed on because the file could not be opened.
fn opened(path: &Path) -> Option<File> {
    let file = File::from(stderr().as_fd().try_clone_to_owned().ok()?);
    let (ours, named) = (file.metadata().ok()?, fs::metadata(path).ok()?);
    let is_same = (ours.dev(), ours.ino()) == (named.dev(), named.ino());
    is_same.then_some(file)
}

/// Opens a log for appending if another process holds it, and if it is not too long for that.
fn in_use(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    // The directory may be another user's: neither a link nor a pipe leads elsewhere or waits.
    options.append(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() >= MAX_SHARED {
        return None;
    }
    let is_used = is_used(&file).unwrap_or_default();
    is_used.then_some(file)
}

/// True if another process has marked the log as used.
///
/// The mark is a write lock, which only a process that may write to the file can have. A read lock or a flock(2) of another user
/// says nothing.
fn is_used(file: &File) -> nix::Result<bool> {
    let mut found = lock(libc::F_RDLCK, 0, 0);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(c_int::from(found.l_type) == libc::F_WRLCK)
}

/// Marks a log as used until this process, which has it as standard error, has ended. Each process locks a byte of its own.
fn hold(file: &File) {
    let mark = lock(libc::F_WRLCK, std::process::id().into(), 1);
    if let Err(err) = fcntl(file, FcntlArg::F_OFD_SETLK(&mark)) {
        tracing::warn!(
            "log: cannot be locked ({err}): a program that is started by hand replaces it"
        );
    }
}

/// A lock of `len` bytes of a file, as fcntl(2) takes it; 0: of all.
fn lock(kind: c_int, start: libc::off_t, len: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: c_short::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Keeps the log of the run before. PCP 6 removes the file when it opens a log; PCP 7 renames it to the same name.
///
/// Returns the name that the log cannot be kept as, and the reason.
fn keep_previous(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    if !path.exists() {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".prev");
    let _ = fs::remove_file(&name);
    // A second name rather than another one: PCP 7 removes `*.prev` before it renames the log.
    fs::hard_link(path, &name).map_err(|err| (name.into(), err))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log in a directory of its own, opened as a second process does.
    fn log() -> (tempfile::TempDir, PathBuf, impl Fn() -> File) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl.log");
        fs::write(&path, "a line\n").expect("written");
        let open = {
            let path = path.clone();
            move || {
                OpenOptions::new()
                    .read(true)
                    .append(true)
                    .open(&path)
                    .expect("there")
            }
        };
        (dir, path, open)
    }

    #[test]
    fn only_a_write_lock_marks_a_log_as_used() {
        let (_dir, path, open) = log();
        assert!(in_use(&path).is_none());
        // Locks that a user can have who may only read the file.
        let reader = File::open(&path).expect("there");
        let read_lock = lock(libc::F_RDLCK, 0, 0);
        fcntl(&reader, FcntlArg::F_OFD_SETLK(&read_lock)).expect("locked");
        reader.lock_shared().expect("locked");
        assert!(in_use(&path).is_none());
        drop(reader);
        let (first, second) = (open(), open());
        hold(&first);
        assert!(in_use(&path).is_some());
        // A log of this length is replaced all the same.
        second.set_len(MAX_SHARED).expect("sparse");
        assert!(in_use(&path).is_none());
        second.set_len(0).expect("shorter");
        drop(first);
        assert!(in_use(&path).is_none());
    }

    #[test]
    fn previous_log_is_kept_unless_a_directory_has_its_name() {
        let (dir, path, _) = log();
        let previous = dir.path().join("nixl.log.prev");
        for _ in 0..2 {
            keep_previous(&path).expect("kept");
            assert_eq!(fs::read_to_string(&previous).expect("there"), "a line\n");
        }
        fs::remove_file(&previous).expect("there");
        fs::create_dir(&previous).expect("made");
        let (name, err) = keep_previous(&path).expect_err("a directory is in the way");
        assert_eq!((name, err.kind()), (previous, io::ErrorKind::AlreadyExists));
        assert_eq!(fs::read_to_string(&path).expect("there"), "a line\n");
        fs::remove_file(&path).expect("there");
        assert!(keep_previous(&path).is_ok(), "there was no run before");
    }
}
