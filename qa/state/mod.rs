// SPDX-License-Identifier: GPL-2.0-or-later

//! State that survives the daemon, after kills at any point and after failures of any system call.

mod configurations;
mod crash;
mod faults;
mod ids;
mod state_file;
mod store_kills;
