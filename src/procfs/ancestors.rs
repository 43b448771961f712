// SPDX-License-Identifier: GPL-2.0-or-later

//! Ancestors of a process of the same user.

use crate::procfs::process::{INIT_PID, ProcessId, ProcessStat, namespace, sees_host};
use std::{fs, iter};

/// Limit of generations. vLLM has two between a worker and its server; a launcher or a fork server adds one.
const MAX_LEVELS: usize = 8;

/// Returns the ancestors of a process, the parent first. They end before the first process of another user or PID namespace.
/// They also end before the host's init process, because its services have environments of their own.
pub fn of(mut process: ProcessId) -> impl Iterator<Item = ProcessId> {
    let own = identity(process.pid);
    let next = move || {
        process = parent(process).filter(|parent| {
            let is_init = parent.pid == INIT_PID && sees_host();
            !is_init && own.is_some() && identity(parent.pid) == own
        })?;
        Some(process)
    };
    iter::from_fn(next).take(MAX_LEVELS)
}

/// Returns the parent of a process; `None` if /proc hides it or one of the two has ended.
fn parent(process: ProcessId) -> Option<ProcessId> {
    let pid = parent_id(process)?;
    let parent = ProcessId::of(pid).ok()?;
    // A process gets another parent when its parent ends. While stat still has this id, no later process has taken the id.
    let is_parent = parent_id(process) == Some(pid) && parent.start <= process.start;
    is_parent.then_some(parent)
}

fn parent_id(process: ProcessId) -> Option<u32> {
    let stat = ProcessStat::of(process.pid).ok()?;
    (stat.id == process).then_some(stat.parent)
}

/// Returns what an ancestor must share with a process: real user id and PID namespace; `None` if /proc does not tell. The
/// owner of /proc/PID would not do: it is root if the process is not dumpable (proc_pid(5)).
fn identity(pid: u32) -> Option<(u32, u64)> {
    Some((uid(pid)?, namespace(&pid.to_string(), "pid").ok()?))
}

/// Returns the real user id of a process; `None` if /proc does not tell.
#[must_use]
pub fn uid(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_ascii_whitespace().next()?.parse().ok()
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
        let grandchild = ProcessId::of(line.trim().parse().expect("a pid")).expect("it runs");
        let found: Vec<u32> = of(grandchild).map(|process| process.pid).collect();
        assert_eq!(found[..2], [shell.id(), std::process::id()]);
        assert!(found.len() <= MAX_LEVELS);
        let earlier = ProcessId {
            start: grandchild.start - 1,
            ..grandchild
        };
        assert_eq!(of(earlier).count(), 0, "the id is another process's");
        drop(shell.stdin.take());
        shell.wait().expect("our child");
    }
}
