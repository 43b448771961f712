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
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
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

/// Returns what Landlock allows with a configuration, beside [`OwnPaths`].
pub(super) fn in_words(config: &Config) -> String {
    let paths = |patterns: &[DirectoryPattern]| {
        let paths = Vec::from_iter(patterns.iter().map(|pattern| &*pattern.path));
        paths.join(", ")
    };
    format!(
        "{} of rings in [{}], ReadFile | ReadDir of stores in [{}]",
        ring_access(config),
        paths(&config.telemetry_dir),
        paths(&config.multiproc_dir)
    )
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
    /// Without a rule for it, a path could not be used any more.
    #[error("{}: {why}", path.display())]
    Path {
        /// File or directory.
        path: PathBuf,
        /// Why it cannot be opened.
        why: io::Error,
    },
}

/// Locks the process into its directories for good. Returns a text that says how far the kernel enforces that.
///
/// # Errors
/// There is no rule for a path that is there, or the kernel rejects the rules. Then the process is not locked in.
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
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(&path);
        let Some(file) = if_there(&path, file)? else {
            continue;
        };
        let access = match file.metadata().is_ok_and(|of| of.is_file()) {
            true => access & AccessFs::from_file(RULES),
            false => access,
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

/// Returns the directory that is allowed for a pattern. A rule is lost with its directory, and that of a pattern may be
/// made again. So it is the part before the first wildcard. Of a pattern without one it is the directory above, unless
/// that is the root directory. Of a missing directory it is the one above it. `None`: both are missing, or it is the
/// root directory, which would allow everything. Links are followed.
///
/// # Errors
/// The kernel does not tell whether a directory is there.
fn reach(pattern: &DirectoryPattern) -> Result<Option<PathBuf>, NotConfined> {
    let is_root = |path: &Path| path == Path::new("/");
    let real = |path: &Path| if_there(path, path.canonicalize());
    let prefix = directory::prefix(pattern);
    let stays = prefix != Path::new(&pattern.path)
        || PERMANENT.iter().any(|path| prefix == Path::new(path));
    let found = match (real(&prefix)?, prefix.parent()) {
        (Some(found), _) if stays => Some(found),
        (Some(found), _) => {
            let above = found.parent().filter(|above| !is_root(above));
            Some(above.unwrap_or(&found).to_owned())
        }
        (None, Some(above)) => real(above)?,
        (None, None) => None,
    };
    Ok(found.filter(|found| !is_root(found)))
}

/// Returns `None` for a path that is not there.
fn if_there<T>(path: &Path, result: io::Result<T>) -> Result<Option<T>, NotConfined> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
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
        // A directory for temporary files may be a link.
        let root = dir.path().canonicalize().expect("there");
        let at = |path: &str| reach(&root.join(path));
        std::fs::create_dir_all(root.join("pods/a")).expect("made");
        std::os::unix::fs::symlink("pods/a", root.join("link")).expect("made");
        let pods = Some(root.join("pods"));
        assert_eq!(at("pods/*/nixl"), pods);
        assert_eq!(at("pods/a"), pods);
        assert_eq!(at("link"), pods);
        assert_eq!(at("pods/b"), pods, "it may be made");
        assert_eq!(at("pods/b/nixl"), None);
        let of = |path: &str| reach(Path::new(path));
        assert_eq!(of("/var/tmp"), Some("/var/tmp".into()));
        assert_eq!(of("/proc"), Some("/proc".into()), "not all of /");
        assert_eq!(of("/no-such-directory"), None, "not all of /");
        assert_eq!(of("/*/nixl"), None, "not all of /");
    }

    #[test]
    fn directory_of_which_the_kernel_tells_nothing_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let link = dir.path().join("loop");
        std::os::unix::fs::symlink("loop", &link).expect("made");
        let reached = reach(&DirectoryPattern::of(&link));
        assert!(
            matches!(reached, Err(NotConfined::Path { .. })),
            "not blind"
        );
    }
}
