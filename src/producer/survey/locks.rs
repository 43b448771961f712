//! The process that has locked a store, as /proc/locks tells (proc_locks(5)): NIXL holds an flock(2) on a store for as long as its
//! agent lives. Any process may read this, but only the host's own PID namespace shows all of it; elsewhere what is missing
//! proves nothing.

/// The flocks for writing: inode, device and process of each.
#[derive(Debug, Default)]
pub struct Locks(Vec<(u64, String, u32)>);

impl Locks {
    /// Takes the text apart; what is no flock for writing, is only waited for, or is of another inode is left out.
    #[must_use]
    pub fn parse(text: &str, is_wanted: impl Fn(u64) -> bool) -> Self {
        let locks = text.lines().filter_map(flock);
        Self(locks.filter(|(ino, ..)| is_wanted(*ino)).collect())
    }

    /// The process that has locked a file; `Ok(None)`: none has.
    ///
    /// # Errors
    /// A file of the same number is locked on another device. Some file systems (btrfs, overlayfs) have other device numbers here
    /// than stat(2) gives, so that it may be this one.
    pub fn holder(&self, dev: u64, ino: u64) -> Result<Option<u32>, MayBe> {
        let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
        let device = format!("{major:02x}:{minor:02x}");
        let mut known = self.0.iter().filter(|(other, ..)| *other == ino).peekable();
        if known.peek().is_none() {
            return Ok(None);
        }
        let found = known.find(|(_, other, _)| *other == device);
        found.map(|&(.., pid)| Some(pid)).ok_or(MayBe)
    }
}

/// It is not known whether the file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MayBe;

/// Inode, device and process of `1: FLOCK  ADVISORY  WRITE 4242 fe:00:131203 0 EOF`.
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
    use nix::sys::stat::makedev;

    const TEXT: &str = "\
1: OFDLCK ADVISORY  WRITE -1 fe:00:10838097 0 EOF
2: FLOCK  ADVISORY  WRITE 17073 fe:00:6693491 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4 fe:00:77 0 EOF
3: FLOCK  ADVISORY  READ 7464 fe:00:10783124 0 EOF
4: POSIX  ADVISORY  WRITE 9 fe:00:78 0 EOF
5: FLOCK  ADVISORY  WRITE 12 00:1b:6 0 EOF
6: FLOCK  ADVISORY  WRITE 13 fe:00:6 0 EOF
rubbish
7: FLOCK ADVISORY WRITE x fe:00:8 0 EOF
";

    #[test]
    fn a_store_is_held_by_who_has_an_flock_for_writing() {
        let locks = Locks::parse(TEXT, |_| true);
        let disk = makedev(0xfe, 0);
        assert_eq!(locks.holder(disk, 6_693_491), Ok(Some(17_073)));
        assert_eq!(locks.holder(disk, 6), Ok(Some(13)));
        assert_eq!(locks.holder(makedev(0, 0x1b), 6), Ok(Some(12)));
        for ino in [10_838_097, 77, 10_783_124, 78, 8, 9] {
            assert_eq!(locks.holder(disk, ino), Ok(None), "{ino}");
        }
        let wanted = Locks::parse(TEXT, |ino| ino == 6);
        assert!(wanted.0.len() == 2 && wanted.0.iter().all(|(ino, ..)| *ino == 6));
    }

    #[test]
    fn a_lock_on_a_device_that_is_called_otherwise_leaves_it_open() {
        assert_eq!(
            Locks::parse(TEXT, |_| true).holder(makedev(0, 0x30), 6),
            Err(MayBe)
        );
    }
}
