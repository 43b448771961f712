//! Finds the directories that are configured, lazily: another user may own what a pattern leads through, and make any number of
//! names there.

use super::{
    AS_A_SHELL, Directory, Holds, PASS, Places, is_configured, is_wild, open_below, split, walk,
};
use crate::base::file::{FileFacts, LIST};
use crate::config::DirectoryPattern;
use glob::Pattern;
use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::iter::{from_fn, once};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// Names that are taken from a listing at a time, in their order: each pass goes the same way.
const CHUNK: usize = 1024;
/// Most names that are read in one directory of root's, which may grow while it is listed, and in all directories of one other
/// user together: that user may make any number of them, one in the other.
const MOST_NAMES: usize = 1 << 16;
const ROOT: u32 = 0;

/// Result of a step of an expansion.
#[derive(Debug)]
pub enum Step {
    /// A directory and its owner. The owner is `None` if the configuration writes the path out, since then it is the
    /// administrator's choice.
    Found(Directory, Option<u32>),
    /// A pattern whose part before the first wildcard cannot be opened, and why.
    Closed(String, Errno),
    /// A name that does not lead to a directory, or leads to one that was found before.
    Nothing,
}

/// All configured directories: those that are written out first, then those that patterns match. A step takes less than a
/// millisecond.
pub struct Expansion(Box<dyn Iterator<Item = Step>>);

impl fmt::Debug for Expansion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expansion").finish_non_exhaustive()
    }
}

impl Iterator for Expansion {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.0.next()
    }
}

/// Names that may still be read in the directories of each user but root.
type Allowance = Rc<RefCell<HashMap<u32, Rc<Cell<usize>>>>>;

/// Names that may still be read in a directory of this owner's.
fn left_of(allowance: &Allowance, owner: u32) -> Rc<Cell<usize>> {
    let all = || Rc::new(Cell::new(MOST_NAMES));
    match owner {
        ROOT => all(),
        owner => Rc::clone(allowance.borrow_mut().entry(owner).or_insert_with(all)),
    }
}

impl Expansion {
    /// Opens nothing before its first step.
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self::within(places, Allowance::default())
    }

    fn within(places: Places, allowance: Allowance) -> Self {
        let all = places.rings.iter().chain(&places.stores);
        let mut patterns: Vec<DirectoryPattern> = all.cloned().collect();
        patterns.sort_by_key(|pattern| !pattern.literal);
        let are_several = patterns.len() > 1;
        let steps = patterns.into_iter().flat_map(move |pattern| {
            expand(&pattern, &allowance)
                .unwrap_or_else(|errno| Box::new(once(Step::Closed(pattern.path, errno))))
        });
        let mut met = HashSet::new();
        Self(Box::new(steps.map(move |step| match step {
            Step::Found(mut directory, owner) => {
                // Each comes once, for all that is looked for there.
                let path = &directory.path;
                if are_several && !met.insert(path.clone()) {
                    return Step::Nothing;
                }
                directory.holds = Holds {
                    rings: is_configured(&places.rings, path),
                    stores: is_configured(&places.stores, path),
                };
                Step::Found(directory, owner)
            }
            step => step,
        })))
    }
}

/// The directories that a pattern matches. What is looked for in them is filled in later.
fn expand(
    pattern: &DirectoryPattern,
    allowance: &Allowance,
) -> nix::Result<Box<dyn Iterator<Item = Step>>> {
    let (base, components) = split(pattern);
    let written_out = Directory {
        path: base.clone(),
        label: pattern.label.clone(),
        holds: Holds::default(),
        base,
    };
    if components.is_empty() {
        return Ok(Box::new(once(Step::Found(written_out, None))));
    }
    let fd = walk::pass(&written_out.path)?;
    let path = written_out.path.clone();
    let mut places: Steps = Box::new(once(Some(Place { fd, path })));
    for component in components {
        let (component, allowance) = (component.to_owned(), Rc::clone(allowance));
        places = Box::new(places.flat_map(move |place| {
            let below = place.and_then(|place| place.below(&component, &allowance));
            below.unwrap_or_else(|| Box::new(once(None)))
        }));
    }
    Ok(Box::new(places.map(move |place| {
        let found = place.and_then(|place| Some((place.owner()?, place.path)));
        found.map_or(Step::Nothing, |(owner, path)| {
            let base = written_out.clone();
            Step::Found(Directory { path, ..base }, Some(owner))
        })
    })))
}

/// Directories that the components until now match. `None` is a name that leads to none.
type Steps = Box<dyn Iterator<Item = Option<Place>>>;

/// A directory on the way.
struct Place {
    fd: OwnedFd,
    path: PathBuf,
}

impl Place {
    fn owner(&self) -> Option<u32> {
        fstat(&self.fd).ok().map(|stat| FileFacts::new(&stat).uid)
    }

    /// The directories in it that match a component; `None`: it cannot be listed.
    fn below(self, component: &OsStr, allowance: &Allowance) -> Option<Steps> {
        let names: Box<dyn Iterator<Item = Option<OsString>>> = if is_wild(component) {
            // Patterns are checked when the configuration is read. It is opened again to be listed: what led here may only have
            // been passed through.
            let pattern = Pattern::new(component.to_str()?).ok()?;
            let listing = Dir::openat(&self.fd, ".", LIST, Mode::empty()).ok()?;
            let left = left_of(allowance, self.owner()?);
            Box::new(matches(listing.into_iter(), pattern, left))
        } else {
            Box::new(once(Some(component.to_owned())))
        };
        Some(Box::new(names.map(move |name| {
            let name = name?;
            let fd = open_below(&self.fd, &name, PASS).ok()?;
            let path = self.path.join(name);
            Some(Place { fd, path })
        })))
    }
}

/// The names in a directory that match, as far as so many may still be read. `None` comes after each chunk, so that a step takes
/// no longer where no name matches.
fn matches(
    mut listing: OwningIter,
    pattern: Pattern,
    left: Rc<Cell<usize>>,
) -> impl Iterator<Item = Option<OsString>> {
    let chunks = from_fn(move || {
        let entries = listing.by_ref().take(CHUNK.min(left.get()));
        let (mut read, mut names) = (0, Vec::new());
        for entry in entries {
            read += 1;
            let Ok(entry) = entry else { continue };
            // Where the file system does not tell what it is, that is found out when it is opened.
            let kind = entry.file_type().unwrap_or(Type::Directory);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_match = |name: &str| pattern.matches_with(name, AS_A_SHELL);
            if kind == Type::Directory
                && name != "."
                && name != ".."
                && name.to_str().is_some_and(is_match)
            {
                names.push(name.to_owned());
            }
        }
        left.set(left.get() - read);
        names.sort_unstable();
        (read > 0).then(|| names.into_iter().map(Some).chain(once(None)))
    });
    chunks.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Uid, chown};
    use std::fs;

    #[test]
    fn what_is_no_directory_is_not_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("pod-1")).expect("made");
        fs::write(dir.path().join("pod-2"), "").expect("made");
        std::os::unix::fs::symlink("pod-1", dir.path().join("pod-3")).expect("made");
        let listing = Dir::open(dir.path(), LIST, Mode::empty()).expect("there");
        let pattern = Pattern::new("pod-*").expect("a pattern");
        let left = Rc::new(Cell::new(100));
        let names = matches(listing.into_iter(), pattern, left);
        assert_eq!(names.flatten().collect::<Vec<_>>(), ["pod-1"]);
    }

    #[test]
    fn all_directories_of_a_stranger_have_the_names_of_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let in_each = |owner: Option<u32>| {
            let top = dir.path().join(format!("{owner:?}"));
            for place in 0..30 {
                let outer = top.join(place.to_string());
                fs::create_dir_all(outer.join("a")).expect("made");
                // ".", ".." and this one.
                let owner = owner.map(Uid::from_raw);
                chown(&outer, owner, None).expect("the tests are run as root");
            }
            let places = Places {
                rings: vec![DirectoryPattern {
                    path: top.join("*/*").to_str().expect("UTF-8").to_owned(),
                    label: None,
                    literal: false,
                }],
                ..Places::default()
            };
            let allowance = Allowance::default();
            let left = Rc::new(Cell::new(42));
            allowance.borrow_mut().insert(4242, left);
            let steps = Expansion::within(places, allowance);
            steps.filter(|step| matches!(step, Step::Found(..))).count()
        };
        if !nix::unistd::geteuid().is_root() {
            println!("left out: directories of a stranger, which only root can make");
            return;
        }
        assert_eq!(in_each(None), 30);
        assert_eq!(in_each(Some(4242)), 42 / 3);
    }
}
