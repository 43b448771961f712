//! Fetch profile: which instances a client requests (pmapi.h: pmProfile; libpcp: __pmInProfile).

/// Instances that a client requests, for all instance domains.
#[derive(Debug)]
pub struct Profile {
    /// True if the instances of all domains that are not in `indoms` are requested.
    pub has_others: bool,
    /// Rules for some domains. If two have one number, the first one applies.
    pub indoms: Vec<IndomProfile>,
}

/// Instances that a client requests of one domain.
#[derive(Debug)]
pub struct IndomProfile {
    /// pmInDom of the domain.
    pub indom: u32,
    /// True if all instances but `exceptions` are requested; false if only `exceptions` are.
    pub has_others: bool,
    /// Instance ids in ascending order.
    pub exceptions: Vec<i32>,
}

impl Default for Profile {
    /// Requests all instances.
    fn default() -> Self {
        Self {
            has_others: true,
            indoms: Vec::new(),
        }
    }
}

impl Profile {
    /// Returns a function that returns true if an instance of this domain is requested.
    pub fn filter(&self, indom: u32) -> impl Fn(u32) -> bool {
        let found = self.indoms.iter().find(|profile| profile.indom == indom);
        let others = found.map_or(self.has_others, |profile| profile.has_others);
        let exceptions = found.map_or(&[][..], |profile| &profile.exceptions);
        move |instance| {
            let instance = i32::from_ne_bytes(instance.to_ne_bytes());
            others != exceptions.binary_search(&instance).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_includes_or_excludes_listed_instances() {
        let indoms = [
            (5, true, vec![]),
            (6, true, vec![-1, 3]),
            (7, false, vec![2, 2, 4]),
            (7, true, vec![]),
        ];
        let indoms = indoms.map(|(indom, has_others, exceptions)| IndomProfile {
            indom,
            has_others,
            exceptions,
        });
        let profile = Profile {
            has_others: false,
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
