// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of a fetch.

use super::Server;
use crate::metrics::control::TraceCounts;
use crate::metrics::{
    self, AGENTS, CONTROL, HOST, HOST_ROLES, PEERS, PROCESSES, RECORDS, ROLE_TIMES, TIMELINE,
    TRACED, TRACED_TIMES, Value, ValueSource, peer_ratio,
};
use crate::pcp::answer::Answer;
use crate::pcp::profile::Profile;
use crate::pcp::role_times::RoleBucket;
use crate::pcp::{self, buckets, cluster_and_item, indom, sys};
use std::cell::LazyCell;

/// Instance of a value without instance domain (PM_IN_NULL, pmapi.h).
const NO_INSTANCE: u32 = u32::MAX;

impl Server {
    /// Writes the result of a fetch: for each metric the values of the requested instances. An instance without a value
    /// is left out. While another pmdanixl drains, all metrics but `nixl.control` and `nixl.events` get PM_ERR_AGAIN.
    pub fn answer(&mut self, client: i32, pmids: &[u32], profile: &Profile, answer: &mut Answer) {
        if self.is_serving() {
            self.control.activity = self.collector.activity();
            let traced = self.collector.traced();
            self.control.trace = TraceCounts {
                libraries: traced.libraries(),
                starts: Some(traced.starts).filter(|_| self.collector.traces()),
                lost: traced.lost(),
            };
            self.control.is_persistent = self.collector.is_persistent();
            let is_of_host = |&pmid: &u32| HOST.contains(&cluster_and_item(pmid).0);
            if pmids.iter().any(is_of_host) {
                self.control.agents = self.collector.counts();
            }
            if { pmids.iter() }.any(|&pmid| cluster_and_item(pmid).0 == HOST_ROLES) {
                self.collector.add_times();
            }
        }
        let records = pcp::pmid(self.domain, RECORDS.0, RECORDS.1);
        let records = { pmids.contains(&records) }.then(|| self.take_event_records(client));
        let all = || {
            let agents = self.indoms.agents.iter();
            agents.filter_map(|(id, key)| Some((id, self.collector.get(key)?)))
        };
        let is_requested = |serial| profile.filter(indom(self.domain, serial));
        // Computed once for all metrics with one value per agent.
        let requested = LazyCell::new(|| {
            let is_requested = is_requested(AGENTS);
            Vec::from_iter(all().filter(|(id, _)| is_requested(*id)))
        });
        answer.begin(pmids.len());
        for &pmid in pmids {
            answer.begin_set(pmid);
            let (cluster, item) = cluster_and_item(pmid);
            let is_ours = pmid == pcp::pmid(self.domain, cluster, item);
            let Some(metric) = metrics::find(cluster, item).filter(|_| is_ours) else {
                answer.set_error(sys::PM_ERR_PMID);
                continue;
            };
            if !self.is_serving() && ![CONTROL, TIMELINE].contains(&cluster) {
                answer.set_error(sys::PM_ERR_AGAIN);
                continue;
            }
            let mut push = |instance, value| {
                if let Some(value) = value {
                    answer.push(instance, value);
                }
            };
            match metric.source {
                ValueSource::Event(event) => {
                    for (id, agent) in &*requested {
                        push(*id, agent.counted(Value::U64(agent.total(event))));
                    }
                }
                ValueSource::Agent(get) => {
                    for (id, agent) in &*requested {
                        push(*id, get.value(agent));
                    }
                }
                ValueSource::PeerRatio => {
                    // Agents that are not requested are still peers.
                    let is_requested = is_requested(AGENTS);
                    for (id, ratio) in peer_ratio::of_agents(all()) {
                        push(id, Some(Value::F64(ratio)).filter(|_| is_requested(id)));
                    }
                }
                ValueSource::Buckets(of) | ValueSource::Cumulative(of) => {
                    let is_cumulative = matches!(metric.source, ValueSource::Cumulative(_));
                    let serial = metric.indom().unwrap_or_default();
                    let is_requested = is_requested(serial);
                    for (id, agent) in all() {
                        let buckets = &self.indoms.buckets;
                        let Some((base, bounds)) = buckets.base_and_bounds(serial, id, agent)
                        else {
                            continue;
                        };
                        let mut below = 0_u64;
                        for bucket in 0..bounds.bucket_count() {
                            let mut count = agent.bucket(of, bucket);
                            if let Some(sum) = count.as_mut().filter(|_| is_cumulative) {
                                *sum = sum.saturating_add(below);
                                below = *sum;
                            }
                            let instance = buckets::instance_id(base, bucket);
                            if let Some(instance) = instance.filter(|&one| is_requested(one)) {
                                push(instance, count.map(Value::U64));
                            }
                        }
                    }
                }
                ValueSource::Process(get) => {
                    let of = |key| get.value(self.process(key)?);
                    let values = self.indoms.processes.values(is_requested(PROCESSES), of);
                    values.for_each(|(id, value)| push(id, Some(value)));
                }
                ValueSource::Peer(get) => {
                    let of = |key| {
                        let (agent, peer) = self.peer(key)?;
                        get.value(peer).filter(|_| agent.transport.is_read)
                    };
                    let values = self.indoms.peers.values(is_requested(PEERS), of);
                    values.for_each(|(id, value)| push(id, Some(value)));
                }
                ValueSource::AgentOfPeer(get) => {
                    let of = |key| get.value(self.peer(key)?.0);
                    let values = self.indoms.peers.values(is_requested(PEERS), of);
                    values.for_each(|(id, value)| push(id, Some(value)));
                }
                ValueSource::Traced(get) => {
                    let of = |id| get.value(self.collector.traced().get(id)?);
                    let values = self.indoms.traced.values(is_requested(TRACED), of);
                    values.for_each(|(id, value)| push(id, Some(value)));
                }
                ValueSource::TracedTimes => {
                    let of = |(id, bucket)| self.collector.traced().get(id)?.up_to(bucket);
                    let times = &self.indoms.traced_times;
                    let values = times.values(is_requested(TRACED_TIMES), of);
                    values.for_each(|(id, value)| push(id, Some(Value::U64(value))));
                }
                ValueSource::RoleTimes(of) => {
                    let times = self.collector.role_times();
                    let get = |at: RoleBucket| times.up_to(at.role, of, at.bucket);
                    let values = self.indoms.role_times.values(is_requested(ROLE_TIMES), get);
                    values.for_each(|(id, value)| push(id, Some(Value::U64(value))));
                }
                ValueSource::Host(event) => {
                    let total = self.collector.host_total(event);
                    push(NO_INSTANCE, Some(Value::U64(total)));
                }
                ValueSource::Control(get) => push(NO_INSTANCE, get.value(&self.control)),
                ValueSource::Timeline(get) => {
                    push(NO_INSTANCE, get.value(self.collector.timeline()));
                }
                ValueSource::EventRecords => {
                    if let Some(block) = &records {
                        answer.push_block(NO_INSTANCE, block);
                    }
                }
            }
            answer.end_set();
        }
    }
}
