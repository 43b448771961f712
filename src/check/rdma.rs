// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: RDMA devices of this host, and their ports.

use std::fs;
use std::path::Path;

/// Beginning of the state of a port that transfers data (sysfs-class-infiniband).
const ACTIVE: &str = "4:";

/// RDMA devices of this host.
#[derive(Debug, Default)]
pub struct RdmaHost {
    /// Names of the devices, such as `mlx5_0`.
    pub devices: Vec<String>,
    /// Ports of all devices.
    pub ports: Vec<Port>,
    /// True if a network namespace sees only the devices that were moved into it (`rdma system`).
    pub is_exclusive: bool,
}

/// Port of an RDMA device.
#[derive(Debug)]
pub struct Port {
    /// Name of UCX, such as `mlx5_0:1`.
    pub name: String,
    /// True if its link is up.
    pub is_active: bool,
}

impl RdmaHost {
    /// Reads the devices of this host.
    #[must_use]
    pub fn read() -> Self {
        let mode = fs::read_to_string("/sys/module/ib_core/parameters/netns_mode");
        Self {
            is_exclusive: mode.is_ok_and(|mode| mode.trim() == "N"),
            ..Self::below(Path::new("/sys/class/infiniband"))
        }
    }

    /// Reads the devices in a directory.
    fn below(directory: &Path) -> Self {
        let mut host = Self {
            devices: names(directory),
            ..Self::default()
        };
        for device in &host.devices {
            let ports = directory.join(device).join("ports");
            for port in names(&ports) {
                let state = fs::read_to_string(ports.join(&port).join("state"));
                host.ports.push(Port {
                    name: format!("{device}:{port}"),
                    is_active: state.is_ok_and(|state| state.starts_with(ACTIVE)),
                });
            }
        }
        host
    }

    /// Returns the names of the ports that transfer data.
    #[must_use]
    pub fn active(&self) -> Vec<&str> {
        let ports = self.ports.iter().filter(|port| port.is_active);
        ports.map(|port| port.name.as_str()).collect()
    }
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names = Vec::from_iter(names);
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_all_devices_are_read_with_their_state() {
        let dir = tempfile::tempdir().expect("a directory");
        for (port, state) in [
            ("mlx5_1/ports/2", "1: DOWN\n"),
            ("mlx5_1/ports/1", "4: ACTIVE\n"),
            ("mlx5_0/ports/1", "2: INIT\n"),
        ] {
            let port = dir.path().join(port);
            fs::create_dir_all(&port).expect("made");
            fs::write(port.join("state"), state).expect("written");
        }
        fs::create_dir(dir.path().join("mlx5_2")).expect("made");
        let host = RdmaHost::below(dir.path());
        assert_eq!(host.devices, ["mlx5_0", "mlx5_1", "mlx5_2"]);
        let ports = Vec::from_iter(host.ports.iter().map(|port| port.name.as_str()));
        assert_eq!(ports, ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2"]);
        assert_eq!(host.active(), ["mlx5_1:1"]);
        assert!(RdmaHost::below(&dir.path().join("none")).devices.is_empty());
    }
}
