// SPDX-License-Identifier: GPL-2.0-or-later

//! bpf(2) and perf_event_open(2): maps, programs, and their attachment to a function of a file.
#![allow(unsafe_code)] // two system calls that no crate of this project has

use std::ffi::CString;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Type of a map, as in linux/bpf.h.
#[derive(Clone, Copy, Debug)]
pub enum MapType {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// perf_event_open(2), Linux 4.17
    Perf,
    /// A link of the type uprobe_multi, Linux 6.6
    Multi,
}

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_NEXT_KEY: i32 = 4;
const PROGRAM_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const PROGRAM_TYPE_KPROBE: u32 = 2;
const ATTACH_UPROBE_MULTI: u32 = 48;
const EVENT_ENABLE: libc::c_ulong = 0x2400;
const EVENT_SET_BPF: libc::c_ulong = 0x4004_2408;

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

    /// Returns the result of the call.
    fn call(&self, command: i32) -> Result<i32> {
        // SAFETY: The attribute is 128 bytes, and its addresses are those of buffers that the caller holds.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_ptr(),
                size_of_val(&self.0),
            )
        };
        i32::try_from(result)
            .ok()
            .filter(|&result| result >= 0)
            .ok_or_else(Error::last_os_error)
    }

    fn descriptor(&self, command: i32) -> Result<OwnedFd> {
        let descriptor = self.call(command)?;
        // SAFETY: The kernel has just opened this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn raw(descriptor: &OwnedFd) -> u32 {
    u32::from_ne_bytes(descriptor.as_raw_fd().to_ne_bytes())
}

/// A map.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    key: u32,
    /// Bytes that a lookup writes.
    value: u32,
}

impl Map {
    /// Creates a map of at most `entries`. The kernel allocates them now.
    pub fn new(kind: MapType, key: u32, value: u32, entries: u32) -> Result<Self> {
        let descriptor = Attribute::new()
            .word(0, kind as u32)
            .word(4, key)
            .word(8, value)
            .word(12, entries)
            .descriptor(MAP_CREATE)?;
        let copies = if matches!(kind, MapType::PerCpuArray) {
            possible_processors()?
        } else {
            1
        };
        Ok(Self {
            descriptor,
            key,
            value: value.next_multiple_of(8) * copies,
        })
    }

    /// The descriptor, for instructions.
    pub fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Returns the value of a key as words; of a map per CPU, the values of all CPUs, one after the other.
    pub fn get(&self, key: &[u64]) -> Result<Vec<u64>> {
        let mut value = vec![0_u64; self.value as usize / 8];
        Attribute::new()
            .word(0, raw(&self.descriptor))
            .address(8, key)
            .address(16, value.as_mut_ptr().cast_const())
            .call(MAP_LOOKUP)?;
        Ok(value)
    }

    /// Returns all keys as words.
    pub fn keys(&self) -> Vec<Vec<u64>> {
        let mut keys: Vec<Vec<u64>> = Vec::new();
        loop {
            let mut next = vec![0_u64; (self.key as usize).div_ceil(8)];
            let attribute = Attribute::new().word(0, raw(&self.descriptor));
            let attribute = match keys.last() {
                Some(last) => attribute.address(8, last.as_slice()),
                None => attribute,
            };
            if attribute
                .address(16, next.as_mut_ptr().cast_const())
                .call(MAP_NEXT_KEY)
                .is_err()
            {
                return keys;
            }
            keys.push(next);
        }
    }
}

fn possible_processors() -> Result<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text
        .trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|last| last.parse::<u32>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| Error::other("no number of CPUs"))
}

/// Loads a program. The error has the verifier's message.
pub fn load(code: &[u64], method: Method) -> Result<OwnedFd> {
    let expected = if method == Method::Multi {
        ATTACH_UPROBE_MULTI
    } else {
        0
    };
    let attribute = |log: &mut [u8]| {
        let size = u32::try_from(log.len()).expect("a small buffer");
        Attribute::new()
            .word(0, PROGRAM_TYPE_KPROBE)
            .word(4, u32::try_from(code.len()).expect("a short program"))
            .address(8, code)
            .address(16, c"GPL".as_ptr())
            .word(24, u32::from(size > 0))
            .word(28, size)
            .address(
                32,
                if size > 0 {
                    log.as_mut_ptr().cast_const()
                } else {
                    std::ptr::null()
                },
            )
            .word(68, expected)
            .descriptor(PROGRAM_LOAD)
    };
    attribute(&mut []).or_else(|_| {
        let mut log = vec![0; 1 << 20];
        attribute(&mut log).map_err(|error| {
            let text = String::from_utf8_lossy(&log);
            let text = text.trim_end_matches('\0');
            let tail: Vec<&str> = text.lines().rev().take(12).collect();
            Error::other(format!(
                "{error}\n{}",
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            ))
        })
    })
}

/// A program at a function. It is detached when this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, so that the program stays attached")]
pub struct Attached(OwnedFd);

/// Attaches a program to the entry of the function at this offset of a file, or to its return, in all processes.
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

fn attach_event(
    program: &OwnedFd,
    path: &CString,
    offset: u64,
    at_return: bool,
) -> Result<Attached> {
    let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind: u32 = kind
        .trim()
        .parse()
        .map_err(|_| Error::other("uprobe/type is not a number"))?;
    // struct perf_event_attr, of the size PERF_ATTR_SIZE_VER5
    let attribute = Attribute::new()
        .word(0, kind)
        .word(4, 112)
        .word(8, u32::from(at_return))
        .address(56, path.as_ptr())
        .word(64, u32::try_from(offset & 0xffff_ffff).expect("32 bits"))
        .word(68, u32::try_from(offset >> 32).expect("32 bits"));
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
