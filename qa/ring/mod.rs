// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings: protocol, reads and their times, kills at any instruction, restarts of producers, and real NIXL.

mod allocations;
mod held_files;
mod loom_ring;
mod model;
mod not_drained;
mod ring_readers;
mod writers;

#[cfg(feature = "pcp")]
mod decisions;
#[cfg(feature = "pcp")]
mod every_instruction;
#[cfg(feature = "pcp")]
mod nixl_restarts;
#[cfg(feature = "pcp")]
mod real_nixl;
#[cfg(feature = "pcp")]
mod restarts;
#[cfg(feature = "pcp")]
mod sample_producer;
#[cfg(feature = "pcp")]
mod single_step;
#[cfg(feature = "pcp")]
mod wrong_orders;
