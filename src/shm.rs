//! Memory shared with the producers: one of the three modules that hold unsafe code.
//!
//! A mapped file is only ever seen as words that are loaded and stored atomically. No reference to plain memory is made of
//! it, since its producers (and any stranger who may write the file) change it at will.
#![allow(unsafe_code)]

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, compiler_fence};

/// The file that a mapping belongs to became shorter than the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A file mapped shared and writable, as 8-byte words.
///
/// Whoever may write the file may also make it shorter, and an access beyond its new end raises SIGBUS. The handler of
/// [`guard_against_sigbus`] then puts zeros in the whole mapping's place, the access goes on with those, and
/// [`Mapping::access`] says that nothing of it counts.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
    words: usize,
    broken: Cell<bool>,
}

impl Mapping {
    /// Maps the first `words` words of a file that is open for reading and writing.
    ///
    /// # Errors
    /// What mmap(2) says, EACCES where the file is not open for writing among it.
    pub fn new(file: &File, words: usize) -> io::Result<Self> {
        let len = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(len).map_raw(file)?;
        Ok(Self {
            map,
            words,
            broken: Cell::new(false),
        })
    }

    /// Runs something on the file's words. Accesses do not nest.
    ///
    /// # Errors
    /// The file was shortened, now or before: what `run` found and did is void.
    pub fn access<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, Broken> {
        if self.broken.get() {
            return Err(Broken);
        }
        let start = self.map.as_mut_ptr();
        let armed = Armed::new(start.addr(), self.map.len());
        // SAFETY: `new` mapped this many words, at a page boundary and so aligned; the mapping lives as long as `self`;
        // every access through it is atomic, and the other processes' accesses are not this program's.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), self.words) };
        let result = run(words);
        self.broken.set(armed.is_broken());
        if self.broken.get() {
            Err(Broken)
        } else {
            Ok(result)
        }
    }
}

/// The mapping that is being accessed: where it starts (0: none), its length, and whether SIGBUS came.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Tells the handler which mapping is being accessed, until it is dropped, also by a panic.
///
/// There is one place for it, since one thread accesses mappings, one at a time. The tests, which have several threads, wait
/// for each other.
struct Armed {
    #[cfg(test)]
    _turn: std::sync::MutexGuard<'static, ()>,
}

#[cfg(test)]
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

impl Armed {
    fn new(start: usize, len: usize) -> Self {
        #[cfg(test)]
        let _turn = TURN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        BROKEN.store(false, Relaxed);
        LEN.store(len, Relaxed);
        START.store(start, Relaxed);
        // The handler runs on this thread: the stores above need only be kept before the accesses by the compiler.
        compiler_fence(SeqCst);
        Self {
            #[cfg(test)]
            _turn,
        }
    }

    fn is_broken(&self) -> bool {
        compiler_fence(SeqCst);
        BROKEN.load(Relaxed)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        START.store(0, Relaxed);
    }
}

/// Installs the SIGBUS handler, for the whole process.
///
/// # Errors
/// What sigaction(2) says.
pub fn guard_against_sigbus() -> nix::Result<()> {
    let action = SigAction::new(
        SigHandler::SigAction(on_sigbus),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler calls only what is allowed in one: atomics, mmap(2) and sigaction(2).
    unsafe { sigaction(Signal::SIGBUS, &action) }.map(drop)
}

/// Puts zeros in the place of the mapping that was hit. The access is tried again when this returns.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler of this kind.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS fills in the address; one that somebody sent with kill(2) has other fields there, plain numbers too.
    let address = unsafe { info.si_addr() }.addr();
    let (start, len) = (START.load(Relaxed), LEN.load(Relaxed));
    if start != 0 && address.wrapping_sub(start) < len {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        );
        let place = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: exactly the pages of a mapping of ours are replaced; nothing but atomic words is seen of them.
        let replaced = unsafe { libc::mmap(place, len, protection, flags, -1, 0) };
        if replaced != libc::MAP_FAILED {
            BROKEN.store(true, Relaxed);
            return;
        }
    }
    // Not ours: the default, which ends the process, when the access is tried again.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed, the default is restored.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Takes a write lease on a file that is open for writing, and gives it back at once. The kernel grants it only while
/// nobody else has the file open or mapped (fcntl(2), F_SETLEASE). `nix` does not wrap leases.
///
/// # Errors
/// EAGAIN while somebody has it; EACCES without CAP_LEASE on another user's file; others where there are no leases.
pub fn lease(file: &File) -> io::Result<()> {
    // A second opener waits for the lease to be given back, and the kernel sends SIGIO, which the daemon ignores.
    set_lease(file, libc::F_WRLCK)?;
    set_lease(file, libc::F_UNLCK)
}

fn set_lease(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: F_SETLEASE takes an int and touches no memory of ours; the descriptor is open as long as `file` lives.
    let sts = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if sts < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn stores_reach_the_file_and_other_mappings() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[0; 24]).expect("room");
        let (one, other) = (
            Mapping::new(&file, 3).expect("mapped"),
            Mapping::new(&file, 3).expect("mapped"),
        );
        one.access(|words| words[2].store(7, Relaxed))
            .expect("whole");
        assert_eq!(other.access(|words| words[2].load(Relaxed)), Ok(7));
        assert_eq!(one.access(<[AtomicU64]>::len), Ok(3));
    }

    #[test]
    fn a_file_that_shrinks_voids_the_access_and_all_later_ones() {
        guard_against_sigbus().expect("a handler");
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(3 * 4096).expect("room");
        let mapping = Mapping::new(&file, 3 * 512).expect("mapped");
        let whole = Mapping::new(&file, 512).expect("mapped");
        // In the midst of an access, as a producer does it.
        let found = mapping.access(|words| {
            words[0].store(1, Relaxed);
            file.set_len(4096).expect("shorter");
            words[512].load(Relaxed)
        });
        assert_eq!(found, Err(Broken));
        file.set_len(3 * 4096).expect("room");
        assert_eq!(
            mapping.access(|words| words[0].load(Relaxed)),
            Err(Broken),
            "it stays broken"
        );
        assert_eq!(
            whole.access(|words| words[0].load(Relaxed)),
            Ok(1),
            "another mapping does not"
        );
        file.set_len(0).expect("shorter");
        assert_eq!(whole.access(|words| words[0].swap(2, Relaxed)), Err(Broken));
        assert_eq!(file.metadata().expect("open").len(), 0, "stores go nowhere");
    }

    #[test]
    fn a_lease_is_granted_when_nobody_else_has_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        lease(file.as_file()).expect("nobody else has it");
        let other = File::open(file.path()).expect("still there");
        let err = lease(file.as_file()).expect_err("another descriptor");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        drop(other);
        lease(file.as_file()).expect("nobody else has it any more");
    }

    #[test]
    fn a_length_that_overflows_is_an_error() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert!(Mapping::new(&file, usize::MAX).is_err());
    }
}
