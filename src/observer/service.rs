// SPDX-License-Identifier: GPL-2.0-or-later

//! The observer's loop: requests of the daemon in, responses out.

use crate::observer::link::{Received, write_message};
use crate::observer::supervisor::Supervisor;
use nix::unistd::read;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

/// Serves requests until the daemon has ended. `program` is started as a worker.
///
/// # Errors
/// The pipes are broken.
pub fn run(program: PathBuf, requests: impl AsFd, mut responses: impl Write) -> io::Result<()> {
    let (mut supervisor, mut received) = (Supervisor::new(program), Received::default());
    loop {
        let mut messages = Vec::new();
        for response in supervisor.poll(Instant::now()) {
            write_message(&response, &mut messages)?;
        }
        responses.write_all(&messages)?;
        responses.flush()?;
        if !supervisor.wait(requests.as_fd(), Instant::now()) {
            continue;
        }
        let mut bytes = [0; 1 << 14];
        // Not by way of a buffer, whose bytes poll(2) does not see.
        match read(requests.as_fd(), &mut bytes)? {
            0 => return Ok(()),
            len => received.add(&bytes[..len])?,
        }
        while let Some(request) = received.take()? {
            supervisor.begin(request, Instant::now());
        }
    }
}
