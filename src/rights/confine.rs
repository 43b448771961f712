// SPDX-License-Identifier: GPL-2.0-or-later

//! Locks the process into the directories that it works in (landlock(7)), for good.
//!
//! Only with `proc_facts` off: a process in a Landlock domain cannot read /proc/PID/maps of other processes.

use crate::config::{Config, DirectoryPattern};
use crate::discovery::directory;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, path_beneath_rules,
};
use std::path::{Path, PathBuf};

/// Newest rules of Landlock that this build uses. An older kernel enforces those that it has.
const RULES: ABI = ABI::V5;

/// Files and directories with users and local times.
const LOOKED_UP: [&str; 5] = [
    "/proc",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
    "/usr/share/zoneinfo",
];

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

/// Locks the process into its directories for good. Returns a text that says how far the kernel enforces that.
///
/// # Errors
/// The kernel has Landlock, but rejects the rules.
pub fn confine(config: &Config, own: &OwnPaths) -> Result<String, RulesetError> {
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
            match reach(pattern) {
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
        // A missing path gets no rule.
        rules = rules.add_rules(path_beneath_rules([path], access))?;
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

/// Returns the directory that has a telemetry directory or will have it: the part of a pattern before the first wildcard or, if that
/// is missing, its parent. `None`: both are missing, or it is the root directory, which would allow everything.
fn reach(pattern: &DirectoryPattern) -> Option<PathBuf> {
    let prefix = directory::prefix(pattern);
    let paths = [Some(prefix.as_path()), prefix.parent()];
    let there = paths.into_iter().flatten().find(|path| path.is_dir())?;
    (there != Path::new("/")).then(|| there.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_reaches_from_its_first_wildcard_and_a_missing_directory_from_above_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| reach(&DirectoryPattern::of(dir.path().join(path)));
        std::fs::create_dir_all(dir.path().join("pods/a")).expect("made");
        let there = |path: &str| Some(dir.path().join(path));
        assert_eq!(at("pods/*/nixl"), there("pods"));
        assert_eq!(at("pods/a"), there("pods/a"));
        assert_eq!(at("pods/b"), there("pods"));
        assert_eq!(at("pods/b/nixl"), None);
        assert_eq!(at("/no-such-directory"), None, "not all of /");
        assert_eq!(at("/*/nixl"), None, "not all of /");
    }
}
