// SPDX-License-Identifier: GPL-2.0-or-later

//! Ancestors of a process of the same user.

use crate::procfs::process::{INIT_PID, sees_host};
use crate::procfs::process_dir::ProcessDir;
use std::iter;

/// Limit of generations. vLLM has two between a worker and its server; a launcher or a fork server adds one.
const MAX_LEVELS: usize = 8;

/// Returns the ancestors of a process, the parent first. They end before the first process of another user or PID
/// namespace. They also end before the host's init process, because its services have environments of their own.
pub fn of(process: &ProcessDir) -> impl Iterator<Item = ProcessDir> {
    let own = identity(process);
    let is_ancestor = move |parent: &ProcessDir| {
        let is_init = parent.id().pid == INIT_PID && sees_host();
        !is_init && own.is_some() && identity(parent) == own
    };
    iter::successors(parent(process), parent)
        .take_while(is_ancestor)
        .take(MAX_LEVELS)
}

/// Returns the parent of a process; `None` if /proc hides it or one of the two has ended.
fn parent(process: &ProcessDir) -> Option<ProcessDir> {
    let parent_id = || Some(process.stat().ok()?.parent);
    let pid = parent_id()?;
    let parent = ProcessDir::open(pid).ok()?;
    // A process gets another parent when its parent ends. While stat still has this id, no later process has taken the
    // id.
    let is_parent = parent_id() == Some(pid) && parent.id().start <= process.id().start;
    is_parent.then_some(parent)
}

/// Returns what an ancestor must share with a process: real user id and PID namespace; `None` if /proc does not tell.
/// The owner of /proc/PID would not do: it is root if the process is not dumpable (proc_pid(5)).
fn identity(process: &ProcessDir) -> Option<(u32, u64)> {
    Some((process.uid()?, process.namespace("pid").ok()?))
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
        let grandchild = ProcessDir::open(line.trim().parse().expect("a pid")).expect("it runs");
        let found: Vec<u32> = of(&grandchild).map(|process| process.id().pid).collect();
        assert_eq!(found[..2], [shell.id(), std::process::id()]);
        assert!(found.len() <= MAX_LEVELS);
        drop(shell.stdin.take());
        shell.wait().expect("our child");
    }
}
