// SPDX-License-Identifier: GPL-2.0-or-later

//! Kinds of files in a telemetry directory: a ring, almost a ring, or anything else.

use crate::kit::writer::{Kind, Layout};
use fastrand::Rng;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Words of 8 bytes in the header of a ring.
const HEADER_WORDS: usize = 5;
const HEADER_LEN: u64 = 8 * HEADER_WORDS as u64;

/// Kind of a file.
#[derive(Clone, Copy, Debug)]
pub enum Variant {
    Ring,
    Truncated,
    Sparse,
    Ones,
    Zeros,
    Noise,
    Header,
    Versions,
    Locked,
    Fifo,
    Socket,
    Device,
    Symlink,
    Directory,
    HardLink,
}

impl Variant {
    /// Most entries are rings and almost rings, since these reach most of the daemon's code.
    const ALL: [Self; 20] = [
        Self::Ring,
        Self::Ring,
        Self::Ring,
        Self::Truncated,
        Self::Truncated,
        Self::Sparse,
        Self::Sparse,
        Self::Ones,
        Self::Zeros,
        Self::Noise,
        Self::Header,
        Self::Header,
        Self::Header,
        Self::Versions,
        Self::Locked,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Directory,
        Self::HardLink,
    ];

    /// Random kind; 1 % are devices.
    pub fn any(rng: &mut Rng) -> Self {
        match rng.u8(..100) {
            0 => Self::Device,
            _ => Self::ALL[rng.usize(..Self::ALL.len())],
        }
    }

    /// Name in the printed counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Truncated => "truncated ring",
            Self::Sparse => "sparse ring",
            Self::Ones => "all ones",
            Self::Zeros => "all zeros",
            Self::Noise => "noise",
            Self::Header => "odd header",
            Self::Versions => "mixed versions",
            Self::Locked => "mode 000",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::Symlink => "symbolic link",
            Self::Directory => "directory",
            Self::HardLink => "hard link",
        }
    }

    /// Makes a file at `path`, which may be a regular file already. Kinds with contents then overwrite these.
    pub fn make(self, rng: &mut Rng, path: &Path, other: &Path) -> io::Result<()> {
        let layout = Layout::ALL[rng.usize(..Layout::ALL.len())];
        let capacity = 1 << rng.u8(1..10);
        match self {
            Self::Ring => ring(rng, path, layout, capacity).map(drop),
            Self::Truncated => {
                let file = ring(rng, path, layout, capacity)?;
                let len = file.metadata()?.len();
                file.set_len(rng.u64(..len))
            }
            Self::Sparse => sparse(rng, path, layout),
            Self::Ones => bytes(path, &vec![0xff; some_len(rng)]),
            Self::Zeros => bytes(path, &vec![0; some_len(rng)]),
            Self::Noise => {
                let mut noise = vec![0; some_len(rng)];
                rng.fill(&mut noise);
                bytes(path, &noise)
            }
            Self::Header => {
                let file = ring(rng, path, layout, capacity)?;
                for _ in 0..rng.u8(1..4) {
                    put(&file, rng.usize(..HEADER_WORDS), odd_word(rng, capacity))?;
                }
                Ok(())
            }
            Self::Versions => {
                let file = ring(rng, path, layout, 8)?;
                let any = |rng: &mut Rng| u64::from(rng.u32(..8));
                put(&file, 2, (any(rng) << 32) | any(rng))
            }
            Self::Locked => {
                ring(rng, path, layout, 16)?;
                fs::set_permissions(path, Permissions::from_mode(0o000))
            }
            Self::Fifo => Ok(mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0)?),
            // Fails for names longer than the path of a socket may be.
            Self::Socket => UnixListener::bind(path).map(drop),
            // The device number of /dev/full: reads never end, and writes fail.
            Self::Device => Ok(mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 7))?),
            Self::Symlink => match rng.u8(..4) {
                0 => symlink(path.file_name().unwrap_or_default(), path),
                1 => symlink("/dev/zero", path),
                2 => symlink("/proc", path),
                _ => symlink(other, path),
            },
            Self::Directory => fs::create_dir(path),
            Self::HardLink => fs::hard_link(other, path),
        }
    }
}

/// Name of the file with this number. Some names are long or have special characters.
pub fn name(number: usize) -> OsString {
    let plain = format!("h{number}");
    match number % 50 {
        10 => OsString::from(format!("{plain:h<255}")),
        20 => OsString::from_vec([plain.as_bytes(), b"\xff\xfe\x80"].concat()),
        30 => OsString::from(plain + "\n[Info] \t\"%41\\"),
        40 => format!("[{plain} é ~").into(),
        _ => plain.into(),
    }
}

/// Makes a valid ring with up to 64 events.
pub fn ring(rng: &mut Rng, path: &Path, layout: Layout, capacity: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.set_len(HEADER_LEN + capacity * layout.slot_size())?;
    let version = u64::from(layout.version());
    let words = [0, 0, (version << 32) | version, capacity, capacity - 1];
    for (at, word) in words.into_iter().enumerate() {
        put(&file, at, word)?;
    }
    events(rng, &file, layout, capacity)?;
    Ok(file)
}

/// Makes a ring with the longest slots and without holes.
pub fn flood(path: &Path, capacity: u64) -> io::Result<File> {
    let layout = Layout::V1;
    let file = ring(&mut Rng::with_seed(0), path, layout, capacity)?;
    let slots = usize::try_from(capacity * layout.slot_size()).map_err(io::Error::other)?;
    file.write_all_at(&vec![1; slots], HEADER_LEN)?;
    Ok(file)
}

/// Writes events from a random position on, and sets the positions to match.
pub fn events(rng: &mut Rng, file: &File, layout: Layout, capacity: u64) -> io::Result<()> {
    let (from, count) = (rng.u64(..capacity), rng.u64(..capacity.min(64)));
    for pos in from..from + count {
        let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
        let value = if rng.u8(..10) == 0 {
            rng.u64(..)
        } else {
            rng.u64(..1 << 20)
        };
        let slot = layout.slot(pos, kind.name(), kind.raw(), kind.category(), value);
        file.write_all_at(&slot, HEADER_LEN + pos % capacity * layout.slot_size())?;
    }
    put(file, 1, from)?;
    put(file, 0, (from + count) % capacity)
}

/// Makes a ring with a capacity of up to 2^57 and with positions in holes.
fn sparse(rng: &mut Rng, path: &Path, layout: Layout) -> io::Result<()> {
    let file = ring(rng, path, layout, 64)?;
    let capacity = 1 << [16, 20, 26, 30, 34, 36, 57][rng.usize(..7)];
    // Fails beyond the limit of the file system, which leaves a ring of the wrong size.
    file.set_len(HEADER_LEN + capacity * layout.slot_size())?;
    put(&file, 3, capacity)?;
    put(&file, 4, capacity - 1)?;
    if rng.bool() {
        put(&file, 0, rng.u64(..capacity))?;
        put(&file, 1, rng.u64(..capacity))?;
    }
    Ok(())
}

fn bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)
}

/// Length of a ring, a length near it, or a random one.
fn some_len(rng: &mut Rng) -> usize {
    let slot = [16, 48, 56][rng.usize(..3)];
    match rng.u8(..3) {
        0 => rng.usize(..5000),
        1 => 40 + slot * (1 << rng.u8(..8)) + rng.usize(..2),
        _ => 40 + slot * (1 << rng.u8(..8)),
    }
}

/// Writes a word of the header.
pub fn put(file: &File, word: usize, value: u64) -> io::Result<()> {
    file.write_all_at(&value.to_le_bytes(), 8 * word as u64)
}

/// Number at an edge of the valid range, or a random one.
pub fn odd_word(rng: &mut Rng, capacity: u64) -> u64 {
    let edges = [
        0,
        1,
        2,
        capacity - 1,
        capacity,
        capacity + 1,
        2 * capacity,
        1 << 31,
        1 << 32,
        1 << 63,
        u64::MAX,
        u64::MAX - 1,
    ];
    match rng.u8(..4) {
        0 => rng.u64(..),
        1 => rng.u64(..2 * capacity),
        _ => edges[rng.usize(..edges.len())],
    }
}
