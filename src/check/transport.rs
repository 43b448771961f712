// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: what keeps a process that uses NIXL from RDMA, and the PMDA from seeing what it transfers by TCP.

use crate::check::rdma::RdmaHost;
use crate::check::{Summary, WARNING, as_root};
use crate::config::Config;
use crate::observer::examination::{NixlExamination, UCX_NET_DEVICES, UCX_TLS};
use crate::procfs::facts::environ::MAX_VALUE;
use crate::procfs::process_scan::NixlProcess;
use nix::errno::Errno;
use std::fs;
use std::io::{self, Write};

/// Parts of UCX_TLS that let UCX use RDMA (`ucx_info -d`).
const RDMA_TRANSPORTS: [&str; 6] = ["all", "ib", "rc", "ud", "dc", "srd"];

/// Prints what is known of the transports of all processes that use NIXL, with what is wrong.
///
/// # Errors
/// If the output cannot be written.
pub fn report(
    summary: &Summary,
    config: &Config,
    host: &RdmaHost,
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
        let of_host = match (process.devices, host.devices.len()) {
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
        for text in unreadable.into_iter().chain(faults(process, host)) {
            writeln!(out, "    {WARNING}{text}")?;
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

/// Returns what keeps a process from RDMA, or may.
///
/// An open RDMA device does not show that UCX uses it: NCCL opens all of them.
fn faults(process: &NixlExamination, host: &RdmaHost) -> Vec<String> {
    if host.devices.is_empty() {
        return Vec::new();
    }
    let devices = host.devices.join(", ");
    let has_open_device = process.devices.is_ok_and(|count| count > 0);
    // Devices that are only in another network namespace are not in /sys.
    let sees_host = !(host.is_exclusive && process.is_in_other_network);
    let backends = &process.found.libraries.backends;
    let uses_ucx = backends.iter().any(|name| name.starts_with("UCX"));
    let environ = process.environment.as_ref().filter(|_| uses_ucx);
    let variable = |name| environ.and_then(|(_, environ)| environ.get(name));
    let mut found = Vec::new();
    if let Some(ucx_tls) = variable(UCX_TLS).filter(|ucx_tls| !allows_rdma(ucx_tls)) {
        let of_others = match has_open_device {
            true => "; its open RDMA devices are those of another library, such as NCCL",
            false => "",
        };
        found.push(format!(
            "UCX_TLS is {ucx_tls:?}, which leaves out RDMA ({devices}): unset it, or add rc{of_others}"
        ));
    }
    let net_devices = variable(UCX_NET_DEVICES);
    if let Some(names) = net_devices.filter(|names| sees_host && leaves_out(names, &host.ports)) {
        found.push(format!(
            "UCX_NET_DEVICES is {names:?}, which leaves out RDMA ({}): unset it, or name RDMA ports",
            host.ports.join(", ")
        ));
    }
    if process.lacks_infiniband && !has_open_device {
        found.push(format!(
            "/dev/infiniband is not in its container, so that it cannot use {devices}: give the container the devices"
        ));
    }
    if let Some(limit) = process.memlock_limit {
        found.push(format!(
            "its limit of locked memory (ulimit -l) is {limit} bytes, and RDMA locks all registered memory: set it to unlimited"
        ));
    }
    if found.is_empty() && process.devices == Ok(0) {
        found.push(format!(
            "no RDMA device ({devices}) is open: NIXL transfers over TCP or shared memory; see the log of the application with UCX_LOG_LEVEL=info"
        ));
    }
    found
}

/// True if a value of UCX_TLS lets UCX use RDMA: a list of transports, or with `^` first a list of excluded ones.
fn allows_rdma(ucx_tls: &str) -> bool {
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
    match ucx_tls.strip_prefix('^') {
        Some(excluded) => {
            let is_excluded = |name: &str| excluded.split(',').any(|other| other.trim() == name);
            !(is_excluded("ib") || ["rc", "ud", "dc"].into_iter().all(is_excluded))
        }
        None => names(ucx_tls),
    }
}

/// True if a value of UCX_NET_DEVICES has none of these RDMA ports: a list of devices, or with `^` first a list of
/// excluded ones. UCX itself reports a name that is not a device.
fn leaves_out(names: &str, ports: &[String]) -> bool {
    // A value of this length may be cut.
    if names == "all" || names.len() >= MAX_VALUE || ports.is_empty() {
        return false;
    }
    let is_one = |port: &String, name: &str| match name.split_once('[') {
        // For example mlx5_[0-3]:1.
        Some((start, _)) => port.starts_with(start),
        // For transfers that a GPU starts, UCX has cuda0-mlx5_0:1.
        None => name
            .strip_suffix(&**port)
            .is_some_and(|before| before.is_empty() || before.ends_with('-')),
    };
    match names.strip_prefix('^') {
        Some(excluded) => ports
            .iter()
            .all(|port| excluded.split(',').any(|name| is_one(port, name))),
        None => !ports
            .iter()
            .any(|port| names.split(',').any(|name| is_one(port, name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::facts::environ::Environ;

    #[test]
    fn transports_with_rdma_are_recognized() {
        for (ucx_tls, expected) in [
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
            assert_eq!(allows_rdma(ucx_tls), expected, "{ucx_tls}");
        }
    }

    #[test]
    fn net_devices_without_an_rdma_port_are_recognized() {
        let ports = ["mlx5_0:1", "mlx5_1:1"].map(str::to_owned);
        for (names, expected) in [
            ("all", false),
            ("mlx5_0:1", false),
            ("eth0,mlx5_1:1", false),
            ("mlx5_[0-1]:1", false),
            ("cuda0-mlx5_0:1", false),
            ("^eth0", false),
            ("^mlx5_0:1", false),
            ("eth0", true),
            ("lo,eth0", true),
            ("none", true),
            ("", true),
            ("mlx5_0", true),
            ("mlx5_0:2", true),
            ("xmlx5_0:1", true),
            ("^mlx5_0:1,mlx5_1:1", true),
            ("^mlx5_[0-1]:1", true),
        ] {
            assert_eq!(leaves_out(names, &ports), expected, "{names}");
        }
        assert!(!leaves_out("eth0", &[]));
        assert!(!leaves_out(&"x".repeat(MAX_VALUE), &ports));
    }

    #[test]
    fn reason_of_unreadable_sockets_has_a_remedy() {
        assert!(unreadable(Errno::ENOSYS).contains("Linux is older than 5.6"));
        assert!(unreadable(Errno::EPERM).contains("CAP_SYS_PTRACE"));
        assert!(unreadable(Errno::EMFILE).contains("32768"));
    }

    fn host(is_exclusive: bool) -> RdmaHost {
        RdmaHost {
            devices: vec!["mlx5_0".into(), "mlx5_1".into()],
            ports: vec!["mlx5_0:1".into(), "mlx5_1:1".into()],
            is_exclusive,
        }
    }

    /// Returns a process with one backend, this environment, and so many RDMA devices open.
    fn process(backend: &str, environ: &str, devices: Result<usize, i32>) -> NixlExamination {
        let mut found = NixlProcess::default();
        found.libraries.backends.insert(backend.into());
        let environ = Environ::read(environ.as_bytes(), &[UCX_TLS, UCX_NET_DEVICES]);
        NixlExamination {
            traceable: Ok(()),
            found,
            version: None,
            command: "python3".into(),
            environment: Some((7, environ.expect("read"))),
            directories: [None; 2],
            is_in_other_namespace: false,
            is_in_other_network: false,
            devices,
            lacks_infiniband: false,
            memlock_limit: None,
        }
    }

    /// Returns the beginnings of all lines of a process.
    fn said(process: &NixlExamination, host: &RdmaHost) -> Vec<String> {
        let lines = faults(process, host).into_iter();
        lines
            .map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn each_fault_is_told_whatever_is_open() {
        let network = "UCX_NET_DEVICES is \"eth0\", which";
        let (tls, lacks) = ("UCX_TLS is \"tcp\", which", "/dev/infiniband is not in");
        let (memlock, none) = ("its limit of locked", "no RDMA device (mlx5_0,");
        for number in 0..1 << 4 {
            let [is_tcp, is_eth, has_none, has_limit] = [1, 2, 4, 8].map(|bit| number & bit != 0);
            for devices in [Ok(0), Ok(2), Err(1)] {
                let tcp = if is_tcp { "UCX_TLS=tcp\0" } else { "" };
                let eth = if is_eth { "UCX_NET_DEVICES=eth0\0" } else { "" };
                let mut process = process("UCX", &format!("A=b\0{tcp}{eth}"), devices);
                process.lacks_infiniband = has_none;
                process.memlock_limit = has_limit.then_some(65536);
                let mut expected = Vec::new();
                expected.extend(is_tcp.then_some(tls));
                expected.extend(is_eth.then_some(network));
                expected.extend((has_none && devices != Ok(2)).then_some(lacks));
                expected.extend(has_limit.then_some(memlock));
                expected.extend((expected.is_empty() && devices == Ok(0)).then_some(none));
                assert_eq!(said(&process, &host(false)), expected, "{process:?}");
            }
        }
    }

    #[test]
    fn settings_that_cannot_be_judged_are_not() {
        let environ = "UCX_TLS=tcp\0UCX_NET_DEVICES=mlx5_7:1\0";
        let posix = process("POSIX", environ, Ok(2));
        assert!(said(&posix, &host(false)).is_empty(), "UCX is not used");
        let mut process = process("UCX", "UCX_NET_DEVICES=mlx5_7:1\0", Ok(2));
        process.is_in_other_network = true;
        assert_eq!(said(&process, &host(false)).len(), 1);
        assert!(
            said(&process, &host(true)).is_empty(),
            "its devices are not in /sys"
        );
        assert!(said(&process, &RdmaHost::default()).is_empty(), "no RDMA");
        process.environment = None;
        assert!(said(&process, &host(false)).is_empty(), "it is not known");
    }
}
