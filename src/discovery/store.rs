// SPDX-License-Identifier: GPL-2.0-or-later

//! Opens a file in a directory of stores, and checks that it is one.

use super::ring;
use crate::base::file::{self, FileFacts};
use crate::config::Config;
use crate::error::Rejection;
use crate::shm::nonblocking;
use crate::store::{Description, LEN, StoreCandidate, StoreId, is_store_name};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

/// Opens a file in a directory of stores and checks it.
///
/// # Errors
/// Why the file is left alone.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    config: &Config,
) -> Result<StoreCandidate, Rejection> {
    if !is_store_name(name) {
        return Err(Rejection::Name);
    }
    ring::check_kind(facts, config.owners.as_deref(), facts.size == LEN as u64)?;
    let file = ring::open_to_read(directory, name, facts, true)?;
    // Another schema may have another size: the first 16 bytes say which schema it is.
    if facts.size < 16 {
        return Err(Rejection::StoreSize { size: facts.size });
    }
    let mut bytes = [0; LEN];
    let len = usize::try_from(facts.size).map_or(LEN, |size| size.min(LEN));
    nonblocking::read_start(&file, &mut bytes[..len]).map_err(Rejection::io("read"))?;
    let description = Description::parse(&bytes, facts.size)?;
    let meta = file.metadata().map_err(Rejection::io("checked"))?;
    Ok(StoreCandidate {
        id: StoreId {
            file: facts.id,
            born: file::birth_time(&meta),
            pid: description.pid,
            instance: description.instance,
        },
        description,
        file,
        facts: *facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const NAME: &str = "nixl.4242.17.0.mmap";

    fn check(change: impl FnOnce(&Path)) -> Result<StoreCandidate, Rejection> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(NAME);
        std::fs::write(&path, crate::store::format::tests::store("a", "0", &[1.0]))
            .expect("written");
        change(&path);
        let fd = File::open(dir.path()).expect("there").into();
        let name = OsStr::new(NAME);
        let facts = file::facts(&fd, name).expect("there");
        open(&fd, name, &facts, &Config::default())
    }

    fn resize(len: u64) -> impl FnOnce(&Path) {
        move |path| {
            let file = File::options().write(true).open(path).expect("there");
            file.set_len(len).expect("resized");
        }
    }

    #[test]
    fn a_file_as_nixl_makes_it_is_a_store_and_another_is_not() {
        assert_eq!(check(|_| ()).expect("a store").description.agent, "a");
        for len in [16, 6_792, 6_801, 1 << 40] {
            let rejection = check(resize(len)).expect_err("no store");
            assert_eq!(rejection, Rejection::StoreSize { size: len });
        }
        let rejection = check(resize(15)).expect_err("no store");
        assert_eq!(rejection, Rejection::StoreSize { size: 15 });
        let rejection = check(|path| {
            std::fs::rename(path, path.with_extension("x")).expect("renamed");
            symlink("nixl.4242.17.0.x", path).expect("made");
        });
        assert!(matches!(rejection, Err(Rejection::Kind)), "{rejection:?}");
        let rejection = check(|path| {
            std::fs::hard_link(path, path.with_extension("x")).expect("made");
        });
        assert!(
            matches!(
                rejection,
                Err(Rejection::Links {
                    links: 2,
                    ring_size: true
                })
            ),
            "{rejection:?}"
        );
    }

    #[test]
    fn a_later_schema_is_told_whatever_its_size() {
        let rejection = check(|path| {
            let mut bytes = crate::store::format::tests::store("a", "0", &[1.0]);
            bytes[8] = 2;
            bytes.truncate(128);
            std::fs::write(path, bytes).expect("written");
        });
        let rejection = rejection.expect_err("no store");
        assert!(
            rejection.is_unsupported() && rejection.may_be_telemetry(),
            "{rejection}"
        );
    }
}
