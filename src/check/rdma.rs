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
    /// Ports that transfer data, by UCX's names, such as `mlx5_0:1`.
    pub ports: Vec<String>,
    /// True if a network namespace sees only the devices that were moved into it (`rdma system`).
    pub is_exclusive: bool,
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
                let is_active = state.is_ok_and(|state| state.starts_with(ACTIVE));
                let name = is_active.then(|| format!("{device}:{port}"));
                host.ports.extend(name);
            }
        }
        host
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
    fn active_ports_of_all_devices_are_read() {
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
        assert_eq!(host.ports, ["mlx5_1:1"]);
        assert!(RdmaHost::below(&dir.path().join("none")).devices.is_empty());
    }
}
