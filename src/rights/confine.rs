// SPDX-License-Identifier: GPL-2.0-or-later

//! Locks the process into the directories that it works in (landlock(7)), for good.
//!
//! Neither it nor a process that it starts can then read /proc/PID/maps of other processes. So the observer is started
//! before.

use crate::config::{Config, DirectoryPattern};
use crate::discovery::directory;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, stat};
use std::path::{Path, PathBuf};

/// Newest rules of Landlock that this build uses. An older kernel enforces those that it has.
const RULES: ABI = ABI::V5;

/// Files and directories with processes, users and local times.
const LOOKED_UP: [&str; 5] = [
    "/proc",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
    "/usr/share/zoneinfo",
];

/// Directories that are not made again while the host runs.
const PERMANENT: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Directories that the daemon needs beside the telemetry directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPaths {
    /// Directories of the state file and of the id file, which it writes.
    pub written: Vec<PathBuf>,
    /// Directories of the configuration and of the help text, and pcp.conf, which it reads.
    pub read: Vec<PathBuf>,
}

/// What Landlock allows with a configuration, beside [`OwnPaths`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Paths and patterns of the directories of rings.
    telemetry_dir: Vec<String>,
    /// Paths and patterns of the directories of stores, which are only read.
    multiproc_dir: Vec<String>,
    ring_access: BitFlags<AccessFs>,
}

impl Confinement {
    /// Returns what Landlock allows with a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let paths = |patterns: &[DirectoryPattern]| {
            let paths = patterns.iter().map(|pattern| pattern.path.clone());
            paths.collect()
        };
        Self {
            telemetry_dir: paths(&config.telemetry_dir),
            multiproc_dir: paths(&config.multiproc_dir),
            ring_access: ring_access(config),
        }
    }
}

fn ring_access(config: &Config) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    match (config.observe, config.remove_exited_after) {
        (true, _) => read,
        (false, None) => read | AccessFs::WriteFile,
        (false, Some(_)) => read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile,
    }
}

/// Why the process is not locked in.
#[derive(Debug, thiserror::Error)]
pub enum NotConfined {
    /// The kernel has Landlock, but rejects the rules.
    #[error("{0}")]
    Rules(#[from] RulesetError),
    /// Without a rule for it, a directory could not be used any more.
    #[error("{}: {why}", path.display())]
    Path {
        /// Directory.
        path: PathBuf,
        /// Why it cannot be opened.
        why: Errno,
    },
}

/// Locks the process into its directories for good. Returns a text that says how far the kernel enforces that.
///
/// # Errors
/// There is no rule for a directory, or the kernel rejects the rules. Then the process is not locked in.
pub fn confine(config: &Config, own: &OwnPaths) -> Result<String, NotConfined> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change =
        read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let rings = ring_access(config);
    let looked_up = LOOKED_UP.iter().map(PathBuf::from);
    let read_only = looked_up.chain(own.read.iter().cloned());
    let written = own.written.iter().map(|path| (path.clone(), change));
    let mut allowed = Vec::from_iter(read_only.map(|path| (path, read)).chain(written));
    for (key, patterns, access) in [
        ("telemetry_dir", &config.telemetry_dir, rings),
        ("multiproc_dir", &config.multiproc_dir, read),
    ] {
        for pattern in patterns {
            match reach(pattern)? {
                Some(path) => allowed.push((path, access)),
                None => tracing::warn!(
                    "{key}: {} stays out of reach, since {}, and run ./Install again",
                    pattern.path,
                    match directory::prefix(pattern) == Path::new("/") {
                        true => "its first part is a wildcard: name the directory at the top",
                        false => "it is not there: make it",
                    }
                ),
            }
        }
    }
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?
        .create()?;
    for (path, access) in allowed {
        let file = match open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            // A missing path gets no rule.
            Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
            Err(why) => return Err(NotConfined::Path { path, why }),
        };
        let stat = fstat(&file).map_err(|why| NotConfined::Path { path, why })?;
        let access = match stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
            true => access,
            false => access & AccessFs::from_file(RULES),
        };
        rules = rules.add_rule(PathBeneath::new(file, access))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => {
            "not locked in: this kernel has no Landlock, or it is not switched on".into()
        }
        RulesetStatus::PartiallyEnforced => {
            "locked in by Landlock, as far as this kernel can".into()
        }
        RulesetStatus::FullyEnforced => "locked in by Landlock".into(),
    })
}

/// Returns the directory that is allowed for a pattern: one that stays, since a rule is lost with its directory, and
/// the directory of a pattern may be made again. Of a pattern with a wildcard it is the part before that, of any other
/// the mount point of its file system or, where that is the root directory, what has it. Of a missing directory it is
/// the one above it. `None`: both are missing, or it is the root directory, which would allow everything.
///
/// # Errors
/// The kernel does not tell whether a directory is there.
fn reach(pattern: &DirectoryPattern) -> Result<Option<PathBuf>, NotConfined> {
    let prefix = directory::prefix(pattern);
    let mut found = None;
    for path in [Some(prefix.as_path()), prefix.parent()]
        .into_iter()
        .flatten()
    {
        if found.is_none() && device(path)?.is_some() {
            found = Some(path);
        }
    }
    let Some(mut there) = found else {
        return Ok(None);
    };
    let is_made_again = there == prefix
        && there == Path::new(&pattern.path)
        && !PERMANENT
            .iter()
            .any(|permanent| there == Path::new(permanent));
    if is_made_again {
        let mount_point = mount_point(there)?.unwrap_or(there);
        let above = there.parent().filter(|above| *above != Path::new("/"));
        there = match mount_point == Path::new("/") {
            true => above.unwrap_or(there),
            false => mount_point,
        };
    }
    Ok((there != Path::new("/")).then(|| there.to_owned()))
}

/// Returns the directory that the file system of a directory is mounted on.
fn mount_point(directory: &Path) -> Result<Option<&Path>, NotConfined> {
    let own = device(directory)?;
    let mut found = None;
    for path in directory.ancestors() {
        if device(path)? != own {
            break;
        }
        found = Some(path);
    }
    Ok(found)
}

/// Returns the device of a directory. `None`: it is not there.
fn device(path: &Path) -> Result<Option<libc::dev_t>, NotConfined> {
    match stat(path) {
        Ok(stat) => Ok((stat.st_mode & libc::S_IFMT == libc::S_IFDIR).then_some(stat.st_dev)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(why) => Err(NotConfined::Path {
            path: path.into(),
            why,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_for_a_directory_that_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let reach = |path: &Path| reach(&DirectoryPattern::of(path)).expect("the kernel tells");
        let at = |path: &str| reach(&dir.path().join(path));
        std::fs::create_dir_all(dir.path().join("pods/a")).expect("made");
        let there = |path: &str| Some(dir.path().join(path));
        assert_eq!(at("pods/*/nixl"), there("pods"));
        let top = mount_point(dir.path()).expect("the kernel tells");
        let top = top.expect("there").to_owned();
        let named = match top == Path::new("/") {
            true => there("pods"),
            false => Some(top),
        };
        assert_eq!(at("pods/a"), named);
        assert_eq!(at("pods/b"), there("pods"), "it may be made");
        assert_eq!(at("pods/b/nixl"), None);
        let of = |path: &str| reach(Path::new(path));
        assert_eq!(of("/var/tmp"), Some("/var/tmp".into()));
        assert_eq!(of("/no-such-directory"), None, "not all of /");
        assert_eq!(of("/*/nixl"), None, "not all of /");
        assert_eq!(
            mount_point(Path::new("/proc/self/fd")).ok(),
            Some(Some(Path::new("/proc")))
        );
    }
}
