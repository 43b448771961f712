//! Becoming another user.

use crate::config::Account;
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, getuid, initgroups, setgid, setuid};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Why the user could not be changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot become user {name}: {errno}; start as root, or leave user out of the configuration"
)]
pub struct NotAllowed {
    name: String,
    errno: Errno,
}

/// Becomes a user for good: group, further groups, user. Nothing is done if it is that user already.
///
/// # Errors
/// The kernel does not allow it.
pub fn become_user(account: &Account) -> Result<(), NotAllowed> {
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if getuid() == uid {
        return Ok(());
    }
    let refused = |errno| NotAllowed {
        name: account.name.clone(),
        errno,
    };
    let name = CString::new(account.name.as_str()).map_err(|_| refused(Errno::EINVAL))?;
    setgid(gid)
        .and_then(|()| initgroups(&name, gid))
        .and_then(|()| setuid(uid))
        .map_err(refused)
}

/// Makes a file that the user can write to later in a directory where it cannot make one. A file that is there already
/// changes its owner.
///
/// # Errors
/// It cannot be made.
pub fn hand_over(path: &Path, account: &Account) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        // The directory belongs to PCP's user: no link of its may lead root astray.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    std::os::unix::fs::fchown(&file, Some(account.uid), Some(account.gid))
}
