// SPDX-License-Identifier: GPL-2.0-or-later

//! Divides the descriptors that the process may have among files, directories and a reserve.

use crate::config::Config;
use nix::sys::resource::{Resource, getrlimit};

/// Reserve: pmcd, the log, the state file, and files that are open for a moment.
const SPARE: usize = 64;

/// Number of descriptors by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors {
    /// Attached files.
    pub rings: usize,
    /// Directories that patterns match.
    directories: usize,
}

impl Descriptors {
    /// Returns what a configuration needs, within the limit of the process.
    pub fn of(config: &Config) -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let room = Self::within(limit, config);
        if room.rings < config.max_agents {
            tracing::warn!(
                "max_agents is {}, but only {limit} files may be open; {} rings are attached at most",
                config.max_agents,
                room.rings
            );
        }
        room
    }

    fn within(limit: usize, config: &Config) -> Self {
        let room = limit.saturating_sub(SPARE);
        let patterns = config.telemetry_dir.iter().chain(&config.multiproc_dir);
        let (named, matched): (Vec<_>, Vec<_>) = patterns.partition(|pattern| pattern.literal);
        // A directory takes two descriptors, so that they get at most half: it is kept open, and opened to be listed.
        let directories = match matched.is_empty() {
            true => 0,
            false => config.max_directories.min(room / 4),
        };
        let rings = room.saturating_sub(2 * (named.len() + directories));
        Self {
            rings: config.max_agents.min(rings.max(1)),
            directories,
        }
    }

    /// Returns the configuration with no more directories than there are descriptors for.
    pub fn limit(self, config: &Config) -> Config {
        Config {
            max_directories: self.directories,
            ..config.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPattern;

    #[test]
    fn directories_leave_half_of_the_descriptors_to_rings() {
        let mut config = Config::default();
        let of = |limit, config: &Config| {
            let Descriptors { rings, directories } = Descriptors::within(limit, config);
            (rings, directories)
        };
        assert_eq!(of(1 << 20, &config), (4096, 0));
        assert_eq!(of(1024, &config), (1024 - 64 - 2, 0));
        config.telemetry_dir.push(DirectoryPattern {
            path: "/srv/*/nixl".into(),
            label: None,
            literal: false,
        });
        assert_eq!(of(1 << 20, &config), (4096, 1024));
        assert_eq!(of(1024, &config), (1024 - 64 - 2 - 480, 240));
        assert_eq!(of(10, &config), (1, 0));
    }
}
