// SPDX-License-Identifier: GPL-2.0-or-later

//! All tests but the unit tests: one module for each suite. What they share is in `support`.

mod support;

mod agents;
mod packaging;
mod ring;
mod security;
mod stores;

#[cfg(feature = "pcp")]
mod daemon;
#[cfg(feature = "pcp")]
mod processes;
#[cfg(feature = "pcp")]
mod state;
#[cfg(feature = "pcp")]
mod tools;
