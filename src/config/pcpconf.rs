//! PCP's directories: from the environment, else from `$PCP_CONF` or `/etc/pcp.conf` (pcp.conf(5)), as libpcp finds them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where PCP has its things on this host.
#[derive(Clone, Debug, Default)]
pub struct PcpConf {
    /// The file that says so.
    pub path: PathBuf,
    settings: HashMap<String, String>,
}

impl PcpConf {
    /// Reads the file that says so. Without one only the environment counts.
    #[must_use]
    pub fn read() -> Self {
        // PCP_DIR is empty on all but unusual installations.
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

    /// Takes the text of such a file.
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

    /// A directory of PCP's; `None` where neither the environment nor the file names it.
    #[must_use]
    pub fn directory(&self, variable: &str) -> Option<PathBuf> {
        let from_environment = std::env::var_os(variable).filter(|value| !value.is_empty());
        from_environment
            .or_else(|| self.settings.get(variable).map(OsString::from))
            .map(PathBuf::from)
    }

    /// A file in a directory of PCP's.
    fn file(&self, variable: &str, default: &str, name: &str) -> PathBuf {
        let directory = self.directory(variable);
        directory.unwrap_or_else(|| default.into()).join(name)
    }

    /// The configuration file of this agent.
    #[must_use]
    pub fn nixl_conf(&self) -> PathBuf {
        self.file("PCP_SYSCONF_DIR", "/etc/pcp", "nixl/nixl.conf")
    }

    /// The help text of this agent, without its suffix.
    #[must_use]
    pub fn help(&self) -> PathBuf {
        self.file("PCP_PMDAS_DIR", "/var/lib/pcp/pmdas", "nixl/help")
    }

    /// The file that totals are kept in while the host is up.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.file("PCP_RUN_DIR", "/run/pcp", "nixl/state")
    }

    /// The file that libpcp_pmda keeps the ids of an instance domain in (pmdacache(3)).
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
