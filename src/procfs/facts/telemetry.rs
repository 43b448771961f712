// SPDX-License-Identifier: GPL-2.0-or-later

//! NIXL's telemetry settings in the environment of a process, and which of them hide the telemetry. For `--check` only.

use crate::procfs::facts::environ::Environ;
use std::path::{Path, PathBuf};

const ENABLE: &str = "NIXL_TELEMETRY_ENABLE";
const EXPORTER: &str = "NIXL_TELEMETRY_EXPORTER";
const RINGS: &str = "NIXL_TELEMETRY_DIR";
const STORES: &str = "NIXL_TELEMETRY_MULTIPROC_DIR";
/// First version of NIXL that returns an error for telemetry that is off: 1.4.1 and 1.5.1 do, 1.3.1 and 1.3.2 do not.
const RAISES: (u32, u32) = (1, 4);
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

/// Returns a warning if transfers fail because the environment switches telemetry off. `engine` is that of
/// [`crate::procfs::facts::engine::of`], `version` the one of NIXL.
///
/// vLLM asks for telemetry of each transfer. If that fails, so does the transfer.
#[must_use]
pub fn broken_engine(environ: &Environ, engine: &str, version: &str) -> Option<String> {
    let value = environ.get(ENABLE).filter(|value| is_no(value))?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let version_of = (numbers.next()??, numbers.next()??);
    (engine == "vllm" && version_of >= RAISES).then(|| {
        format!(
            "{ENABLE} is {value:?}, and NIXL {version} then makes each transfer of vLLM fail (nixlNoTelemetryError, vllm#58038): set it to y, or unset it"
        )
    })
}

/// True for the values that NIXL takes for yes, in upper or lower case.
fn is_yes(value: &str) -> bool {
    let yes = ["y", "yes", "on", "true", "enable", "1"];
    yes.iter().any(|yes| yes.eq_ignore_ascii_case(value))
}

/// True for the values that NIXL takes for no, in upper or lower case.
fn is_no(value: &str) -> bool {
    let no = ["n", "no", "off", "false", "disable", "0"];
    no.iter().any(|no| no.eq_ignore_ascii_case(value))
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
    fn engine_is_broken_by_off_with_vllm_and_new_nixl_only() {
        let broken = |enable: &str, engine, version| {
            let environ = read(format!("{enable}A=b\0").as_bytes()).expect("read");
            broken_engine(&environ, engine, version)
        };
        let said = "NIXL_TELEMETRY_ENABLE is \"n\", and NIXL 1.5.1 then makes each transfer of vLLM fail (nixlNoTelemetryError, vllm#58038): set it to y, or unset it";
        let off = "NIXL_TELEMETRY_ENABLE=n\0";
        assert_eq!(broken(off, "vllm", "1.5.1").as_deref(), Some(said));
        for version in ["1.4.0", "1.4.1", "1.10.0", "2.0", "1.6.0rc1", "1.4.0+cu13"] {
            assert!(broken(off, "vllm", version).is_some(), "{version}");
        }
        for version in ["0.10.1", "1.3.1", "1.3.2", "1", "", "x.y"] {
            assert_eq!(broken(off, "vllm", version), None, "{version}");
        }
        for engine in ["sglang", "trtllm", ""] {
            assert_eq!(broken(off, engine, "1.5.1"), None, "{engine}");
        }
        for value in ["No", "OFF", "false", "disable", "0"] {
            let enable = format!("NIXL_TELEMETRY_ENABLE={value}\0");
            assert!(broken(&enable, "vllm", "1.5.1").is_some(), "{value}");
        }
        // An empty or misspelt value is another fault: NIXL makes no agent.
        for enable in [
            "",
            "NIXL_TELEMETRY_ENABLE=\0",
            "NIXL_TELEMETRY_ENABLE=x\0",
            "NIXL_TELEMETRY_ENABLE=y\0",
        ] {
            assert_eq!(broken(enable, "vllm", "1.5.1"), None, "{enable}");
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
