//! Processes that use NIXL and whose telemetry is not found: why an operator sees nothing. For `--check`.
//!
//! A process uses NIXL if it has libnixl mapped, as all of NIXL's packages and engines come with it. One that has made no agent
//! yet, or only loads the library, cannot be told from one whose telemetry is off; its environment says which is more likely.

use crate::find::containers::process::namespace;
use crate::find::directory::Directory;
use crate::find::discover;
use crate::find::name;
use crate::producer::facts::telemetry::Settings;
use crate::producer::holdups::{At, Avoided};
use crate::producer::survey::library::is_nixl;
use crate::producer::writer::{Stat, Writer};
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is read of a command line, in bytes: enough to know a process by.
const COMMAND: u64 = 100;
/// What goes by of an environment, in bytes: more than a process can be started with (execve(2)).
const ENVIRON: u64 = 8 << 20;

/// Processes that use NIXL, as far as /proc may be read.
#[derive(Debug, Default)]
pub struct Users {
    found: Vec<User>,
    /// Processes that may not be looked at.
    hidden: usize,
}

/// A process that uses NIXL.
#[derive(Debug)]
struct User {
    pid: u32,
    uid: u32,
    /// Its command line, or the beginning of it.
    command: String,
    /// What its environment was when it was started; `None`: that may not be read.
    settings: Option<Settings>,
    /// Whether it sees other file systems than this process.
    is_elsewhere: bool,
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
                users.hidden += 1;
                continue;
            }
            at(Some(process));
            match user_of_nixl(pid) {
                Ok(None) => {}
                Ok(Some(task)) => users.found.extend(User::of(pid, &task, ours)),
                Err(err) if err.kind() == io::ErrorKind::PermissionDenied => users.hidden += 1,
                // It has ended.
                Err(_) => {}
            }
        }
        at(None);
        users.found.sort_by_key(|user| user.pid);
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
        containers: bool,
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let silent = self.found.iter();
        let silent: Vec<_> = silent.filter(|user| !writers.contains(&user.pid)).collect();
        if !silent.is_empty() {
            writeln!(out, "processes that use NIXL, without telemetry here:")?;
        }
        for user in &silent {
            let name = discover::user_name(user.uid);
            let why = user.why(directories, containers);
            writeln!(
                out,
                "  pid {} ({}) user {name}: {why}",
                user.pid, user.command
            )?;
        }
        if self.hidden > 0 {
            let what = if self.hidden == 1 {
                "process"
            } else {
                "processes"
            };
            let (hidden, hint) = (self.hidden, as_root());
            writeln!(
                out,
                "note: {hidden} {what} may not be looked at for NIXL{hint}"
            )?;
        }
        Ok(silent.len())
    }
}

impl User {
    /// `None`: it has ended.
    fn of(pid: u32, task: &str, ours: Option<u64>) -> Option<Self> {
        let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let open = |file: &str| File::open(format!("{task}/{file}"));
        let read = |file: &str| {
            let mut text = Vec::new();
            open(file)?.take(COMMAND).read_to_end(&mut text)?;
            io::Result::Ok(text)
        };
        let command = match command_line(&read("cmdline").ok()?) {
            // It has overwritten that with nothing.
            empty if empty.is_empty() => command_line(read("comm").ok()?.trim_ascii_end()),
            command => command,
        };
        let settings = open("environ").and_then(|file| Settings::read(file.take(ENVIRON)));
        Some(Self {
            pid,
            uid,
            command,
            settings: settings.ok(),
            is_elsewhere: namespace(task.trim_start_matches("/proc/"), "mnt").ok() != ours,
        })
    }

    fn why(&self, directories: &[Directory], containers: bool) -> String {
        let Some(settings) = &self.settings else {
            return format!("its environment may not be read{}", as_root());
        };
        if settings.is_overwritten() {
            return "it has given itself a title, which hides its environment: see that of its parent".into();
        }
        let mut faults = settings.faults(|path, stores| {
            // What a container calls a directory says nothing of the host's.
            let known = |directory: &Directory| {
                let holds = directory.holds;
                (if stores { holds.stores } else { holds.rings }) && is_same(&directory.path, path)
            };
            self.is_elsewhere || directories.iter().any(known)
        });
        if self.is_elsewhere && !containers {
            faults.push(
                "it is in a container: give it a volume of a directory that is looked through, or set containers = true"
                    .into(),
            );
        }
        if faults.is_empty() {
            return "its environment is as it should be: it has made no agent yet, or NIXL's own log says why it has no telemetry"
                .into();
        }
        faults.join("; ")
    }
}

/// What helps where something may not be looked at, unless that is so already.
fn as_root() -> &'static str {
    if geteuid().is_root() {
        ""
    } else {
        "; run as root"
    }
}

/// Whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    // A relative one is so to a directory that is not ours.
    one == other || other.is_absolute() && place(one).is_some_and(|one| place(other) == Some(one))
}

/// Where /proc shows a process that has a library of NIXL's mapped; `None`: it has none.
fn user_of_nixl(pid: u32) -> io::Result<Option<String>> {
    let Some(shown_at) = Stat::of(pid)?.shown_at(pid) else {
        return Ok(None);
    };
    let mut maps = BufReader::new(File::open(format!("{shown_at}/maps"))?);
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        if is_nixl(&line) {
            return Ok(Some(shown_at));
        }
        line.clear();
    }
    Ok(None)
}

/// A command line as it can be shown on a terminal.
fn command_line(command: &[u8]) -> String {
    let words = command
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty());
    let words = words.map(|word| name::shown(OsStr::from_bytes(word)));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_shown_without_control_characters() {
        assert_eq!(command_line(b"python3\0-m\0vllm\0"), "python3 -m vllm");
        assert_eq!(command_line(b"a\x1b[31m\0b"), "\"a\\u{1b}[31m\" b");
    }

    #[test]
    fn who_has_no_library_of_nixls_mapped_is_none() {
        let users = Users::look(&Avoided::default(), &mut |_| ());
        let me = std::process::id();
        assert!(users.found.iter().all(|user| user.pid != me));
        let mut out = Vec::new();
        let all = users.found.iter().map(|user| user.pid).collect();
        assert_eq!(users.tell(&all, &[], false, &mut out).expect("written"), 0);
    }
}
