// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of an agent.

use crate::discovery::name::is_instance_name;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The names of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The raw name, which is the name of its file.
    pub raw: OsString,
    /// Its name in the instance domain.
    pub instance: String,
    /// The directory in which its files are found.
    pub directory: PathBuf,
    /// Which agent of this name in this directory: empty for the writer of the ring with this name. `store:NUMBER:RANK`
    /// for a writer of stores, where NUMBER tells agents of one local rank apart.
    pub part: String,
    /// Uid of the owner of its files.
    pub owner: u32,
}

impl Name {
    /// The text of all names in the state file: each but the last ends with a NUL, which none of them has.
    #[must_use]
    pub fn to_text(&self) -> Vec<u8> {
        let (raw, directory) = (self.raw.as_bytes(), self.directory.as_os_str().as_bytes());
        [
            raw,
            self.instance.as_bytes(),
            directory,
            self.part.as_bytes(),
        ]
        .join(&0)
    }

    /// The names in a text of [`Name::to_text`]. `None` if the text is not one of possible names.
    #[must_use]
    pub fn from_text(text: &[u8], owner: u32) -> Option<Self> {
        let names = Vec::from_iter(text.split(|&byte| byte == 0));
        let [raw, instance, directory, part] = names.try_into().ok()?;
        let utf8 = |name: &[u8]| String::from_utf8(name.to_vec()).ok();
        let name = Self {
            raw: OsString::from_vec(raw.to_vec()),
            instance: utf8(instance)?,
            directory: OsString::from_vec(directory.to_vec()).into(),
            part: utf8(part)?,
            owner,
        };
        let is_empty = raw.is_empty() || directory.is_empty();
        (!is_empty && is_instance_name(&name.instance)).then_some(name)
    }
}
