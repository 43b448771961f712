// SPDX-License-Identifier: GPL-2.0-or-later

//! Peers of an agent by TCP.

use crate::transport::protocol::Traffic;
use std::net::IpAddr;

/// Limit of peers of an agent that have a row: those with the most bytes.
pub const MAX_PUBLISHED_PEERS: usize = 16;
/// Limit of peers whose traffic is kept. A peer that has a row again goes on from its last value.
const MAX_KEPT: usize = 256;
/// Numbers for peers.
const NUMBERS: u32 = 64;

/// Peer of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address.
    pub address: IpAddr,
    /// Traffic since the peer was first seen, or was forgotten.
    pub traffic: Traffic,
    /// Number below 64, which no other peer of the agent has now.
    pub number: u32,
}

/// Peer without a row.
#[derive(Clone, Copy, Debug)]
struct OtherPeer {
    address: IpAddr,
    traffic: Traffic,
    /// True if it had a row. Its counters must not go back.
    had_row: bool,
}

/// Peers of an agent.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Peers with a row.
    all: Vec<Peer>,
    /// Other peers.
    others: Vec<OtherPeer>,
}

impl Peers {
    /// Adds the traffic since the last reading.
    pub fn add(&mut self, reading: &[(IpAddr, Traffic)]) {
        for &(address, traffic) in reading {
            if let Some(peer) = self.all.iter_mut().find(|peer| peer.address == address) {
                peer.traffic += traffic;
                continue;
            }
            let known = self.others.iter().position(|one| one.address == address);
            let mut peer = match known {
                Some(at) => self.others.swap_remove(at),
                None => OtherPeer {
                    address,
                    traffic: Traffic::default(),
                    had_row: false,
                },
            };
            peer.traffic += traffic;
            let without_row = self.insert(peer);
            self.others.extend(without_row);
        }
        if self.others.len() > MAX_KEPT {
            self.others
                .sort_by_key(|one| std::cmp::Reverse((one.had_row, one.traffic.bytes())));
            self.others.truncate(MAX_KEPT);
        }
    }

    /// Gives a peer a row. Returns the peer that has none now: this one, or one with fewer bytes.
    fn insert(&mut self, peer: OtherPeer) -> Option<OtherPeer> {
        let OtherPeer {
            address, traffic, ..
        } = peer;
        let mut displaced = None;
        if self.all.len() >= MAX_PUBLISHED_PEERS {
            let least =
                { self.all.iter().enumerate() }.min_by_key(|(_, peer)| peer.traffic.bytes());
            let (at, least) = least?;
            if least.traffic.bytes() >= traffic.bytes() {
                return Some(peer);
            }
            displaced = Some(OtherPeer {
                address: least.address,
                traffic: least.traffic,
                had_row: true,
            });
            self.all.remove(at);
        }
        // A peer has the same number after a restart of the daemon, unless another one has it.
        let first = first_number(address);
        let numbers = (0..NUMBERS).map(|step| (first + step) % NUMBERS);
        let is_free = |number: &u32| self.all.iter().all(|peer| peer.number != *number);
        let number = { numbers }.find(is_free)?;
        self.all.push(Peer {
            address,
            traffic,
            number,
        });
        displaced
    }

    /// Returns the peers that have a row.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter()
    }

    /// Returns the peer with a number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Peer> {
        self.all.iter().find(|peer| peer.number == number)
    }
}

/// Returns the number of a peer if no other has it: neighbouring addresses have different ones.
fn first_number(address: IpAddr) -> u32 {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let sum = |sum: u32, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    bytes.into_iter().fold(0, sum) % NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

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
        peers.add(&reading(0..2));
        peers.add(&reading(1..2));
        let found: Vec<_> = peers.iter().map(|peer| peer.traffic.sent).collect();
        assert_eq!(found, [1, 2]);
        let number = peers.iter().nth(1).expect("two").number;
        let found = peers.get(number).map(|peer| peer.traffic.retransmits);
        assert_eq!((found, peers.get(63)), (Some(6), None));
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
        peers.add(&reading(0..16));
        // As many bytes do not displace a peer, also one without a connection.
        peers.add(&reading(16..250));
        assert_eq!(
            sums(&peers),
            (0..16).map(|last| (last, 1)).collect::<Vec<_>>()
        );
        for _ in 0..3 {
            peers.add(&reading(20..21));
        }
        assert!(sums(&peers).contains(&(20, 4)), "also those without a row");
        assert_eq!(peers.iter().count(), MAX_PUBLISHED_PEERS);
    }

    #[test]
    fn counters_of_a_displaced_peer_go_on_when_it_returns() {
        let mut peers = Peers::default();
        peers.add(&reading(0..1));
        for _ in 0..2 {
            peers.add(&reading(1..17));
        }
        assert!(!sums(&peers).iter().any(|(last, _)| *last == 0));
        peers.add(&reading(0..1));
        peers.add(&reading(0..1));
        assert!(sums(&peers).contains(&(0, 3)), "{:?}", sums(&peers));
    }

    #[test]
    fn peers_with_few_bytes_that_never_had_a_row_are_forgotten_first() {
        let mut peers = Peers::default();
        peers.add(&reading(0..1));
        for _ in 0..3 {
            peers.add(&reading(1..17));
        }
        // More bytes than the displaced one.
        for octet in 0..4 {
            let others = (0..=255).map(|last| ([10, 1, octet, last].into(), reading(0..1)[0].1));
            let others: Vec<_> = others.collect();
            peers.add(&others);
            peers.add(&others);
        }
        assert_eq!(peers.others.len(), MAX_KEPT);
        for _ in 0..3 {
            peers.add(&reading(0..1));
        }
        assert!(sums(&peers).contains(&(0, 4)), "{:?}", sums(&peers));
    }

    #[test]
    fn numbers_are_unique_and_come_from_the_address() {
        let (mut peers, mut other) = (Peers::default(), Peers::default());
        peers.add(&reading(16..17));
        other.add(&reading(0..2));
        other.add(&reading(16..17));
        let number = |peers: &Peers| peers.iter().last().map(|peer| peer.number);
        assert_eq!(number(&peers), number(&other));
        for first in 0..200 {
            for _ in 0..=first {
                peers.add(&reading(first..first + 16));
            }
            let mut numbers: Vec<u32> = peers.iter().map(|peer| peer.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let count = peers.iter().count();
            assert!(numbers.len() == count && numbers.iter().all(|number| *number < NUMBERS));
        }
    }
}
