// SPDX-License-Identifier: GPL-2.0-or-later

//! Corruption of a directory of stores: everything that a hostile user can do to files during a read.

use super::kit::store_writer::{FIRST_BOUND, LEN, Who};
use fastrand::Rng;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, mknod};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const FILES: usize = 800;
/// Limit for files that this process has open for writing: the daemon sees a live agent for them.
const HELD: usize = 300;

/// A directory of hostile stores, and the files that are open.
pub struct Hostile<'a> {
    directory: &'a Path,
    rng: Rng,
    held: VecDeque<File>,
}

impl<'a> Hostile<'a> {
    /// Does not make any file yet.
    pub fn new(directory: &'a Path, seed: u64) -> Self {
        Self {
            directory,
            rng: Rng::with_seed(seed),
            held: VecDeque::new(),
        }
    }

    /// Random path: the name of a store, or almost one.
    fn path(&mut self) -> PathBuf {
        let number = self.rng.usize(..FILES);
        let name = match number % 40 {
            0 => format!("nixl.{number}.17.0.mmap.staging").into_bytes(),
            1 => format!("nixl.{number}.17.0.mmap\n").into_bytes(),
            2 => format!("nixl.-{number}.17.0.mmap").into_bytes(),
            3 => [&[0xff; 250][..], format!("{number:05}").as_bytes()].concat(),
            4 => format!("nixl-owner.127.0.0.1:{number}.lock").into_bytes(),
            _ => format!("nixl.{number}.17.0.mmap").into_bytes(),
        };
        self.directory.join(OsString::from_vec(name))
    }

    /// Bytes of a store of an agent with a random name and rank.
    fn store(&mut self) -> Vec<u8> {
        let names: [&[u8]; 10] = [
            b"one",
            b"one",
            b"one",
            b"../../etc/x",
            b"a/b",
            b"..",
            b"x\ny z",
            &[0xff; 255],
            b"[x]\"'\\",
            b"healthy-3",
        ];
        let ranks: [&[u8]; 5] = [b"", b"0", b"a b\n", &[0xff; 63], b":::"];
        let (name, rank) = (names[self.rng.usize(..10)], ranks[self.rng.usize(..5)]);
        let mut identity = Who::named("x")
            .pid(self.rng.u64(..))
            .bounds(&[5e-324, 0.5, 1e308]);
        (identity.agent, identity.rank) = (name.to_vec(), rank.to_vec());
        identity.instance = self.rng.u64(..);
        let mut bytes = identity.bytes();
        for at in (752..LEN)
            .step_by(8)
            .take(if self.rng.bool() { 21 } else { LEN })
        {
            bytes[at..at + 8].copy_from_slice(&self.rng.u64(..).to_le_bytes());
        }
        bytes
    }

    /// Makes another kind of file under this name, sometimes on the old inode. Returns the kind.
    fn make(&mut self, path: &Path) -> io::Result<&'static str> {
        let is_file = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
        if !is_file || self.rng.bool() {
            self.remove(path)?;
        }
        let mut bytes = self.store();
        let what = match self.rng.u8(..20) {
            0..=7 => "store",
            8 => {
                bytes.truncate(self.rng.usize(..LEN));
                "truncated"
            }
            9 => {
                bytes = vec![0xff; LEN];
                "all ones"
            }
            10 => {
                bytes = vec![0; LEN];
                "all zeros"
            }
            11 => {
                let word = self.rng.usize(..FIRST_BOUND + 32);
                bytes[8 * word..8 * word + 8].copy_from_slice(&self.rng.u64(..).to_le_bytes());
                "odd header"
            }
            12 => {
                bytes[8] = self.rng.u8(2..);
                bytes.resize(self.rng.usize(16..9000), 1);
                "later schema"
            }
            13 => {
                fs::write(path, bytes)?;
                open(path)?.set_len(1 << 40)?;
                return Ok("sparse");
            }
            14 => return self.special(path),
            15 => {
                let other = self.path();
                fs::remove_file(path).or_else(|_| fs::remove_dir(path)).ok();
                return match self.rng.u8(..4) {
                    0 => symlink("/dev/zero", path).map(|()| "link to zeros"),
                    1 => symlink(path, path).map(|()| "link to itself"),
                    2 => symlink(other, path).map(|()| "link to another"),
                    _ => fs::hard_link(other, path).map(|()| "hard link"),
                };
            }
            _ => {
                self.rng.fill(&mut bytes);
                "noise"
            }
        };
        fs::write(path, bytes)?;
        self.hold(path)?;
        Ok(what)
    }

    fn special(&mut self, path: &Path) -> io::Result<&'static str> {
        self.remove(path)?;
        match self.rng.u8(..3) {
            0 => mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).map(|()| "FIFO")?,
            1 => UnixListener::bind(path).map(|_| "socket")?,
            _ => fs::create_dir(path).map(|()| "directory")?,
        };
        Ok("special")
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir(path),
            Ok(_) => fs::remove_file(path),
            Err(_) => Ok(()),
        }
    }

    /// Keeps a file open, so that its agent seems live until [`HELD`] other files are open.
    fn hold(&mut self, path: &Path) -> io::Result<()> {
        self.held.push_back(open(path)?);
        if self.held.len() > HELD {
            self.held.pop_front();
        }
        Ok(())
    }

    /// Makes one random change. Returns its name.
    fn change(&mut self) -> io::Result<&'static str> {
        let path = self.path();
        match self.rng.u8(..16) {
            0..=2 => self.make(&path),
            3..=6 => {
                // Large increases and decreases of a value.
                let (file, word) = (open(&path)?, self.rng.u64(94..850));
                for value in [self.rng.u64(..), self.rng.u64(..9), u64::MAX, 0] {
                    put(&file, word, value)?;
                }
                Ok("jump")
            }
            7 => {
                let (file, word) = (open(&path)?, self.rng.u64(..94));
                put(&file, word, self.rng.u64(..))?;
                Ok("change of the header")
            }
            8 => open(&path)?.set_len(0).map(|()| "truncate to nothing"),
            9 => open(&path)?
                .set_len(self.rng.u64(..9000))
                .map(|()| "another length"),
            10 => {
                let file = open(&path)?;
                file.set_len(0)?;
                file.set_len(LEN as u64)?;
                Ok("down and up")
            }
            11 => self.remove(&path).map(|()| "remove"),
            12 => fs::rename(&path, self.path()).map(|()| "rename over another"),
            13 => {
                let other = self.path();
                renameat2(
                    AT_FDCWD,
                    &path,
                    AT_FDCWD,
                    &other,
                    RenameFlags::RENAME_EXCHANGE,
                )?;
                Ok("exchange")
            }
            14 => {
                drop(open(&path)?);
                let mode = [0, 0o400, 0o666, 0o4777][self.rng.usize(..4)];
                fs::set_permissions(&path, Permissions::from_mode(mode))?;
                chown(&path, Some(self.rng.u32(..3)), None).map(|()| "mode and owner")
            }
            _ => self.hold(&path).map(|()| "hold"),
        }
    }

    /// Makes changes until `stop` is true. Returns the number of changes of each kind.
    pub fn run(mut self, stop: &AtomicBool) -> BTreeMap<&'static str, u64> {
        let mut done = BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..10 {
                // An earlier change can make this one impossible: such a change is not counted.
                if let Ok(what) = self.change() {
                    *done.entry(what).or_insert(0) += 1;
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        done
    }
}

fn put(file: &File, word: u64, value: u64) -> io::Result<()> {
    if file.metadata()?.len() >= 8 * (word + 1) {
        file.write_all_at(&value.to_le_bytes(), 8 * word)?;
    }
    Ok(())
}

/// Opens a regular file. Others are rejected, since their open(2) may block.
fn open(path: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}
