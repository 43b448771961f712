// SPDX-License-Identifier: GPL-2.0-or-later

//! Peers of an agent by TCP.

use crate::transport::protocol::Traffic;
use std::net::IpAddr;

/// Limit of peers of an agent. A peer without a connection is replaced first.
pub const MAX_PEERS: usize = 16;
/// Numbers for peers.
const NUMBERS: u32 = 64;

/// Peer of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address.
    pub address: IpAddr,
    /// Traffic since the peer was first seen.
    pub traffic: Traffic,
    /// Number below 64, which no other peer of the agent has now.
    pub number: u32,
    /// True if the last reading had a connection to it.
    is_connected: bool,
}

/// Peers of an agent.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    all: Vec<Peer>,
}

impl Peers {
    /// Adds the traffic since the last reading.
    pub fn add(&mut self, reading: &[(IpAddr, Traffic)]) {
        for peer in &mut self.all {
            peer.is_connected = reading.iter().any(|(address, _)| *address == peer.address);
        }
        for &(address, traffic) in reading {
            let known = self.all.iter().position(|peer| peer.address == address);
            if let Some(at) = known.or_else(|| self.insert(address)) {
                self.all[at].traffic += traffic;
            }
        }
    }

    /// Adds a peer, and returns its position. `None`: all 16 have connections.
    fn insert(&mut self, address: IpAddr) -> Option<usize> {
        let at = match self.all.len() {
            len @ ..MAX_PEERS => len,
            _ => self.all.iter().position(|peer| !peer.is_connected)?,
        };
        // A peer has the same number after a restart of the daemon, unless another one has it.
        let first = first_number(address);
        let numbers = (0..NUMBERS).map(|step| (first + step) % NUMBERS);
        let is_free = |number: &u32| self.all.iter().all(|peer| peer.number != *number);
        let number = { numbers }.find(is_free)?;
        let peer = Peer {
            address,
            traffic: Traffic::default(),
            number,
            is_connected: true,
        };
        match at < self.all.len() {
            true => self.all[at] = peer,
            false => self.all.push(peer),
        }
        Some(at)
    }

    /// Returns all peers.
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

    #[test]
    fn peer_keeps_its_place_while_it_is_connected() {
        let mut peers = Peers::default();
        peers.add(&reading(0..16));
        let before: Vec<Peer> = peers.iter().copied().collect();
        // Those with the most bytes come first in a reading.
        let mut more = reading(0..40);
        for _ in 0..40 {
            more.rotate_left(1);
            peers.add(&more);
        }
        let kept = peers.iter().zip(&before);
        let is_same = |(now, before): (&Peer, &Peer)| {
            (now.address, now.number) == (before.address, before.number)
                && now.traffic.sent == 1 + 40
        };
        assert!(peers.iter().count() == MAX_PEERS && { kept }.all(is_same));
    }

    #[test]
    fn closed_peer_gives_room_to_another() {
        let mut peers = Peers::default();
        peers.add(&reading(0..17));
        assert_eq!(peers.iter().count(), MAX_PEERS);
        peers.add(&reading(1..17));
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let find = |last| peers.iter().find(|peer| peer.address == address(last));
        assert_eq!(find(16).map(|peer| peer.traffic.sent), Some(1));
        assert_eq!(find(0), None);
        let mut other = Peers::default();
        other.add(&reading(16..17));
        assert_eq!(
            find(16).map(|peer| peer.number),
            other.iter().next().map(|peer| peer.number)
        );
        for first in 0..200 {
            peers.add(&reading(first..first + 16));
            let mut numbers: Vec<u32> = peers.iter().map(|peer| peer.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert!(numbers.len() == MAX_PEERS && numbers.iter().all(|number| *number < NUMBERS));
        }
    }
}
