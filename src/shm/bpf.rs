// SPDX-License-Identifier: GPL-2.0-or-later

//! bpf(2) and perf_event_open(2): maps, programs, and their attachment to a function of a file.

use nix::errno::Errno;
use std::ffi::CString;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Type of a map, as in linux/bpf.h.
#[derive(Clone, Copy, Debug)]
pub enum MapType {
    /// Hash table.
    Hash = 1,
    /// Array, with keys of 4 bytes.
    Array = 2,
    /// Hash table that forgets the entry that was not used for longest.
    LruHash = 9,
    /// Stack, without keys.
    Stack = 23,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// perf_event_open(2), Linux 4.17.
    Perf,
    /// A link of the type uprobe_multi, Linux 6.6.
    Multi,
}

/// Key and value of an entry, as words.
pub type Entry = (Vec<u64>, Vec<u64>);

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROGRAM_LOAD: i32 = 5;
const MAP_LOOKUP_BATCH: i32 = 24;
const LINK_CREATE: i32 = 28;
const PROGRAM_TYPE_KPROBE: u32 = 2;
const ATTACH_UPROBE_MULTI: u32 = 48;
const EVENT_ENABLE: libc::c_ulong = 0x2400;
const EVENT_SET_BPF: libc::c_ulong = 0x4004_2408;

/// Entries that one call reads. No bucket of a hash table may have more.
const BATCH: usize = 4096;

/// An attribute of bpf(2), filled in by offset: the union has no type in the libc crate.
struct Attribute([u64; 16]);

impl Attribute {
    fn new() -> Self {
        Self([0; 16])
    }

    fn word(mut self, offset: usize, value: u32) -> Self {
        self.0[offset / 8] |= u64::from(value) << (offset % 8 * 8);
        self
    }

    fn address<T: ?Sized>(mut self, offset: usize, at: *const T) -> Self {
        self.0[offset / 8] = at.cast::<u8>() as u64;
        self
    }

    /// Returns the result of the call. The kernel may change the attribute.
    fn call(&mut self, command: i32) -> Result<i32> {
        // SAFETY: The attribute is 128 bytes, and its addresses are those of buffers that the caller holds.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_mut_ptr(),
                size_of_val(&self.0),
            )
        };
        i32::try_from(result)
            .ok()
            .filter(|&result| result >= 0)
            .ok_or_else(Error::last_os_error)
    }

    fn descriptor(&mut self, command: i32) -> Result<OwnedFd> {
        let descriptor = self.call(command)?;
        // SAFETY: The kernel has just opened this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn raw(descriptor: &OwnedFd) -> u32 {
    u32::from_ne_bytes(descriptor.as_raw_fd().to_ne_bytes())
}

/// A map. Its keys and values are read and written as words of 8 bytes.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    /// Words of a key.
    key: usize,
    /// Words of a value.
    value: usize,
}

impl Map {
    /// Creates a map of at most `entries`. `key` and `value` are sizes in bytes. The kernel allocates the entries now.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn new(kind: MapType, key: u32, value: u32, entries: u32) -> Result<Self> {
        let descriptor = Attribute::new()
            .word(0, kind as u32)
            .word(4, key)
            .word(8, value)
            .word(12, entries)
            .descriptor(MAP_CREATE)?;
        Ok(Self {
            descriptor,
            key: key.div_ceil(8) as usize,
            value: value.div_ceil(8) as usize,
        })
    }

    /// The descriptor, for instructions.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    fn attribute(&self, key: &[u64]) -> Attribute {
        assert!(key.len() >= self.key, "a whole key");
        let attribute = Attribute::new().word(0, raw(&self.descriptor));
        attribute.address(8, key.as_ptr())
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// Those of bpf(2), ENOENT without an entry.
    pub fn get(&self, key: &[u64]) -> Result<Vec<u64>> {
        let mut value = vec![0_u64; self.value];
        let attribute = self.attribute(key);
        attribute
            .address(16, value.as_mut_ptr().cast_const())
            .call(MAP_LOOKUP)?;
        Ok(value)
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// Those of bpf(2), E2BIG if the map is full.
    pub fn set(&self, key: &[u64], value: &[u64]) -> Result<()> {
        assert!(value.len() >= self.value, "a whole value");
        let attribute = self.attribute(key);
        attribute.address(16, value.as_ptr()).call(MAP_UPDATE)?;
        Ok(())
    }

    /// Adds a value to a stack.
    ///
    /// # Errors
    /// Those of bpf(2), E2BIG if the stack is full.
    pub fn push(&self, value: u64) -> Result<()> {
        assert!(self.key == 0 && self.value == 1, "a stack of words");
        let attribute = Attribute::new().word(0, raw(&self.descriptor));
        attribute.address(16, &raw const value).call(MAP_UPDATE)?;
        Ok(())
    }

    /// Removes an entry. Returns false if there is none.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn remove(&self, key: &[u64]) -> Result<bool> {
        match self.attribute(key).call(MAP_DELETE) {
            Ok(_) => Ok(true),
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Returns all entries. One that is added or removed meanwhile may be missing.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut keys = vec![0_u64; self.key * BATCH];
        let mut values = vec![0_u64; self.value * BATCH];
        // The position of the kernel: a number in a hash table, a key in an array.
        let mut position = vec![0_u64; self.key.max(1)];
        let mut is_first = true;
        loop {
            let from = match is_first {
                true => std::ptr::null(),
                false => position.as_ptr(),
            };
            let mut attribute = Attribute::new()
                .address(0, from)
                .address(8, position.as_mut_ptr().cast_const())
                .address(16, keys.as_mut_ptr().cast_const())
                .address(24, values.as_mut_ptr().cast_const())
                .word(32, u32::try_from(BATCH).unwrap_or_default())
                .word(36, raw(&self.descriptor));
            let result = attribute.call(MAP_LOOKUP_BATCH);
            let is_last = match result {
                Ok(_) => false,
                Err(err) if err.raw_os_error() == Some(libc::ENOENT) => true,
                Err(err) => return Err(err),
            };
            let count = usize::try_from(attribute.0[4] & 0xffff_ffff).unwrap_or(0);
            let pairs = keys.chunks(self.key).zip(values.chunks(self.value));
            entries.extend(
                pairs
                    .take(count)
                    .map(|(key, value)| (key.to_vec(), value.to_vec())),
            );
            if is_last {
                return Ok(entries);
            }
            is_first = false;
        }
    }
}

/// Loads a program of the type kprobe, whose licence is the GPL. The error has the end of the verifier's message.
///
/// # Errors
/// The process lacks CAP_BPF or CAP_PERFMON, or the kernel rejects the program.
pub fn load(code: &[u64], method: Method) -> Result<OwnedFd> {
    let expected = if method == Method::Multi {
        ATTACH_UPROBE_MULTI
    } else {
        0
    };
    let attribute = |log: &mut [u8]| {
        let size = u32::try_from(log.len()).unwrap_or_default();
        let at = match size {
            0 => std::ptr::null(),
            _ => log.as_mut_ptr().cast_const(),
        };
        Attribute::new()
            .word(0, PROGRAM_TYPE_KPROBE)
            .word(4, u32::try_from(code.len()).unwrap_or_default())
            .address(8, code.as_ptr())
            .address(16, c"GPL".as_ptr())
            .word(24, u32::from(size > 0))
            .word(28, size)
            .address(32, at)
            .word(68, expected)
            .descriptor(PROGRAM_LOAD)
    };
    attribute(&mut []).or_else(|_| {
        let mut log = vec![0; 1 << 20];
        attribute(&mut log).map_err(|error| {
            let text = String::from_utf8_lossy(&log);
            let text = text.trim_end_matches('\0');
            let tail: Vec<&str> = text.lines().rev().take(4).collect();
            let tail = tail.into_iter().rev().collect::<Vec<_>>().join("; ");
            match tail.is_empty() {
                true => error,
                false => Error::new(error.kind(), format!("{error}: {tail}")),
            }
        })
    })
}

/// A program at a function. It is detached when this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, so that the program stays attached")]
pub struct Attached(OwnedFd);

/// Attaches a program to the entry of the function at this offset of a file, or to its return, in all processes. Waits
/// for the memory lock of each process that has the file mapped.
///
/// # Errors
/// The process lacks CAP_PERFMON, the kernel has no uprobes, or there is no instruction at this offset.
pub fn attach(
    program: &OwnedFd,
    file: &Path,
    offset: u64,
    at_return: bool,
    method: Method,
) -> Result<Attached> {
    let path = CString::new(file.as_os_str().as_encoded_bytes())?;
    match method {
        Method::Perf => attach_event(program, &path, offset, at_return),
        Method::Multi => Attribute::new()
            .word(0, raw(program))
            .word(8, ATTACH_UPROBE_MULTI)
            .address(16, path.as_ptr())
            .address(24, &raw const offset)
            .word(48, 1)
            .word(52, u32::from(at_return))
            .descriptor(LINK_CREATE)
            .map(Attached),
    }
}

/// Returns how programs are attached on this kernel. `code` is any program.
///
/// # Errors
/// Those of [`load`].
pub fn method(code: &[u64]) -> Result<Method> {
    let program = load(code, Method::Multi)?;
    // A kernel with such links says that this is not a regular file.
    let attached = attach(&program, Path::new("/"), 1, false, Method::Multi);
    Ok(match attached {
        Err(err) if err.raw_os_error() == Some(Errno::EBADF as i32) => Method::Multi,
        _ => Method::Perf,
    })
}

fn attach_event(
    program: &OwnedFd,
    path: &CString,
    offset: u64,
    at_return: bool,
) -> Result<Attached> {
    let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").map_err(|err| {
        Error::new(
            err.kind(),
            "the kernel has no uprobes (CONFIG_UPROBE_EVENTS)",
        )
    })?;
    let kind: u32 = kind
        .trim()
        .parse()
        .map_err(|_| Error::other("uprobe/type is not a number"))?;
    let half = |shift: u32| u32::try_from(offset >> shift & 0xffff_ffff).unwrap_or_default();
    // struct perf_event_attr, of the size PERF_ATTR_SIZE_VER5
    let attribute = Attribute::new()
        .word(0, kind)
        .word(4, 112)
        .word(8, u32::from(at_return))
        .address(56, path.as_ptr())
        .word(64, half(0))
        .word(68, half(32));
    let (any_process, first_cpu, no_group, close_on_exec) = (-1, 0, -1, 8);
    let attribute = attribute.0.as_ptr();
    // SAFETY: The attribute is 112 bytes, and its address is that of a string that the caller holds.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attribute,
            any_process,
            first_cpu,
            no_group,
            close_on_exec,
        )
    };
    let event = i32::try_from(event)
        .ok()
        .filter(|&event| event >= 0)
        .ok_or_else(Error::last_os_error)?;
    // SAFETY: The kernel has just opened this descriptor.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    // SAFETY: Both descriptors are open.
    let set = unsafe { libc::ioctl(event.as_raw_fd(), EVENT_SET_BPF, program.as_raw_fd()) };
    if set < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: The descriptor is open.
    let enabled = unsafe { libc::ioctl(event.as_raw_fd(), EVENT_ENABLE, 0) };
    if enabled < 0 {
        return Err(Error::last_os_error());
    }
    Ok(Attached(event))
}
