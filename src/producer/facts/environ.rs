//! The few variables of a process's environment that say which one it is.
//!
//! The rest of `/proc/PID/environ` holds tokens and keys. It goes by in a buffer that is wiped; no more than the first bytes of
//! one variable at a time are looked at, and nothing of others is kept, shown or logged.
//!
//! | variable | set by | label |
//! | --- | --- | --- |
//! | `LOCAL_RANK` | torchrun; NIXL's own exporter takes the rank from it, unless NIXL_TELEMETRY_RANK_ENV names another variable | local_rank |
//! | `SLURM_JOB_ID` | Slurm | slurm_job_id |
//! | `CUDA_VISIBLE_DEVICES` | who starts a process for some of a host's GPUs | gpu |
//! | `LMCACHE_PD_ROLE`, `LMCACHE_NIXL_ROLE` | the configuration of LMCache | role |
//! | `DYN_SYSTEM_PORT` | the launcher of a Dynamo worker | port |
//!
//! NIXL_TELEMETRY_RANK_ENV is not followed: the process would choose what is read. SLURM_LOCALID is no rank of an agent: all
//! workers of an engine that Slurm starts as one task have the same. The environment is as the process was started with; one
//! that gave itself a title (vLLM's and SGLang's workers) has overwritten it, and tells nothing here; `inherited` asks
//! the process that started it.

use super::cgroup::MAX_JOB;
use super::server::{Role, port};
use super::{gpu, number};
use std::hint::black_box;
use std::io::{self, Read};

const LOCAL_RANK: &[u8] = b"LOCAL_RANK=";
const SLURM_JOB_ID: &[u8] = b"SLURM_JOB_ID=";
const GPUS: &[u8] = b"CUDA_VISIBLE_DEVICES=";
const LMCACHE_ROLE: &[u8] = b"LMCACHE_PD_ROLE=";
const LMCACHE_OLD_ROLE: &[u8] = b"LMCACHE_NIXL_ROLE=";
const SYSTEM_PORT: &[u8] = b"DYN_SYSTEM_PORT=";
/// All of them.
const NAMES: [&[u8]; 6] = [
    LOCAL_RANK,
    SLURM_JOB_ID,
    GPUS,
    LMCACHE_ROLE,
    LMCACHE_OLD_ROLE,
    SYSTEM_PORT,
];
/// So much of a variable is looked at: the longest name and value that are taken, and one byte that shows that a value is longer.
const HEAD: usize = GPUS.len() + gpu::MAX_LIST + 1;
/// Bytes that are read at a time.
const CHUNK: usize = 4096;
/// The highest rank that is taken for one.
const MAX_RANK: u64 = 65_535;

/// What the environment tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environ {
    /// Which of a host's processes of one job it is, a decimal number.
    pub local_rank: Option<String>,
    /// The Slurm job that it was started in, a decimal number.
    pub slurm_job_id: Option<String>,
    /// The GPUs that it may use, as [`gpu::of_list`] takes them.
    pub gpu: Option<String>,
    /// What LMCache was told to do.
    pub lmcache_role: Option<Role>,
    /// The HTTP port of a Dynamo worker's status.
    pub system_port: Option<u16>,
    /// True if a title was written over it; what is left tells nothing (`variables`).
    pub is_overwritten: bool,
}

/// The first value of each variable, as getenv(3) finds it; `Some(None)` if it is not one that is taken.
#[derive(Default)]
struct First {
    local_rank: Option<Option<String>>,
    slurm_job_id: Option<Option<String>>,
    gpu: Option<Option<String>>,
    lmcache_role: Option<Option<Role>>,
    lmcache_old_role: Option<Option<Role>>,
    system_port: Option<Option<u16>>,
}

impl Environ {
    /// Reads variables, each ended by a NUL.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(environ: impl Read) -> io::Result<Self> {
        let mut first = First::default();
        // Of all others no more is looked at than tells that they are others.
        let is_ours = |head: &[u8]| {
            let mut names = NAMES.into_iter();
            names.any(|name| head.starts_with(name) || name.starts_with(head))
        };
        let is_overwritten = variables(environ, &mut [0; HEAD], is_ours, |one| first.note(one))?;
        Ok(Self {
            local_rank: first.local_rank.flatten(),
            slurm_job_id: first.slurm_job_id.flatten(),
            gpu: first.gpu.flatten(),
            lmcache_role: first.lmcache_role.or(first.lmcache_old_role).flatten(),
            system_port: first.system_port.flatten(),
            is_overwritten,
        })
    }
}

/// Shows the first bytes of each variable that is ended, as many as `head` holds, and of those that are not wanted, seen by how
/// they begin, only that beginning. What went by is wiped.
///
/// Returns true if a title was written over the environment. A title shorter than the command line leaves NULs at the beginning
/// of the environment, and a longer one ends there: in both cases no equals sign comes before the first NUL.
pub(super) fn variables(
    mut environ: impl Read,
    head: &mut [u8],
    is_wanted: impl Fn(&[u8]) -> bool,
    show: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let mut chunk = [0; CHUNK];
    let read = scan(&mut environ, &mut chunk, head, is_wanted, show);
    chunk.fill(0);
    head.fill(0);
    // Otherwise the compiler may leave out what nobody reads.
    black_box((&chunk, &head));
    read
}

fn scan(
    environ: &mut impl Read,
    chunk: &mut [u8],
    head: &mut [u8],
    is_wanted: impl Fn(&[u8]) -> bool,
    mut show: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let (mut len, mut wanted) = (0, true);
    let (mut is_first, mut is_overwritten) = (true, false);
    loop {
        let read = match environ.read(chunk) {
            Ok(read) => read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        if read == 0 {
            // What has no end may be cut.
            return Ok(is_overwritten);
        }
        for &byte in chunk.iter().take(read) {
            if is_first {
                is_overwritten = byte != b'=';
                is_first = is_overwritten && byte != 0;
            }
            if byte == 0 {
                show(head.get(..len).unwrap_or_default());
                (len, wanted) = (0, true);
            } else if let (true, Some(place)) = (wanted, head.get_mut(len)) {
                *place = byte;
                len += 1;
                wanted = is_wanted(head.get(..len).unwrap_or_default());
            }
        }
    }
}

impl First {
    /// A variable, or the beginning of one whose value is too long to be taken.
    fn note(&mut self, variable: &[u8]) {
        if let Some(value) = variable.strip_prefix(LOCAL_RANK) {
            self.local_rank.get_or_insert(number(value, MAX_RANK));
        } else if let Some(value) = variable.strip_prefix(SLURM_JOB_ID) {
            let job = number(value, MAX_JOB).filter(|job| job != "0");
            self.slurm_job_id.get_or_insert(job);
        } else if let Some(value) = variable.strip_prefix(GPUS) {
            self.gpu.get_or_insert_with(|| gpu::of_list(value));
        } else if let Some(value) = variable.strip_prefix(LMCACHE_ROLE) {
            let role = Role::of_lmcache(value);
            self.lmcache_role.get_or_insert(role);
        } else if let Some(value) = variable.strip_prefix(LMCACHE_OLD_ROLE) {
            let role = Role::of_lmcache(value);
            self.lmcache_old_role.get_or_insert(role);
        } else if let Some(value) = variable.strip_prefix(SYSTEM_PORT) {
            self.system_port.get_or_insert_with(|| port(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(environ: &[u8]) -> (Option<String>, Option<String>) {
        let environ = Environ::read(environ).expect("memory can be read");
        (environ.local_rank, environ.slurm_job_id)
    }

    #[test]
    fn the_rank_and_the_job_are_found_among_other_variables() {
        let environ =
            b"PATH=/usr/bin\0LOCAL_RANK=3\0HF_TOKEN=hf_secret\0SLURM_JOB_ID=4711\0LANG=C\0";
        assert_eq!(told(environ), (Some("3".into()), Some("4711".into())));
        let last = "SLURM_JOB_ID=4294967295\0LOCAL_RANK=65535\0";
        let long = format!("SECRET={}\0{last}", "x".repeat(3 * CHUNK));
        let both = (Some("65535".into()), Some("4294967295".into()));
        assert_eq!(told(long.as_bytes()), both);
    }

    #[test]
    fn the_gpus_are_those_that_getenv_would_find() {
        let gpu = |environ: &[u8]| Environ::read(environ).expect("memory can be read").gpu;
        let environ =
            b"NVIDIA_VISIBLE_DEVICES=7\0CUDA_VISIBLE_DEVICES=2,3\0CUDA_VISIBLE_DEVICES=4\0";
        assert_eq!(gpu(environ).as_deref(), Some("2,3"));
        let uuids = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; 8].join(",");
        let environ = format!("CUDA_VISIBLE_DEVICES={uuids}\0");
        assert_eq!(gpu(environ.as_bytes()), Some(uuids.clone()));
        for environ in [
            "CUDA_VISIBLE_DEVICES=\0CUDA_VISIBLE_DEVICES=1\0",
            "CUDA_VISIBLE_DEVICES=-1\0",
            "CUDA_VISIBLE_DEVICES=0",
            &format!("CUDA_VISIBLE_DEVICES={uuids},GPU-1\0"),
        ] {
            assert_eq!(gpu(environ.as_bytes()), None, "{environ}");
        }
    }

    #[test]
    fn where_reads_end_makes_no_difference() {
        /// Gives a byte at a time.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let len = buffer.len().min(1);
                self.0.read(&mut buffer[..len])
            }
        }
        let environ = b"A=b\0LOCAL_RANK=12\0C=d\0SLURM_JOB_ID=7\0";
        let slow = Environ::read(Slow(environ)).expect("memory can be read");
        assert_eq!((slow.local_rank, slow.slurm_job_id), told(environ));
    }

    #[test]
    fn other_variables_are_none_of_ours_whatever_they_hold() {
        for environ in [
            &b""[..],
            b"\0\0\0",
            b"MY_LOCAL_RANK=1\0LOCAL_RANK_2=1\0local_rank=1\0",
            b"A=\nLOCAL_RANK=1\0B=SLURM_JOB_ID=2\0",
            b"SLURM_JOB_ID\0LOCAL_RANK\0",
            b"SLURM_LOCALID=1\0RANK=1\0SLURM_JOBID=3\0",
            b"VLLM::Worker_TP0\0\0\0\0\0",
            // It may go on.
            b"LOCAL_RANK=1",
        ] {
            assert_eq!(told(environ), (None, None), "{environ:?}");
        }
    }

    #[test]
    fn only_numbers_of_their_range_are_values() {
        for value in [
            "",
            " 1",
            "1 ",
            "-1",
            "+1",
            "0x1",
            "01",
            "65536",
            "1\n",
            "one",
            "\u{663}",
            "11111111111111111111111111111111",
        ] {
            let environ = format!("LOCAL_RANK={value}\0");
            assert_eq!(told(environ.as_bytes()), (None, None), "{value}");
        }
        for value in [
            "",
            "0",
            "4294967296",
            "12345678901",
            "123456789012",
            "1;2",
            "\u{ff}",
        ] {
            let environ = format!("SLURM_JOB_ID={value}\0");
            assert_eq!(told(environ.as_bytes()), (None, None), "{value}");
        }
        assert_eq!(told(b"LOCAL_RANK=0\0"), (Some("0".into()), None));
    }

    #[test]
    fn of_a_variable_that_is_there_twice_the_first_counts() {
        assert_eq!(
            told(b"LOCAL_RANK=1\0LOCAL_RANK=2\0").0.as_deref(),
            Some("1")
        );
        assert_eq!(told(b"LOCAL_RANK=x\0LOCAL_RANK=2\0").0, None);
    }

    #[test]
    fn environment_with_a_title_written_over_it_is_overwritten() {
        for (environ, expected) in [
            (&b"\0\0\0\0\0\0"[..], true),
            (b"ker_TP0\0\0\0\0", true),
            (b"Worker_TP0\0HOME=/root\0PATH=/bin\0", true),
            (b"\0\0\0OME=/root\0NIXL_TELEMETRY_ENABLE=y\0", true),
            // As long as both.
            (b"ker_TP0", true),
            (b"", false),
            (b"HOME=/", false),
            (b"HOME=/\0", false),
            (b"HOME=/\0\0PATH=/bin\0", false),
        ] {
            let environ = Environ::read(environ).expect("memory can be read");
            assert_eq!(environ.is_overwritten, expected, "{environ:?}");
        }
    }

    #[test]
    fn of_variables_that_are_not_wanted_nothing_but_their_beginning_is_shown() {
        let mut shown = Vec::new();
        let is_wanted = |head: &[u8]| b"NIXL=".starts_with(head) || head.starts_with(b"NIXL=");
        let environ = &b"HF_TOKEN=secret\0NO=secret\0NIXL=/tmp\0"[..];
        let show = |one: &[u8]| shown.push(String::from_utf8_lossy(one).into_owned());
        variables(environ, &mut [0; 100], is_wanted, show).expect("memory can be read");
        assert_eq!(shown, ["H", "NO", "NIXL=/tmp"]);
    }
}
