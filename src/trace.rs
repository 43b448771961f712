// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers in flight, by process and peer, as probes (uprobes) on libnixl see them. For `trace = true` only.
//!
//! The tracer is a process of its own. [`tracer`] attaches the programs of [`programs`] to each libnixl, and reads
//! their maps. An application runs two or three programs for each of its transfers, and notices nothing of them but the
//! time: they read its memory and registers, and change nothing. docs/speed.md has that time.

pub mod assembler;
pub mod libraries;
pub mod maps;
pub mod pairs;
pub mod programs;
pub mod protocol;
pub mod symbols;
pub mod tracer;
