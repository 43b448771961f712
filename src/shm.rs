//! Memory shared with the producers: one of the three modules that hold unsafe code.
//!
//! A mapped file is only ever seen as words that are loaded and stored atomically. No reference to plain memory is made of
//! it, since its producers (and any stranger who may write the file) change it at will.
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

mod heap;
mod lock;
pub mod nonblocking;
pub use heap::trim_heap;
pub use lock::{Lease, LeaseKind, is_locked, lock};

/// The file that a mapping belongs to became shorter than the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShortened;

impl From<FileShortened> for std::io::Error {
    fn from(_: FileShortened) -> Self {
        std::io::ErrorKind::UnexpectedEof.into()
    }
}

/// A file mapped shared, to be written to as well or only to be read, as 8-byte words.
///
/// Whoever may write the file may also make it shorter, and an access beyond its new end raises SIGBUS. The handler of
/// [`guard_against_sigbus`] then puts zeros in that place, the access goes on with those, and [`Mapping::access`] says that
/// nothing of it counts. A load from a hole for whose page a full tmpfs has no room raises SIGBUS as well: [`Mapping::read_access`]
/// takes the zeros for what they are.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
    words: usize,
    may_store: bool,
    is_shortened: Cell<bool>,
}

/// A word of a mapped file that is only looked at: a store to one that is mapped for reading only would end the process.
#[repr(transparent)]
#[derive(Debug)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// As [`AtomicU64::load`].
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
    /// What mmap(2) says, EACCES where the file is not open for writing among it.
    pub fn new(file: &File, words: usize) -> io::Result<Self> {
        Self::map(file, words, true)
    }

    /// Maps the first `words` words for looking only, see [`Mapping::read_access`]. `file` is open for reading.
    ///
    /// # Errors
    /// What mmap(2) says.
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

    /// Runs something on the file's words, which may store to them. Accesses do not nest.
    ///
    /// # Errors
    /// The file was shortened, now or before: what `run` found and did is void. So is one that is mapped for looking only, of
    /// which `run` is not called.
    #[inline]
    pub fn access<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FileShortened> {
        if !self.may_store {
            return Err(FileShortened);
        }
        let (result, has_fault) = self.guarded(|start| {
            // SAFETY: `new` mapped this many words, at a page boundary and so aligned; the mapping lives as long as `self`;
            // every access through it is atomic, and the other processes' accesses are not this program's.
            run(unsafe { std::slice::from_raw_parts(start, self.words) })
        })?;
        self.is_shortened.set(has_fault);
        if has_fault {
            Err(FileShortened)
        } else {
            Ok(result)
        }
    }

    /// The same for one that only loads, of any mapping. `file` is the one that was mapped.
    ///
    /// # Errors
    /// The file was shortened, as for [`Mapping::access`].
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

    /// Runs something; also whether it was given zeros in the place of what is not there.
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
        let has_fault = guard.has_fault();
        Ok((result, has_fault))
    }

    /// Maps the file where zeros were put into its mapping, if it is as long as that: then they were in place of a hole, and its
    /// producer may write there as soon as there is room. False: it is shorter.
    #[cold]
    fn remap(&self, file: &File) -> bool {
        let len = self.map.len();
        if file.metadata().is_ok_and(|meta| meta.len() < len as u64) {
            return false;
        }
        let store = if self.may_store { libc::PROT_WRITE } else { 0 };
        let address = self.map.as_mut_ptr().cast();
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: only this mapping is replaced, by the same file; nothing but atomic words is seen of it.
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

/// What the first words of a mapping are while nothing happens in it: the header of a ring, or that of a store and when it was
/// changed. It is asked without a look at the [`Mapping`], which lies elsewhere: of a thousand that are each looked at now and then,
/// all that was looked at is out of the processor's cache by the next time.
#[derive(Debug)]
pub struct HeaderPoll {
    start: NonNull<ReadWord>,
    /// It is mapped for as long as this is here.
    mapping: Rc<Mapping>,
    words: [u64; 4],
}

impl HeaderPoll {
    /// `None`: the mapping is shorter.
    #[must_use]
    pub fn new(mapping: &Rc<Mapping>, words: [u64; 4]) -> Option<Self> {
        let start = NonNull::new(mapping.map.as_mut_ptr().cast())?;
        (words.len() <= mapping.words).then(|| Self {
            start,
            mapping: Rc::clone(mapping),
            words,
        })
    }

    /// True if they are so now. It is asked of each file at each tick, and almost always so. False where the file is shortened.
    #[inline]
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        let guard = AccessGuard::new(self.start.addr().get(), 8 * self.words.len());
        // SAFETY: as in `access`, of which these are the first words.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words.len()) };
        // Without a branch: while one file is waited for, which is in no cache, the processor goes on to the next ones.
        let differ = words.iter().zip(self.words);
        let differ = differ.fold(0, |all, (now, then)| all | (now.load(Relaxed) ^ then));
        if guard.has_fault() {
            self.mapping.is_shortened.set(true);
            return false;
        }
        differ == 0
    }
}

/// The mapping that a thread accesses.
struct AccessedRange {
    /// Where it starts; 0: none is accessed.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Whether SIGBUS came.
    has_fault: AtomicBool,
}

thread_local! {
    /// Each thread's own, since SIGBUS comes to the thread that makes the access. It is there from a thread's beginning, without
    /// anything to set up at first use, which a signal handler could not do.
    static ACCESSED: AccessedRange = const {
        AccessedRange {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            has_fault: AtomicBool::new(false),
        }
    };
}

/// Tells the handler which mapping is being accessed, until it is dropped, also by a panic.
struct AccessGuard;

impl AccessGuard {
    fn new(start: usize, len: usize) -> Self {
        ACCESSED.with(|range| {
            range.has_fault.store(false, Relaxed);
            range.len.store(len, Relaxed);
            range.start.store(start, Relaxed);
        });
        // The handler runs on this thread: the stores above need only be kept before the accesses by the compiler.
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

/// Installs the SIGBUS handler, for the whole process.
///
/// # Errors
/// What sigaction(2) says.
pub fn guard_against_sigbus() -> nix::Result<()> {
    let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|page| page.try_into().ok());
    PAGE.store(page.unwrap_or(LARGEST_PAGE), Relaxed);
    let action = SigAction::new(
        SigHandler::SigAction(on_sigbus),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler calls only what is allowed in one: its thread's atomics, mmap(2) and sigaction(2).
    unsafe { sigaction(Signal::SIGBUS, &action) }.map(drop)
}

/// Bytes of a page of any machine that NIXL runs on.
const LARGEST_PAGE: usize = 1 << 16;
/// Bytes of a page of this machine: so many does the handler put zeros in the place of, since what lies beside them may be there.
static PAGE: AtomicUsize = AtomicUsize::new(LARGEST_PAGE);

/// Puts zeros where the mapping was hit. The access is tried again when this returns.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler of this kind.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS fills in the address; one that somebody sent with kill(2) has other fields there, plain numbers too.
    let address = unsafe { info.si_addr() }.addr();
    if ACCESSED.with(|range| map_zeros(range, address)) {
        return;
    }
    // Not ours: the default, which ends the process, when the access is tried again.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed, the default is restored.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Whether the address is in the mapping that is accessed, and has zeros now.
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
    // Twice, since the process ends where it fails.
    let replaced = (0..2).any(|_| {
        // SAFETY: only a page of a mapping of ours is replaced; nothing but atomic words is seen of it.
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
