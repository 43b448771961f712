// SPDX-License-Identifier: GPL-2.0-or-later

//! Rights of the daemon: the user that it becomes, its capabilities, and the directories that it may use.

use crate::config::Config;
use crate::procfs::process_scan::user_name;
use confine::OwnPaths;
use nix::unistd::geteuid;
use privilege::NotAllowed;

pub mod confine;
pub mod privilege;

/// Becomes the configured user and gives up all rights that the work does not need. With `proc_facts` off, it also locks the process
/// into its directories. Returns a text with the user, the capabilities and the lock.
///
/// # Errors
/// The kernel does not allow the user.
pub fn enter(config: &Config, own: &OwnPaths) -> Result<String, NotAllowed> {
    privilege::limit(config)?;
    let user = user_name(geteuid().as_raw());
    let capabilities = privilege::in_force();
    let locked = match config.proc_facts {
        true => String::new(),
        false => match confine::confine(config, own) {
            Ok(how) => format!(", {how}"),
            Err(err) => format!(", not locked in: {err}"),
        },
    };
    Ok(format!("{user} with {capabilities}{locked}"))
}
