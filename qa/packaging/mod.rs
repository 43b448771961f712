// SPDX-License-Identifier: GPL-2.0-or-later

//! Installation, packages, and consistency of the files of the project.

mod files_agree;
mod imports;
mod names;
mod thresholds;

#[cfg(feature = "pcp")]
mod contents;
#[cfg(feature = "pcp")]
mod guard;
#[cfg(feature = "pcp")]
mod install;
#[cfg(feature = "pcp")]
mod kubernetes;
#[cfg(feature = "pcp")]
mod pages;
