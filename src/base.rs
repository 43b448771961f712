// SPDX-License-Identifier: GPL-2.0-or-later

//! Leaves that all other modules may use.

pub mod clock;
pub mod file;
pub mod per_user;
pub mod text;
pub mod tmpfs;
pub mod words;
