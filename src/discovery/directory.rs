// SPDX-License-Identifier: GPL-2.0-or-later

//! Telemetry directories: those that are configured, and those that a pattern matches.
//!
//! The administrator chose a path without wildcards, so symbolic links in it are followed if only root or the user of
//! this process can have made or replaced them (`walk`). From the first component with a wildcard on, another user may
//! own the directories, such as a container its volume. No link is followed there, neither to match the pattern nor to
//! open the directory.

use crate::base::file::{self, LIST_FLAGS};
use crate::config::{Config, DirectoryPattern};
use glob::{MatchOptions, Pattern};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod expansion;
mod served;
mod walk;
pub use expansion::{Expanded, Expansion};

/// Flags of open(2) to pass through a directory. They do not need the permission to list it.
pub const PATH_FLAGS: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

/// Matching as in a shell: a wildcard matches no leading dot.
const SHELL_MATCH: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Kinds of files that a directory is scanned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKinds {
    /// True if it is scanned for rings.
    pub rings: bool,
    /// True if it is scanned for stores of NIXL's `prometheus_mp`.
    pub stores: bool,
}

/// A directory that is scanned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directory {
    /// Path by which it is opened.
    pub path: PathBuf,
    /// Configured label, which distinguishes agents of the same name.
    pub label: Option<String>,
    /// Kinds of files that it is scanned for.
    pub kinds: FileKinds,
    /// First part of the path, without wildcards, in which links may be followed.
    prefix: PathBuf,
}

impl Directory {
    /// Opens the directory to list it.
    ///
    /// # Errors
    /// Any of open(2). ENOTDIR or ELOOP: a link is in the part that a pattern matched, or others could replace a link
    /// before it.
    pub fn open(&self) -> nix::Result<OwnedFd> {
        let rest = self
            .path
            .strip_prefix(&self.prefix)
            .unwrap_or(Path::new(""));
        let Some((parent, name)) = rest.parent().zip(rest.file_name()) else {
            return walk::open(&self.prefix, LIST_FLAGS);
        };
        let mut fd = walk::open(&self.prefix, PATH_FLAGS)?;
        for component in parent {
            fd = open_entry(&fd, component, PATH_FLAGS)?;
        }
        open_entry(&fd, name, LIST_FLAGS)
    }
}

/// Returns the text of an error of [`Directory::open`], with what to do.
#[must_use]
pub fn open_error(errno: Errno) -> String {
    let remedy = match errno {
        Errno::ELOOP => return "a user other than root could change a symbolic link in the path; configure the target of the link".into(),
        Errno::ENOENT => "; make it, or correct the path in nixl.conf",
        Errno::EACCES => "; let the user that pmdanixl runs as read and search it, or, if it was made since the start of pmdanixl, run ./Install again",
        Errno::ENOTDIR => "; name a directory in nixl.conf",
        Errno::EREMOTE => return "a user or another host serves its file system, which may not answer; name it in nixl.conf without a wildcard".into(),
        _ => "",
    };
    format!("{errno}{remedy}")
}

/// True if one of the configured paths or patterns names the directory. The directory need not exist.
#[must_use]
pub fn is_configured(patterns: &[DirectoryPattern], path: &Path) -> bool {
    patterns
        .iter()
        .any(|pattern| match Pattern::new(&pattern.path) {
            Ok(wild) if !pattern.literal => matches(&wild, path.as_os_str()),
            _ => Path::new(&pattern.path) == path,
        })
}

/// True if a pattern matches a path or name. What is not UTF-8 in it is matched by wildcards only.
fn matches(pattern: &Pattern, path: &OsStr) -> bool {
    pattern.matches_with(&path.to_string_lossy(), SHELL_MATCH)
}

/// Returns the part of a configured path without wildcards: the whole path, or a pattern's components before the first
/// wildcard.
#[must_use]
pub fn prefix(pattern: &DirectoryPattern) -> PathBuf {
    split(pattern).0
}

/// Splits a pattern into the path before its first component with a wildcard, and the other components.
fn split(pattern: &DirectoryPattern) -> (PathBuf, Vec<&OsStr>) {
    if pattern.literal {
        return (PathBuf::from(&pattern.path), Vec::new());
    }
    let components: Vec<&OsStr> = Path::new(&pattern.path).iter().collect();
    let wild = components
        .iter()
        .position(|component| has_wildcard(component));
    let (prefix, rest) = components.split_at(wild.unwrap_or(components.len()));
    (prefix.iter().collect(), rest.to_vec())
}

fn has_wildcard(component: &OsStr) -> bool {
    component
        .as_bytes()
        .iter()
        .any(|byte| b"*?[".contains(byte))
}

/// Opens a directory that a pattern matches.
///
/// # Errors
/// Any of openat2(2); EREMOTE if its file system may not answer.
fn open_entry(directory: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    match file::open_entry(directory, name, flags) {
        Err(Errno::EXDEV) => {
            let mounted = openat(
                directory,
                name,
                PATH_FLAGS | OFlag::O_NOFOLLOW,
                Mode::empty(),
            )?;
            match served::is_served(&mounted) {
                true => Err(Errno::EREMOTE),
                false => openat(&mounted, ".", flags, Mode::empty()),
            }
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn rings(patterns: &[DirectoryPattern]) -> Vec<Directory> {
        expand(patterns, &[])
    }

    fn expand(rings: &[DirectoryPattern], stores: &[DirectoryPattern]) -> Vec<Directory> {
        let expansion = Expansion::new(Config {
            telemetry_dir: rings.to_vec(),
            multiproc_dir: stores.to_vec(),
            ..Config::default()
        });
        let found = expansion.flatten();
        found.map(|(directory, _)| directory).collect()
    }

    fn expanded(path: String) -> Vec<PathBuf> {
        rings(&[DirectoryPattern::of(path)])
            .into_iter()
            .map(|directory| directory.path)
            .collect()
    }

    #[test]
    fn pattern_matches_directories_as_in_a_shell() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in [
            "pod-1/vol/nixl",
            "pod-2/vol/nixl",
            "pod-3/vol",
            ".pod-4/vol/nixl",
        ] {
            fs::create_dir_all(dir.path().join(path)).expect("made");
        }
        fs::write(dir.path().join("pod-3/vol/nixl"), "a file").expect("written");
        let at = |path: &str| dir.path().join(path);
        let root = dir.path().display();
        assert_eq!(
            expanded(format!("{root}/*/vol/nixl")),
            [at("pod-1/vol/nixl"), at("pod-2/vol/nixl")]
        );
        assert_eq!(
            expanded(format!("{root}/pod-[23]/v?l")),
            [at("pod-2/vol"), at("pod-3/vol")]
        );
        assert_eq!(expanded(format!("{root}/.*/vol")), [at(".pod-4/vol")]);
        assert!(expanded(format!("{root}/none-*/vol")).is_empty());
        // A path without a wildcard is returned even if it does not exist.
        assert_eq!(expanded(format!("{root}/later")), [at("later")]);
        assert_eq!(
            rings(&[
                DirectoryPattern::of(format!("{root}/pod-1")),
                DirectoryPattern::of(format!("{root}/*-1"))
            ])
            .len(),
            1
        );
    }

    #[test]
    fn directory_for_rings_and_stores_is_returned_once() {
        let place = |path: &str| DirectoryPattern::of(path);
        let found = expand(
            &[place("/both"), place("/rings")],
            &[place("/stores"), place("/both")],
        );
        let found: Vec<_> = found
            .iter()
            .map(|directory| {
                let FileKinds { rings, stores } = directory.kinds;
                (directory.path.to_str().expect("UTF-8"), rings, stores)
            })
            .collect();
        let expected = [
            ("/both", true, true),
            ("/rings", true, false),
            ("/stores", false, true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pattern_matches_names_that_are_not_utf8() {
        let dir = tempfile::tempdir().expect("a directory");
        let names: [&[u8]; 3] = [b"pod-\xff", b"pod-\xfe\xff", b"other-\xff"];
        for name in names {
            fs::create_dir(dir.path().join(OsStr::from_bytes(name))).expect("made");
        }
        let all = expanded(format!("{}/pod-?*", dir.path().display()));
        let expected = [names[1], names[0]].map(|name| dir.path().join(OsStr::from_bytes(name)));
        assert_eq!(all, expected);
        let patterns = [DirectoryPattern::of(format!(
            "{}/pod-?",
            dir.path().display()
        ))];
        assert!(is_configured(&patterns, &expected[1]));
        assert!(!is_configured(&patterns, &expected[0]));
    }

    #[test]
    fn links_are_followed_before_the_first_wildcard_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("real/pod/nixl")).expect("made");
        symlink("real", at("link")).expect("made");
        symlink(at("real/pod"), at("real/evil")).expect("made");
        symlink("nixl", at("real/pod/other")).expect("made");
        let root = dir.path().display();
        assert_eq!(
            expanded(format!("{root}/link/*/nixl")),
            [at("link/pod/nixl")]
        );
        assert_eq!(expanded(format!("{root}/real/*/*")), [at("real/pod/nixl")]);
        // A link that replaces a directory after the match.
        let found = rings(&[DirectoryPattern::of(format!("{root}/real/*/nixl"))]);
        assert!(found[0].open().is_ok());
        fs::rename(at("real/pod"), at("real/gone")).expect("there");
        symlink("gone", at("real/pod")).expect("made");
        assert!(found[0].open().is_err());
    }

    #[test]
    fn missing_directory_is_recognised_as_configured() {
        let patterns = [
            DirectoryPattern::of("/a/pod-*/nixl"),
            DirectoryPattern::of("/b"),
        ];
        for (path, expected) in [
            ("/a/pod-1/nixl", true),
            ("/b", true),
            ("/a/pod-1/x/nixl", false),
            ("/b/c", false),
        ] {
            assert_eq!(
                is_configured(&patterns, Path::new(path)),
                expected,
                "{path}"
            );
        }
    }
}
