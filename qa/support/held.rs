// SPDX-License-Identifier: GPL-2.0-or-later

//! A write(2) to a file that blocks while it holds the inode lock: it writes from memory that userfaultfd(2) does not
//! populate.
#![allow(unsafe_code)]

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;

const PAGE: usize = 4096;
/// `UFFDIO_API` and `UFFDIO_REGISTER` of linux/userfaultfd.h, and their arguments.
const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const VERSION: u64 = 0xaa;
const MISSING: u64 = 1;

/// A write from memory that is not populated before this is dropped.
pub struct Held {
    memory: Option<OwnedFd>,
    writing: Option<JoinHandle<()>>,
}

impl Held {
    /// Begins to write zeros at an offset of the file, and waits until the write has the inode lock.
    pub fn begin(file: File, place: u64) -> io::Result<Self> {
        // SAFETY: makes a descriptor, and takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by this function.
        let memory = unsafe { OwnedFd::from_raw_fd(fd) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of our own, which is never unmapped.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let mut version = [VERSION, 0, 0];
        let mut range = [start.addr() as u64, PAGE as u64, MISSING, 0];
        for (call, words) in [(API, &mut version[..]), (REGISTER, &mut range[..])] {
            // SAFETY: each call takes as many words as it is given.
            if unsafe { libc::ioctl(fd, call, words.as_mut_ptr()) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: mapped above, and only read, once it is there.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(start.cast(), 8) };
        let writing = std::thread::spawn(move || {
            file.write_all_at(bytes, place).expect("written in the end");
        });
        let mut fds = [PollFd::new(memory.as_fd(), PollFlags::POLLIN)];
        // The kernel faults the page in after it has locked the inode.
        assert_eq!(poll(&mut fds, PollTimeout::NONE), Ok(1));
        Ok(Self {
            memory: Some(memory),
            writing: Some(writing),
        })
    }

    /// True if the write has not ended.
    pub fn lasts(&self) -> bool {
        self.writing
            .as_ref()
            .is_some_and(|writing| !writing.is_finished())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Without userfaultfd, the kernel populates the page with zeros.
        self.memory = None;
        if let Some(writing) = self.writing.take() {
            writing.join().expect("no panic");
        }
    }
}
