// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings and stores in the telemetry directories: directories that are scanned, candidates in them, rejections,
//! instance names.
//!
//! It does not know which agents exist: `collector` attaches the files that [`scan::Scanner`] returns. Start with
//! [`scan`]; a file is checked in [`ring`] or [`store`].

pub mod directory;
pub mod name;
pub mod ring;
pub mod scan;
pub mod store;
