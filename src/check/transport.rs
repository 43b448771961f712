// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: what keeps a process that uses NIXL from RDMA, and the PMDA from seeing what it transfers by TCP.

use crate::check::{WARNING, as_root};
use crate::observer::sockets;
use crate::procfs::process::ProcessId;
use crate::procfs::process_dir::ProcessDir;
use nix::errno::Errno;
use std::fs;
use std::io::{self, Write};

/// Variable of UCX that these functions need.
pub const UCX_TLS: &str = "UCX_TLS";
/// Parts of UCX_TLS that let UCX use RDMA (`ucx_info -d`).
const RDMA_TRANSPORTS: [&str; 6] = ["all", "ib", "rc", "ud", "dc", "srd"];
/// Capability with which RLIMIT_MEMLOCK does not matter: CAP_IPC_LOCK of linux/capability.h.
const IPC_LOCK: u64 = 1 << 14;

/// A process with a NIXL backend loaded.
#[derive(Debug)]
pub struct CheckedTransport {
    /// Process.
    pub id: ProcessId,
    /// Title or program.
    pub command: String,
    /// Name of its user.
    pub user: String,
    /// Names of the backends.
    pub backends: String,
    /// Version of NIXL.
    pub version: Option<String>,
    /// UCX_TLS in its environment, or in that of its nearest ancestor with a readable one.
    pub transports: Option<String>,
    /// True if `owners` of the configuration leaves its user out.
    pub is_excluded: bool,
}

/// Prints what is known of the transports of processes, with warnings. `off` is the setting that switches reading sockets off.
///
/// # Errors
/// If the output cannot be written.
pub fn report(
    processes: &[CheckedTransport],
    off: Option<&str>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !processes.is_empty() {
        writeln!(
            out,
            "processes that use NIXL: version, backends, RDMA devices:"
        )?;
    }
    let host = rdma_devices_of_host();
    for process in processes {
        let is_read = off.is_none() && !process.is_excluded;
        let devices =
            ProcessDir::of(process.id).and_then(|process| sockets::probe(&process, is_read));
        let of_host = match (&devices, host.len()) {
            (_, 0) => ", the host has no RDMA device".to_owned(),
            (Ok(devices), count) => format!(", {devices} of {count} RDMA devices open"),
            (Err(_), _) => String::new(),
        };
        writeln!(
            out,
            "  pid {} ({}) user {}: NIXL {}, backends {}{of_host}{}",
            process.id.pid,
            process.command,
            process.user,
            process.version.as_deref().unwrap_or("of unknown version"),
            process.backends,
            match process.is_excluded {
                true => ", left out by owners",
                false => "",
            }
        )?;
        let unreadable = devices.as_ref().err().filter(|_| is_read).map(unreadable);
        let without_rdma = match devices {
            Ok(0) if !host.is_empty() => without_rdma(process, &host),
            _ => Vec::new(),
        };
        for warning in unreadable.into_iter().chain(without_rdma) {
            writeln!(out, "    {WARNING}{warning}")?;
        }
    }
    if let Some(off) = off {
        writeln!(out, "note: {off}: what they transfer by TCP is not read")?;
    }
    Ok(())
}

/// Returns why the sockets of a process cannot be read, and what to do.
fn unreadable(err: &io::Error) -> String {
    let why = match err.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSYS) => "Linux is older than 5.6, which is needed".to_owned(),
        Some(Errno::EMFILE) => "it has more than 32768 open files".to_owned(),
        Some(Errno::EPERM | Errno::EACCES) => {
            let scope =
                fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            match scope.trim() {
                "3" => {
                    "kernel.yama.ptrace_scope is 3, which forbids it to every process".to_owned()
                }
                _ => format!(
                    "CAP_SYS_PTRACE is needed to read the sockets of another user's process, or of one that is not dumpable; the PMDA does not keep it if owners names only its own user{}",
                    as_root()
                ),
            }
        }
        _ => err.to_string(),
    };
    format!(
        "its sockets cannot be read, so nixl.process.tcp, nixl.process.rdma_devices, nixl.peer and nixl.agent.tcp_share have no new values: {why}"
    )
}

/// Returns what can keep a process from RDMA that has no RDMA device open.
fn without_rdma(process: &CheckedTransport, host: &[String]) -> Vec<String> {
    let devices = host.join(", ");
    let mut found = Vec::new();
    let listed = process.transports.as_ref();
    if let Some(listed) = listed.filter(|listed| !allows_rdma(listed)) {
        found.push(format!(
            "UCX_TLS is {listed:?}, which leaves out RDMA ({devices}): unset it, or add rc"
        ));
    }
    let Ok(process) = ProcessDir::of(process.id) else {
        return Vec::new();
    };
    let in_container = process.metadata("root/dev/infiniband");
    if in_container.is_err_and(|err| err.kind() == io::ErrorKind::NotFound) {
        found.push(format!(
            "/dev/infiniband is not in its container, so that it cannot use {devices}: give the container the devices"
        ));
    }
    let limit = memlock_limit(&process.text("limits"));
    if let Some(limit) = limit.filter(|_| !may_lock_memory(&process.text("status"))) {
        found.push(format!(
            "its limit of locked memory (ulimit -l) is {limit} bytes, and RDMA locks all registered memory: set it to unlimited"
        ));
    }
    if found.is_empty() {
        found.push(format!(
            "no RDMA device ({devices}) is open: NIXL transfers over TCP or shared memory; see the log of the application with UCX_LOG_LEVEL=info"
        ));
    }
    found
}

/// Returns the names of the RDMA devices of this host.
fn rdma_devices_of_host() -> Vec<String> {
    let names = fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let names = names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names = Vec::from_iter(names);
    names.sort_unstable();
    names
}

/// True if a value of UCX_TLS lets UCX use RDMA: a list of transports, or with `^` first a list of excluded ones.
fn allows_rdma(listed: &str) -> bool {
    let names = |list: &str| -> bool {
        list.split(',').any(|name| {
            let name = name.trim();
            // For example rc, rc_x, rc_mlx5, or rc:aux.
            RDMA_TRANSPORTS.iter().any(|known| {
                let rest = name.strip_prefix(known);
                rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
            })
        })
    };
    match listed.strip_prefix('^') {
        Some(excluded) => {
            let is_excluded = |name: &str| excluded.split(',').any(|other| other.trim() == name);
            !(is_excluded("ib") || ["rc", "ud", "dc"].into_iter().all(is_excluded))
        }
        None => names(listed),
    }
}

/// Returns the limit of locked memory in /proc/PID/limits, in bytes. `None`: there is none.
fn memlock_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// True if /proc/PID/status has CAP_IPC_LOCK among the effective capabilities.
fn may_lock_memory(status: &str) -> bool {
    let mut lines = status.lines();
    let caps = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let caps = caps.and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok());
    caps.is_some_and(|caps| caps & IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_with_rdma_are_recognized() {
        for (listed, expected) in [
            ("all", true),
            ("rc,sm,self", true),
            ("tcp, rc_mlx5", true),
            ("ib", true),
            ("dc_x", true),
            ("tcp", false),
            ("sm,self,cuda_copy", false),
            ("tcp,rdmacm", false),
            ("^tcp", true),
            ("^ib,tcp", false),
            ("^rc,ud,dc", false),
            ("^rc,ud", true),
            ("", false),
        ] {
            assert_eq!(allows_rdma(listed), expected, "{listed}");
        }
    }

    #[test]
    fn memory_limit_is_read_unless_the_process_may_exceed_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             95942                95942                processes \n\
            Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(memlock_limit(limits), Some(8_388_608));
        assert_eq!(
            memlock_limit(&limits.replace("8388608  ", "unlimited")),
            None
        );
        assert_eq!(memlock_limit(""), None);
        assert!(may_lock_memory("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lock_memory("Name:\tx\nCapEff:\t0000000010080002\n"));
        assert!(!may_lock_memory(""));
    }

    #[test]
    fn reason_of_unreadable_sockets_has_a_remedy() {
        let of = |errno: Errno| unreadable(&errno.into());
        assert!(of(Errno::ENOSYS).contains("Linux is older than 5.6"));
        assert!(of(Errno::EPERM).contains("CAP_SYS_PTRACE"));
        assert!(of(Errno::EMFILE).contains("32768"));
    }
}
