// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains of histograms: one instance for each agent and bucket.
//!
//! Their instance ids need no file. An id is a base and the index of a bucket. The base for sizes and bandwidths is the
//! agent's instance id. The base for times is in the agent's record. It equals the instance id until the agent has
//! other bounds.

use super::ffi::Instances;
use crate::agents::Agent;
use crate::entry::HIGHEST_ID;
use crate::metrics::{BANDWIDTHS, CUMULATIVE_TIMES, LATENCIES, SIZES};
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::{Bounds, MAX_BUCKETS};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;

/// Instance ids per base. It is more than [`MAX_BUCKETS`].
const IDS_PER_BASE: u32 = 64;
const _: () =
    assert!(i32::MAX as u32 / IDS_PER_BASE >= HIGHEST_ID && MAX_BUCKETS < IDS_PER_BASE as usize);

/// Returns the index of the bucket that has this instance id. `None`: the agent has no such bucket.
#[must_use]
pub fn bucket_index(bounds: &BucketBounds, inst: u32) -> Option<usize> {
    let number = usize::try_from(inst % IDS_PER_BASE).ok();
    number.filter(|&number| number < bounds.bucket_count())
}

/// Returns the instance id of a bucket. `None`: it does not fit into the 31 bits of a PCP instance id.
#[must_use]
pub fn instance_id(base: u32, number: impl TryInto<u32>) -> Option<u32> {
    let number = number.try_into().ok()?;
    let id = base.checked_mul(IDS_PER_BASE)?.checked_add(number)?;
    i32::try_from(id).is_ok().then_some(id)
}

/// Instance domain of one kind of histogram.
#[derive(Debug)]
struct BucketIndom {
    serial: u32,
    /// Buckets of all agents. `None`: each agent has its own.
    bounds: Option<BucketBounds>,
    /// Instances in contiguous groups, one group per agent.
    instances: Instances,
    /// Instance id of each agent, by base.
    agents: HashMap<u32, u32>,
}

impl BucketIndom {
    /// Returns base and buckets of the agent with instance id `id`. `times` are those of its times, which this domain
    /// may not use. `None`: it has no instances here yet.
    fn base_and_bounds<'a>(
        &'a self,
        id: u32,
        times: Option<(u32, &'a BucketBounds)>,
    ) -> Option<(u32, &'a BucketBounds)> {
        self.bounds
            .as_ref()
            .map_or(times, |bounds| Some((id, bounds)))
    }

    fn add(&mut self, id: u32, name: &str, times: Option<(u32, &BucketBounds)>) {
        let Some((base, bounds)) = self.base_and_bounds(id, times) else {
            return;
        };
        if self.agents.contains_key(&base) {
            return;
        }
        let suffix = |bucket| match self.serial {
            CUMULATIVE_TIMES => bounds.le_suffix(bucket),
            _ => bounds.suffix(bucket),
        };
        // All fit: `HIGHEST_ID` leaves room for buckets, and no agent has a NUL in its name.
        let all = (0..bounds.bucket_count()).filter_map(|bucket| {
            let name = CString::new(format!("{name}::{}", suffix(bucket)));
            Some((i32::try_from(instance_id(base, bucket)?).ok()?, name.ok()?))
        });
        for (id, name) in Vec::from_iter(all) {
            self.instances.push(id, name);
        }
        self.agents.insert(base, id);
    }

    /// Removes the instances of agents at once, because a domain can have tens of thousands of instances. The
    /// instances of an agent are contiguous, so each agent is looked up once.
    fn remove(&mut self, removed: &HashSet<u32>) {
        self.agents.retain(|_, id| !removed.contains(id));
        let mut last = None;
        self.instances.retain(|id| {
            let base = id.unsigned_abs() / IDS_PER_BASE;
            match last {
                Some((known, stays)) if known == base => stays,
                _ => {
                    let stays = self.agents.contains_key(&base);
                    last = Some((base, stays));
                    stays
                }
            }
        });
    }
}

/// The instance domains of histograms.
#[derive(Debug)]
pub struct BucketIndoms([BucketIndom; 4]);

impl BucketIndoms {
    /// Creates the domains without instances. `instances` returns an empty instance domain by its serial number.
    pub fn new(mut instances: impl FnMut(u32) -> Instances) -> Self {
        let indoms = [
            (LATENCIES, None),
            (CUMULATIVE_TIMES, None),
            (SIZES, Some(Bounds::SIZE)),
            (BANDWIDTHS, Some(Bounds::BANDWIDTH)),
        ];
        Self(indoms.map(|(serial, bounds)| BucketIndom {
            serial,
            bounds: bounds.map(|bounds| BucketBounds::of(&bounds)),
            instances: instances(serial),
            agents: HashMap::new(),
        }))
    }

    fn indom(&self, serial: u32) -> Option<&BucketIndom> {
        self.0.iter().find(|indom| indom.serial == serial)
    }

    /// Returns base and buckets of the agent with instance id `id` in the domain `serial`. `None`: it has no instances
    /// there yet.
    #[must_use]
    pub fn base_and_bounds<'a>(
        &'a self,
        serial: u32,
        id: u32,
        agent: &'a Agent,
    ) -> Option<(u32, &'a BucketBounds)> {
        self.indom(serial)?.base_and_bounds(id, time_bounds(agent))
    }

    /// Returns the instance id of the agent that owns the instance `inst` of the domain `serial`.
    #[must_use]
    pub fn agent_id(&self, serial: u32, inst: u32) -> Option<u32> {
        let agents = &self.indom(serial)?.agents;
        agents.get(&(inst / IDS_PER_BASE)).copied()
    }

    /// Adds the buckets of a published agent to each domain that does not have them. `name` is its instance name, and
    /// `times` the result of [`time_bounds`].
    pub fn add(&mut self, id: u32, name: &str, times: Option<(u32, &BucketBounds)>) {
        for indom in &mut self.0 {
            indom.add(id, name, times);
        }
    }

    /// Removes the buckets of the agents with these instance ids.
    pub fn remove(&mut self, removed: &HashSet<u32>) {
        if !removed.is_empty() {
            self.0.iter_mut().for_each(|indom| indom.remove(removed));
        }
    }
}

/// Returns base and buckets of an agent's times. `None`: the agent has no base yet.
#[must_use]
pub fn time_bounds(agent: &Agent) -> Option<(u32, &BucketBounds)> {
    let stats = &agent.entry.stats;
    Some((stats.bucket_base?, stats.bucket_bounds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(indoms: &BucketIndoms) -> Vec<Vec<(i32, String)>> {
        let all = indoms.0.iter();
        all.map(|indom| indom.instances.list()).collect()
    }

    fn nixl_bounds() -> BucketBounds {
        BucketBounds::of(&Bounds::default())
    }

    fn indoms() -> BucketIndoms {
        BucketIndoms::new(|_| Instances::unregistered())
    }

    fn add(indoms: &mut BucketIndoms, id: u32, name: &str, bounds: &BucketBounds) {
        indoms.add(id, name, Some((id, bounds)));
    }

    #[test]
    fn instance_id_encodes_base_and_bucket() {
        assert_eq!(instance_id(7, 18), Some(7 * 64 + 18));
        assert_eq!(
            instance_id((1 << 25) - 1, 18),
            Some((u32::MAX >> 1) - 63 + 18)
        );
        assert_eq!(instance_id(1 << 25, 18), None);
        assert_eq!(bucket_index(&nixl_bounds(), 7 * 64 + 18), Some(18));
        assert_eq!(bucket_index(&nixl_bounds(), 7 * 64 + 19), None);
        let mut indoms = indoms();
        indoms.add(3, "a", Some((9, &nixl_bounds())));
        for serial in [LATENCIES, CUMULATIVE_TIMES] {
            assert_eq!(indoms.agent_id(serial, 9 * 64 + 18), Some(3));
            assert_eq!(indoms.agent_id(serial, 3 * 64), None);
        }
        assert_eq!(indoms.agent_id(SIZES, 3 * 64), Some(3));
        assert_eq!(indoms.agent_id(SIZES, 9 * 64), None);
    }

    #[test]
    fn removed_agent_leaves_other_instances_unchanged() {
        let mut indoms = indoms();
        for (id, name) in [(3, "a"), (1, "b"), (9, "c")] {
            add(&mut indoms, id, name, &nixl_bounds());
            add(&mut indoms, id, name, &nixl_bounds());
        }
        indoms.remove(&[3].into());
        indoms.remove(&[3].into());
        add(&mut indoms, 4, "d", &BucketBounds::default());
        indoms.remove(&[4].into());
        let mut alone = self::indoms();
        add(&mut alone, 1, "b", &nixl_bounds());
        add(&mut alone, 9, "c", &nixl_bounds());
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
    fn agent_with_new_bounds_gets_new_instances() {
        let mut indoms = indoms();
        let bounds = |bounds: &[f64]| BucketBounds::new(bounds).expect("good");
        add(&mut indoms, 0, "a", &bounds(&[5.0]));
        add(&mut indoms, 1, "b", &bounds(&[0.5, 7.0]));
        // An agent with other bounds is withdrawn and published again with another base.
        indoms.remove(&[0].into());
        indoms.add(0, "a", Some((2, &bounds(&[4.0, 5.0]))));
        let expected = [
            (64, "b::0-0.5"),
            (65, "b::0.5-7"),
            (66, "b::7-inf"),
            (128, "a::0-4"),
            (129, "a::4-5"),
            (130, "a::5-inf"),
        ];
        let expected = expected.map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&indoms)[0], expected);
        let up_to = [(128, "a::le-4"), (129, "a::le-5"), (130, "a::le-inf")];
        let up_to = up_to.map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&indoms)[1][3..], up_to);
        assert_eq!(names(&indoms)[2][13], (0, "a::0-2048".into()));
        indoms.remove(&[1].into());
        assert_eq!(
            [0, 1, 2].map(|indom| names(&indoms)[indom].len()),
            [3, 3, 13]
        );
    }
}
