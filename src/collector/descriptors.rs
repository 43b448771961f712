// SPDX-License-Identifier: GPL-2.0-or-later

//! Divides the descriptors that the process may have among files, directories and a reserve.

use crate::config::Config;
use nix::sys::resource::{Resource, getrlimit};

/// Bounds of the reserve, which is a quarter of the limit: pmcd, the log, the state file, and files and pipes that are
/// open for a moment. A daemon with one ring has about a dozen of these.
const LEAST_RESERVE: usize = 32;
const MOST_RESERVE: usize = 64;

/// Number of descriptors by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Limit of the process.
    limit: usize,
    /// Attached files.
    pub rings: usize,
    /// Directories that patterns match.
    directories: usize,
}

impl Descriptors {
    /// Returns what a configuration gets within the limit of this process. Logs a warning if that is too little.
    pub(super) fn of(config: &Config) -> Self {
        let room = Self::within(own_limit(), config);
        if let Some(warning) = room.warning(config) {
            tracing::warn!("{warning}");
        }
        room
    }

    /// Returns what a configuration gets within a limit.
    #[must_use]
    pub fn within(limit: usize, config: &Config) -> Self {
        let room = limit.saturating_sub((limit / 4).clamp(LEAST_RESERVE, MOST_RESERVE));
        let patterns = config.telemetry_dir.iter().chain(&config.multiproc_dir);
        let (named, matched): (Vec<_>, Vec<_>) = patterns.partition(|pattern| pattern.literal);
        // A directory takes two descriptors, so that they get at most half: it is kept open, and opened to be listed.
        let directories = match matched.is_empty() {
            true => 0,
            false => config.max_directories.min(room / 4),
        };
        let rings = room.saturating_sub(2 * (named.len() + directories));
        Self {
            limit,
            rings: config.max_agents.min(rings.max(1)),
            directories,
        }
    }

    /// Returns a warning if there are fewer descriptors than the configuration allows agents.
    #[must_use]
    pub fn warning(self, config: &Config) -> Option<String> {
        let Self { limit, rings, .. } = self;
        (rings < config.max_agents).then(|| {
            format!(
                "max_agents is {}, but only {limit} files may be open; at most {rings} rings and stores are attached; raise the limit of pmcd's service (LimitNOFILE), or lower max_agents",
                config.max_agents
            )
        })
    }

    /// Returns the configuration with no more directories than there are descriptors for.
    #[must_use]
    pub fn limit(self, config: &Config) -> Config {
        Config {
            max_directories: self.directories,
            ..config.clone()
        }
    }
}

/// Returns the limit of open files of this process.
#[must_use]
pub fn own_limit() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPattern;

    #[test]
    fn directories_leave_half_of_the_descriptors_to_rings() {
        let mut config = Config::default();
        let of = |limit, config: &Config| {
            let room = Descriptors::within(limit, config);
            (room.rings, room.directories)
        };
        assert_eq!(of(1 << 20, &config), (4096, 0));
        assert_eq!(of(1024, &config), (1024 - 64 - 2, 0));
        // The reserve is smaller if the limit is.
        assert_eq!(of(64, &config), (64 - 32 - 2, 0));
        assert_eq!(of(200, &config), (200 - 50 - 2, 0));
        config
            .telemetry_dir
            .push(DirectoryPattern::of("/srv/*/nixl"));
        assert_eq!(of(1 << 20, &config), (4096, 1024));
        assert_eq!(of(1024, &config), (1024 - 64 - 2 - 480, 240));
        assert_eq!(of(10, &config), (1, 0));
    }

    #[test]
    fn too_few_descriptors_for_the_agents_give_a_warning() {
        let config = Config::default();
        assert_eq!(Descriptors::within(1 << 20, &config).warning(&config), None);
        let warning = Descriptors::within(1024, &config).warning(&config);
        let warning = warning.expect("4,096 agents need more");
        for part in ["max_agents is 4096", "only 1024 files", "at most 958 rings"] {
            assert!(warning.contains(part), "{warning}");
        }
    }
}
