// SPDX-License-Identifier: GPL-2.0-or-later

//! NIXL's telemetry settings in the environment of a process, and which of them hide the telemetry. For `--check` only.

use crate::procfs::facts::environ::Environ;
use std::path::{Path, PathBuf};

const ENABLE: &str = "NIXL_TELEMETRY_ENABLE";
const EXPORTER: &str = "NIXL_TELEMETRY_EXPORTER";
const RINGS: &str = "NIXL_TELEMETRY_DIR";
const STORES: &str = "NIXL_TELEMETRY_MULTIPROC_DIR";
/// Variables that these functions need.
pub const NAMES: [&str; 4] = [ENABLE, EXPORTER, RINGS, STORES];

/// Returns `NIXL_TELEMETRY_DIR` and `NIXL_TELEMETRY_MULTIPROC_DIR`. An empty variable counts as unset.
#[must_use]
pub fn directories(environ: &Environ) -> [Option<&str>; 2] {
    [RINGS, STORES].map(|name| environ.get(name).filter(|value| !value.is_empty()))
}

/// Returns what to change so that the telemetry of the process is found. `is_scanned` returns true if a directory is
/// scanned for rings or, with `true`, for stores.
#[must_use]
pub fn faults(environ: &Environ, is_scanned: impl Fn(&Path, bool) -> bool) -> Vec<String> {
    let off = match environ.get(ENABLE) {
        Some(value) if is_yes(value) => None,
        Some(value) => Some(format!("{ENABLE} is {value:?}: set it to y")),
        // vLLM switches telemetry on (`capture_telemetry`).
        None => Some(format!(
            "{ENABLE} is not set: set it to y, which vLLM with NIXL 1.4 or later does not need"
        )),
    };
    let [rings, stores] = directories(environ);
    let ((variable, key, value), holds_stores) = match environ.get(EXPORTER) {
        // An empty variable counts as unset.
        None | Some("" | "BUFFER") => ((RINGS, "telemetry_dir", rings), false),
        Some("prometheus_mp") => ((STORES, "multiproc_dir", stores), true),
        Some(other) => {
            let to = "to BUFFER for a ring or, from NIXL 1.5 on, to prometheus_mp for a store";
            let other = format!("{EXPORTER} is {other:?}: set it {to}");
            return off.into_iter().chain([other]).collect();
        }
    };
    let hidden = match value {
        None => Some(format!(
            "{variable} is not set: set it to a directory of {key}"
        )),
        Some(value) => {
            let directory: PathBuf = Path::new(value).components().collect();
            (!is_scanned(&directory, holds_stores)).then(|| {
                format!(
                    "{variable} is {value:?}, which is not scanned: add it to {key} in nixl.conf"
                )
            })
        }
    };
    off.into_iter().chain(hidden).collect()
}

/// True for the values that NIXL takes for yes, in upper or lower case.
fn is_yes(value: &str) -> bool {
    let yes = ["y", "yes", "on", "true", "enable", "1"];
    yes.iter().any(|yes| yes.eq_ignore_ascii_case(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environ: &[u8]) -> std::io::Result<Environ> {
        Environ::read(environ, &NAMES)
    }

    fn faults(environ: &[u8]) -> Vec<String> {
        let environ = read(environ).expect("memory can be read");
        super::faults(&environ, |directory, stores| {
            directory == Path::new(if stores { "/run/mp" } else { "/run/nixl" })
        })
    }

    #[test]
    fn missing_variable_is_named_with_its_remedy() {
        let no_directory = "NIXL_TELEMETRY_DIR is not set: set it to a directory of telemetry_dir";
        let off = "NIXL_TELEMETRY_ENABLE is not set: set it to y, which vLLM with NIXL 1.4 or later does not need";
        assert_eq!(faults(b"PATH=/bin\0"), [off, no_directory]);
        assert_eq!(
            faults(b"NIXL_TELEMETRY_ENABLE=n\0NIXL_TELEMETRY_DIR=/run/nixl\0"),
            ["NIXL_TELEMETRY_ENABLE is \"n\": set it to y"]
        );
        assert_eq!(
            faults(b"NIXL_TELEMETRY_ENABLE=1\0NIXL_TELEMETRY_EXPORTER=\0"),
            [no_directory]
        );
        assert_eq!(
            faults(b"NIXL_TELEMETRY_ENABLE=Yes\0NIXL_TELEMETRY_DIR=/tmp/else\0"),
            [
                "NIXL_TELEMETRY_DIR is \"/tmp/else\", which is not scanned: add it to telemetry_dir in nixl.conf"
            ]
        );
        assert_eq!(
            faults(b"NIXL_TELEMETRY_ENABLE=on\0NIXL_TELEMETRY_EXPORTER=prometheus_mp\0"),
            ["NIXL_TELEMETRY_MULTIPROC_DIR is not set: set it to a directory of multiproc_dir"]
        );
    }

    #[test]
    fn other_exporter_is_a_fault_and_right_settings_are_none() {
        let other = faults(
            b"NIXL_TELEMETRY_ENABLE=y\0NIXL_TELEMETRY_EXPORTER=prometheus\0NIXL_TELEMETRY_DIR=/x\0",
        );
        let [fault] = &other[..] else {
            panic!("{other:?}");
        };
        assert!(
            fault.starts_with("NIXL_TELEMETRY_EXPORTER is \"prometheus\": set it to BUFFER"),
            "{fault}"
        );
        for right in [
            &b"NIXL_TELEMETRY_ENABLE=y\0NIXL_TELEMETRY_DIR=//run/nixl/\0NIXL_TELEMETRY_DIR=/x\0"[..],
            b"NIXL_TELEMETRY_EXPORTER=BUFFER\0NIXL_TELEMETRY_ENABLE=y\0NIXL_TELEMETRY_DIR=/run/nixl\0",
            b"NIXL_TELEMETRY_EXPORTER=prometheus_mp\0NIXL_TELEMETRY_MULTIPROC_DIR=/run/mp\0NIXL_TELEMETRY_ENABLE=true\0",
        ] {
            assert_eq!(faults(right), [""; 0]);
        }
    }

    #[test]
    fn other_variables_are_not_stored() {
        let environ = &b"HF_TOKEN=secret\0NIXL_TELEMETRY_DIRS=/a\0NIXL=b\0"[..];
        assert_eq!(read(environ).expect("read"), Environ::default());
    }

    #[test]
    fn empty_directory_variable_is_unset() {
        let environ = &b"NIXL_TELEMETRY_DIR=/a\0NIXL_TELEMETRY_MULTIPROC_DIR=\0"[..];
        let environ = read(environ).expect("read");
        assert_eq!(directories(&environ), [Some("/a"), None]);
        let title = &b"VLLM::Worker_TP0\0\0NIXL_TELEMETRY_DIR=/a\0"[..];
        assert!(read(title).is_err());
    }
}
