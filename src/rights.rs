//! What the daemon may do: the user that it becomes, the capabilities that it keeps, the directories that it keeps to.

use crate::config::Config;
use crate::procfs::process_scan::user_name;
use confine::OwnPlaces;
use nix::unistd::geteuid;
use privilege::NotAllowed;

pub mod confine;
pub mod privilege;

/// Becomes the configured user with no more rights than the work takes; where nothing is wanted of other processes, also locks the
/// process into its directories. Returns what holds then, in words.
///
/// # Errors
/// The kernel does not allow the user.
pub fn enter(config: &Config, own: &OwnPlaces) -> Result<String, NotAllowed> {
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
