// SPDX-License-Identifier: GPL-2.0-or-later

//! Removal of the ring file of an exited agent, without harm to an agent of the same name that starts meanwhile.
//!
//! A starting agent opens the file with its name, and creates one only if there is none. Therefore the file is first
//! renamed, with a lease held from before that: from then on a starting agent creates a new file. An agent that opened
//! the old file earlier prevents the lease. An agent that opens it later waits for the lease; then the file is renamed
//! back, and the agent goes on as if nothing had happened. Only a file that no other process has open, and that has no
//! pending events, is removed. Begin with [`remove`].

use crate::base::file;
use crate::shm::{Lease, LeaseKind};
use crate::source::context::DrainContext;
use crate::source::{Reader, Source};
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Prefix of the temporary name of a file that is being removed. A daemon that is killed meanwhile leaves such a file
/// behind, and the next daemon goes on with its removal.
const PREFIX: &[u8] = b".pmdanixl-";

/// Result of the removal of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The file is removed. Its ring stays attached until it is certain that no process opened it meanwhile.
    Done,
    /// The file is left: a process has it open, or its name belongs to another file.
    Left,
    /// The file cannot be removed, now or later.
    Impossible(Errno),
}

/// The original name of a file that is being removed. `None` if the name is not a temporary one.
#[must_use]
pub fn original_name(name: &OsStr) -> Option<OsString> {
    let rest = name.as_bytes().strip_prefix(PREFIX)?;
    (!rest.is_empty()).then(|| OsString::from_vec(rest.to_owned()))
}

/// Removes the file of a ring from its directory, if no other process has it open and no events are pending.
pub fn remove(directory: &OwnedFd, source: &mut Source, context: &mut DrainContext) -> Removal {
    let Some(name) = source.file.path.file_name().map(OsStr::to_owned) else {
        return Removal::Left;
    };
    let is_source =
        |name: &OsStr| file::facts(directory, name).map(|facts| facts.id == source.id());
    if is_source(&name) != Ok(true) {
        return Removal::Left;
    }
    // A duplicate of the descriptor does not count as another opening, which would prevent the lease.
    let Ok(file) = source.reader.descriptor().try_clone() else {
        return Removal::Left;
    };
    // Before the file is renamed: while another process has it open, there is no lease and nothing may be changed.
    let Ok(lease) = Lease::acquire(&file, LeaseKind::Exclusive) else {
        return Removal::Left;
    };
    if original_name(&name).is_some() {
        // No agent opens the file with this name.
        return unlink_if_drained(directory, &name, source, &lease, context);
    }
    let temporary = OsString::from_vec([PREFIX, name.as_bytes()].concat());
    match rename(directory, &name, &temporary) {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Removal::Left,
        // This includes EEXIST: another file has the temporary name, and ENAMETOOLONG.
        Err(errno) => return Removal::Impossible(errno),
    }
    // Another process may have put another file in its place before the rename.
    let ours = is_source(&temporary) == Ok(true);
    let removal = if ours {
        unlink_if_drained(directory, &temporary, source, &lease, context)
    } else {
        Removal::Left
    };
    if removal != Removal::Done && rename(directory, &temporary, &name).is_err() {
        if ours {
            // An agent that started meanwhile has the name. Both files are its rings, and this one is removed once it
            // is drained.
            source.file.path.set_file_name(&temporary);
        } else {
            tracing::error!(
                "{temporary:?}: renamed from {name:?} by mistake, and another file has that name now; move it where it belongs"
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
    let Reader::Ring(ring) = &mut source.reader else {
        return Removal::Left;
    };
    // Counts what the last writer wrote before it ended, which is one batch or less unless it means harm. Drains count
    // more, and then the file is removed later. A process that opens the file from here on waits for the lease.
    if ring.drain_rest(&mut source.file, context) != Ok(true) || lease.is_breaking() {
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
    fn temporary_name_is_the_prefix_and_an_original_name() {
        let original = |name: &str| original_name(OsStr::new(name));
        assert_eq!(original(".pmdanixl-worker"), Some("worker".into()));
        assert_eq!(original(".pmdanixl-"), None);
        assert_eq!(original("worker"), None);
    }
}
