// SPDX-License-Identifier: GPL-2.0-or-later

//! Peers of an agent by TCP.

use crate::observer::protocol::Traffic;
use crate::transport::ids::ClockIds;
use std::net::IpAddr;

/// Limit of peers of an agent that have a row: those with the most bytes.
pub const MAX_PUBLISHED_PEERS: usize = 16;
/// Limit of other peers whose traffic is kept. A peer that has a row again goes on from its last value.
const MAX_KEPT: usize = 256;

/// Peer of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address.
    pub address: IpAddr,
    /// Traffic since the peer was first seen, or was forgotten.
    pub traffic: Traffic,
    /// Instance id. `None`: the peer never had a row.
    pub instance: Option<u32>,
}

/// Peers of an agent.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Peers with a row.
    all: Vec<Peer>,
    /// Other peers. The counters of those that had a row must not go back.
    others: Vec<Peer>,
}

impl Peers {
    /// Adds the traffic since the last reading. Peers that have a row for the first time get their ids from `ids`.
    pub fn add(&mut self, reading: &[(IpAddr, Traffic)], ids: &mut ClockIds) {
        for &(address, traffic) in reading {
            if let Some(peer) = self.all.iter_mut().find(|peer| peer.address == address) {
                peer.traffic += traffic;
                continue;
            }
            let known = self.others.iter().position(|one| one.address == address);
            let mut peer = match known {
                Some(at) => self.others.swap_remove(at),
                None => Peer {
                    address,
                    traffic: Traffic::default(),
                    instance: None,
                },
            };
            peer.traffic += traffic;
            let without_row = self.insert(peer);
            self.others.extend(without_row);
        }
        // Not before: a peer can have a row for a moment while a reading is added.
        for peer in &mut self.all {
            peer.instance.get_or_insert_with(|| ids.draw());
        }
        if self.others.len() > MAX_KEPT {
            let had_row = |peer: &Peer| peer.instance.is_some();
            self.others
                .sort_by_key(|one| std::cmp::Reverse((had_row(one), one.traffic.bytes())));
            self.others.truncate(MAX_KEPT);
        }
    }

    /// Gives a peer a row. Returns the peer that has none now: this one, or one with fewer bytes.
    fn insert(&mut self, peer: Peer) -> Option<Peer> {
        if self.all.len() < MAX_PUBLISHED_PEERS {
            self.all.push(peer);
            return None;
        }
        let least = self
            .all
            .iter_mut()
            .min_by_key(|peer| peer.traffic.bytes())?;
        if least.traffic.bytes() >= peer.traffic.bytes() {
            return Some(peer);
        }
        Some(std::mem::replace(least, peer))
    }

    /// Returns the peers that have a row.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter()
    }

    /// Returns the peer with an instance id.
    #[must_use]
    pub fn get(&self, instance: u32) -> Option<&Peer> {
        self.all.iter().find(|peer| peer.instance == Some(instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn reading(range: std::ops::Range<u8>) -> Vec<(IpAddr, Traffic)> {
        let traffic = Traffic {
            sent: 1,
            received: 2,
            retransmits: 3,
        };
        range
            .map(|last| ([10, 0, 0, last].into(), traffic))
            .collect()
    }

    #[test]
    fn traffic_of_a_peer_adds_up() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(0..2));
        add(&mut peers, &reading(1..2));
        let found: Vec<_> = peers.iter().map(|peer| peer.traffic.sent).collect();
        assert_eq!(found, [1, 2]);
        let instance = peers.iter().nth(1).and_then(|peer| peer.instance);
        let instance = instance.expect("an id");
        let found = peers.get(instance).map(|peer| peer.traffic.retransmits);
        assert_eq!((found, peers.get(63)), (Some(6), None));
    }

    fn add(peers: &mut Peers, reading: &[(IpAddr, Traffic)]) {
        peers.add(reading, &mut ClockIds::default());
    }

    /// Sums of the peers with a row, by the last byte of their address.
    fn sums(peers: &Peers) -> Vec<(u8, u64)> {
        let last = |peer: &Peer| match peer.address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => unreachable!("none is added"),
        };
        let mut sums: Vec<_> = { peers.iter() }
            .map(|peer| (last(peer), peer.traffic.sent))
            .collect();
        sums.sort_unstable();
        sums
    }

    #[test]
    fn peers_with_the_most_bytes_have_rows() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(0..16));
        // As many bytes do not displace a peer, also one without a connection.
        add(&mut peers, &reading(16..250));
        assert_eq!(
            sums(&peers),
            (0..16).map(|last| (last, 1)).collect::<Vec<_>>()
        );
        for _ in 0..3 {
            add(&mut peers, &reading(20..21));
        }
        assert!(sums(&peers).contains(&(20, 4)), "also those without a row");
        assert_eq!(peers.iter().count(), MAX_PUBLISHED_PEERS);
    }

    #[test]
    fn counters_of_a_displaced_peer_go_on_when_it_returns() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(0..1));
        for _ in 0..2 {
            add(&mut peers, &reading(1..17));
        }
        assert!(!sums(&peers).iter().any(|(last, _)| *last == 0));
        add(&mut peers, &reading(0..1));
        add(&mut peers, &reading(0..1));
        assert!(sums(&peers).contains(&(0, 3)), "{:?}", sums(&peers));
    }

    #[test]
    fn peers_with_few_bytes_that_never_had_a_row_are_forgotten_first() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(0..1));
        for _ in 0..3 {
            add(&mut peers, &reading(1..17));
        }
        // More bytes than the displaced one.
        for octet in 0..4 {
            let others = (0..=255).map(|last| ([10, 1, octet, last].into(), reading(0..1)[0].1));
            let others: Vec<_> = others.collect();
            add(&mut peers, &others);
            add(&mut peers, &others);
        }
        assert_eq!(peers.others.len(), MAX_KEPT);
        for _ in 0..3 {
            add(&mut peers, &reading(0..1));
        }
        assert!(sums(&peers).contains(&(0, 4)), "{:?}", sums(&peers));
    }

    #[test]
    fn peer_keeps_its_id_while_its_counters_go_on() {
        let mut ids = ClockIds::default();
        let instances = |peers: &Peers| -> BTreeMap<IpAddr, u32> {
            let with_id = |peer: &Peer| Some((peer.address, peer.instance?));
            peers.iter().filter_map(with_id).collect()
        };
        let mut peers = Peers::default();
        peers.add(&reading(0..1), &mut ids);
        let first = instances(&peers);
        for _ in 0..2 {
            peers.add(&reading(1..17), &mut ids);
        }
        let others = instances(&peers);
        let new = others
            .values()
            .all(|id| !first.values().any(|had| had == id));
        assert!(new && others.len() == MAX_PUBLISHED_PEERS, "{others:?}");
        for _ in 0..3 {
            peers.add(&reading(0..1), &mut ids);
        }
        let (address, id) = first.first_key_value().expect("one");
        assert_eq!(instances(&peers).get(address), Some(id));
        // In another agent or daemon the counters of the peer begin at zero.
        let mut next = Peers::default();
        next.add(&reading(0..1), &mut ids);
        assert_ne!(instances(&next), first);
    }
}
