// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: what keeps a process that uses NIXL from RDMA, and the PMDA from seeing what it transfers by TCP.

use crate::check::{Summary, WARNING, as_root};
use crate::config::Config;
use crate::observer::examination::{NixlExamination, UCX_TLS};
use crate::procfs::process_scan::NixlProcess;
use nix::errno::Errno;
use std::fs;
use std::io::{self, Write};

/// Parts of UCX_TLS that let UCX use RDMA (`ucx_info -d`).
const RDMA_TRANSPORTS: [&str; 6] = ["all", "ib", "rc", "ud", "dc", "srd"];

/// Prints what is known of the transports of all processes that use NIXL, with warnings. `host` are the RDMA devices of
/// this host.
///
/// # Errors
/// If the output cannot be written.
pub fn report(
    summary: &Summary,
    config: &Config,
    host: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    let off = match (config.proc_facts, config.transport) {
        (false, _) => Some("proc_facts = false"),
        (true, false) => Some("transport = false"),
        (true, true) => None,
    };
    if !summary.seen.nixl.is_empty() {
        writeln!(
            out,
            "processes that use NIXL: version, backends, RDMA devices:"
        )?;
    }
    for process in &summary.seen.nixl {
        let NixlProcess { info, libraries } = &process.found;
        let is_excluded = config
            .owners
            .as_ref()
            .is_some_and(|owners| !owners.contains(&info.uid));
        let of_host = match (process.devices, host.len()) {
            (_, 0) => ", the host has no RDMA device".to_owned(),
            (Ok(devices), count) => format!(", {devices} of {count} RDMA devices open"),
            (Err(_), _) => String::new(),
        };
        writeln!(
            out,
            "  pid {} ({}) user {}: NIXL {}, backends {}{of_host}{}",
            info.id.pid,
            process.command,
            summary.seen.names.get(info.uid),
            process.version.as_deref().unwrap_or("of unknown version"),
            Vec::from_iter(libraries.backends.clone()).join(","),
            match is_excluded {
                true => ", left out by owners",
                false => "",
            }
        )?;
        let is_read = off.is_none() && !is_excluded;
        let errno = process.devices.err().filter(|_| is_read);
        let unreadable = errno.map(|errno| unreadable(Errno::from_raw(errno)));
        let without_rdma = match process.devices {
            Ok(0) if !host.is_empty() => without_rdma(process, host),
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
fn unreadable(errno: Errno) -> String {
    let why = match errno {
        Errno::ENOSYS => "Linux is older than 5.6, which is needed".to_owned(),
        Errno::EMFILE => "it has more than 32768 open files".to_owned(),
        Errno::EPERM | Errno::EACCES => {
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
        _ => io::Error::from(errno).to_string(),
    };
    format!(
        "its sockets cannot be read, so nixl.process.tcp, nixl.process.rdma_devices, nixl.agent.peer and nixl.agent.tcp_share have no new values: {why}"
    )
}

/// Returns what can keep a process from RDMA that has no RDMA device open.
fn without_rdma(process: &NixlExamination, host: &[String]) -> Vec<String> {
    let devices = host.join(", ");
    let mut found = Vec::new();
    let environ = process.environment.as_ref();
    let listed = environ.and_then(|(_, environ)| environ.get(UCX_TLS));
    if let Some(listed) = listed.filter(|listed| !allows_rdma(listed)) {
        found.push(format!(
            "UCX_TLS is {listed:?}, which leaves out RDMA ({devices}): unset it, or add rc"
        ));
    }
    if process.lacks_infiniband {
        found.push(format!(
            "/dev/infiniband is not in its container, so that it cannot use {devices}: give the container the devices"
        ));
    }
    if let Some(limit) = process.memlock_limit {
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
pub fn rdma_devices_of_host() -> Vec<String> {
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
    fn reason_of_unreadable_sockets_has_a_remedy() {
        assert!(unreadable(Errno::ENOSYS).contains("Linux is older than 5.6"));
        assert!(unreadable(Errno::EPERM).contains("CAP_SYS_PTRACE"));
        assert!(unreadable(Errno::EMFILE).contains("32768"));
    }
}
