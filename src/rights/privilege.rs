// SPDX-License-Identifier: GPL-2.0-or-later

//! Change of user and capabilities.

use crate::config::{Config, UserAccount};
use caps::{CapSet, Capability, CapsHashSet, securebits};
use nix::errno::Errno;
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{Gid, Uid, getuid, setgid, setgroups, setuid};
use std::process::{Child, Command};
use std::thread;

/// Reason why the process could not become the configured user.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot become user {name}: {errno}; start as root, or leave user out of the configuration"
)]
pub struct NotAllowed {
    name: String,
    errno: Errno,
}

/// Becomes the configured user for good, with its groups and only the capabilities that the configuration needs. A
/// process that already has this user, or stays root, only loses capabilities. No program that it starts can have more.
/// `before_limit` is called as the user, before any capability is given up.
///
/// # Errors
/// The kernel does not allow it. Then the same capabilities are in effect as before.
pub fn limit(config: &Config, before_limit: impl FnOnce()) -> Result<(), NotAllowed> {
    let account = config.user.as_ref();
    let before = raise();
    let limited = become_user(account).and_then(|()| {
        before_limit();
        let needed = needed(getuid().as_raw(), config);
        keep_only(&needed, &needed)
    });
    limited.map_err(|errno| {
        let _ = caps::set(None, CapSet::Effective, &before);
        NotAllowed {
            name: account.map_or("root".into(), |account| account.name.clone()),
            errno,
        }
    })
}

fn become_user(account: Option<&UserAccount>) -> Result<(), Errno> {
    if let Some(account) = account.filter(|account| getuid().as_raw() != account.uid) {
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        let groups = [&[account.gid], &*account.groups].concat();
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        // Otherwise setuid(2) clears all capabilities.
        let _ = securebits::set_keepcaps(true);
        setgid(gid)
            .and_then(|()| setgroups(&groups))
            .and_then(|()| setuid(uid))?;
    }
    Ok(())
}

/// Capabilities that some configuration needs, or that it takes to become its user.
const OF_ANY_CONFIGURATION: [Capability; 10] = [
    Capability::CAP_BPF,
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_LEASE,
    Capability::CAP_PERFMON,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SYS_PTRACE,
];

/// Puts all capabilities out of effect, until there is a valid configuration, and gives up those that no configuration
/// needs.
///
/// # Errors
/// The kernel does not allow it.
pub fn suspend() -> Result<(), Errno> {
    keep_only(&[], &OF_ANY_CONFIGURATION)
}

/// Runs a function with all capabilities in effect that the process may have.
pub fn raised<T>(run: impl FnOnce() -> T) -> T {
    let before = raise();
    let result = run();
    let _ = caps::set(None, CapSet::Effective, &before);
    result
}

/// Puts all permitted capabilities into effect. Returns those that were in effect before.
fn raise() -> CapsHashSet {
    let before = caps::read(None, CapSet::Effective).unwrap_or_default();
    // Permitted capabilities may always be put into effect (capabilities(7)).
    let _ = caps::set(None, CapSet::Effective, &permitted());
    before
}

/// Returns the capabilities that reading other users' processes needs: SYS_PTRACE for their mappings and sockets
/// (pidfd_getfd(2)), DAC_READ_SEARCH for their files. Containers have DAC_OVERRIDE instead, which is more.
#[must_use]
pub fn of_reader() -> [Capability; 2] {
    let read = Capability::CAP_DAC_READ_SEARCH;
    let files = match permitted().contains(&read) {
        true => read,
        false => Capability::CAP_DAC_OVERRIDE,
    };
    [Capability::CAP_SYS_PTRACE, files]
}

/// Capabilities of the tracer beside those of [`of_reader`]: BPF for maps and programs, PERFMON to attach programs. The
/// observer starts tracers, so it may not give them up; they are not in effect there.
pub const OF_TRACER: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Returns the capabilities of the observer: those of [`of_reader`] and, to pass them on, of [`OF_TRACER`] that this
/// process has, if the configuration needs them.
#[must_use]
pub fn of_observer(config: &Config) -> Vec<Capability> {
    let permitted = permitted();
    let mut kept = Vec::from(of_reader());
    kept.retain(|_| reads_others(getuid().as_raw(), config));
    if config.traces() {
        kept.extend(OF_TRACER);
    }
    kept.retain(|cap| permitted.contains(cap));
    kept
}

/// True if an observer with these capabilities cannot read all processes that the configuration asks for.
#[must_use]
pub fn lacks_ptrace(config: &Config, kept: &[Capability]) -> bool {
    reads_others(getuid().as_raw(), config) && !kept.contains(&Capability::CAP_SYS_PTRACE)
}

/// Returns the capabilities that the process may put into effect.
#[must_use]
pub fn permitted() -> CapsHashSet {
    caps::read(None, CapSet::Permitted).unwrap_or_default()
}

/// Starts a program with these capabilities, as far as this process has them.
///
/// # Errors
/// Those of fork(2) and execve(2).
pub fn spawn_with(kept: &[Capability], command: &mut Command) -> std::io::Result<Child> {
    // Capabilities are those of a thread.
    let spawn = || {
        pass_on(kept);
        command.spawn()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, spawn)?;
        { thread.join() }.unwrap_or_else(|_| Err(Errno::EAGAIN.into()))
    })
}

/// Gives up all capabilities but those that reading other processes needs, and the right to regain any.
///
/// # Errors
/// The kernel does not allow it.
pub fn limit_worker() -> Result<(), Errno> {
    let kept = of_reader();
    keep_only(&kept, &kept)
}

/// Gives up all capabilities but those that reading other processes needs, which each program that this process starts
/// has too, and those of [`OF_TRACER`] that the daemon has passed on. These are not in effect, and only
/// [`spawn_with`] passes them on.
///
/// # Errors
/// The kernel does not allow it.
pub fn limit_observer() -> Result<(), Errno> {
    // Root has all capabilities that it may have, and only those that were passed on are ambient.
    let ambient = caps::read(None, CapSet::Ambient).unwrap_or_default();
    let reader = of_reader();
    let passed_on = OF_TRACER.into_iter().filter(|cap| ambient.contains(cap));
    let kept = Vec::from_iter(reader.into_iter().chain(passed_on));
    keep_only(&reader, &kept)?;
    pass_on(&reader);
    Ok(())
}

/// Gives up all capabilities but those of [`OF_TRACER`] and of [`of_reader`]. CAP_PERFMON is in effect only while
/// [`raised`] runs. Before Linux 5.19, each reading of a map needs CAP_BPF.
///
/// # Errors
/// The kernel does not allow it.
pub fn limit_tracer() -> Result<(), Errno> {
    let reader = of_reader();
    let effective = [reader[0], reader[1], Capability::CAP_BPF];
    let kept = [&effective[..], &[Capability::CAP_PERFMON]].concat();
    keep_only(&effective, &kept)
}

/// Lets each program that this thread starts have these capabilities. A program has the ambient ones of its thread,
/// even if it is not root's (capabilities(7)).
fn pass_on(kept: &[Capability]) {
    for &cap in kept {
        // Fails without the capability.
        let _ = caps::raise(None, CapSet::Inheritable, cap)
            .and_then(|()| caps::raise(None, CapSet::Ambient, cap));
    }
}

/// Puts capabilities into effect, and gives up all but those of `kept` for good. No program that the process starts can
/// have more.
fn keep_only(effective: &[Capability], kept: &[Capability]) -> Result<(), Errno> {
    let had = permitted();
    let of_those = |all: &[Capability]| -> CapsHashSet {
        let all = all.iter().copied();
        all.filter(|cap| had.contains(cap)).collect()
    };
    // Permitted last, since it bounds the others; then they cannot come back.
    let dropped = caps::clear(None, CapSet::Inheritable)
        .and_then(|()| caps::set(None, CapSet::Effective, &of_those(effective)))
        .and_then(|()| caps::set(None, CapSet::Permitted, &of_those(kept)));
    dropped.map_err(|_| Errno::EPERM)?;
    set_no_new_privs()
}

/// Returns the capabilities that the work needs (capabilities(7)): DAC_OVERRIDE to open another user's ring for
/// writing, DAC_READ_SEARCH to open it for reading, LEASE to find out whether another process has it open, FOWNER to
/// remove another user's file from a directory like /tmp. Root needs DAC_OVERRIDE also to write to PCP's directories,
/// which belong to PCP's user.
pub(super) fn needed(uid: u32, config: &Config) -> Vec<Capability> {
    if !reads_others(uid, config) {
        return Vec::new();
    }
    let is_root = Uid::from_raw(uid).is_root();
    let writes = match is_root || drains(config) {
        true => Capability::CAP_DAC_OVERRIDE,
        false => Capability::CAP_DAC_READ_SEARCH,
    };
    let mut needed = vec![writes, Capability::CAP_LEASE];
    if removes(config) {
        needed.push(Capability::CAP_FOWNER);
    }
    needed
}

/// True if files or processes of other users than that of the process are read.
#[must_use]
pub fn reads_others(uid: u32, config: &Config) -> bool {
    let is_root = Uid::from_raw(uid).is_root();
    let owners = config.owners.as_ref();
    is_root || owners.is_none_or(|owners| owners.iter().any(|&owner| owner != uid))
}

/// True if there may be rings to write to. Stores are only read.
fn drains(config: &Config) -> bool {
    !config.observe && !config.telemetry_dir.is_empty()
}

/// True if rings are removed.
fn removes(config: &Config) -> bool {
    config.remove_exited_after.is_some() && drains(config)
}

/// Returns the names of the effective capabilities as a text.
#[must_use]
pub fn in_force() -> String {
    names(caps::read(None, CapSet::Effective).unwrap_or_default())
}

/// Returns the names of capabilities as a text.
pub fn names(capabilities: impl IntoIterator<Item = Capability>) -> String {
    let mut names: Vec<String> = { capabilities.into_iter() }
        .map(|capability| capability.to_string())
        .collect();
    names.sort_unstable();
    match names.is_empty() {
        true => "no capabilities".into(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn needs(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        let names: Vec<String> = needed(4242, &config)
            .iter()
            .map(ToString::to_string)
            .collect();
        names.join(" ").replace("CAP_", "")
    }

    #[test]
    fn each_right_that_is_kept_is_one_that_the_configuration_needs() {
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(needs(|_| ()), "DAC_OVERRIDE LEASE");
        assert_eq!(
            needs(|config| config.remove_exited_after = hour),
            "DAC_OVERRIDE LEASE FOWNER"
        );
        assert_eq!(
            needs(|config| (config.observe, config.remove_exited_after) = (true, hour)),
            "DAC_READ_SEARCH LEASE"
        );
        let only_stores = |config: &mut Config| config.telemetry_dir.clear();
        assert_eq!(needs(only_stores), "DAC_READ_SEARCH LEASE");
        assert_eq!(needs(|config| config.owners = Some(vec![4242])), "");
        assert_eq!(
            needs(|config| config.owners = Some(vec![4242, 0])),
            "DAC_OVERRIDE LEASE"
        );
    }
}
