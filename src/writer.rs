//! Who holds a ring file: by lease, and by /proc.

use crate::shm;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether anybody else has a file open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody: the agent that wrote it has exited.
    Nobody,
    /// Somebody: the agent, or whoever looks at the file just now.
    Somebody,
    /// The kernel or the file system does not tell.
    Unknown,
}

/// Asks the kernel, by a lease on the descriptor that the mapping came from.
#[must_use]
pub fn holder(file: &File) -> Holder {
    match shm::lease(file) {
        Ok(()) => Holder::Nobody,
        Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => Holder::Somebody,
        Err(_) => Holder::Unknown,
    }
}

/// A process that has a file mapped shared and writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapper {
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// What it is called (`/proc/PID/comm`).
    pub command: String,
}

/// All writable shared mappings of files on this host, as far as /proc shows them.
#[derive(Debug, Default)]
pub struct Mappers {
    by_inode: HashMap<u64, Vec<(String, Mapper)>>,
}

impl Mappers {
    /// Reads `/proc/PID/maps` of every process. Processes that may not be looked at are missing.
    #[must_use]
    pub fn read() -> Self {
        let mut mappers = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            {
                mappers.read_process(pid, &entry.path());
            }
        }
        mappers
    }

    /// The processes that have this file mapped. Device numbers in maps are those of the file system, which for some
    /// (btrfs, overlayfs) differ from the ones that stat(2) gives: then the path decides.
    #[must_use]
    pub fn of(&self, dev: u64, ino: u64, path: &Path) -> Vec<&Mapper> {
        let device = format!(
            "{:02x}:{:02x}",
            nix::sys::stat::major(dev),
            nix::sys::stat::minor(dev)
        );
        self.by_inode
            .get(&ino)
            .into_iter()
            .flatten()
            .filter(|(place, _)| {
                let (on, name) = place.split_once(' ').unwrap_or((place, ""));
                on == device || Path::new(name) == path
            })
            .map(|(_, mapper)| mapper)
            .collect()
    }

    fn read_process(&mut self, pid: u32, proc: &Path) {
        // A process may end at any point; what was read of it until then is dropped.
        let Ok(maps) = fs::read(proc.join("maps")) else {
            return;
        };
        let Ok(uid) = fs::metadata(proc).map(|meta| meta.uid()) else {
            return;
        };
        let command = fs::read(proc.join("comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end().to_owned();
        for (place, ino) in String::from_utf8_lossy(&maps)
            .lines()
            .filter_map(shared_mapping)
        {
            let known = self.by_inode.entry(ino).or_default();
            if !known.iter().any(|(_, mapper)| mapper.pid == pid) {
                known.push((
                    place,
                    Mapper {
                        pid,
                        uid,
                        command: command.clone(),
                    },
                ));
            }
        }
    }
}

/// `device path` and inode of a line of maps, if it is a writable shared mapping of a file (proc_pid_maps(5)).
fn shared_mapping(line: &str) -> Option<(String, u64)> {
    let mut fields = line.splitn(6, ' ');
    let (_range, mode, _offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (device, ino) = (fields.next()?, fields.next()?.parse().ok()?);
    let path = fields.next().unwrap_or_default().trim_start();
    (mode.starts_with("rw") && mode.ends_with('s') && ino != 0)
        .then(|| (format!("{device} {path}"), ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_shared_mappings_of_files_count() {
        let line = "7f0a1c000000-7f0a1c011000 rw-s 00000000 fe:00 131203                     /var/tmp/my ring";
        assert_eq!(
            shared_mapping(line),
            Some(("fe:00 /var/tmp/my ring".into(), 131_203))
        );
        for other in [
            "7f0a1c000000-7f0a1c011000 r--s 00000000 fe:00 131203   /var/tmp/ring",
            "7f0a1c000000-7f0a1c011000 rw-p 00000000 fe:00 131203   /usr/lib/libc.so.6",
            "7ffd3e5f2000-7ffd3e613000 rw-s 00000000 00:00 0        [anon]",
            "",
            "rubbish",
        ] {
            assert_eq!(shared_mapping(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_is_found_by_what_it_has_mapped() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(4096).expect("room");
        let mapping = shm::Mapping::new(file.as_file(), 512).expect("mapped");
        let meta = file.as_file().metadata().expect("open");
        let mappers = Mappers::read();
        let found = mappers.of(meta.dev(), meta.ino(), file.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].pid, std::process::id());
        drop(mapping);
        assert!(
            Mappers::read()
                .of(meta.dev(), meta.ino(), file.path())
                .is_empty()
        );
    }
}
