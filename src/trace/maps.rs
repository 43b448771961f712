// SPDX-License-Identifier: GPL-2.0-or-later

//! Maps that the programs and the tracer share, with their limits.

use crate::shm::bpf::{Map, MapType};
use std::io::Result;

/// Limit of handles. The table of them takes 6 MB.
pub const MAX_HANDLES: u32 = 1 << 16;
/// Limit of handles of a user.
pub const MAX_HANDLES_OF_USER: u32 = MAX_HANDLES / 4;
/// Limit of pairs: a process, and a remote agent of its transfers. Number 0 is that of pairs that find no room.
pub const MAX_PAIRS: u32 = 1 << 12;
/// Limit of pairs of a user.
pub const MAX_PAIRS_OF_USER: u32 = MAX_PAIRS / 4;
/// Limit of calls of postXferReq at one moment.
const MAX_CALLS: u32 = 1 << 13;
/// Places of users. Those whose ids differ by a multiple have one place, and one limit, together.
pub const USERS: u32 = 1 << 10;
/// Bytes of the name of a remote agent that are kept.
pub const NAME_LEN: u32 = 64;
/// Words of the key of a pair: process id and length of the name, and the name.
pub const PAIR_WORDS: usize = 1 + NAME_LEN as usize / 8;

/// Offsets of the figures of a pair, in bytes.
pub mod figure {
    use crate::stats::histogram::MAX_BUCKETS;

    /// Time at which the pair was made, of CLOCK_BOOTTIME in ns.
    pub const CREATED: i16 = 0;
    /// Transfers that were posted.
    pub const POSTED: i16 = 8;
    /// Transfers whose handle was released, or that were done at their post.
    pub const RELEASED: i16 = 16;
    /// Transfers whose handle was posted again.
    pub const REPOSTED: i16 = 24;
    /// Transfers that have failed at their post.
    pub const FAILED: i16 = 32;
    /// Time of the released transfers in ns.
    pub const TIME: i16 = 40;
    /// Time of the last post, of CLOCK_MONOTONIC in ns.
    pub const LAST: i16 = 48;
    /// Place of the user of the process.
    pub const USER: i16 = 56;
    /// Released transfers by their time.
    pub const BUCKETS: i16 = 64;
    /// Words of all figures.
    pub const WORDS: usize = BUCKETS as usize / 8 + MAX_BUCKETS;
}

/// All maps. There are no maps per CPU: a pair belongs to one process, whose threads seldom post at the same moment,
/// and hosts have hundreds of CPUs.
#[derive(Debug)]
pub struct Maps {
    /// Hash: process id and name of a remote agent, to the number of the pair.
    pub pairs: Map,
    /// Stack: numbers of pairs that are free.
    pub free: Map,
    /// Array: figures of a pair.
    pub figures: Map,
    /// Hash: address and process id of a handle, to the time of its post in ns or 0, its pair, and the place of its
    /// user.
    pub handles: Map,
    /// Hash: thread, to the key of the handle that it is posting.
    pub calls: Map,
    /// Array: handles and pairs that a user has made, and those that found no room. Only the programs write it.
    pub taken: Map,
    /// Array: handles and pairs that the tracer has removed for a user. Only the tracer writes it, so that neither
    /// overwrites what the other has added.
    pub freed: Map,
    /// PID namespace whose process ids are keys, by device and inode number. `None`: that of the host.
    pub namespace: Option<(u64, u64)>,
}

impl Maps {
    /// Creates the maps.
    ///
    /// # Errors
    /// The process lacks CAP_BPF, or the kernel has no memory or no BPF.
    pub fn new(namespace: Option<(u64, u64)>) -> Result<Self> {
        let figures = u32::try_from(figure::WORDS * 8).unwrap_or_default();
        let maps = Self {
            pairs: Map::new(MapType::Hash, 8 + NAME_LEN, 8, MAX_PAIRS)?,
            free: Map::new(MapType::Stack, 0, 8, MAX_PAIRS)?,
            figures: Map::new(MapType::Array, 4, figures, MAX_PAIRS)?,
            handles: Map::new(MapType::Hash, 16, 24, MAX_HANDLES)?,
            calls: Map::new(MapType::LruHash, 8, 16, MAX_CALLS)?,
            taken: Map::new(MapType::Array, 4, 32, USERS)?,
            freed: Map::new(MapType::Array, 4, 16, USERS)?,
            namespace,
        };
        for number in (1..MAX_PAIRS).rev() {
            maps.free.push(number.into())?;
        }
        Ok(maps)
    }
}
