// SPDX-License-Identifier: GPL-2.0-or-later

//! The process that reads other processes, and the daemon's side of it.

use std::time::Duration;

pub mod client;
mod known_connections;
pub mod protocol;
pub mod scans;
pub mod sockets;
pub mod version;
pub mod worker;

/// Time between two socket scans of a few processes.
pub const SCAN_PERIOD: Duration = Duration::from_secs(10);
