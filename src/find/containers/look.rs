//! A look at all processes for those that have telemetry open in another mount namespace, in a thread of its own: to read the
//! mappings or the environment of a process, and to follow a path in its file systems, may take as long as somebody likes.

use super::name::Id;
use super::process::{self, Process, namespace};
use super::{MAX_PLACES, MAX_PLACES_EACH, Place, Refused, Why};
use crate::find::directory::{Holds, Inside, names};
use crate::find::discover::FileId;
use crate::producer::facts::environ::Directories;
use crate::producer::holdups::{At, Avoided, Look};
use crate::producer::writer::Writer;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many processes of a mount namespace are asked where its telemetry is written, if the one that writes does not say.
const ASKED: usize = 64;
/// How many processes are noted that have a directory's files.
const MAX_PROCESSES: usize = 64;

/// The first process.
const INIT: u32 = 1;

/// What a look has found.
#[derive(Debug, Default)]
pub struct Found {
    /// The directories, each once.
    pub places: Vec<Place>,
    /// Those that are left alone.
    pub refused: Vec<Refused>,
    /// Processes that may not be looked at.
    pub hidden: usize,
    /// How long it took.
    pub took: Duration,
}

/// What an earlier look has found that is still in use.
#[derive(Clone, Debug)]
pub struct Known {
    id: FileId,
    path: PathBuf,
    mnt: u64,
    processes: Vec<Writer>,
}

impl From<&Place> for Known {
    fn from(place: &Place) -> Self {
        Self {
            id: place.inside.id(),
            path: place.path.clone(),
            mnt: place.mnt,
            processes: place.processes.clone(),
        }
    }
}

/// Starts a look. `known` keep their names; `avoided` have held one up.
///
/// # Errors
/// There is no thread to be had.
pub fn begin(known: Vec<Known>, avoided: Avoided) -> io::Result<Look<Found>> {
    Look::begin("containers", move |at| look(&known, &avoided, at))
}

/// Looks at all processes.
pub fn look(known: &[Known], avoided: &Avoided, at: At) -> Found {
    let started = Instant::now();
    let mut found = Found::default();
    let mut namespaces = Namespaces::default();
    let mut processes = candidates(avoided, &mut namespaces, &mut found.hidden, at);
    // In the order in which they came, so that each start names them alike.
    processes.sort_by_key(|process| (process.writer.start, process.writer.pid));
    let mut sightings: Vec<Sighting> = Vec::new();
    let mut by_id: HashMap<FileId, usize> = HashMap::new();
    let mut by_mnt: HashMap<u64, usize> = HashMap::new();
    for process in processes {
        at(Some(process.writer));
        for (directory, holds) in namespaces.told(&process) {
            let opened = match process.is_ours {
                true => process.open(&directory),
                // Nothing is followed in what he may have mounted himself.
                false if process.seems_to_use(&directory) => Err(Why::UserNamespace),
                false => Ok(None),
            };
            let inside = match opened {
                Ok(Some(inside)) => inside,
                Ok(None) => continue,
                Err(why) => {
                    found.refused.push(Refused {
                        pid: process.writer.pid,
                        mnt: process.mnt,
                        directory,
                        why,
                    });
                    continue;
                }
            };
            if let Some(&seen) = by_id.get(&inside.id()) {
                sightings[seen].add(process.writer, holds);
                continue;
            }
            let of_its = by_mnt.entry(process.mnt).or_default();
            if let Some(why) = no_place(sightings.len(), *of_its) {
                found.refused.push(Refused {
                    pid: process.writer.pid,
                    mnt: process.mnt,
                    directory,
                    why,
                });
            } else {
                *of_its += 1;
                by_id.insert(inside.id(), sightings.len());
                sightings.push(Sighting {
                    process: process.clone(),
                    processes: vec![process.writer],
                    directory,
                    holds,
                    inside,
                });
            }
        }
    }
    found.places = name(sightings, known);
    found.took = started.elapsed();
    found
}

/// Why there is no place for one more directory, of so many that have one, and so many of the same container.
fn no_place(all: usize, of_its: usize) -> Option<Why> {
    match (all, of_its) {
        (MAX_PLACES.., _) => Some(Why::TooMany),
        (_, MAX_PLACES_EACH..) => Some(Why::TooManyOfIts),
        _ => None,
    }
}

/// Processes of other mount namespaces that have files mapped.
fn candidates(
    avoided: &Avoided,
    namespaces: &mut Namespaces,
    hidden: &mut usize,
    at: At,
) -> Vec<Process> {
    let mut found = Vec::new();
    let (Ok(mnt), Ok(user)) = (namespace("self", "mnt"), namespace("self", "user")) else {
        return found;
    };
    let proc = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let names = nix::fcntl::open("/proc", proc, Mode::empty()).and_then(|fd| names(&fd));
    for name in names.unwrap_or_default() {
        let Some((name, pid)) = name
            .to_str()
            .and_then(|name| Some((name, name.parse().ok()?)))
        else {
            continue;
        };
        let its = match namespace(name, "mnt") {
            Ok(its) if its != mnt => its,
            Ok(_) => continue,
            Err(err) => {
                // Some kernels show the host's first process to nobody.
                let is_hidden = err.kind() == ErrorKind::PermissionDenied && pid != INIT;
                *hidden += usize::from(is_hidden);
                continue;
            }
        };
        let Ok(writer) = Writer::of(pid) else {
            continue;
        };
        if avoided.has(writer) {
            continue;
        }
        namespaces.members.entry(its).or_default().push(writer);
        at(Some(writer));
        let is_ours = namespace(name, "user").is_ok_and(|its| its == user);
        match Process::read(writer, its, is_ours) {
            Ok(process) => found.extend(process),
            Err(err) => *hidden += usize::from(err.kind() == ErrorKind::PermissionDenied),
        }
    }
    found
}

/// The mount namespaces, and where telemetry is written in them.
#[derive(Debug, Default)]
struct Namespaces {
    members: HashMap<u64, Vec<Writer>>,
    told: HashMap<u64, BTreeSet<(PathBuf, Holds)>>,
}

impl Namespaces {
    /// Where a process was told to write. One that gave itself a title, as the workers of vLLM do, does not say that any more:
    /// then, where others of its namespace were told to.
    fn told(&mut self, process: &Process) -> Vec<(PathBuf, Holds)> {
        let own = process::told(process.writer);
        if !own.is_empty() {
            return by_directory([own]).into_iter().collect();
        }
        let members = self
            .members
            .get(&process.mnt)
            .map_or(&[][..], Vec::as_slice);
        let ask = || by_directory(members.iter().take(ASKED).map(|one| process::told(*one)));
        let told = self.told.entry(process.mnt).or_insert_with(ask);
        told.iter().cloned().collect()
    }
}

/// Each directory once, with all that is written there.
fn by_directory(told: impl IntoIterator<Item = Directories>) -> BTreeSet<(PathBuf, Holds)> {
    let mut all: HashMap<PathBuf, Holds> = HashMap::new();
    for Directories { rings, stores } in told {
        if let Some(rings) = rings {
            all.entry(rings).or_default().rings = true;
        }
        if let Some(stores) = stores {
            all.entry(stores).or_default().stores = true;
        }
    }
    all.into_iter().collect()
}

/// A directory that was met, and has no name yet.
#[derive(Debug)]
struct Sighting {
    /// The first process that has files of it.
    process: Process,
    processes: Vec<Writer>,
    directory: PathBuf,
    holds: Holds,
    inside: Inside,
}

impl Sighting {
    fn add(&mut self, process: Writer, holds: Holds) {
        self.holds.rings |= holds.rings;
        self.holds.stores |= holds.stores;
        if self.processes.len() < MAX_PROCESSES && !self.processes.contains(&process) {
            self.processes.push(process);
        }
    }
}

/// Gives each directory its name. One that is known keeps the name that it has.
fn name(sightings: Vec<Sighting>, known: &[Known]) -> Vec<Place> {
    let by_id: HashMap<FileId, &Known> = known.iter().map(|known| (known.id, known)).collect();
    let mut taken: HashSet<PathBuf> = sightings
        .iter()
        .filter_map(|sighting| Some(by_id.get(&sighting.inside.id())?.path.clone()))
        .collect();
    // That of another container, too, which has no file mapped just now.
    let is_anothers = |path: &Path, mnt: u64| {
        let mut known = known
            .iter()
            .filter(|known| known.path == path && known.mnt != mnt);
        known.any(|known| known.processes.iter().any(Writer::is_running))
    };
    let mut places = Vec::new();
    for sighting in sightings {
        let (cgroup, mountinfo) = sighting.process.place();
        let mnt = sighting.process.mnt;
        let id = Id::of(&cgroup, &mountinfo, mnt);
        let path = match by_id.get(&sighting.inside.id()) {
            Some(known) => Some(known.path.clone()),
            None => id
                .names(mnt, &sighting.directory)
                .find(|name| !taken.contains(name) && !is_anothers(name, mnt)),
        };
        let Some(path) = path else { continue };
        taken.insert(path.clone());
        places.push(Place {
            path,
            label: id.label,
            holds: sighting.holds,
            mnt,
            processes: sighting.processes,
            directory: sighting.directory,
            inside: sighting.inside,
        });
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::containers::tests::inside;

    fn sighting(inside: Inside, mnt: u64, pid: u32) -> Sighting {
        let writer = Writer { pid, start: 1 };
        Sighting {
            process: Process::of_test(writer, mnt),
            processes: vec![writer],
            directory: "/tmp/nixl".into(),
            holds: Holds::default(),
            inside,
        }
    }

    fn named(sightings: Vec<Sighting>, known: &[Known]) -> Vec<String> {
        let places = name(sightings, known).into_iter();
        places
            .map(|place| place.path.display().to_string())
            .collect()
    }

    #[test]
    fn directories_of_one_name_are_told_apart_and_keep_the_names_they_have() {
        let (dirs, [a, b, c]) = inside();
        // None of these processes is there, so that nothing but the namespace names them.
        let (first, second) = ("container:mnt-7/tmp/nixl", "container:mnt-7+mnt-7/tmp/nixl");
        let both = || vec![sighting(a.clone(), 7, 1), sighting(b.clone(), 7, 2)];
        assert_eq!(named(both(), &[]), [first, second]);
        let known = |inside: &Inside, path: &str, mnt, processes: &[Writer]| Known {
            id: inside.id(),
            path: path.into(),
            mnt,
            processes: processes.to_vec(),
        };
        // The other one was there first, and only a new one can have what is left.
        let now = [known(&b, first, 7, &[])];
        assert_eq!(named(both(), &now), [second, first]);
        let three = [known(&a, first, 7, &[]), known(&b, second, 7, &[])];
        let all = vec![
            sighting(c.clone(), 7, 3),
            sighting(a.clone(), 7, 1),
            sighting(b.clone(), 7, 2),
        ];
        let third = "container:mnt-7+mnt-7.2/tmp/nixl";
        assert_eq!(named(all, &three), [third, first, second]);
        // Another directory took its place, in the same namespace; or in the next one, after the first has ended.
        let new = || vec![sighting(c.clone(), 7, 3)];
        let ours = Writer::of(std::process::id()).expect("this one");
        assert_eq!(named(new(), &[known(&a, first, 7, &[ours])]), [first]);
        assert_eq!(named(new(), &[known(&a, first, 6, &[])]), [first]);
        assert_eq!(named(new(), &[known(&a, first, 6, &[ours])]), [second]);
        drop(dirs);
    }

    #[test]
    fn no_container_takes_the_places_of_all() {
        let (mut all, mut of_its) = (0, [0; 40]);
        for _ in 0..MAX_PLACES {
            for its in &mut of_its {
                if no_place(all, *its).is_none() {
                    (all, *its) = (all + 1, *its + 1);
                }
            }
        }
        assert_eq!(all, MAX_PLACES);
        assert!(of_its.iter().all(|&its| its <= MAX_PLACES_EACH));
        // One alone has its own, and no more.
        assert_eq!(
            no_place(MAX_PLACES_EACH, MAX_PLACES_EACH),
            Some(Why::TooManyOfIts)
        );
        assert_eq!(no_place(MAX_PLACES_EACH, 0), None);
        assert_eq!(no_place(MAX_PLACES, 0), Some(Why::TooMany));
    }

    #[test]
    fn one_directory_for_rings_and_for_stores_is_one() {
        let told = |rings: &str, stores: &str| Directories {
            rings: Some(rings.into()),
            stores: Some(stores.into()),
        };
        let found = by_directory([told("/a", "/a"), told("/b", "/c")]);
        let found: Vec<_> = found
            .iter()
            .map(|(path, holds)| (path.to_str().expect("UTF-8"), holds.rings, holds.stores))
            .collect();
        assert_eq!(
            found,
            [("/a", true, true), ("/b", true, false), ("/c", false, true)]
        );
    }

    #[test]
    fn processes_of_our_own_mount_namespace_are_not_looked_at() {
        let mut met = Vec::new();
        let nobody = Avoided::default();
        let found = look(&[], &nobody, &mut |process| met.extend(process));
        assert!(met.iter().all(|process| process.pid != std::process::id()));
        assert!(found.took > Duration::ZERO);
    }
}
