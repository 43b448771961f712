// SPDX-License-Identifier: GPL-2.0-or-later

//! Other users of the host and hostile files: neither may affect the values or the service of other users.

mod fuzz_corpus;

#[cfg(feature = "pcp")]
mod finding;
#[cfg(feature = "pcp")]
mod floods;
#[cfg(feature = "pcp")]
mod hostile_directory;
#[cfg(feature = "pcp")]
mod hostile_files;
#[cfg(feature = "pcp")]
mod many_files;
#[cfg(feature = "pcp")]
mod mounts;
#[cfg(feature = "pcp")]
mod other_users;
