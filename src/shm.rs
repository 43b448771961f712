//! Memory shared with the producers: one of the three modules that hold unsafe code.
//!
//! A mapped file is only ever seen as words that are loaded and stored atomically. No reference to plain memory is made of
//! it, since its producers (and any stranger who may write the file) change it at will.
#![allow(unsafe_code)]

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
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

impl From<Broken> for std::io::Error {
    fn from(_: Broken) -> Self {
        std::io::ErrorKind::UnexpectedEof.into()
    }
}

/// A file mapped shared and writable, as 8-byte words.
///
/// Whoever may write the file may also make it shorter, and an access beyond its new end raises SIGBUS. The handler of
/// [`guard_against_sigbus`] then puts zeros in that place, the access goes on with those, and [`Mapping::access`] says that
/// nothing of it counts.
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
        Self::at(file, 0, words)
    }

    /// The same from an offset in the file on, in bytes, a multiple of the page size.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn at(file: &File, offset: u64, words: usize) -> io::Result<Self> {
        let len = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().offset(offset).len(len).map_raw(file)?;
        Ok(Self::of(map, words))
    }

    /// Maps the first `words` words for looking only: a store to them would end the process. `file` is open for reading.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn read_only(file: &File, words: usize) -> io::Result<Self> {
        let len = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        Ok(Self::of(map, words))
    }

    fn of(map: MmapRaw, words: usize) -> Self {
        Self {
            map,
            words,
            broken: Cell::new(false),
        }
    }

    /// Runs something on the file's words. Accesses do not nest.
    ///
    /// # Errors
    /// The file was shortened, now or before: what `run` found and did is void.
    #[inline]
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

/// The mapping that a thread accesses.
struct Target {
    /// Where it starts; 0: none is accessed.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Whether SIGBUS came.
    broken: AtomicBool,
}

thread_local! {
    /// Each thread's own, since SIGBUS comes to the thread that makes the access. It is there from a thread's beginning, without
    /// anything to set up at first use, which a signal handler could not do.
    static TARGET: Target = const {
        Target {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    };
}

/// Tells the handler which mapping is being accessed, until it is dropped, also by a panic.
struct Armed;

impl Armed {
    fn new(start: usize, len: usize) -> Self {
        TARGET.with(|target| {
            target.broken.store(false, Relaxed);
            target.len.store(len, Relaxed);
            target.start.store(start, Relaxed);
        });
        // The handler runs on this thread: the stores above need only be kept before the accesses by the compiler.
        compiler_fence(SeqCst);
        Self
    }

    fn is_broken(&self) -> bool {
        compiler_fence(SeqCst);
        TARGET.with(|target| target.broken.load(Relaxed))
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        TARGET.with(|target| target.start.store(0, Relaxed));
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
    // SAFETY: the handler calls only what is allowed in one: its thread's atomics, mmap(2) and sigaction(2).
    unsafe { sigaction(Signal::SIGBUS, &action) }.map(drop)
}

/// Bytes that the handler puts zeros in the place of, and those that it tries if that fails. Zeros for the whole of a mapping
/// may be more memory than the kernel promises: a stranger's file can be of any size. Both are whole pages of any machine.
const REPLACED: [usize; 2] = [1 << 20, 1 << 16];

/// Puts zeros where the mapping was hit. The access is tried again when this returns.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler of this kind.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS fills in the address; one that somebody sent with kill(2) has other fields there, plain numbers too.
    let address = unsafe { info.si_addr() }.addr();
    if TARGET.with(|target| put_zeros(target, address)) {
        return;
    }
    // Not ours: the default, which ends the process, when the access is tried again.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed, the default is restored.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Whether the address is in the mapping that is accessed, and has zeros now.
fn put_zeros(target: &Target, address: usize) -> bool {
    let (start, len) = (target.start.load(Relaxed), target.len.load(Relaxed));
    let hit = address.wrapping_sub(start);
    if start == 0 || hit >= len {
        return false;
    }
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    let replaced = REPLACED.into_iter().any(|bytes| {
        let from = hit / bytes * bytes;
        let place = std::ptr::with_exposed_provenance_mut(start + from);
        // SAFETY: only pages of a mapping of ours are replaced; nothing but atomic words is seen of them.
        let replaced =
            unsafe { libc::mmap(place, bytes.min(len - from), protection, flags, -1, 0) };
        replaced != libc::MAP_FAILED
    });
    if replaced {
        target.broken.store(true, Relaxed);
    }
    replaced
}

/// When the kernel grants a lease (fcntl(2), F_SETLEASE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// While nobody else has the file open or mapped (F_WRLCK).
    Alone,
    /// While nobody has the file open for writing (F_RDLCK); on a descriptor that is open for reading only.
    NoWriter,
}

/// A lease on a file, given back when it is dropped. `nix` does not wrap leases.
#[derive(Debug)]
pub struct Lease<'a> {
    file: &'a File,
    kind: c_int,
}

impl<'a> Lease<'a> {
    /// Takes the lease.
    ///
    /// # Errors
    /// EAGAIN while somebody has the file; EACCES without CAP_LEASE on another user's; others where there are no leases.
    pub fn take(file: &'a File, kind: LeaseKind) -> io::Result<Self> {
        let kind = match kind {
            LeaseKind::Alone => libc::F_WRLCK,
            LeaseKind::NoWriter => libc::F_RDLCK,
        };
        // A second opener waits for the lease to be given back, and the kernel sends SIGIO, which the daemon ignores.
        lease_call(file, libc::F_SETLEASE, kind)?;
        Ok(Self { file, kind })
    }

    /// Whether somebody waits for it to be given back.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        lease_call(self.file, libc::F_GETLEASE, 0).map_or(true, |kind| kind != self.kind)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = lease_call(self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn lease_call(file: &File, command: c_int, kind: c_int) -> io::Result<c_int> {
    // SAFETY: both commands take an int, if anything, and touch no memory of ours; the descriptor is open as long as `file`
    // lives.
    let sts = unsafe { libc::fcntl(file.as_raw_fd(), command, kind) };
    if sts < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(sts)
    }
}

/// Locks a file that is open for writing, until its last descriptor is closed: `false` while another process has the lock.
///
/// An open file description lock (fcntl(2)) for writing, which it takes the right to write the file to have. A lock for
/// reading, which a stranger can have who may only read the file, keeps nobody away: it counts as none.
///
/// # Errors
/// What fcntl(2) says; ENOLCK and others where the file system has no locks.
#[allow(
    clippy::cast_possible_truncation,
    reason = "small constants, which C has as int"
)]
pub fn lock(file: &File) -> io::Result<bool> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => {
            let mut found = whole;
            fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
            Ok(found.l_type != libc::F_WRLCK as libc::c_short)
        }
        Err(errno) => Err(errno.into()),
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
    fn a_file_that_shrinks_from_more_than_there_is_memory_voids_the_access() {
        guard_against_sigbus().expect("a handler");
        let file = tempfile::tempfile().expect("a temporary file");
        let words = 1 << 37;
        file.set_len(8 * words as u64).expect("sparse");
        let mapping = Mapping::new(&file, words).expect("mapped");
        // In three places that are far apart.
        let found = mapping.access(|words| {
            file.set_len(0).expect("shorter");
            [0, 1 << 30, (1 << 37) - 1].map(|at: usize| words[at].load(Relaxed))
        });
        assert_eq!(found, Err(Broken));
    }

    #[test]
    fn a_mapping_that_breaks_in_one_thread_breaks_none_in_another() {
        guard_against_sigbus().expect("a handler");
        let breaking = std::thread::spawn(|| {
            let file = tempfile::tempfile().expect("a temporary file");
            for _ in 0..1000 {
                file.set_len(4096).expect("room");
                let mapping = Mapping::new(&file, 512).expect("mapped");
                file.set_len(0).expect("shorter");
                assert_eq!(mapping.access(|words| words[0].load(Relaxed)), Err(Broken));
            }
        });
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(4096).expect("room");
        let whole = Mapping::new(&file, 512).expect("mapped");
        while !breaking.is_finished() {
            let found = whole.access(|words| words[0].fetch_add(1, Relaxed));
            assert_ne!(found, Err(Broken));
        }
        breaking.join().expect("no panic");
    }

    #[test]
    fn a_lease_is_granted_when_nobody_else_has_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        Lease::take(file.as_file(), LeaseKind::Alone).expect("nobody else has it");
        let other = File::open(file.path()).expect("still there");
        let err = Lease::take(file.as_file(), LeaseKind::Alone).expect_err("another descriptor");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        drop(other);
        Lease::take(file.as_file(), LeaseKind::Alone).expect("nobody else has it any more");
    }

    #[test]
    fn a_lease_against_writers_is_granted_beside_readers() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let ours = File::open(file.path()).expect("there");
        let err = Lease::take(&ours, LeaseKind::NoWriter).expect_err("it is open for writing");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        let path = file.into_temp_path();
        let _reader = File::open(&path).expect("there");
        Lease::take(&ours, LeaseKind::NoWriter).expect("nobody writes");
    }

    #[test]
    fn a_lease_says_when_somebody_waits_for_it() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // The kernel sends SIGIO, which would end the test.
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is installed.
        unsafe { sigaction(Signal::SIGIO, &ignore) }.expect("ignored");
        let lease = Lease::take(file.as_file(), LeaseKind::Alone).expect("nobody else has it");
        assert!(!lease.is_wanted());
        let path = file.path().to_owned();
        let opener = std::thread::spawn(move || File::open(path).map(drop));
        while !lease.is_wanted() {
            std::thread::yield_now();
        }
        drop(lease);
        opener.join().expect("no panic").expect("it had to wait");
    }

    #[test]
    fn a_length_that_overflows_is_an_error() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert!(Mapping::new(&file, usize::MAX).is_err());
    }
}
