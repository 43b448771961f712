// SPDX-License-Identifier: GPL-2.0-or-later

//! Libraries of NIXL among the mappings of a process. They show whether the process can transfer data.
//!
//! A process counts once a NIXL backend is mapped (`libplugin_UCX.so`). libnixl alone says little: vLLM's API server and
//! EngineCore import NIXL and make no agent. What /proc/PID/maps shows, by NIXL's wheels:
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

/// Libraries of NIXL that a process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// True if libnixl is mapped.
    has_core: bool,
    has_plugin: bool,
}

impl Libraries {
    /// Notes a line of /proc/PID/maps.
    pub fn note(&mut self, line: &[u8]) {
        // For most of the thousands of lines this reads their ends only.
        let path = line.trim_ascii_end();
        let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
            return;
        };
        let name = &path[slash + 1..];
        let is_library = |rest: &[u8]| rest.windows(3).any(|part| part == b".so");
        // For example `libplugin_UCX.so`.
        self.has_plugin |= name.strip_prefix(b"libplugin_").is_some_and(is_library);
        // For example `libnixl.so`, `libnixl_build.so`, `libnixl-4f1c.so.1`. Every plugin needs one of them.
        self.has_core |= name.strip_prefix(b"libnixl").is_some_and(|rest| {
            matches!(rest.first(), Some(b'.' | b'_' | b'-')) && is_library(rest)
        });
    }

    /// True if a NIXL backend is loaded.
    #[must_use]
    pub fn has_backend(&self) -> bool {
        self.has_core && self.has_plugin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries(paths: &[&str]) -> Libraries {
        let mut libraries = Libraries::default();
        for path in paths {
            libraries.note(format!("7f00-7f10 r-xp 00001000 fe:01 4711   {path}\n").as_bytes());
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
            assert_eq!(found.has_core, expected, "{path}");
            assert!(!found.has_backend());
        }
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
