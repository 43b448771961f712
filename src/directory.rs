//! The directories that rings are looked for in: the configured ones, and those that a pattern matches.
//!
//! A path that is written out is the administrator's, and symbolic links in it are followed. From the first component with a
//! wildcard on, a stranger may own what is there (a container its volume), so that no link is followed, neither when the
//! pattern is matched nor when the directory is opened.

use crate::config::DirectoryPattern;
use glob::{MatchOptions, Pattern};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK);

/// As a shell matches: a leading dot must be written out.
const AS_A_SHELL: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A directory that is scanned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// The configured label, which tells agents of the same name apart.
    pub label: Option<String>,
    /// How much of the path is the administrator's; links are not followed below it.
    base: PathBuf,
}

impl Directory {
    /// Opens the directory.
    ///
    /// # Errors
    /// What open(2) says; ENOTDIR or ELOOP where a link stands in a place that a pattern matched.
    pub fn open(&self) -> nix::Result<OwnedFd> {
        let mut fd = nix::fcntl::open(&self.base, FLAGS, Mode::empty())?;
        for component in self.path.strip_prefix(&self.base).unwrap_or(Path::new("")) {
            fd = open_below(&fd, component)?;
        }
        Ok(fd)
    }
}

/// Expands the configured directories and patterns, in their order; each directory comes once.
#[must_use]
pub fn expand(patterns: &[DirectoryPattern]) -> Vec<Directory> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for pattern in patterns {
        let whole = Path::new(&pattern.path);
        let (base, rest) = if pattern.literal {
            (whole.to_owned(), Vec::new())
        } else {
            split(whole)
        };
        let mut paths = Vec::new();
        match rest.split_first() {
            None => paths.push(base.clone()),
            Some(_) => {
                if let Ok(fd) = nix::fcntl::open(&base, FLAGS, Mode::empty()) {
                    match_below(&fd, &base, &rest, &mut paths);
                }
            }
        }
        for path in paths.into_iter().filter(|path| seen.insert(path.clone())) {
            let label = pattern.label.clone();
            found.push(Directory {
                path,
                label,
                base: base.clone(),
            });
        }
    }
    found
}

/// The components before the first with a wildcard, and the others.
fn split(path: &Path) -> (PathBuf, Vec<&OsStr>) {
    let components: Vec<&OsStr> = path.iter().collect();
    let wild = components.iter().position(|component| is_wild(component));
    let (base, rest) = components.split_at(wild.unwrap_or(components.len()));
    (base.iter().collect(), rest.to_vec())
}

fn is_wild(component: &OsStr) -> bool {
    component
        .as_bytes()
        .iter()
        .any(|byte| b"*?[".contains(byte))
}

/// Adds the directories below an open one that the components match. What cannot be looked into does not match.
fn match_below(directory: &OwnedFd, path: &Path, components: &[&OsStr], found: &mut Vec<PathBuf>) {
    let Some((first, rest)) = components.split_first() else {
        found.push(path.to_owned());
        return;
    };
    let matching = if is_wild(first) {
        // Patterns are checked when the configuration is read.
        let Some(Ok(pattern)) = first.to_str().map(Pattern::new) else {
            return;
        };
        let names = names(directory).unwrap_or_default().into_iter();
        let is_match = |name: &OsString| {
            name.to_str()
                .is_some_and(|name| pattern.matches_with(name, AS_A_SHELL))
        };
        names.filter(is_match).collect()
    } else {
        vec![OsString::from(first)]
    };
    for name in matching {
        if let Ok(fd) = open_below(directory, &name) {
            match_below(&fd, &path.join(&name), rest, found);
        }
    }
}

fn open_below(directory: &OwnedFd, name: &OsStr) -> nix::Result<OwnedFd> {
    if name == ".." {
        return Err(Errno::EINVAL);
    }
    openat(directory, name, FLAGS | OFlag::O_NOFOLLOW, Mode::empty())
}

/// The names in an open directory, `.` and `..` left out, sorted so that every scan goes the same way.
///
/// # Errors
/// What readdir(3) says.
pub fn names(directory: &OwnedFd) -> nix::Result<Vec<OsString>> {
    let mut dir = Dir::openat(directory, ".", FLAGS, Mode::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from(OsStr::from_bytes(&name)));
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn pattern(path: String) -> DirectoryPattern {
        let literal = !is_wild(OsStr::new(&path));
        DirectoryPattern {
            path,
            label: None,
            literal,
        }
    }

    fn expanded(path: String) -> Vec<PathBuf> {
        expand(&[pattern(path)])
            .into_iter()
            .map(|directory| directory.path)
            .collect()
    }

    #[test]
    fn a_pattern_matches_directories_as_a_shell_does() {
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
        // One that is written out is there even before it is made.
        assert_eq!(expanded(format!("{root}/later")), [at("later")]);
        assert_eq!(
            expand(&[
                pattern(format!("{root}/pod-1")),
                pattern(format!("{root}/*-1"))
            ])
            .len(),
            1
        );
    }

    #[test]
    fn links_are_followed_in_the_administrators_part_only() {
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
        // Put in place of a directory after it was matched.
        let found = expand(&[pattern(format!("{root}/real/*/nixl"))]);
        assert!(found[0].open().is_ok());
        fs::rename(at("real/pod"), at("real/gone")).expect("there");
        symlink("gone", at("real/pod")).expect("made");
        assert!(found[0].open().is_err());
    }

    #[test]
    fn a_pattern_does_not_climb() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        assert!(expanded(format!("{}/a/*/../../..", dir.path().display())).is_empty());
    }
}
