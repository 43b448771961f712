// SPDX-License-Identifier: GPL-2.0-or-later

//! A few variables of a process's environment.
//!
//! The rest of `/proc/PID/environ` may contain tokens and keys. It is read into a buffer that is wiped. Other variables
//! are never stored, shown or logged.

use crate::procfs::process_dir::ProcessDir;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{self, Read};

/// Limit of an environment, in bytes. The variables beyond it are not read.
const MAX_ENVIRON: usize = 1 << 20;
/// Limit of a value, in bytes. A longer value is cut.
pub const MAX_VALUE: usize = 800;

/// Values of requested environment variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environ(HashMap<Cow<'static, str>, String>);

impl Environ {
    /// Reads the variables with these names of a process, as [`Environ::read`] does. Can block.
    ///
    /// # Errors
    /// Those of [`Environ::read`].
    pub fn of(process: &ProcessDir, names: &[&'static str]) -> io::Result<Self> {
        Self::read(process.file("environ")?, names)
    }

    /// Reads the variables with these names, each ended by a NUL. The first one with a name counts, as in getenv(3).
    ///
    /// A title that is shorter than the command line leaves NULs at the beginning of the environment; a longer title
    /// ends there. In both cases no equals sign comes before the first NUL.
    ///
    /// # Errors
    /// The environment cannot be read, or (`InvalidData`) a title was written over it, so that variables may be
    /// missing.
    pub fn read(environ: impl Read, names: &[&'static str]) -> io::Result<Self> {
        // Full capacity, since a vector that grows leaves copies in freed memory.
        let mut text = Vec::with_capacity(MAX_ENVIRON);
        let read = environ.take(MAX_ENVIRON as u64).read_to_end(&mut text);
        let mut variables: Vec<&[u8]> = text.split(|&byte| byte == 0).collect();
        let first = variables.first().copied().unwrap_or_default();
        let is_overwritten = !text.is_empty() && !first.contains(&b'=');
        // A variable without a NUL may be cut.
        variables.pop();
        let values = names.iter().filter_map(|&name| {
            let mut values = variables
                .iter()
                .filter_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            let value = values.next()?;
            let value = value.get(..MAX_VALUE).unwrap_or(value);
            Some((name.into(), String::from_utf8_lossy(value).into_owned()))
        });
        let values = Self(values.collect());
        text.fill(0);
        // Otherwise the compiler may remove a write that is never read.
        black_box(&text);
        match is_overwritten {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => read.map(|_| values),
        }
    }

    /// Returns the value of a requested variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["LOCAL_RANK", "SLURM_JOB_ID"];

    fn values(environ: &[u8]) -> [Option<String>; 2] {
        let environ = Environ::read(environ, &NAMES).unwrap_or_default();
        NAMES.map(|name| environ.get(name).map(str::to_owned))
    }

    #[test]
    fn variables_are_found_among_others() {
        let environ =
            b"PATH=/usr/bin\0LOCAL_RANK=3\0HF_TOKEN=hf_secret\0SLURM_JOB_ID=4711\0LANG=C\0";
        assert_eq!(
            values(environ),
            ["3", "4711"].map(|value| Some(value.into()))
        );
        let environ = Environ::read(&environ[..], &NAMES).expect("memory can be read");
        assert!(!format!("{environ:?}").contains("secret"));
        let long = format!("SECRET={}\0LOCAL_RANK=65535\0", "x".repeat(100_000));
        assert_eq!(values(long.as_bytes())[0].as_deref(), Some("65535"));
    }

    #[test]
    fn long_value_is_cut() {
        let long = format!("LOCAL_RANK={}\0", "1".repeat(100_000));
        let [rank, _] = values(long.as_bytes());
        assert_eq!(rank.map(|rank| rank.len()), Some(MAX_VALUE));
    }

    #[test]
    fn environment_in_short_reads_is_complete() {
        /// Reads one byte at a time.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let len = buffer.len().min(1);
                self.0.read(&mut buffer[..len])
            }
        }
        let environ = b"A=b\0LOCAL_RANK=12\0C=d\0SLURM_JOB_ID=7\0";
        let slow = Environ::read(Slow(environ), &NAMES).expect("memory can be read");
        assert_eq!(Some(slow), Environ::read(&environ[..], &NAMES).ok());
    }

    #[test]
    fn other_variables_are_ignored() {
        for environ in [
            &b""[..],
            b"\0\0\0",
            b"MY_LOCAL_RANK=1\0LOCAL_RANK_2=1\0local_rank=1\0",
            b"A=\nLOCAL_RANK=1\0B=SLURM_JOB_ID=2\0",
            b"SLURM_JOB_ID\0LOCAL_RANK\0",
            b"SLURM_LOCALID=1\0RANK=1\0SLURM_JOBID=3\0",
            b"VLLM::Worker_TP0\0\0\0\0\0",
            // Without a NUL.
            b"LOCAL_RANK=1",
        ] {
            assert_eq!(values(environ), [None, None], "{environ:?}");
        }
    }

    #[test]
    fn first_of_two_values_counts() {
        let [rank, _] = values(b"LOCAL_RANK=1\0LOCAL_RANK=2\0");
        assert_eq!(rank.as_deref(), Some("1"));
    }

    #[test]
    fn environment_with_a_title_in_it_is_an_error() {
        for (environ, expected) in [
            (&b"\0\0\0\0\0\0"[..], true),
            (b"ker_TP0\0\0\0\0", true),
            (b"Worker_TP0\0HOME=/root\0PATH=/bin\0", true),
            (b"\0\0\0OME=/root\0NIXL_TELEMETRY_ENABLE=y\0", true),
            // The title is as long as command line and environment together.
            (b"ker_TP0", true),
            (b"", false),
            (b"HOME=/", false),
            (b"HOME=/\0", false),
            (b"HOME=/\0\0PATH=/bin\0", false),
        ] {
            let read = Environ::read(environ, &NAMES);
            assert_eq!(read.is_err(), expected, "{environ:?}");
        }
    }
}
