// SPDX-License-Identifier: GPL-2.0-or-later

//! Peers of an agent by TCP.

use crate::observer::protocol::{PeerReading, Traffic};
use crate::transport::ids::ClockIds;
use std::cmp::Reverse;
use std::net::IpAddr;

/// Limit of peers of an agent that have a row: those with the most bytes.
pub const MAX_PUBLISHED_PEERS: usize = 16;
/// Limit of peers of an agent whose traffic is kept, with and without a row.
const MAX_PEERS: usize = 272;

/// Peer of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address.
    pub address: IpAddr,
    /// Traffic since the peer was first seen, or was forgotten.
    pub traffic: Traffic,
    /// Mean round-trip time of the last reading, in microseconds. `None`: no bytes were moved since the one before.
    pub rtt: Option<u64>,
    /// Instance id. `None`: the peer never had a row.
    pub instance: Option<u32>,
}

/// Peers of an agent, those with the most bytes first. One that is forgotten draws another id if it has a row again,
/// since its traffic begins at zero.
#[derive(Clone, Debug, Default)]
pub struct Peers(Vec<Peer>);

impl Peers {
    /// Adds a reading. Peers that have a row for the first time get their ids from `ids`.
    pub fn add(&mut self, reading: &[PeerReading], ids: &mut ClockIds) {
        for peer in &mut self.0 {
            peer.rtt = None;
        }
        for &PeerReading {
            address,
            traffic,
            rtt,
        } in reading
        {
            match self.0.iter_mut().find(|peer| peer.address == address) {
                Some(peer) => {
                    peer.traffic += traffic;
                    peer.rtt = rtt;
                }
                None => self.0.push(Peer {
                    address,
                    traffic,
                    rtt,
                    instance: None,
                }),
            }
        }
        // Stable: of equal peers, the one with a row keeps it.
        self.0.sort_by_key(|peer| Reverse(peer.traffic.bytes()));
        self.0.truncate(MAX_PEERS);
        for peer in self.0.iter_mut().take(MAX_PUBLISHED_PEERS) {
            peer.instance.get_or_insert_with(|| ids.draw());
        }
    }

    /// Returns the peers that have a row.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter().take(MAX_PUBLISHED_PEERS)
    }

    /// Returns the peer with an instance id.
    #[must_use]
    pub fn get(&self, instance: u32) -> Option<&Peer> {
        self.iter().find(|peer| peer.instance == Some(instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn reading(range: std::ops::Range<u8>) -> Vec<PeerReading> {
        let traffic = Traffic {
            sent: 1,
            received: 2,
            retransmits: 3,
        };
        range
            .map(|last| PeerReading {
                address: [10, 0, 0, last].into(),
                traffic,
                rtt: Some(last.into()),
            })
            .collect()
    }

    #[test]
    fn traffic_of_a_peer_adds_up() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(0..2));
        add(&mut peers, &reading(1..2));
        assert_eq!(sums(&peers), [(0, 1), (1, 2)]);
        let instance = peers.iter().next().and_then(|peer| peer.instance);
        let instance = instance.expect("an id");
        let found = peers.get(instance).map(|peer| peer.traffic.retransmits);
        assert_eq!((found, peers.get(63)), (Some(6), None));
    }

    #[test]
    fn round_trip_time_is_that_of_the_last_reading() {
        let mut peers = Peers::default();
        add(&mut peers, &reading(5..7));
        add(&mut peers, &reading(6..7));
        let mut times: Vec<_> = peers.iter().map(|peer| (peer.address, peer.rtt)).collect();
        times.sort_unstable();
        let of = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(times, [(of(5), None), (of(6), Some(6))]);
    }

    fn add(peers: &mut Peers, reading: &[PeerReading]) {
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
    fn rows_are_the_first_of_all_peers_by_bytes() {
        let (mut peers, mut all, mut random) = (Peers::default(), [0_u64; 200], 1_u64);
        for _ in 0..300 {
            let mut next = |limit: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                (random >> 33) % limit
            };
            let mut reading = Vec::new();
            for _ in 0..next(64) {
                let (last, sent) = (u8::try_from(next(200)).expect("small"), next(1 << 30));
                all[usize::from(last)] += sent;
                let traffic = Traffic {
                    sent,
                    ..Traffic::default()
                };
                reading.push(PeerReading {
                    address: [10, 0, 0, last].into(),
                    traffic,
                    rtt: None,
                });
            }
            add(&mut peers, &reading);
            let mut expected: Vec<_> = (0..200).zip(all).filter(|(_, sum)| *sum > 0).collect();
            expected.sort_by_key(|(_, sum)| Reverse(*sum));
            expected.truncate(MAX_PUBLISHED_PEERS);
            expected.sort_unstable();
            assert_eq!(sums(&peers), expected);
        }
    }

    #[test]
    fn forgotten_peer_begins_at_zero_with_another_id() {
        let (mut peers, mut ids) = (Peers::default(), ClockIds::default());
        peers.add(&reading(0..1), &mut ids);
        let first = peers.0[0].instance.expect("it has a row");
        let one = reading(0..1)[0];
        let others = (0..512_u16).map(|number| {
            let [high, low] = number.to_be_bytes();
            let address = [10, 1, high, low].into();
            PeerReading { address, ..one }
        });
        let others = Vec::from_iter(others);
        peers.add(&[&others[..], &others].concat(), &mut ids);
        assert_eq!(peers.0.len(), MAX_PEERS);
        peers.add(&reading(0..1).repeat(3), &mut ids);
        let again = peers.0[0];
        assert_eq!(
            (again.address, again.traffic.sent),
            ([10, 0, 0, 0].into(), 3)
        );
        assert!(again.instance.is_some_and(|id| id != first));
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
