//! Removes the file of a ring whose agent has exited, and does no harm to an agent of the same name that starts meanwhile.
//!
//! An agent opens the file that is there under its name, and makes one only where there is none. So the file, of which there is a
//! lease from here on, is first moved away: from then on an agent that starts makes a new one. One that has opened the old file
//! before keeps the lease from being had, and one that opens it waits for it: then the file is moved back, and it goes on as if
//! nothing had been. Only a file that nobody has, and that is empty, is removed.

use crate::base::file;
use crate::shm::{Lease, LeaseKind};
use crate::source::Source;
use crate::source::context::DrainContext;
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What the names of files begin with that are being removed. A daemon that is killed in the midst of that leaves one behind,
/// and the next goes on with it.
const PREFIX: &[u8] = b".pmdanixl-";
/// The longest name that Linux has (NAME_MAX).
const NAME_MAX: usize = 255;

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is removed. The ring stays attached until it is certain that nobody met it on its last way.
    Done,
    /// It is left: somebody has it, or another has its name.
    Left,
    /// It cannot be removed, now and later.
    Impossible(Errno),
}

/// What a file that is being removed was called before; `None`: it is not.
#[must_use]
pub fn original_name(name: &OsStr) -> Option<OsString> {
    let rest = name.as_bytes().strip_prefix(PREFIX)?;
    (!rest.is_empty()).then(|| OsString::from_vec(rest.to_owned()))
}

/// Removes the file of a ring from its directory.
pub fn remove(directory: &OwnedFd, source: &mut Source, context: &mut DrainContext) -> Removal {
    let Some(name) = source.file.path.file_name().map(OsStr::to_owned) else {
        return Removal::Left;
    };
    let is_source =
        |name: &OsStr| file::facts(directory, name).map(|facts| facts.id == source.id());
    if is_source(&name) != Ok(true) {
        return Removal::Left;
    }
    // It does not count as another opening for a lease.
    let Ok(file) = source.reader.descriptor().try_clone() else {
        return Removal::Left;
    };
    // Before anything is done to its name: that waits for whoever writes to it, for as long as he likes.
    let Ok(lease) = Lease::acquire(&file, LeaseKind::Exclusive) else {
        return Removal::Left;
    };
    if original_name(&name).is_some() {
        // No agent opens it by this name.
        return unlink_if_drained(directory, &name, source, &lease, context);
    }
    let temporary = OsString::from_vec([PREFIX, name.as_bytes()].concat());
    if temporary.len() > NAME_MAX {
        return Removal::Impossible(Errno::ENAMETOOLONG);
    }
    match rename(directory, &name, &temporary) {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Removal::Left,
        // EEXIST among them: somebody has that name.
        Err(errno) => return Removal::Impossible(errno),
    }
    // Another may have been put in its place just then.
    let ours = is_source(&temporary) == Ok(true);
    let removal = if ours {
        unlink_if_drained(directory, &temporary, source, &lease, context)
    } else {
        Removal::Left
    };
    if removal != Removal::Done && rename(directory, &temporary, &name).is_err() {
        if ours {
            // An agent that started meanwhile has the name: both are its rings, and this one is removed when it is spent.
            source.file.path.set_file_name(&temporary);
        } else {
            tracing::error!(
                "{temporary:?} is another's file, of the name {name:?}, that another has taken since; move it where it belongs"
            );
        }
    }
    removal
}

fn unlink_if_drained(
    directory: &OwnedFd,
    name: &OsStr,
    source: &mut Source,
    lease: &Lease,
    context: &mut DrainContext,
) -> Removal {
    // What the last writer wrote before it ended. Whoever opens the file from here on waits for the lease.
    if source.drain_to_end(context) != Ok(true) || lease.is_breaking() {
        return Removal::Left;
    }
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => Removal::Done,
        Err(errno) => Removal::Impossible(errno),
    }
}

fn rename(directory: &OwnedFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    renameat2(
        directory,
        from,
        directory,
        to,
        RenameFlags::RENAME_NOREPLACE,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_something_behind_the_prefix_is_one_of_a_removal() {
        let original = |name: &str| original_name(OsStr::new(name));
        assert_eq!(original(".pmdanixl-worker"), Some("worker".into()));
        assert_eq!(original(".pmdanixl-"), None);
        assert_eq!(original("worker"), None);
    }
}
