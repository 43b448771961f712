//! Which instances a client asks for (pmapi.h: pmProfile; libpcp: __pmInProfile).

/// Which instances are asked for.
#[derive(Debug)]
pub struct Profile {
    /// Whether those of other domains than these are.
    pub others: bool,
    /// Of some domains. The first of several of one number counts.
    pub domains: Vec<AskedOf>,
}

/// Which instances of a domain are asked for.
#[derive(Debug)]
pub struct AskedOf {
    /// The domain's number.
    pub indom: u32,
    /// Whether those that are not listed are; of those that are, the opposite is true.
    pub others: bool,
    /// Instances in rising order.
    pub listed: Vec<i32>,
}

impl Default for Profile {
    /// All.
    fn default() -> Self {
        Self {
            others: true,
            domains: Vec::new(),
        }
    }
}

impl Profile {
    /// Of an instance domain, whether an instance is asked for.
    pub fn of(&self, indom: u32) -> impl Fn(u32) -> bool {
        let found = self.domains.iter().find(|asked| asked.indom == indom);
        let others = found.map_or(self.others, |asked| asked.others);
        let listed = found.map_or(&[][..], |asked| &asked.listed);
        move |instance| {
            let instance = i32::from_ne_bytes(instance.to_ne_bytes());
            others != listed.binary_search(&instance).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_lists_who_is_asked_for_or_who_is_not() {
        let domains = [
            (5, true, vec![]),
            (6, true, vec![-1, 3]),
            (7, false, vec![2, 2, 4]),
            (7, true, vec![]),
        ];
        let domains = domains.map(|(indom, others, listed)| AskedOf {
            indom,
            others,
            listed,
        });
        let profile = Profile {
            others: false,
            domains: domains.into(),
        };
        let asked = |indom| {
            (0..6)
                .filter(|&id| profile.of(indom)(id))
                .collect::<Vec<u32>>()
        };
        assert_eq!(asked(1), [0; 0]);
        assert_eq!(asked(5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(asked(6), [0, 1, 2, 4, 5]);
        assert_eq!(asked(7), [2, 4]);
        assert!(!profile.of(6)(u32::MAX) && Profile::default().of(9)(3));
    }
}
