// SPDX-License-Identifier: GPL-2.0-or-later

//! Memory shared with producers. One of the three modules with unsafe code.
//!
//! A mapped file is accessed only as words that are loaded and stored atomically. There is never a reference to plain
//! memory, since any process that may write the file can change it at any time.
#![allow(unsafe_code)]

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{SysconfVar, sysconf};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, compiler_fence};

pub mod bpf;
mod heap;
mod lock;
pub mod nonblocking;
pub mod socket;
pub use heap::trim_heap;
pub use lock::{Lease, LeaseKind, is_locked, lock};

/// Error of an access to a mapping after its file became shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShortened;

impl From<FileShortened> for std::io::Error {
    fn from(_: FileShortened) -> Self {
        std::io::ErrorKind::UnexpectedEof.into()
    }
}

/// Shared mapping of a file, read-write or read-only, as 8-byte words.
///
/// A process that may write the file may also shorten it, and an access beyond the new end raises SIGBUS. The handler
/// of [`guard_against_sigbus`] then maps a page of zeros, the access continues, and [`Mapping::access`] returns an
/// error. A load from a hole raises SIGBUS as well if a full tmpfs has no room for the page. There, zeros are right,
/// and [`Mapping::read_access`] accepts them.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
    words: usize,
    may_store: bool,
    is_shortened: Cell<bool>,
}

/// Word of a mapped file that can only be loaded. A store to a read-only mapping would end the process.
#[repr(transparent)]
#[derive(Debug)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// Loads the word, like [`AtomicU64::load`].
    #[inline]
    #[must_use]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

impl Mapping {
    /// Maps the first `words` words of a file that is open for reading and writing.
    ///
    /// # Errors
    /// Those of mmap(2), such as EACCES if the file is not open for writing.
    pub fn new(file: &File, words: usize) -> io::Result<Self> {
        Self::map(file, words, true)
    }

    /// Maps the first `words` words for [`Mapping::read_access`] only. `file` is open for reading.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn read_only(file: &File, words: usize) -> io::Result<Self> {
        Self::map(file, words, false)
    }

    fn map(file: &File, words: usize, may_store: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?);
        let map = match may_store {
            true => options.map_raw(file),
            false => options.map_raw_read_only(file),
        }?;
        Ok(Self {
            map,
            words,
            may_store,
            is_shortened: Cell::new(false),
        })
    }

    /// Calls `run` with the words of the file, which it may store to. Accesses do not nest.
    ///
    /// # Errors
    /// The file was shortened, now or before: what `run` loaded and stored has no meaning. For a read-only mapping,
    /// `run` is not called.
    #[inline]
    pub fn access<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FileShortened> {
        if !self.may_store {
            return Err(FileShortened);
        }
        let (result, has_fault) = self.guarded(|start| {
            // SAFETY: `new` mapped this many words, at a page boundary and so aligned; the mapping lives as long as
            // `self`; every access through it is atomic, and the other processes' accesses are not this program's.
            run(unsafe { std::slice::from_raw_parts(start, self.words) })
        })?;
        self.is_shortened.set(has_fault);
        (!has_fault).then_some(result).ok_or(FileShortened)
    }

    /// Calls `run` with the words of the file, which it can only load. `file` is the mapped file.
    ///
    /// # Errors
    /// The file was shortened, now or before.
    #[inline]
    pub fn read_access<T>(
        &self,
        file: &File,
        run: impl FnOnce(&[ReadWord]) -> T,
    ) -> Result<T, FileShortened> {
        let (result, has_fault) = self.guarded(|start| {
            // SAFETY: as in `access`; a `ReadWord` is an `AtomicU64` that is not stored to.
            run(unsafe { std::slice::from_raw_parts(start.cast(), self.words) })
        })?;
        if has_fault && !self.remap(file) {
            self.is_shortened.set(true);
            return Err(FileShortened);
        }
        Ok(result)
    }

    /// Calls `run` with the start of the mapping. Returns also true if a part of the mapping was replaced by zeros.
    #[inline]
    fn guarded<T>(
        &self,
        run: impl FnOnce(*const AtomicU64) -> T,
    ) -> Result<(T, bool), FileShortened> {
        if self.is_shortened.get() {
            return Err(FileShortened);
        }
        let start = self.map.as_mut_ptr();
        let guard = AccessGuard::new(start.addr(), self.map.len());
        let result = run(start.cast());
        Ok((result, guard.has_fault()))
    }

    /// Maps the file again after zeros replaced a part of its mapping. Returns false if the file is shorter than the
    /// mapping. Otherwise the zeros replaced a hole, which the producer may write to when there is room.
    #[cold]
    fn remap(&self, file: &File) -> bool {
        let len = self.map.len();
        if file.metadata().is_ok_and(|meta| meta.len() < len as u64) {
            return false;
        }
        let store = if self.may_store { libc::PROT_WRITE } else { 0 };
        let address = self.map.as_mut_ptr().cast();
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: this mapping is replaced by a mapping of the same file, which is accessed as atomic words only.
        let mapped = unsafe {
            libc::mmap(
                address,
                len,
                libc::PROT_READ | store,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }
}

/// Expected values of the first four words of a mapping: the header of an idle ring, or of a store with the time of its
/// last change. The check does not load the [`Mapping`]: with a thousand idle files, each
/// additional load is a cache miss.
#[derive(Debug)]
pub struct HeaderPoll {
    start: NonNull<ReadWord>,
    /// Keeps the memory mapped.
    mapping: Rc<Mapping>,
    expected: [u64; 4],
}

impl HeaderPoll {
    /// Returns a poll of these words; `None` if the mapping is shorter.
    #[must_use]
    pub fn new(mapping: &Rc<Mapping>, expected: [u64; 4]) -> Option<Self> {
        let start = NonNull::new(mapping.map.as_mut_ptr().cast())?;
        (expected.len() <= mapping.words).then(|| Self {
            start,
            mapping: Rc::clone(mapping),
            expected,
        })
    }

    /// True if the words have their expected values. False if they differ or the file was shortened. Called for each
    /// idle file at each tick.
    #[inline]
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        let count = self.expected.len();
        let guard = AccessGuard::new(self.start.addr().get(), 8 * count);
        // SAFETY: as in `access`; these are the first words of the mapping.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), count) };
        // Without a branch, so that the CPU starts the loads of the next files during a cache miss.
        let pairs = words.iter().zip(self.expected);
        let differ = pairs.fold(0, |all, (now, then)| all | (now.load(Relaxed) ^ then));
        if guard.has_fault() {
            self.mapping.is_shortened.set(true);
            return false;
        }
        differ == 0
    }
}

/// Mapping that a thread accesses.
struct AccessedRange {
    /// Start address; 0: no mapping is accessed.
    start: AtomicUsize,
    len: AtomicUsize,
    /// True if SIGBUS came.
    has_fault: AtomicBool,
}

thread_local! {
    /// Per thread, since SIGBUS comes to the thread that makes the access. Constant, since a signal handler cannot
    /// initialize it at first use.
    static ACCESSED: AccessedRange = const {
        AccessedRange {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            has_fault: AtomicBool::new(false),
        }
    };
}

/// Tells the SIGBUS handler which mapping is accessed, until it is dropped.
struct AccessGuard;

impl AccessGuard {
    fn new(start: usize, len: usize) -> Self {
        ACCESSED.with(|range| {
            range.has_fault.store(false, Relaxed);
            range.len.store(len, Relaxed);
            range.start.store(start, Relaxed);
        });
        // The handler runs on this thread, so only the compiler must keep the stores above before the accesses.
        compiler_fence(SeqCst);
        Self
    }

    fn has_fault(&self) -> bool {
        compiler_fence(SeqCst);
        ACCESSED.with(|range| range.has_fault.load(Relaxed))
    }
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        ACCESSED.with(|range| range.start.store(0, Relaxed));
    }
}

/// Installs the SIGBUS handler, for the whole process. A SIGBUS that a process sends (`kill -BUS`) then has no effect.
///
/// # Errors
/// Those of sigaction(2).
pub fn guard_against_sigbus() -> nix::Result<()> {
    let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|page| page.try_into().ok());
    PAGE.store(page.unwrap_or(LARGEST_PAGE), Relaxed);
    let action = SigAction::new(
        SigHandler::SigAction(on_sigbus),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler calls only what a signal handler may: atomics of its thread, mmap(2) and sigaction(2).
    unsafe { sigaction(Signal::SIGBUS, &action) }.map(drop)
}

/// Largest page size of the machines that NIXL runs on, in bytes.
const LARGEST_PAGE: usize = 1 << 16;
/// Page size of this machine, in bytes. The handler replaces one page, since the pages beside it may exist.
static PAGE: AtomicUsize = AtomicUsize::new(LARGEST_PAGE);

/// Replaces the page that raised SIGBUS by zeros. The kernel repeats the access when the handler returns.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler of this kind.
    let info = unsafe { &*info };
    // Without an access there is nothing to repeat, and the default action would end the process at a later access. The
    // kernel gives a signal of another process a code of 0 or less (sigaction(2)). BUS_MCEERR_AO reports broken memory
    // that was not accessed.
    if info.si_code <= 0 || info.si_code == libc::BUS_MCEERR_AO {
        return;
    }
    // SAFETY: a SIGBUS of the kernel has the address.
    let address = unsafe { info.si_addr() }.addr();
    if ACCESSED.with(|range| map_zeros(range, address)) {
        return;
    }
    // Outside of the mapping: the default action ends the process when the access is repeated.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed; the default is restored.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Replaces the page of an address by zeros. Returns false if the address is outside of the accessed mapping, or
/// mmap(2) fails.
fn map_zeros(range: &AccessedRange, address: usize) -> bool {
    let (start, len) = (range.start.load(Relaxed), range.len.load(Relaxed));
    let offset = address.wrapping_sub(start);
    if start == 0 || offset >= len {
        return false;
    }
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    let page = PAGE.load(Relaxed);
    let page_start = std::ptr::with_exposed_provenance_mut(start + offset / page * page);
    // Twice, since the process ends if mmap(2) fails.
    let replaced = (0..2).any(|_| {
        // SAFETY: the page belongs to a mapping of this module, which is accessed as atomic words only.
        let zeros = unsafe { libc::mmap(page_start, page, protection, flags, -1, 0) };
        zeros != libc::MAP_FAILED
    });
    if replaced {
        range.has_fault.store(true, Relaxed);
    }
    replaced
}

#[cfg(test)]
mod tests;
