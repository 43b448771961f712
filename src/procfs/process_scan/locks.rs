//! Processes that have locked a store, from /proc/locks (proc_locks(5)). NIXL holds an flock(2) on a store until the agent ends.
//! Any process may read /proc/locks, but only the PID namespace of the host shows all locks. Elsewhere a missing lock proves
//! nothing.

use crate::procfs::process::ProcessId;

/// Exclusive flock(2) locks: inode, device and process of each; no process if /proc hides it.
#[derive(Debug, Default)]
pub struct Locks(Vec<(u64, String, Option<ProcessId>)>);

impl Locks {
    /// Reads the locks from the text of /proc/locks. Leaves out other kinds of locks, locks that a process waits for, and locks
    /// of unwanted inodes.
    #[must_use]
    pub fn parse(text: &str, is_wanted: impl Fn(u64) -> bool) -> Self {
        let locks = text.lines().filter_map(flock);
        let locks = locks.filter(|(ino, ..)| is_wanted(*ino));
        Self(
            locks
                .map(|(ino, device, pid)| (ino, device, ProcessId::of(pid).ok()))
                .collect(),
        )
    }

    /// Returns the process that has locked a file, if it is known.
    pub fn holder(&self, device: &str, ino: u64) -> Option<ProcessId> {
        let mut locks = self.0.iter();
        locks
            .find(|(other, its, _)| *other == ino && its == device)?
            .2
    }

    /// True if a file with this inode number is locked, on any device: on btrfs and overlayfs, /proc/locks and stat(2) have
    /// different device numbers.
    pub fn has(&self, ino: u64) -> bool {
        self.0.iter().any(|(other, ..)| *other == ino)
    }
}

/// Returns inode, device and process of a line such as `1: FLOCK  ADVISORY  WRITE 4242 fe:00:131203 0 EOF`.
fn flock(line: &str) -> Option<(u64, String, u32)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", pid, place, ..] = fields[..] else {
        return None;
    };
    let (device, ino) = place.rsplit_once(':')?;
    Some((ino.parse().ok()?, device.to_owned(), pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `OWN` stands for the id of this process.
    const TEXT: &str = "\
1: OFDLCK ADVISORY  WRITE -1 fe:00:10838097 0 EOF
2: FLOCK  ADVISORY  WRITE OWN fe:00:6693491 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4 fe:00:77 0 EOF
3: FLOCK  ADVISORY  READ OWN fe:00:10783124 0 EOF
4: POSIX  ADVISORY  WRITE OWN fe:00:78 0 EOF
5: FLOCK  ADVISORY  WRITE 4294967295 00:1b:6 0 EOF
6: FLOCK  ADVISORY  WRITE OWN fe:00:6 0 EOF
rubbish
7: FLOCK ADVISORY WRITE x fe:00:8 0 EOF
";

    fn locks(is_wanted: impl Fn(u64) -> bool) -> Locks {
        let text = TEXT.replace("OWN", &std::process::id().to_string());
        Locks::parse(&text, is_wanted)
    }

    #[test]
    fn store_lock_holder_has_an_exclusive_flock() {
        let locks = locks(|_| true);
        let own = ProcessId::of(std::process::id()).ok();
        assert_eq!(locks.holder("fe:00", 6_693_491), own);
        assert_eq!(locks.holder("fe:00", 6), own);
        assert_eq!(locks.holder("00:1b", 6), None, "no process has this id");
        assert_eq!(locks.holder("00:30", 6), None, "it may be either");
        assert!(locks.has(6) && locks.has(6_693_491));
        for ino in [10_838_097, 77, 10_783_124, 78, 8, 9] {
            assert_eq!(locks.holder("fe:00", ino), None, "{ino}");
            assert!(!locks.has(ino), "{ino}");
        }
    }

    #[test]
    fn locks_of_other_inodes_are_left_out() {
        let request = locks(|ino| ino == 6);
        assert!(request.0.len() == 2 && request.0.iter().all(|(ino, ..)| *ino == 6));
    }
}
