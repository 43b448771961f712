// SPDX-License-Identifier: GPL-2.0-or-later

//! Libraries of NIXL among the mappings of a process. They show whether the process can transfer data.
//!
//! A process counts once a NIXL backend is mapped (`libplugin_UCX.so`). libnixl alone says little: vLLM's API server
//! and EngineCore import NIXL and make no agent. What /proc/PID/maps shows, by NIXL's wheels:
//!
//! | after | 0.10.1 and 1.0.1 | 1.1.0 to 1.5.1 |
//! | --- | --- | --- |
//! | `import nixl` | libnixl*.so | libnixl*.so |
//! | an agent without a backend | all of libplugin_*.so | libnixl*.so |
//! | an agent with the default backend | all of libplugin_*.so | libplugin_UCX.so |
//! | `create_backend("POSIX")` | all of libplugin_*.so | libplugin_POSIX.so as well |
//! | the end of the agent | no change | no change |
//!
//! A child that is forked after that has the same mappings. A build that links its backends statically
//! (`-Dstatic_plugins`) maps no plugin, and is not seen.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Limit of backends of a process, and of the name of one in bytes: any process can map files with such names.
const MAX_BACKENDS: usize = 16;
const MAX_NAME: usize = 24;

/// Libraries of NIXL that a process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libraries {
    /// Path of libnixl in the mount namespace of the process, if it is mapped; of `libnixl_build.so` and its like only
    /// if the library with the agents is not.
    pub core: Option<OsString>,
    /// Names of the backends, such as `UCX`.
    pub backends: BTreeSet<String>,
}

impl Libraries {
    /// Adds the library in a line of /proc/PID/maps, if it has one.
    pub fn add_line(&mut self, line: &[u8]) {
        // For most of the thousands of lines this reads their ends only.
        let path = line.trim_ascii_end();
        let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
            return;
        };
        let name = &path[slash + 1..];
        let is_library = |rest: &[u8]| rest.windows(3).any(|part| part == b".so");
        // For example `libplugin_UCX.so`.
        if let Some(rest) = name
            .strip_prefix(b"libplugin_")
            .filter(|rest| is_library(rest))
        {
            self.add_backend(rest);
        }
        // For example `libnixl.so`, `libnixl_build.so`, `libnixl-4f1c.so.1`. Every plugin needs one of them.
        let is_core = name.strip_prefix(b"libnixl").is_some_and(|rest| {
            matches!(rest.first(), Some(b'.' | b'_' | b'-')) && is_library(rest)
        });
        let is_helper = |core: &[u8]| {
            let name = core.rsplit(|&byte| byte == b'/').next();
            name.is_some_and(|name| name.starts_with(b"libnixl_"))
        };
        let is_better = match &self.core {
            None => true,
            Some(core) => is_helper(core.as_bytes()) && !is_helper(name),
        };
        if is_core && is_better {
            let start = path.iter().position(|&byte| byte == b'/').unwrap_or(slash);
            self.core = Some(OsStr::from_bytes(&path[start..]).into());
        }
    }

    /// Adds a backend by the name of its library without `libplugin_`.
    fn add_backend(&mut self, rest: &[u8]) {
        let name = rest.split(|&byte| matches!(byte, b'.' | b'-')).next();
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = name.filter(|name| !name.is_empty() && name.iter().all(is_allowed));
        let name = name.map(|name| &name[..name.len().min(MAX_NAME)]);
        if let Some(Ok(name)) = name.map(std::str::from_utf8) {
            if self.backends.len() < MAX_BACKENDS {
                self.backends.insert(name.to_owned());
            }
        }
    }

    /// True if a NIXL backend is loaded.
    #[must_use]
    pub fn has_backend(&self) -> bool {
        self.core.is_some() && !self.backends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries(paths: &[&str]) -> Libraries {
        let mut libraries = Libraries::default();
        for path in paths {
            libraries.add_line(format!("7f00-7f10 r-xp 00001000 fe:01 4711   {path}\n").as_bytes());
        }
        libraries
    }

    #[test]
    fn core_library_of_nixl_is_recognized() {
        for (path, expected) in [
            ("/opt/nixl/lib/libnixl.so", true),
            ("/venv/.nixl_cu12.mesonpy.libs/libnixl_build.so", true),
            ("/usr/lib/libnixl-4f1c2.so.1.5 (deleted)", true),
            ("/usr/lib/libnixlish.so", false),
            ("/usr/lib/libnixl.py", false),
            ("/libnixl.so/other", false),
            ("libnixl.so", false),
            ("", false),
        ] {
            let found = libraries(&[path]);
            assert_eq!(found.core.is_some(), expected, "{path}");
            assert!(!found.has_backend());
        }
    }

    #[test]
    fn library_with_agents_is_preferred_to_its_helpers() {
        let paths = [
            "/a/libnixl_build.so",
            "/a/libnixl-4f1c2.so.1",
            "/b/libnixl.so",
        ];
        for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0]] {
            let core = libraries(&order.map(|at: usize| paths[at])).core;
            assert_eq!(core.as_deref(), Some(OsStr::new(paths[1])), "{order:?}");
        }
    }

    #[test]
    fn backends_have_the_names_of_their_plugins() {
        let plugin = |name: &str| format!("/lib/libplugin_{name}");
        let named = |names: &[String]| {
            let paths: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = libraries(&paths).backends;
            found.into_iter().collect::<Vec<_>>().join(" ")
        };
        let usual = ["UCX.so", "UCX.so", "POSIX-4f1c.so.1", "GDS_MT.so (deleted)"].map(plugin);
        assert_eq!(named(&usual), "GDS_MT POSIX UCX");
        let odd = ["a b.so", ".so", "\u{e9}.so"].map(plugin);
        assert_eq!(named(&odd), "");
        let many: Vec<String> = (0..99)
            .map(|number| plugin(&format!("X{number}.so")))
            .collect();
        assert_eq!(named(&many).split(' ').count(), MAX_BACKENDS);
        assert_eq!(
            named(&[plugin(&format!("{}.so", "X".repeat(99)))]).len(),
            MAX_NAME
        );
    }

    #[test]
    fn backend_needs_a_plugin_and_libnixl() {
        let core = "/my venv/.nixl_cu12.mesonpy.libs/libnixl.so";
        let plugin = "/my venv/nixl_cu12.libs/nixl/libplugin_UCX.so";
        for (paths, expected) in [
            (&[core, plugin][..], true),
            (&[plugin, core], true),
            (&[core], false),
            (&[plugin], false),
            (&[core, "/lib/libplugin_UCX.py"], false),
            (&[core, "/lib/libplugin.so"], false),
            (&[core, "/lib/libtelemetry_exporter_prometheus.so"], false),
        ] {
            assert_eq!(libraries(paths).has_backend(), expected, "{paths:?}");
        }
    }
}
