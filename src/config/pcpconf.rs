// SPDX-License-Identifier: GPL-2.0-or-later

//! PCP's directories, found like libpcp does: from the environment, else from `$PCP_CONF` or `/etc/pcp.conf`
//! (pcp.conf(5)).

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// PCP's settings on this host.
#[derive(Clone, Debug, Default)]
pub struct PcpConf {
    /// File that they were read from.
    pub path: PathBuf,
    settings: HashMap<String, String>,
}

impl PcpConf {
    /// Reads the settings. Without a file only the environment counts.
    #[must_use]
    pub fn read() -> Self {
        // PCP_DIR is the prefix of a relocated PCP, and almost always unset.
        let path = std::env::var_os("PCP_CONF").unwrap_or_else(|| {
            let mut path = std::env::var_os("PCP_DIR").unwrap_or_default();
            path.push("/etc/pcp.conf");
            path
        });
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        Self {
            path: path.into(),
            ..Self::parse(&text)
        }
    }

    /// Reads settings from the text of a pcp.conf.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let settings = lines
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| {
                let value = value.trim();
                let unquoted = value
                    .strip_prefix('"')
                    .and_then(|value| value.strip_suffix('"'));
                (key.trim().to_owned(), unquoted.unwrap_or(value).to_owned())
            });
        Self {
            settings: settings.collect(),
            path: PathBuf::new(),
        }
    }

    /// Returns a directory of PCP; `None` if neither the environment nor the file has it.
    #[must_use]
    pub fn directory(&self, variable: &str) -> Option<PathBuf> {
        let from_environment = std::env::var_os(variable).filter(|value| !value.is_empty());
        from_environment
            .or_else(|| self.settings.get(variable).map(OsString::from))
            .map(PathBuf::from)
    }

    /// Returns a file in a directory of PCP.
    fn file(&self, variable: &str, default: &str, name: &str) -> PathBuf {
        let directory = self.directory(variable);
        directory.unwrap_or_else(|| default.into()).join(name)
    }

    /// Returns the path of `nixl.conf`.
    #[must_use]
    pub fn nixl_conf(&self) -> PathBuf {
        self.file("PCP_SYSCONF_DIR", "/etc/pcp", "nixl/nixl.conf")
    }

    /// Returns the directory of the labels of this host, which libpcp_pmda reads for a client without pmcd.
    #[must_use]
    pub fn labels(&self) -> PathBuf {
        self.file("PCP_SYSCONF_DIR", "/etc/pcp", "labels")
    }

    /// Returns the path of the help text, without its suffix.
    #[must_use]
    pub fn help(&self) -> PathBuf {
        self.file("PCP_PMDAS_DIR", "/var/lib/pcp/pmdas", "nixl/help")
    }

    /// Returns the path of the state file.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.file("PCP_RUN_DIR", "/run/pcp", "nixl/state")
    }

    /// Returns the path of libpcp_pmda's file with the ids of an instance domain (pmdacache(3)).
    #[must_use]
    pub fn instance_cache(&self, domain: u32, serial: u32) -> PathBuf {
        let name = format!("config/pmda/{domain}.{serial}");
        self.file("PCP_VAR_DIR", "/var/lib/pcp", &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcp_conf_is_read_like_pcp_does() {
        let conf = PcpConf::parse("# PCP_NO_DIR=/no\n\nPCP_X_DIR=/etc/x\nPCP_Y_DIR=\"/y z\"\n");
        assert_eq!(conf.directory("PCP_X_DIR"), Some("/etc/x".into()));
        assert_eq!(conf.directory("PCP_Y_DIR"), Some("/y z".into()));
        assert_eq!(conf.directory("PCP_NO_DIR"), None);
    }
}
