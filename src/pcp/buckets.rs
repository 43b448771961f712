//! The instance domains of histograms: an instance for each agent and range.
//!
//! They need no file of ids: an id is the agent's and the range's in one.

use super::ffi::Instances;
use crate::metrics::{BANDWIDTHS, LATENCIES, SIZES, TIMES_UP_TO};
use crate::state::record::HIGHEST_ID;
use crate::totals::account::{BANDWIDTH, SIZE};
use crate::totals::ranges::Ranges;
use std::collections::HashSet;
use std::ffi::CString;

/// More ranges than a histogram can have.
const RANGES: u32 = 64;
const _: () = assert!(i32::MAX as u32 / RANGES >= HIGHEST_ID);

/// The agent's instance id, and which range it is.
#[must_use]
pub fn agent_and_bucket(inst: u32) -> (u32, usize) {
    (inst / RANGES, (inst % RANGES) as usize)
}

/// An instance's id; `None`: PCP's ids, of 31 bits, do not go so far.
#[must_use]
pub fn instance(agent: u32, bucket: usize) -> Option<u32> {
    let bucket = u32::try_from(bucket).ok()?;
    let id = agent.checked_mul(RANGES)?.checked_add(bucket)?;
    i32::try_from(id).is_ok().then_some(id)
}

/// One of them.
#[derive(Debug)]
struct Domain {
    serial: u32,
    /// The ranges of one agent after those of another.
    instances: Instances,
    agents: HashSet<u32>,
}

impl Domain {
    fn add(&mut self, agent: u32, name: &str, ranges: &Ranges) {
        let suffix = |bucket| match self.serial {
            TIMES_UP_TO => ranges.up_to(bucket),
            _ => ranges.suffix(bucket),
        };
        if self.agents.contains(&agent) {
            return;
        }
        let all: Option<Vec<(i32, CString)>> = (0..ranges.count())
            .map(|bucket| {
                let name = format!("{name}::{}", suffix(bucket));
                Some((
                    i32::try_from(instance(agent, bucket)?).ok()?,
                    CString::new(name).ok()?,
                ))
            })
            .collect();
        let Some(all) = all else {
            tracing::error!("agent {name} cannot have histograms: its instance id is {agent}");
            return;
        };
        for (id, name) in all {
            self.instances.push(id, name);
        }
        self.agents.insert(agent);
    }

    /// In one pass, however many leave at a time. It is asked once of each agent, whose ranges stand together: there are tens of
    /// thousands of them.
    fn remove(&mut self, agents: &HashSet<u32>) {
        self.agents.retain(|agent| !agents.contains(agent));
        let mut last = None;
        self.instances.retain(|id| {
            let (agent, _) = agent_and_bucket(id.unsigned_abs());
            match last {
                Some((known, stays)) if known == agent => stays,
                _ => {
                    let stays = !agents.contains(&agent);
                    last = Some((agent, stays));
                    stays
                }
            }
        });
    }
}

/// All of them.
#[derive(Debug)]
pub struct BucketIndoms {
    /// Each agent has ranges of its own, the same in both.
    latencies: [Domain; 2],
    /// These have the same for all agents.
    others: [(Domain, Ranges); 2],
}

impl BucketIndoms {
    /// No instances yet. `instances` gives an empty instance domain by its serial number.
    pub fn new(mut instances: impl FnMut(u32) -> Instances) -> Self {
        let mut domain = |serial| Domain {
            serial,
            instances: instances(serial),
            agents: HashSet::new(),
        };
        Self {
            latencies: [LATENCIES, TIMES_UP_TO].map(&mut domain),
            others: [(SIZES, SIZE), (BANDWIDTHS, BANDWIDTH)]
                .map(|(serial, bounds)| (domain(serial), Ranges::of(&bounds))),
        }
    }

    /// The ranges of one whose agents all have the same, by its serial number.
    #[must_use]
    pub fn ranges(&self, serial: u32) -> Option<&Ranges> {
        let mut others = self.others.iter();
        let (_, ranges) = others.find(|(domain, _)| domain.serial == serial)?;
        Some(ranges)
    }

    /// An agent is an instance now. `latencies` are the ranges of its transfers' times.
    pub fn add(&mut self, agent: u32, name: &str, latencies: &Ranges) {
        for domain in &mut self.latencies {
            domain.add(agent, name, latencies);
        }
        for (domain, ranges) in &mut self.others {
            domain.add(agent, name, ranges);
        }
    }

    /// It has others now.
    pub fn set_latencies(&mut self, agent: u32, name: &str, latencies: &Ranges) {
        for domain in &mut self.latencies {
            domain.remove(&[agent].into());
            domain.add(agent, name, latencies);
        }
    }

    /// These are none any more.
    pub fn remove(&mut self, agents: &HashSet<u32>) {
        if agents.is_empty() {
            return;
        }
        let others = self.others.iter_mut().map(|(domain, _)| domain);
        let all = self.latencies.iter_mut().chain(others);
        all.for_each(|domain| domain.remove(agents));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::totals::histogram::Bounds;

    fn names(indoms: &BucketIndoms) -> Vec<Vec<(i32, String)>> {
        let others = indoms.others.iter().map(|(domain, _)| domain);
        let all = indoms.latencies.iter().chain(others);
        all.map(|domain| domain.instances.list()).collect()
    }

    fn nixls() -> Ranges {
        Ranges::of(&Bounds::latency())
    }

    fn indoms() -> BucketIndoms {
        BucketIndoms::new(|_| Instances::alone())
    }

    #[test]
    fn an_id_tells_the_agent_and_the_range() {
        assert_eq!(instance(7, 18), Some(7 * 64 + 18));
        assert_eq!(agent_and_bucket(7 * 64 + 18), (7, 18));
        assert_eq!(instance((1 << 25) - 1, 63), Some(u32::MAX >> 1));
        assert_eq!(instance(1 << 25, 0), None);
    }

    #[test]
    fn agents_come_and_go_and_the_others_stay_as_they_were() {
        let mut indoms = indoms();
        for (id, name) in [(3, "a"), (1, "b"), (9, "c")] {
            indoms.add(id, name, &nixls());
            indoms.add(id, name, &nixls());
        }
        indoms.remove(&[3].into());
        indoms.remove(&[3].into());
        indoms.add(4, "d", &Ranges::default());
        indoms.remove(&[4].into());
        let mut alone = self::indoms();
        alone.add(1, "b", &nixls());
        alone.add(9, "c", &nixls());
        assert_eq!(names(&indoms), names(&alone));
        let [latencies, up_to, sizes, bandwidths] = &names(&indoms)[..] else {
            panic!("four")
        };
        assert_eq!(
            [latencies, up_to, sizes, bandwidths].map(Vec::len),
            [2 * 19, 2 * 19, 2 * 13, 2 * 21]
        );
        assert_eq!(up_to[19], (9 * 64, "c::le-10".into()));
        assert_eq!(up_to[18], (64 + 18, "b::le-inf".into()));
        assert_eq!(latencies[19], (9 * 64, "c::0-10".into()));
        assert_eq!(latencies[18], (64 + 18, "b::10000000-inf".into()));
        assert_eq!(sizes[1], (64 + 1, "b::2048-8192".into()));
    }

    #[test]
    fn each_agent_has_ranges_of_its_own_and_may_get_others() {
        let mut indoms = indoms();
        let ranges = |bounds: &[f64]| Ranges::new(bounds).expect("good");
        indoms.add(0, "a", &ranges(&[5.0]));
        indoms.add(1, "b", &ranges(&[0.5, 7.0]));
        indoms.set_latencies(0, "a", &ranges(&[6.0]));
        let expected = ["b::0-0.5", "b::0.5-7", "b::7-inf", "a::0-6", "a::6-inf"];
        let found: Vec<String> = names(&indoms)[0]
            .iter()
            .map(|(_, name)| name.clone())
            .collect();
        assert_eq!(found, expected);
        indoms.remove(&[1].into());
        assert_eq!([0, 1].map(|domain| names(&indoms)[domain].len()), [2, 2]);
    }
}
