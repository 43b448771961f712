//! Processes that can transfer data by NIXL and whose telemetry is not found: why an operator sees nothing. For `--check`.
//!
//! Such a process has a NIXL backend loaded ([`crate::producer::survey::library`]). One whose agent has ended, or a child that
//! was forked after a backend was loaded, cannot be told from one whose telemetry is off; the environment says which is more
//! likely.

use crate::check::{as_root, release};
use crate::find::directory::Directory;
use crate::find::discover;
use crate::find::name;
use crate::producer::ancestors::Ancestors;
use crate::producer::facts::command::CommandLine;
use crate::producer::facts::engine::Engine;
use crate::producer::facts::telemetry::{Enable, Settings};
use crate::producer::holdups::{At, Avoided};
use crate::producer::survey::library::Libraries;
use crate::producer::writer::{Stat, Writer, namespace};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is read of a command line, in bytes: the engine is named within.
const COMMAND: u64 = 4096;
/// What goes by of an environment, in bytes: more than a process can be started with (execve(2)).
const ENVIRON: u64 = 8 << 20;
/// Processes that may not be looked at that are named at most.
const SHOWN: usize = 5;
/// The first release of NIXL, major and minor, that writes telemetry by `capture_telemetry` alone (tried: 1.3.2 does not, 1.4.0
/// does).
const CAPTURES: (u32, u32) = (1, 4);

/// Processes that have a NIXL backend loaded, as far as /proc may be read.
#[derive(Debug, Default)]
pub struct Users {
    found: Vec<User>,
    /// Process ids of those that may not be looked at.
    hidden: Vec<u32>,
}

/// A process that has a NIXL backend loaded.
#[derive(Debug)]
struct User {
    pid: u32,
    uid: u32,
    /// Title or program, without arguments.
    command: String,
    environment: Environment,
    enable: Enable,
    /// True if the process is in another mount namespace than this one.
    is_elsewhere: bool,
}

/// The environment that a process was started with.
#[derive(Debug)]
enum Environment {
    /// It may not be read.
    Hidden,
    /// It can be read.
    Intact(Settings),
    /// A title has been written over it.
    Overwritten(Option<Ancestor>),
}

/// The nearest ancestor of the same user whose environment can be read.
#[derive(Debug)]
struct Ancestor {
    pid: u32,
    command: String,
    /// The engine that the command line of this ancestor or of a nearer one names.
    engine: Option<Engine>,
    settings: Settings,
}

impl Users {
    /// Looks through all processes but those that are avoided. Reading what one has mapped may take as long as that likes.
    #[must_use]
    pub fn look(avoided: &Avoided, at: At) -> Self {
        let mut users = Self::default();
        let ours = namespace("self", "mnt").ok();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let Ok(process) = Writer::of(pid) else {
                continue;
            };
            if avoided.has(process) {
                users.hidden.push(pid);
                continue;
            }
            at(Some(process));
            match libraries(pid) {
                Ok(Some((task, libraries))) if libraries.has_backend() => {
                    let ancestor = || Ancestor::of(process, avoided, at);
                    let user = User::of(pid, &task, &libraries, ours, ancestor);
                    users.found.extend(user);
                }
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::PermissionDenied => users.hidden.push(pid),
                // It has ended.
                Err(_) => {}
            }
        }
        at(None);
        users.found.sort_by_key(|user| user.pid);
        users.hidden.sort_unstable();
        users
    }

    /// Prints those that are none of these writers, each with what is to be changed; how many they are.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn tell(
        &self,
        writers: &HashSet<u32>,
        directories: &[Directory],
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let silent = self.found.iter();
        let silent: Vec<_> = silent.filter(|user| !writers.contains(&user.pid)).collect();
        if !silent.is_empty() {
            writeln!(out, "processes that use NIXL, without telemetry here:")?;
        }
        for user in &silent {
            let name = discover::user_name(user.uid);
            let why = user.why(directories);
            writeln!(
                out,
                "  pid {} ({}) user {name}: {why}",
                user.pid, user.command
            )?;
        }
        if !self.hidden.is_empty() {
            let hint = as_root();
            writeln!(
                out,
                "note: {} may not be looked at for NIXL{hint}",
                named(&self.hidden)
            )?;
        }
        Ok(silent.len())
    }
}

impl User {
    /// `None`: the process has ended. `ancestor` is asked if a title has been written over its environment.
    fn of(
        pid: u32,
        task: &str,
        libraries: &Libraries,
        ours: Option<u64>,
        ancestor: impl FnOnce() -> Option<Ancestor>,
    ) -> Option<Self> {
        let is_elsewhere = namespace(task.trim_start_matches("/proc/"), "mnt").ok() != ours;
        let (command, engine) = command(task).ok()?;
        let environment = match settings(task) {
            Ok(settings) if settings.is_overwritten() => Environment::Overwritten(ancestor()),
            Ok(settings) => Environment::Intact(settings),
            Err(_) => Environment::Hidden,
        };
        // The prefix of vLLM's titles can be chosen (VLLM_PROCESS_NAME_PREFIX), and then they do not name the engine.
        let engine = engine.or(match &environment {
            Environment::Overwritten(Some(ancestor)) => ancestor.engine,
            _ => None,
        });
        // Another mount namespace has other files at the path.
        let core = libraries.core().filter(|_| !is_elsewhere);
        let enable = match core.and_then(release::of_library) {
            _ if engine != Some(Engine::Vllm) => Enable::Needed,
            None => Enable::NeededBefore14,
            Some(release) if release < CAPTURES => Enable::Needed,
            Some(_) => Enable::NotNeeded,
        };
        Some(Self {
            pid,
            uid: fs::metadata(format!("/proc/{pid}")).ok()?.uid(),
            command,
            environment,
            enable,
            is_elsewhere,
        })
    }

    fn why(&self, directories: &[Directory]) -> String {
        match &self.environment {
            Environment::Hidden => format!("its environment may not be read{}", as_root()),
            Environment::Intact(settings) => self.advice(settings, directories),
            Environment::Overwritten(None) => "its environment cannot be read, since the process has written a title over it, and no ancestor of the same user has one: see what it was started with".into(),
            Environment::Overwritten(Some(ancestor)) => {
                let Ancestor { pid, command, settings, .. } = ancestor;
                let advice = self.advice(settings, directories);
                format!("its environment cannot be read, since the process has written a title over it; by that of its ancestor pid {pid} ({command}): {advice}")
            }
        }
    }

    fn advice(&self, settings: &Settings, directories: &[Directory]) -> String {
        let mut faults = settings.faults(self.enable, |path, stores| {
            // What a container calls a directory says nothing of the host's.
            let known = |directory: &Directory| {
                let holds = directory.holds;
                (if stores { holds.stores } else { holds.rings }) && is_same(&directory.path, path)
            };
            self.is_elsewhere || directories.iter().any(known)
        });
        if self.is_elsewhere {
            faults.push("it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)".into());
        }
        if faults.is_empty() {
            return "the environment is as it should be: the agent has ended, the process was forked from one that has an agent, or NIXL's own log says why it has no telemetry"
                .into();
        }
        faults.join("; ")
    }
}

impl Ancestor {
    /// `None`: no ancestor has an environment that can be read. To read one takes as long as the process likes.
    fn of(process: Writer, avoided: &Avoided, at: At) -> Option<Self> {
        let mut ancestors = Ancestors::of(process)?.filter(|ancestor| !avoided.has(*ancestor));
        let mut nearest = None;
        ancestors.find_map(|ancestor| {
            at(Some(ancestor));
            let task = Stat::of(ancestor.pid).ok()?.shown_at(ancestor.pid)?;
            let settings = settings(&task).ok()?;
            let (command, engine) = command(&task).ok()?;
            if !ancestor.is_running() {
                return None;
            }
            nearest = nearest.or(engine);
            (!settings.is_overwritten()).then_some(Self {
                pid: ancestor.pid,
                command,
                engine: nearest,
                settings,
            })
        })
    }
}

/// The environment of a process, as far as it concerns NIXL.
fn settings(task: &str) -> io::Result<Settings> {
    Settings::read(File::open(format!("{task}/environ"))?.take(ENVIRON))
}

/// Title or program of a process, without arguments, since these can hold secrets; and the engine that its command line names.
fn command(task: &str) -> io::Result<(String, Option<Engine>)> {
    let read = |file: &str| {
        let mut text = Vec::new();
        let file = File::open(format!("{task}/{file}"))?;
        file.take(COMMAND).read_to_end(&mut text)?;
        io::Result::Ok(text)
    };
    let line = read("cmdline")?;
    let shown = CommandLine::parse(&line).and_then(|line| line.shown());
    let shown = match shown {
        Some(shown) => shown,
        // The process has overwritten its command line with nothing.
        None => name::shown(OsStr::from_bytes(read("comm")?.trim_ascii_end())),
    };
    Ok((shown, Engine::of_command_line(&line)))
}

/// Names processes by their ids, the first ones only of many: `process 7`, `processes 7 and 8`, `processes 7, 8, 9 and 12 more`.
fn named(pids: &[u32]) -> String {
    let (shown, more) = pids.split_at(pids.len().min(SHOWN));
    let mut names: Vec<String> = shown.iter().map(u32::to_string).collect();
    if !more.is_empty() {
        names.push(format!("{} more", more.len()));
    }
    match &names[..] {
        [pid] => format!("process {pid}"),
        [pids @ .., last] => format!("processes {} and {last}", pids.join(", ")),
        [] => String::new(),
    }
}

/// Whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    // A relative one is so to a directory that is not ours.
    one == other || other.is_absolute() && place(one).is_some_and(|one| place(other) == Some(one))
}

/// Where /proc shows what a process has, and the libraries of NIXL that it has mapped; `None`: it shows nothing.
fn libraries(pid: u32) -> io::Result<Option<(String, Libraries)>> {
    let Some(shown_at) = Stat::of(pid)?.shown_at(pid) else {
        return Ok(None);
    };
    let mut maps = BufReader::new(File::open(format!("{shown_at}/maps"))?);
    let (mut line, mut libraries) = (Vec::new(), Libraries::default());
    while maps.read_until(b'\n', &mut line)? > 0 {
        libraries.note(&line);
        line.clear();
    }
    Ok(Some((shown_at, libraries)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Mapping;

    #[test]
    fn process_is_found_once_a_backend_is_mapped() {
        let dir = tempfile::tempdir().expect("a directory");
        let map = |name: &str| {
            let file = File::create_new(dir.path().join(name)).expect("made");
            file.set_len(4096).expect("room");
            let file = File::open(dir.path().join(name)).expect("there");
            Mapping::read_only(&file, 1).expect("mapped")
        };
        let me = std::process::id();
        let look = || {
            let mut users = Users::look(&Avoided::default(), &mut |_| ());
            users.found.retain(|user| user.pid == me);
            users.hidden.clear();
            users
        };
        let _core = map("libnixl.so");
        assert_eq!(look().found.len(), 0);
        let _plugin = map("libplugin_UCX.so");
        let users = look();
        let tell = |writers: &HashSet<u32>| {
            let mut out = Vec::new();
            let count = users.tell(writers, &[], &mut out).expect("written");
            (count, String::from_utf8(out).expect("text"))
        };
        let (count, said) = tell(&HashSet::new());
        assert_eq!(count, 1);
        assert!(said.contains(&format!("  pid {me} (")), "{said}");
        assert_eq!(tell(&[me].into()), (0, String::new()));
    }

    #[test]
    fn hidden_processes_are_named_and_beyond_five_counted() {
        for (pids, expected) in [
            (1..2, "process 1"),
            (1..3, "processes 1 and 2"),
            (1..6, "processes 1, 2, 3, 4 and 5"),
            (1..9, "processes 1, 2, 3, 4, 5 and 3 more"),
        ] {
            assert_eq!(named(&Vec::from_iter(pids)), expected);
        }
        let users = Users {
            hidden: vec![7],
            ..Users::default()
        };
        let mut out = Vec::new();
        users.tell(&HashSet::new(), &[], &mut out).expect("written");
        let said = String::from_utf8(out).expect("text");
        assert!(
            said.starts_with("note: process 7 may not be looked at for NIXL"),
            "{said}"
        );
    }
}
