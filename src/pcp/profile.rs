// SPDX-License-Identifier: GPL-2.0-or-later

//! Fetch profile: which instances a client requests (pmapi.h: pmProfile; libpcp: __pmInProfile).

/// Instances that a client requests, for all instance domains. The default requests all.
#[derive(Debug, Default)]
pub struct Profile {
    /// True if no instances of domains that are not in `indoms` are requested.
    pub excludes_others: bool,
    /// Rules for some domains. If two have one number, the first one applies.
    pub indoms: Vec<IndomProfile>,
}

/// Instances that a client requests of one domain.
#[derive(Debug)]
pub struct IndomProfile {
    /// pmInDom of the domain.
    pub indom: u32,
    /// True if only `exceptions` are requested; false if all other instances are.
    pub excludes_others: bool,
    /// Instance ids in ascending order.
    pub exceptions: Vec<i32>,
}

impl Profile {
    /// Returns a function that returns true if an instance of this domain is requested.
    pub fn filter(&self, indom: u32) -> impl Fn(u32) -> bool {
        let found = self.indoms.iter().find(|profile| profile.indom == indom);
        let excludes = found.map_or(self.excludes_others, |profile| profile.excludes_others);
        let exceptions = found.map_or(&[][..], |profile| &profile.exceptions);
        move |instance| {
            let instance = i32::from_ne_bytes(instance.to_ne_bytes());
            excludes == exceptions.binary_search(&instance).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_includes_or_excludes_listed_instances() {
        let indoms = [
            (5, false, vec![]),
            (6, false, vec![-1, 3]),
            (7, true, vec![2, 2, 4]),
            (7, false, vec![]),
        ];
        let indoms = indoms.map(|(indom, excludes_others, exceptions)| IndomProfile {
            indom,
            excludes_others,
            exceptions,
        });
        let profile = Profile {
            excludes_others: true,
            indoms: indoms.into(),
        };
        let requested = |indom| {
            (0..6)
                .filter(|&id| profile.filter(indom)(id))
                .collect::<Vec<u32>>()
        };
        assert_eq!(requested(1), [0; 0]);
        assert_eq!(requested(5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(requested(6), [0, 1, 2, 4, 5]);
        assert_eq!(requested(7), [2, 4]);
        assert!(!profile.filter(6)(u32::MAX) && Profile::default().filter(9)(3));
    }
}
