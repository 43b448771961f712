// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: advice for the case that there is no ring and no store.

use crate::base::text;
use crate::config::{Config, ENVIRONMENT_VARIABLES};
use std::path::Path;

/// Directory that the documentation recommends. It is in memory; the default is not.
const RECOMMENDED: &str = "/dev/shm/nixl";

/// Returns what to set in the environment of the applications. If the directory is the default, also what to set in the
/// configuration file.
#[must_use]
pub fn advice(config: &Config, path: &Path) -> String {
    let is_default = config.telemetry_dir == Config::default().telemetry_dir;
    let has_rings = !is_default && !config.telemetry_dir.is_empty();
    let [of_rings, of_stores] = ENVIRONMENT_VARIABLES;
    let (exporter, variable, patterns) = match has_rings || config.multiproc_dir.is_empty() {
        true => ("BUFFER", of_rings, &config.telemetry_dir),
        false => ("prometheus_mp", of_stores, &config.multiproc_dir),
    };
    let named = patterns.iter().find(|pattern| pattern.literal);
    let matched = "(a directory that the configuration matches)";
    let mut directory = named.map_or(matched, |pattern| &pattern.path);
    let mut in_file = String::new();
    if is_default && exporter == "BUFFER" {
        directory = RECOMMENDED;
        in_file = format!(
            "set telemetry_dir = \"{RECOMMENDED}\" in {} and make that directory, and ",
            text::printable(path)
        );
    }
    format!(
        "no ring or store is found: {in_file}start the applications with NIXL_TELEMETRY_ENABLE=y, NIXL_TELEMETRY_EXPORTER={exporter} and {variable}={directory}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPattern;

    fn directory(path: &str) -> Vec<DirectoryPattern> {
        vec![DirectoryPattern::of(path)]
    }

    #[test]
    fn advice_names_file_and_variables_by_configuration() {
        let mut config = Config::default();
        let advice = |config: &Config| advice(config, Path::new("/etc/nixl.conf"));
        assert_eq!(
            advice(&config),
            "no ring or store is found: set telemetry_dir = \"/dev/shm/nixl\" in /etc/nixl.conf and make that directory, \
             and start the applications with NIXL_TELEMETRY_ENABLE=y, NIXL_TELEMETRY_EXPORTER=BUFFER and \
             NIXL_TELEMETRY_DIR=/dev/shm/nixl"
        );
        config.multiproc_dir = directory("/run/stores");
        config.telemetry_dir = directory("/run/nixl");
        assert_eq!(
            advice(&config),
            "no ring or store is found: start the applications with NIXL_TELEMETRY_ENABLE=y, \
             NIXL_TELEMETRY_EXPORTER=BUFFER and NIXL_TELEMETRY_DIR=/run/nixl"
        );
        config.telemetry_dir = directory("/pods/*/nixl");
        assert!(advice(&config).ends_with("=(a directory that the configuration matches)"));
        config.telemetry_dir = Config::default().telemetry_dir;
        assert!(
            advice(&config)
                .ends_with("=prometheus_mp and NIXL_TELEMETRY_MULTIPROC_DIR=/run/stores")
        );
    }
}
