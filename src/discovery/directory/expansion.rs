// SPDX-License-Identifier: GPL-2.0-or-later

//! Lazy expansion of configured paths and patterns.
//!
//! Another user may own directories on the way of a pattern and make any number of names in them. So each step is
//! short, and the names that are read are limited.

use super::{
    Config, Directory, FileKinds, PATH_FLAGS, has_wildcard, is_configured, matches, open_entry,
    split, walk,
};
use crate::base::file::{FileFacts, LIST_FLAGS};
use crate::config::DirectoryPattern;
use glob::Pattern;
use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::vec::IntoIter;

/// Names that are read from a listing at a time. They are sorted, so that each pass has the same order.
const CHUNK: usize = 1024;
/// Most names that are read in one directory of root, and in all directories of one other user together. A directory
/// may grow while it is listed, and a user other than root may make any number of nested directories. In /tmp, which is
/// root's, any user makes names; these must not use up the limit of other directories of root.
const MAX_NAMES: usize = 1 << 16;
const ROOT: u32 = 0;
/// Limit of [`Expansion::served`].
const MAX_SERVED: usize = 64;

/// A directory, and its owner if a pattern matched it. The owner is `None` for a path without a wildcard, which the
/// administrator chose.
pub type Expanded = (Directory, Option<u32>);

/// Iterator over all configured directories: first the paths without wildcards, then the directories that patterns
/// match.
///
/// A step takes less than a millisecond. `None` is a step that found no directory, or one that was found before. If the
/// part of a pattern before its first wildcard cannot be opened, the pattern itself is returned as a directory.
#[derive(Debug, Default)]
pub struct Expansion {
    config: Config,
    patterns: IntoIter<DirectoryPattern>,
    /// Label of the current pattern, and its part before the first wildcard.
    current: Directory,
    /// Components of the current pattern from the first wildcard on.
    components: Vec<OsString>,
    /// Open directories, each inside the one before. Names in a level are matched with the component of the same index.
    levels: Vec<Level>,
    /// Directories that a pattern matches and that are left out, since their file system may not answer. Of many, the
    /// first ones.
    pub served: Vec<PathBuf>,
    /// Directories that were returned.
    found_paths: HashSet<PathBuf>,
    /// Remaining names that may be read in the directories of each user other than root.
    names_left: HashMap<u32, usize>,
}

/// An open directory on the way of a pattern.
#[derive(Debug)]
struct Level {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
    /// `None` if the component has no wildcard, or the directory cannot be listed.
    listing: Option<OwningIter>,
    /// Names that were read, match, and were not returned yet.
    names: IntoIter<OsString>,
    /// Remaining names that may be read, if root owns the directory.
    names_left: usize,
}

impl Iterator for Expansion {
    type Item = Option<Expanded>;

    fn next(&mut self) -> Option<Self::Item> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else {
            return self.begin_pattern();
        };
        let Some(name) = level.names.next() else {
            if !level.read(&self.components[depth - 1], &mut self.names_left) {
                self.levels.pop();
            }
            return Some(None);
        };
        let below = open_entry(&level.fd, &name, PATH_FLAGS);
        let path = level.path.join(name);
        let below = below.and_then(|fd| Level::new(fd, path.clone(), self.components.get(depth)));
        let below = below.map_err(|errno| (errno, path));
        Some(match below {
            Err((errno, path)) => {
                if errno == Errno::EREMOTE && self.served.len() < MAX_SERVED {
                    self.served.push(path);
                }
                None
            }
            Ok(below) if depth == self.components.len() => self.emit(below.path, Some(below.owner)),
            Ok(below) => {
                self.levels.push(below);
                None
            }
        })
    }
}

impl Expansion {
    /// Returns the expansion. Nothing is opened before its first step.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let all = config.telemetry_dir.iter().chain(&config.multiproc_dir);
        let mut patterns: Vec<DirectoryPattern> = all.cloned().collect();
        patterns.sort_by_key(|pattern| !pattern.literal);
        Self {
            config,
            patterns: patterns.into_iter(),
            ..Self::default()
        }
    }

    fn begin_pattern(&mut self) -> Option<Option<Expanded>> {
        let pattern = self.patterns.next()?;
        let (prefix, components) = split(&pattern);
        self.components = components.into_iter().map(OsStr::to_owned).collect();
        (self.current.prefix, self.current.label) = (prefix.clone(), pattern.label);
        if self.components.is_empty() {
            return Some(self.emit(prefix, None));
        }
        let level = walk::open(&prefix, PATH_FLAGS)
            .and_then(|fd| Level::new(fd, prefix, self.components.first()));
        Some(match level {
            Err(_) => self.emit(PathBuf::from(pattern.path), None),
            Ok(level) => {
                self.levels.push(level);
                None
            }
        })
    }

    /// Number of directories that were returned.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found_paths.len()
    }

    /// Returns a directory with all its kinds of files; `None` if it was returned before.
    fn emit(&mut self, path: PathBuf, owner: Option<u32>) -> Option<Expanded> {
        if !self.found_paths.insert(path.clone()) {
            return None;
        }
        let kinds = FileKinds {
            rings: is_configured(&self.config.telemetry_dir, &path),
            stores: is_configured(&self.config.multiproc_dir, &path),
        };
        let directory = Directory {
            path,
            kinds,
            ..self.current.clone()
        };
        Some((directory, owner))
    }
}

impl Level {
    /// Returns a level whose names are matched with `component`. To be listed, the directory is opened again, since
    /// `fd` may allow passing through only.
    fn new(fd: OwnedFd, path: PathBuf, component: Option<&OsString>) -> nix::Result<Self> {
        let owner = FileFacts::new(&fstat(&fd)?).uid;
        let (mut listing, mut names) = (None, Vec::new());
        match component {
            Some(wild) if has_wildcard(wild) => {
                let dir = Dir::openat(&fd, ".", LIST_FLAGS, Mode::empty());
                listing = dir.ok().map(Dir::into_iter);
            }
            name => names.extend(name.cloned()),
        }
        Ok(Self {
            fd,
            path,
            owner,
            listing,
            names: names.into_iter(),
            names_left: MAX_NAMES,
        })
    }

    /// Reads the next names and keeps those that match `component`, within the remaining number. Returns false if there
    /// are no more, or none may be read.
    fn read(&mut self, component: &OsStr, names_left: &mut HashMap<u32, usize>) -> bool {
        let Some(listing) = &mut self.listing else {
            return false;
        };
        // The configuration has checked the pattern, so it parses.
        let Some(Ok(pattern)) = component.to_str().map(Pattern::new) else {
            return false;
        };
        let names_left = match self.owner {
            ROOT => &mut self.names_left,
            owner => names_left.entry(owner).or_insert(MAX_NAMES),
        };
        let (mut read, mut names) = (0, Vec::new());
        for entry in listing.take(CHUNK.min(*names_left)) {
            read += 1;
            let Ok(entry) = entry else { continue };
            // Some file systems return no type; opening the entry then fails if it is not a directory.
            let kind = entry.file_type().unwrap_or(Type::Directory);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if kind == Type::Directory && name != "." && name != ".." && matches(&pattern, name) {
                names.push(name.to_owned());
            }
        }
        *names_left -= read;
        names.sort_unstable();
        self.names = names.into_iter();
        read > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Uid, chown};
    use std::fs;

    #[test]
    fn pattern_level_skips_files_and_links() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("pod-1")).expect("made");
        fs::write(dir.path().join("pod-2"), "").expect("made");
        std::os::unix::fs::symlink("pod-1", dir.path().join("pod-3")).expect("made");
        let fd = walk::open(dir.path(), PATH_FLAGS).expect("there");
        let component = OsString::from("pod-*");
        let level = Level::new(fd, dir.path().into(), Some(&component));
        let mut level = level.expect("there");
        assert!(level.read(&component, &mut HashMap::new()));
        assert_eq!(level.names.collect::<Vec<_>>(), ["pod-1"]);
    }

    #[test]
    fn nested_directories_of_one_user_share_one_name_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let in_each = |owner: Option<u32>| {
            let top = dir.path().join(format!("{owner:?}"));
            for place in 0..30 {
                let outer = top.join(place.to_string());
                fs::create_dir_all(outer.join("a")).expect("made");
                // A listing has three names: ".", ".." and "a".
                let owner = owner.map(Uid::from_raw);
                chown(&outer, owner, None).expect("the tests are run as root");
            }
            let mut expansion = Expansion::new(Config {
                telemetry_dir: vec![DirectoryPattern::of(top.join("*/*"))],
                ..Config::default()
            });
            expansion.names_left.insert(4242, 42);
            expansion.flatten().count()
        };
        if !nix::unistd::geteuid().is_root() {
            println!("left out: directories of another user: only root can make them");
            return;
        }
        assert_eq!(in_each(None), 30);
        assert_eq!(in_each(Some(4242)), 42 / 3);
    }
}
