// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents, mostly through the test kit: publication, totals and limits.

mod figures;
mod lowered;
mod peers;
mod quiet;
mod removal;
mod shares;
mod totals;

#[cfg(feature = "pcp")]
mod churn;
#[cfg(feature = "pcp")]
mod replay;
#[cfg(feature = "pcp")]
mod soak;
