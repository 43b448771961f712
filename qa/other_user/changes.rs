// SPDX-License-Identifier: GPL-2.0-or-later

//! Changes that a hostile user can make to files during a read.

use crate::files::{self, Variant};
use crate::kit::layers::{Lease, LeaseKind, lock};
use crate::kit::writer::{Layout, RingWriter};
use fastrand::Rng;
use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::PathBuf;

/// Limit for mapped files, and for open files: the daemon sees a live agent for them.
const HELD: usize = 64;
/// Number of rings that are always full, and their capacity.
const FLOODS: usize = 8;
const FLOOD: u64 = 1 << 16;
/// Position changes in one [`Hostile::move_positions`].
const MOVES: usize = 50;

/// A directory of hostile files, and the files that are mapped or open.
pub struct Hostile {
    directory: PathBuf,
    rng: Rng,
    files: usize,
    mapped: VecDeque<RingWriter>,
    /// Files that are locked or have a lease.
    held: VecDeque<File>,
}

impl Hostile {
    /// Does not make the files: see [`Hostile::fill`].
    pub fn new(directory: PathBuf, seed: u64, files: usize) -> Self {
        Self {
            directory,
            rng: Rng::with_seed(seed),
            files,
            mapped: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    /// Makes all files, each of a random kind. Counts the kinds in `done`.
    pub fn fill(&mut self, done: &mut BTreeMap<&str, u64>) {
        for number in 0..self.files {
            let variant = Variant::any(&mut self.rng);
            let (path, other) = (self.path(number), self.any());
            if variant.make(&mut self.rng, &path, &other).is_ok() {
                *done.entry(variant.name()).or_insert(0) += 1;
            }
        }
    }

    /// Makes one random change. Returns the name of the change.
    pub fn change(&mut self) -> io::Result<&'static str> {
        let number = self.rng.usize(..self.files);
        let path = self.path(number);
        match self.rng.u8(..25) {
            0 | 1 => self.remake(path),
            2 => self.set_len(path, "truncate to nothing", |_, _| 0),
            3 => self.set_len(path, "shorten", |rng, len| rng.u64(..=len)),
            4 => self.set_len(path, "lengthen", |rng, len| len + rng.u64(..1 << 16)),
            5 => self.set_len(path, "up and down", |_, len| len),
            6 => self.punch(path),
            7..=10 => self.move_positions(path),
            11 => self.odd_header(path),
            12 | 13 => self.events(path),
            14 | 15 => self.restart(path),
            16 => fs::rename(path, self.any()).map(|()| "rename over another"),
            17 => {
                let flags = RenameFlags::RENAME_EXCHANGE;
                renameat2(AT_FDCWD, &path, AT_FDCWD, &self.any(), flags)?;
                Ok("exchange with another")
            }
            18 => self.remove(path).map(|()| "remove"),
            19 => self.second_name(number),
            20 => self.set_mode(path),
            21 => {
                chown(path, Some(self.rng.u32(..3)), None)?;
                Ok("change the owner")
            }
            22 => self.lock(path),
            23 => self.take_a_lease(path),
            _ => self.flood(),
        }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(files::name(number))
    }

    fn any(&mut self) -> PathBuf {
        let number = self.rng.usize(..self.files);
        self.path(number)
    }

    /// Opens a regular file. Others are rejected: their open(2) may block, or have an effect outside the directory.
    fn open(&self, path: &PathBuf) -> io::Result<File> {
        if !fs::symlink_metadata(path)?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
    }

    /// Makes another kind of file under this name, sometimes on the old inode.
    fn remake(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let (variant, other) = (Variant::any(&mut self.rng), self.any());
        if self.open(&path).is_err() || self.rng.bool() {
            self.remove(path.clone())?;
        }
        variant.make(&mut self.rng, &path, &other)?;
        Ok(variant.name())
    }

    fn remove(&self, path: PathBuf) -> io::Result<()> {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir(path),
            Ok(_) => fs::remove_file(path),
            Err(_) => Ok(()),
        }
    }

    fn set_len(
        &mut self,
        path: PathBuf,
        what: &'static str,
        len: impl FnOnce(&mut Rng, u64) -> u64,
    ) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        let before = file.metadata()?.len();
        let len = len(&mut self.rng, before);
        if len == before {
            file.set_len(0)?;
        }
        file.set_len(len)?;
        Ok(what)
    }

    fn punch(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (from, len) = (self.rng.i64(0..8192), self.rng.i64(1..65_536));
        fallocate(&file, flags, from, len)?;
        Ok("punch a hole")
    }

    /// Capacity in the header of a file, which may be wrong.
    fn capacity(file: &File) -> io::Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 24)?;
        Ok(u64::from_le_bytes(bytes).clamp(1, 1 << 57))
    }

    /// Moves the positions again and again, to valid and invalid values.
    fn move_positions(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        let capacity = Self::capacity(&file)?;
        for _ in 0..MOVES {
            let word = self.rng.usize(..2);
            let position = match self.rng.u8(..50) {
                0 => files::odd_word(&mut self.rng, capacity),
                _ => self.rng.u64(..capacity),
            };
            files::put(&file, word, position)?;
        }
        Ok("move positions")
    }

    fn odd_header(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        let word = files::odd_word(&mut self.rng, Self::capacity(&file)?);
        files::put(&file, self.rng.usize(..5), word)?;
        Ok("spoil the header")
    }

    fn events(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        let layout = Layout::ALL[self.rng.usize(..Layout::ALL.len())];
        files::events(&mut self.rng, &file, layout, Self::capacity(&file)?)?;
        Ok("write events")
    }

    /// Starts an agent with that name. Its file may be changed, but stays mapped until [`HELD`] others are.
    fn restart(&mut self, path: PathBuf) -> io::Result<&'static str> {
        self.open(&path)?;
        let layout = Layout::ALL[self.rng.usize(..Layout::ALL.len())];
        let ring = RingWriter::create(&path, layout, 1 << self.rng.u8(1..10))?;
        // The mapping is never accessed: after a truncation, that would be a SIGBUS.
        self.mapped.push_back(ring);
        if self.mapped.len() > HELD {
            self.mapped.pop_front();
        }
        Ok("restart in place")
    }

    /// Makes a second name for a file, or removes it if it exists.
    fn second_name(&mut self, number: usize) -> io::Result<&'static str> {
        let second = self
            .directory
            .join(OsString::from(format!("second-{}", number % 100)));
        if fs::remove_file(&second).is_ok() {
            return Ok("remove a hard link");
        }
        fs::hard_link(self.path(number), second)?;
        Ok("make a hard link")
    }

    fn set_mode(&mut self, path: PathBuf) -> io::Result<&'static str> {
        drop(self.open(&path)?);
        let mode = [0, 0o400, 0o644, 0o666, 0o4777][self.rng.usize(..5)];
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok("change the mode")
    }

    /// Locks a file with the lock that one pmdanixl uses against another.
    fn lock(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        if !lock(&file)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.hold(file);
        Ok("lock")
    }

    /// Fills large rings again, so that they always have more events than a drain has time for.
    fn flood(&mut self) -> io::Result<&'static str> {
        for number in 0..FLOODS {
            let path = self.directory.join(format!("flood-{number}"));
            let file = match self.open(&path) {
                Ok(file) => file,
                Err(_) => files::flood(&path, FLOOD)?,
            };
            let mut read_pos = [0; 8];
            file.read_exact_at(&mut read_pos, 8)?;
            let last = u64::from_le_bytes(read_pos).wrapping_sub(1);
            files::put(&file, 0, last % FLOOD)?;
        }
        Ok("flood")
    }

    /// Takes a lease: an open(2) of the file without O_NONBLOCK blocks.
    fn take_a_lease(&mut self, path: PathBuf) -> io::Result<&'static str> {
        let file = self.open(&path)?;
        // The lease lasts until the file is closed.
        std::mem::forget(Lease::acquire(&file, LeaseKind::Exclusive)?);
        self.hold(file);
        Ok("take a lease")
    }

    fn hold(&mut self, file: File) {
        self.held.push_back(file);
        if self.held.len() > HELD {
            self.held.pop_front();
        }
    }
}
