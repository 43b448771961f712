//! Ancestors of a process of the same user.

use crate::producer::writer::{INIT, Stat, Writer, namespace, sees_host};
use std::fs;

/// Levels that are followed: vLLM has two between a worker and its server, a launcher or a fork server adds one.
const MAX_LEVELS: usize = 8;

/// The ancestors of a process, the parent first. They end before the first one of another user or PID namespace, and before
/// the host's init process, whose services have environments of their own.
#[derive(Debug)]
pub struct Ancestors {
    process: Writer,
    identity: Identity,
    levels: usize,
}

impl Ancestors {
    /// The ancestors of this process; `None` if it has ended or /proc does not tell whose it is.
    #[must_use]
    pub fn of(process: Writer) -> Option<Self> {
        Some(Self {
            process,
            identity: Identity::of(process.pid)?,
            levels: MAX_LEVELS,
        })
    }
}

impl Iterator for Ancestors {
    type Item = Writer;

    fn next(&mut self) -> Option<Writer> {
        self.levels = self.levels.checked_sub(1)?;
        let parent = parent(self.process)?;
        let is_init = parent.pid == INIT && sees_host();
        if is_init || Identity::of(parent.pid)? != self.identity {
            return None;
        }
        self.process = parent;
        Some(parent)
    }
}

/// True if these processes are one process and descendants of it, which have its mappings. `None`: /proc does not tell.
#[must_use]
pub fn are_related(processes: &[Writer]) -> Option<bool> {
    let lines = processes.iter().map(|&process| {
        let ancestors = Ancestors::of(process).filter(|_| process.is_running())?;
        Some(Vec::from_iter([process].into_iter().chain(ancestors)))
    });
    let lines: Vec<Vec<Writer>> = lines.collect::<Option<_>>()?;
    let is_first = |process| lines.iter().all(|line| line.contains(process));
    Some(lines.is_empty() || processes.iter().any(is_first))
}

/// The parent of a process; `None` if it is not shown or one of the two has ended.
fn parent(process: Writer) -> Option<Writer> {
    let pid = parent_id(process)?;
    let parent = Writer::of(pid).ok()?;
    // A process whose parent ends gets another one: while it names this id, the id is its parent's and not a later process's.
    let is_parent = parent_id(process) == Some(pid) && parent.start <= process.start;
    is_parent.then_some(parent)
}

fn parent_id(process: Writer) -> Option<u32> {
    let stat = Stat::of(process.pid).ok()?;
    (stat.writer(process.pid) == process && stat.parent() != 0).then(|| stat.parent())
}

/// The real user id of a process; `None` if /proc does not tell.
#[must_use]
pub fn uid(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_ascii_whitespace().next()?.parse().ok()
}

/// What an ancestor must share with the process.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// Real user id. The owner of /proc/PID is root for a process that may not be dumped.
    uid: u32,
    /// Its PID namespace.
    namespace: u64,
}

impl Identity {
    /// `None` if /proc does not tell.
    fn of(pid: u32) -> Option<Self> {
        Some(Self {
            uid: uid(pid)?,
            namespace: namespace(&pid.to_string(), "pid").ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn ancestors_of_a_grandchild_are_its_parent_and_this_process() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; read line; kill $!"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        let output = shell.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let grandchild = Writer::of(line.trim().parse().expect("a pid")).expect("it runs");
        let found: Vec<u32> = Ancestors::of(grandchild)
            .expect("it runs")
            .map(|process| process.pid)
            .collect();
        assert_eq!(found[..2], [shell.id(), std::process::id()]);
        assert!(found.len() <= MAX_LEVELS);
        let [own, parent] =
            [std::process::id(), shell.id()].map(|pid| Writer::of(pid).expect("it runs"));
        assert_eq!(are_related(&[]), Some(true));
        assert_eq!(are_related(&[grandchild, own, parent]), Some(true));
        let mut sibling = Command::new("sleep").arg("600").spawn().expect("it starts");
        let other = Writer::of(sibling.id()).expect("it runs");
        assert_eq!(are_related(&[grandchild, other]), Some(false));
        assert_eq!(are_related(&[other, own]), Some(true));
        sibling.kill().expect("it runs");
        sibling.wait().expect("our child");
        assert_eq!(are_related(&[grandchild, other]), None, "one has ended");
        let earlier = Writer {
            start: grandchild.start - 1,
            ..grandchild
        };
        let of_earlier = Ancestors::of(earlier).expect("its id is in use");
        assert_eq!(of_earlier.count(), 0, "the id is another process's");
        drop(shell.stdin.take());
        shell.wait().expect("our child");
    }
}
