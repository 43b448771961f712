// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes: whether one still writes a ring or a store, which one, and what /proc tells of it.

pub mod agent_state;
pub mod ancestors;
pub mod facts;
pub mod liveness;
pub mod process;
pub mod process_dir;
pub mod process_scan;
pub mod sharers;
