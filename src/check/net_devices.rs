// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: network devices that UCX_NET_DEVICES names or leaves out.
//!
//! A device is a network interface (`eth0`) or an RDMA port (`mlx5_0:1`). UCX compares whole names: it has no
//! wildcards, and a blank belongs to the name. Seen with UCX of NIXL 1.1.0, 1.3.2 and 1.5.1:
//!
//! | value | UCX |
//! | --- | --- |
//! | `eth0,none` | uses `eth0`, and warns |
//! | `none`, `eth0:1`, an empty value | has no network device: NIXL cannot create the backend |
//! | `^eth0` | uses all devices but `eth0` |
//! | `eth[0-1]` | uses `eth0` and `eth1` (NIXL 1.5.1), or has no such device (1.1.0) |

use crate::check::Line;
use crate::check::rdma::RdmaHost;
use crate::observer::examination::UCX_NET_DEVICES;
use crate::procfs::facts::environ::MAX_VALUE;

/// Limit of names in a value. UCX takes 64.
const MAX_NAMES: usize = 64;
/// Limit of names in a list of a line.
const MAX_SHOWN: usize = 16;

/// Returns what is wrong with a value. `interfaces` are those of the network namespace of the process.
pub fn faults(value: &str, interfaces: &[String], host: &RdmaHost) -> Vec<Line> {
    // A value of this length may end inside a name. Every namespace has `lo`, so without interfaces they were not read.
    if value == "all" || value.len() >= MAX_VALUE || interfaces.is_empty() {
        return Vec::new();
    }
    let (is_negated, list) = match value.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, value),
    };
    let names = Vec::from_iter(list.split(',').filter(|name| !name.is_empty()));
    let names = Vec::from_iter(names.into_iter().flat_map(expanded).take(MAX_NAMES));
    let is_interface = |name: &str| interfaces.iter().any(|interface| interface == name);
    let port = |name: &str| {
        host.ports
            .iter()
            .find(|port| port.name == without_cuda_prefix(name))
    };
    let active = host.active();
    let mut found = Vec::new();
    let is_tcp = if is_negated {
        let is_left = |name: &str| !names.iter().any(|other| other == name);
        let has_port = active.iter().any(|name| is_left(name));
        let has_interface = interfaces.iter().any(|name| is_left(name));
        if !has_interface && !has_port {
            found.push(Line::problem(missing_text(value, &[], interfaces, host)));
        }
        has_interface && !has_port
    } else {
        let missing = names
            .iter()
            .filter(|name| !is_interface(name) && port(name).is_none());
        let missing = Vec::from_iter(missing.map(String::as_str));
        if names.is_empty() || !missing.is_empty() {
            // UCX uses the devices that are there, and NIXL cannot create the backend without one.
            let line = match missing.len() < names.len() {
                true => Line::warning,
                false => Line::problem,
            };
            found.push(line(missing_text(value, &missing, interfaces, host)));
        }
        let inactive = names
            .iter()
            .filter(|name| port(name).is_some_and(|port| !port.is_active));
        let inactive = Vec::from_iter(inactive.map(String::as_str));
        if !inactive.is_empty() {
            let text = format!(
                "{UCX_NET_DEVICES} is {value:?}, and UCX does not use {}, whose link is not active (ibv_devinfo): repair the link, or set it to another device",
                shortened(&inactive)
            );
            found.push(Line::warning(text));
        }
        let is_active = |name: &String| port(name).is_some_and(|port| port.is_active);
        names.iter().any(|name| is_interface(name)) && !names.iter().any(is_active)
    };
    if is_tcp && !active.is_empty() {
        let text = format!(
            "{UCX_NET_DEVICES} is {value:?}, which leaves out RDMA ({}), so that transfers use TCP: unset it, or set it to RDMA ports",
            shortened(&active)
        );
        found.push(Line::warning(text));
    }
    found
}

/// Returns the problem of names without a device, with its remedy.
fn missing_text(value: &str, missing: &[&str], interfaces: &[String], host: &RdmaHost) -> String {
    if missing.is_empty() {
        return format!(
            "{UCX_NET_DEVICES} is {value:?}, so that UCX has no network device: unset it"
        );
    }
    let shown = Vec::from_iter(missing.iter().map(|name| {
        let is_device = host.devices.iter().any(|device| device == name);
        let why = if is_device { " (without its port)" } else { "" };
        format!("{name:?}{why}")
    }));
    let shown = Vec::from_iter(shown.iter().map(String::as_str));
    let of_missing = host
        .ports
        .iter()
        .map(|port| port.name.as_str())
        .filter(|port| {
            let device = port.split(':').next().unwrap_or_default();
            missing.contains(&device)
        });
    let interfaces = interfaces.iter().map(String::as_str);
    let interfaces = Vec::from_iter(interfaces.filter(|name| *name != "lo"));
    let all = [Vec::from_iter(of_missing), host.active(), interfaces];
    let remedy = match all.iter().find(|names| !names.is_empty()) {
        Some(names) => format!("name others ({}), or unset it", shortened(names)),
        None => "unset it".to_owned(),
    };
    format!(
        "{UCX_NET_DEVICES} is {value:?}, and there is no network device {}: {remedy}",
        shortened(&shown)
    )
}

/// Returns the first names, with commas between them.
fn shortened(names: &[&str]) -> String {
    match names.get(..MAX_SHOWN) {
        Some(first) if first.len() < names.len() => format!("{}, ...", first.join(", ")),
        _ => names.join(", "),
    }
}

/// Returns the RDMA port of a device of UCX for transfers that a GPU starts, such as `cuda0-mlx5_0:1`.
fn without_cuda_prefix(name: &str) -> &str {
    match name
        .strip_prefix("cuda")
        .and_then(|rest| rest.split_once('-'))
    {
        Some((number, port)) if number.bytes().all(|byte| byte.is_ascii_digit()) => port,
        _ => name,
    }
}

/// Returns the names of a range (`mlx5_[0-3]:1`), or the name.
fn expanded(name: &str) -> Vec<String> {
    let range = || {
        let (before, rest) = name.split_once('[')?;
        let (range, after) = rest.split_once(']')?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        let numbers = (first..=last).take(MAX_NAMES);
        Some(
            numbers
                .map(|number| format!("{before}{number}{after}"))
                .collect(),
        )
    };
    range().unwrap_or_else(|| vec![name.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::check::rdma::Port;

    const ACTIVE: &str = "mlx5_0:1, mlx5_1:1";

    fn host(ports: &[(&str, bool)]) -> RdmaHost {
        let device = |&(name, _): &(&str, bool)| name.split(':').next().map(str::to_owned);
        let port = |&(name, is_active): &(&str, bool)| Port {
            name: name.to_owned(),
            is_active,
        };
        RdmaHost {
            devices: ports.iter().filter_map(device).collect(),
            ports: ports.iter().map(port).collect(),
            is_exclusive: false,
        }
    }

    /// Returns the severities and texts for a value on a host with eth0 and these ports.
    fn said(value: &str, ports: &[(&str, bool)]) -> Vec<(Severity, String)> {
        let interfaces = ["lo", "eth0"].map(str::to_owned);
        let lines = faults(value, &interfaces, &host(ports)).into_iter();
        lines.map(|line| (line.severity, line.text)).collect()
    }

    #[test]
    fn net_devices_are_judged_by_what_they_name() {
        const MISSING: Severity = Severity::Problem;
        const DOUBTFUL: Severity = Severity::Warning;
        let ports = [("mlx5_0:1", true), ("mlx5_1:1", true), ("mlx5_2:1", false)];
        for (value, expected) in [
            ("all", &[][..]),
            ("mlx5_0:1", &[]),
            ("eth0,mlx5_1:1", &[]),
            ("mlx5_[0-1]:1", &[]),
            ("cuda0-mlx5_0:1", &[]),
            ("^eth0", &[]),
            ("^none", &[]),
            ("^mlx5_0:1", &[]),
            ("eth0", &[DOUBTFUL]),
            ("lo,eth0", &[DOUBTFUL]),
            ("^mlx5_0:1,mlx5_1:1", &[DOUBTFUL]),
            ("mlx5_2:1", &[DOUBTFUL]),
            ("mlx5_2:1,eth0", &[DOUBTFUL, DOUBTFUL]),
            ("", &[MISSING]),
            ("none", &[MISSING]),
            ("mlx5_0", &[MISSING]),
            ("mlx5_0:2", &[MISSING]),
            ("eth0:1", &[MISSING]),
            ("mlx5_*:1", &[MISSING]),
            ("mlx5_0:1,none", &[DOUBTFUL]),
            ("mlx5_0:1, mlx5_1:1", &[DOUBTFUL]),
            ("cuda0-mlx5_9:1", &[MISSING]),
            ("mlx5_[0-9]:1", &[DOUBTFUL, DOUBTFUL]),
            ("eth0,none", &[DOUBTFUL, DOUBTFUL]),
            ("^lo,eth0,mlx5_0:1,mlx5_1:1", &[MISSING]),
        ] {
            let said = said(value, &ports);
            let severities = Vec::from_iter(said.iter().map(|(severity, _)| *severity));
            assert_eq!(severities, expected, "{value}: {said:?}");
        }
    }

    #[test]
    fn fault_of_net_devices_names_the_remedy() {
        let ports = [("mlx5_0:1", true), ("mlx5_1:1", true)];
        for (value, ports, expected) in [
            (
                "eth0",
                &ports[..],
                format!(
                    "UCX_NET_DEVICES is \"eth0\", which leaves out RDMA ({ACTIVE}), so that transfers use TCP: unset it, or set it to RDMA ports"
                ),
            ),
            (
                "x,y",
                &ports,
                format!(
                    "UCX_NET_DEVICES is \"x,y\", and there is no network device \"x\", \"y\": name others ({ACTIVE}), or unset it"
                ),
            ),
            (
                "mlx5_1",
                &ports,
                "UCX_NET_DEVICES is \"mlx5_1\", and there is no network device \"mlx5_1\" (without its port): name others (mlx5_1:1), or unset it".to_owned(),
            ),
            (
                "mlx5_0:1",
                &[],
                "UCX_NET_DEVICES is \"mlx5_0:1\", and there is no network device \"mlx5_0:1\": name others (eth0), or unset it".to_owned(),
            ),
            (
                "",
                &[],
                "UCX_NET_DEVICES is \"\", so that UCX has no network device: unset it".to_owned(),
            ),
        ] {
            let said = said(value, ports);
            assert_eq!(said.len(), 1, "{value}: {said:?}");
            assert_eq!(said[0].1, expected);
        }
        let down = said("mlx5_0:1", &[("mlx5_0:1", false)]);
        assert!(
            down[0]
                .1
                .contains("does not use mlx5_0:1, whose link is not active"),
            "{down:?}"
        );
        let many = Vec::from_iter((0..99).map(|number| format!("mlx5_{number}:1")));
        let many = Vec::from_iter(many.iter().map(|name| (name.as_str(), true)));
        let said = said("none", &many);
        assert!(
            said[0].1.ends_with("mlx5_15:1, ...), or unset it"),
            "{said:?}"
        );
    }

    #[test]
    fn net_devices_without_an_interface_list_are_not_judged() {
        assert!(faults("none", &[], &host(&[])).is_empty());
        let truncated = "x".repeat(MAX_VALUE);
        assert!(said(&truncated, &[]).is_empty());
        let range = said("x[0-65535]", &[]);
        assert_eq!(range.len(), 1);
        assert!(
            range[0].1.contains("\"x15\", ...: name others (eth0)"),
            "{range:?}"
        );
    }
}
