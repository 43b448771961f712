//! Which instances a client asks for (pmapi.h: pmProfile; libpcp: __pmInProfile).

/// Which instances are asked for.
#[derive(Debug)]
pub struct Profile {
    /// Whether those of other domains than these are.
    pub has_others: bool,
    /// Of some domains. The first of several of one number counts.
    pub indoms: Vec<IndomProfile>,
}

/// Which instances of a domain are asked for.
#[derive(Debug)]
pub struct IndomProfile {
    /// The domain's number.
    pub indom: u32,
    /// Whether those that are not listed are; of those that are, the opposite is true.
    pub has_others: bool,
    /// Instances in rising order.
    pub exceptions: Vec<i32>,
}

impl Default for Profile {
    /// All.
    fn default() -> Self {
        Self {
            has_others: true,
            indoms: Vec::new(),
        }
    }
}

impl Profile {
    /// Of an instance domain, whether an instance is asked for.
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
