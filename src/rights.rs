// SPDX-License-Identifier: GPL-2.0-or-later

//! Rights of the daemon: the user that it becomes, its capabilities, and the directories that it may use.
//!
//! The first valid configuration decides them ([`enter`]), for as long as the process runs. Before it, no capability is
//! in effect ([`privilege::suspend`]).

use crate::accounts;
use crate::config::Config;
use caps::CapsHashSet;
use confine::OwnPaths;
use nix::unistd::geteuid;
use privilege::NotAllowed;

pub mod confine;
pub mod privilege;

/// Rights that a process has after [`enter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Uid that the process was started with. It keeps this uid if no user is configured.
    started_as: u32,
    /// Capabilities that it was started with.
    had: CapsHashSet,
    /// What the process has, in words, each with the keys of the configuration that decide it.
    of_keys: [(&'static str, String); 5],
}

/// Reason why a running process cannot take over a configuration.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; the rights of a running PMDA stay as they are: run ./Install in $PCP_PMDAS_DIR/nixl, which starts it with this configuration"
)]
pub struct OtherRights(String);

impl Rights {
    /// Returns the rights that a process has with a configuration. `had`: the capabilities that were permitted before.
    #[must_use]
    pub fn of(config: &Config, started_as: u32, had: CapsHashSet) -> Self {
        let user = config.user.as_ref();
        let uid = user.map_or(started_as, |account| account.uid);
        let needed = privilege::needed(uid, config).into_iter();
        let observer = match config.proc_facts {
            true => "an observer",
            false => "no observer",
        };
        Self {
            of_keys: [
                ("user", format!("uid {uid}")),
                ("proc_facts", observer.into()),
                (
                    "trace",
                    match config.traces() {
                        true => "a tracer".into(),
                        false => "no tracer".into(),
                    },
                ),
                (
                    "owners, observe, telemetry_dir or remove_exited_after",
                    privilege::names(needed.filter(|cap| had.contains(cap))),
                ),
                (
                    "telemetry_dir, multiproc_dir, observe or remove_exited_after",
                    confine::in_words(config),
                ),
            ],
            started_as,
            had,
        }
    }

    /// Checks that a process with these rights has those that another configuration gives, no more and no less.
    ///
    /// # Errors
    /// The first difference, with the keys that can cause it.
    pub fn allow(&self, config: &Config) -> Result<(), OtherRights> {
        let other = Self::of(config, self.started_as, self.had.clone());
        let mut pairs = self.of_keys.iter().zip(&other.of_keys);
        match pairs.find(|(own, other)| own != other) {
            None => Ok(()),
            Some(((keys, own), (_, other))) => Err(OtherRights(format!(
                "{keys}: the PMDA has {own}, and needs {other}"
            ))),
        }
    }
}

/// Becomes the configured user, gives up all rights that the work does not need, and locks the process into its
/// directories. `before_limit` is called as the user, before any capability is given up. Returns a text with the user,
/// the capabilities and the lock.
///
/// # Errors
/// The kernel does not allow the user.
pub fn enter(
    config: &Config,
    own: &OwnPaths,
    before_limit: impl FnOnce(),
) -> Result<String, NotAllowed> {
    privilege::limit(config, before_limit)?;
    let user = match &config.user {
        Some(account) => account.name.clone(),
        None => accounts::local_name(geteuid().as_raw()),
    };
    let capabilities = privilege::in_force();
    let locked = confine::confine(config, own);
    let locked = locked.unwrap_or_else(|err| format!("not locked in: {err}"));
    Ok(format!("{user} with {capabilities}, {locked}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DirectoryPattern, UserAccount};
    use std::time::Duration;

    /// Returns the configuration of a user other than root, changed.
    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config {
            user: Some(UserAccount {
                name: "x".into(),
                uid: 4242,
                gid: 1,
                groups: Vec::new(),
            }),
            ..Config::default()
        };
        change(&mut config);
        config
    }

    #[test]
    fn configuration_that_needs_other_rights_is_not_allowed() {
        let removes = |config: &mut Config| config.remove_exited_after = Some(Duration::ZERO);
        let elsewhere = |config: &mut Config| {
            config.telemetry_dir = vec![DirectoryPattern::of("/elsewhere")];
        };
        let configs = [
            config(|_| ()),
            config(|config| config.user = None),
            config(|config| config.observe = true),
            config(|config| config.owners = Some(vec![4242])),
            config(removes),
            config(|config| config.proc_facts = false),
            config(|config| config.trace = true),
            config(elsewhere),
        ];
        for (at, before) in configs.iter().enumerate() {
            for (other_at, now) in configs.iter().enumerate() {
                let allowed = Rights::of(before, 0, caps::all()).allow(now);
                assert_eq!(allowed.is_ok(), at == other_at, "{before:?}\n{now:?}");
                if let Err(err) = allowed {
                    assert!(err.to_string().contains("run ./Install"), "{err}");
                }
            }
        }
    }

    #[test]
    fn configuration_that_needs_the_same_rights_is_allowed() {
        let rights = Rights::of(&config(|_| ()), 0, caps::all());
        for now in [
            config(|config| config.retain = Duration::ZERO),
            config(|config| config.owners = Some(vec![1, 2])),
            config(|config| config.transport = false),
        ] {
            assert!(rights.allow(&now).is_ok(), "{now:?}");
        }
        // Without a user the process stays as it was started.
        let by_name = Rights::of(&config(|_| ()), 4242, caps::all());
        assert!(by_name.allow(&config(|config| config.user = None)).is_ok());
        // What the process never had cannot be missing.
        let without = Rights::of(
            &config(|config| config.user = None),
            4242,
            CapsHashSet::new(),
        );
        let own = config(|config| (config.user, config.owners) = (None, Some(vec![4242])));
        assert!(without.allow(&own).is_ok());
    }
}
