// SPDX-License-Identifier: GPL-2.0-or-later

//! Several processes that write one ring, which NIXL does not prevent: each agent of one name in one directory opens
//! the same file.

use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::{MappingProcess, openers};
use std::fmt::{self, Display, Formatter};

/// Limit of processes that are named, since a user can start any number.
pub const MAX_NAMED: usize = 8;

/// Processes, at least two, that each have mapped one ring for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharers(Vec<ProcessId>);

impl Sharers {
    /// Returns those of the processes that have mapped the ring themselves; `None` if there are fewer than two.
    #[must_use]
    pub fn of(processes: &[&MappingProcess]) -> Option<Self> {
        let all = openers(processes).into_iter();
        let all = Vec::from_iter(all.map(|process| process.info.id));
        (all.len() > 1).then_some(Self(all))
    }

    /// Returns those of the processes that are named: the ones that started first, at most [`MAX_NAMED`].
    #[must_use]
    pub fn named(&self) -> &[ProcessId] {
        &self.0[..self.0.len().min(MAX_NAMED)]
    }
}

impl Display for Sharers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pids = self.named().iter().map(|process| process.pid.to_string());
        let (pids, count) = (Vec::from_iter(pids).join(", "), self.0.len());
        write!(f, "{count} processes can write this ring: pid {pids}")?;
        if count > MAX_NAMED {
            write!(f, " and {} more", count - MAX_NAMED)?;
        }
        f.write_str(
            "; several agents corrupt it, so that events are lost or counted wrongly: give each process an agent name or a directory \
             (NIXL_TELEMETRY_DIR) of its own, and end other programs that drain it",
        )
    }
}
