// SPDX-License-Identifier: GPL-2.0-or-later

//! Peers of an agent by TCP.

use crate::transport::protocol::Traffic;
use std::net::IpAddr;

/// Limit of peers of an agent. A peer without a connection is replaced first.
pub const MAX_PEERS: usize = 16;
/// Numbers for peers. A number is used again after all others.
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
    next_number: u32,
}

impl Peers {
    /// Adds the traffic since the last reading.
    pub fn add(&mut self, reading: &[(IpAddr, Traffic)]) {
        for peer in &mut self.all {
            peer.is_connected = false;
        }
        for &(address, traffic) in reading {
            let known = self.all.iter().position(|peer| peer.address == address);
            if let Some(at) = known.or_else(|| self.insert(address)) {
                self.all[at].traffic += traffic;
                self.all[at].is_connected = true;
            }
        }
    }

    /// Adds a peer, and returns its position. `None`: all 16 have connections.
    fn insert(&mut self, address: IpAddr) -> Option<usize> {
        let at = match self.all.len() {
            len @ ..MAX_PEERS => len,
            _ => self.all.iter().position(|peer| !peer.is_connected)?,
        };
        let numbers = (0..NUMBERS).map(|step| (self.next_number + step) % NUMBERS);
        let is_free = |number: &u32| self.all.iter().all(|peer| peer.number != *number);
        let number = { numbers }.find(is_free)?;
        self.next_number = (number + 1) % NUMBERS;
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
        let found: Vec<_> = peers
            .iter()
            .map(|peer| (peer.number, peer.traffic.sent))
            .collect();
        assert_eq!(found, [(0, 1), (1, 2)]);
        assert_eq!(peers.get(1).map(|peer| peer.traffic.retransmits), Some(6));
        assert_eq!(peers.get(2), None);
    }

    #[test]
    fn closed_peer_gives_room_and_its_number_is_used_last() {
        let mut peers = Peers::default();
        peers.add(&reading(0..17));
        assert_eq!(peers.iter().count(), MAX_PEERS);
        peers.add(&reading(1..17));
        let last = peers
            .iter()
            .find(|peer| peer.address == IpAddr::from([10, 0, 0, 16]));
        assert_eq!(
            last.map(|peer| (peer.number, peer.traffic.sent)),
            Some((16, 1))
        );
        assert_eq!(peers.get(0), None);
        for first in 0..200 {
            peers.add(&reading(first..first + 16));
            let mut numbers: Vec<u32> = peers.iter().map(|peer| peer.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert!(numbers.len() == MAX_PEERS && numbers.iter().all(|number| *number < 64));
        }
    }
}
