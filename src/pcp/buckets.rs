//! The instance domains of histograms: an instance for each agent and range.
//!
//! They need no file of ids: an id is the agent's and the range's number in one ([`crate::totals::slots`]).

use super::ffi::Instances;
use crate::agents::agent::Agent;
use crate::metrics::{BANDWIDTHS, LATENCIES, SIZES, TIMES_UP_TO};
use crate::state::record::HIGHEST_ID;
use crate::totals::account::{BANDWIDTH, SIZE};
use crate::totals::ranges::Ranges;
use crate::totals::slots::{SLOTS, Slots};
use std::collections::HashSet;
use std::ffi::CString;

/// How many ids an agent has in each.
const NUMBERS: u32 = 64;
const _: () = assert!(i32::MAX as u32 / NUMBERS >= HIGHEST_ID && SLOTS == NUMBERS as usize);

/// The agent's instance id in that of a range.
#[must_use]
pub fn agent(inst: u32) -> u32 {
    inst / NUMBERS
}

/// Which range of those that there are now has this instance id in the domain of this serial number.
#[must_use]
pub fn bucket(serial: u32, slots: &Slots, inst: u32) -> Option<usize> {
    let number = inst % NUMBERS;
    match serial {
        TIMES_UP_TO => slots.range_up_to(number),
        _ => slots.range(number),
    }
}

/// The reverse, of an agent's range; `None`: PCP's ids, of 31 bits, do not go so far.
#[must_use]
pub fn instance(serial: u32, agent: u32, slots: &Slots, bucket: usize) -> Option<u32> {
    let number = match serial {
        TIMES_UP_TO => slots.number_up_to(bucket),
        _ => slots.number(bucket),
    };
    let id = agent.checked_mul(NUMBERS)?.checked_add(number?)?;
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
    fn add(&mut self, agent: u32, name: &str, ranges: &Ranges, slots: &Slots) {
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
                let id = instance(self.serial, agent, slots, bucket)?;
                Some((i32::try_from(id).ok()?, CString::new(name).ok()?))
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
            let agent = agent(id.unsigned_abs());
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
    others: [(Domain, Ranges, Slots); 2],
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
            others: [(SIZES, SIZE), (BANDWIDTHS, BANDWIDTH)].map(|(serial, bounds)| {
                let ranges = Ranges::of(&bounds);
                (domain(serial), ranges, Slots::of(&ranges))
            }),
        }
    }

    /// The ranges that an agent has in one of them, by its serial number, and what their numbers are.
    #[must_use]
    pub fn ranges<'a>(&'a self, serial: u32, agent: &'a Agent) -> (&'a Ranges, &'a Slots) {
        let mut others = self.others.iter();
        let other = others.find(|(domain, ..)| domain.serial == serial);
        other.map_or_else(
            || (agent.ranges(), agent.slots()),
            |(_, ranges, slots)| (ranges, slots),
        )
    }

    /// An agent is an instance now, with its ranges in those where it has none.
    pub fn add(&mut self, id: u32, agent: &Agent) {
        self.insert(id, &agent.name.instance, agent.ranges(), agent.slots());
    }

    fn insert(&mut self, id: u32, name: &str, latencies: &Ranges, numbers: &Slots) {
        for domain in &mut self.latencies {
            domain.add(id, name, latencies, numbers);
        }
        for (domain, ranges, slots) in &mut self.others {
            domain.add(id, name, ranges, slots);
        }
    }

    /// These have other ranges of times from now on.
    pub fn remove_latencies(&mut self, agents: &HashSet<u32>) {
        if !agents.is_empty() {
            let all = self.latencies.iter_mut();
            all.for_each(|domain| domain.remove(agents));
        }
    }

    /// These are none any more.
    pub fn remove(&mut self, agents: &HashSet<u32>) {
        if !agents.is_empty() {
            self.remove_latencies(agents);
            let others = self.others.iter_mut();
            others.for_each(|(domain, ..)| domain.remove(agents));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::totals::histogram::Bounds;

    fn names(indoms: &BucketIndoms) -> Vec<Vec<(i32, String)>> {
        let others = indoms.others.iter().map(|(domain, ..)| domain);
        let all = indoms.latencies.iter().chain(others);
        all.map(|domain| domain.instances.list()).collect()
    }

    fn nixls() -> Ranges {
        Ranges::of(&Bounds::latency())
    }

    fn indoms() -> BucketIndoms {
        BucketIndoms::new(|_| Instances::alone())
    }

    fn add(indoms: &mut BucketIndoms, id: u32, name: &str, ranges: &Ranges) {
        indoms.insert(id, name, ranges, &Slots::of(ranges));
    }

    #[test]
    fn an_id_tells_the_agent_and_the_range() {
        let slots = Slots::of(&nixls());
        for serial in [LATENCIES, TIMES_UP_TO] {
            let id = |agent| instance(serial, agent, &slots, 18);
            assert_eq!(id(7), Some(7 * 64 + 18));
            assert_eq!(id((1 << 25) - 1), Some((u32::MAX >> 1) - 63 + 18));
            assert_eq!(id(1 << 25), None);
            assert_eq!(agent(7 * 64 + 18), 7);
            assert_eq!(bucket(serial, &slots, 7 * 64 + 18), Some(18));
            assert_eq!(bucket(serial, &slots, 7 * 64 + 19), None);
            assert_eq!(instance(serial, 7, &slots, 19), None);
        }
    }

    #[test]
    fn agents_come_and_go_and_the_others_stay_as_they_were() {
        let mut indoms = indoms();
        for (id, name) in [(3, "a"), (1, "b"), (9, "c")] {
            add(&mut indoms, id, name, &nixls());
            add(&mut indoms, id, name, &nixls());
        }
        indoms.remove(&[3].into());
        indoms.remove(&[3].into());
        add(&mut indoms, 4, "d", &Ranges::default());
        indoms.remove(&[4].into());
        let mut alone = self::indoms();
        add(&mut alone, 1, "b", &nixls());
        add(&mut alone, 9, "c", &nixls());
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
        let mut slots = Slots::of(&ranges(&[5.0]));
        add(&mut indoms, 0, "a", &ranges(&[5.0]));
        add(&mut indoms, 1, "b", &ranges(&[0.5, 7.0]));
        indoms.remove_latencies(&[0].into());
        slots.take(&ranges(&[4.0, 5.0])).expect("room");
        indoms.insert(0, "a", &ranges(&[4.0, 5.0]), &slots);
        let expected = [
            (64, "b::0-0.5"),
            (65, "b::0.5-7"),
            (66, "b::7-inf"),
            (2, "a::0-4"),
            (3, "a::4-5"),
            (1, "a::5-inf"),
        ];
        let expected = expected.map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&indoms)[0], expected);
        let up_to = [(2, "a::le-4"), (0, "a::le-5"), (1, "a::le-inf")];
        let up_to = up_to.map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&indoms)[1][3..], up_to);
        indoms.remove(&[1].into());
        assert_eq!(
            [0, 1, 2].map(|domain| names(&indoms)[domain].len()),
            [3, 3, 13]
        );
    }
}
