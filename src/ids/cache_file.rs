// SPDX-License-Identifier: GPL-2.0-or-later

//! The id file, in the format in which libpcp_pmda keeps the ids of an instance domain (pmdacache(3)). It survives a
//! reboot; the state file does not. Ids of the Python PMDA for NIXL are continued.
//!
//! The library cannot delete a name without a use after free, so its own file grows with every agent. This module
//! writes the whole file next to the old one, syncs it, and renames it. If the file and the state file differ after a
//! kill, the state file is right.

use crate::entry::HIGHEST_ID;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind::NotFound;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// First line of the file: version of the format, order of ids, highest id.
const HEADER: &str = "2 0 2147483647\n";
/// Name in the line of the last reserved id. No agent has this name, because `%` is escaped in names.
const RESERVED_NAME: &str = "%";
/// Longest file that is read, in bytes. This PMDA never writes a longer one, and reading it would take long.
const MAX_LEN: u64 = 1 << 24;

/// Line of the id file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLine {
    /// Id that was assigned or reserved.
    pub id: u32,
    /// Time at which the name was last seen, in seconds since 1970.
    pub seen: u64,
    /// Instance name.
    pub name: String,
}

/// Reads the file. Returns no lines if it does not exist.
///
/// # Errors
/// If it cannot be read, is too long, or is not a regular file with one name.
pub fn read(path: &Path) -> io::Result<Vec<CacheLine>> {
    let file = match open(path) {
        Err(err) if err.kind() == NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(io::Error::other("too long for a file of instance ids"));
    }
    // A name that is not UTF-8 is not from this PMDA. It is kept with replacement characters.
    Ok(parse_lines(&String::from_utf8_lossy(&bytes)))
}

/// Opens the file. The directory belongs to the user pcp, so a link must not redirect root to another file, and a FIFO
/// must not block it.
fn open(path: &Path) -> io::Result<File> {
    const NOT_REGULAR: &str = "not a regular file, or one with several hard links";
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|err| match err.raw_os_error() {
        Some(libc::ELOOP | libc::ENXIO | libc::EISDIR) => io::Error::other(NOT_REGULAR),
        _ => err,
    })?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(io::Error::other(NOT_REGULAR));
    }
    Ok(file)
}

/// Replaces the file by one with this text.
///
/// # Errors
/// If the new file cannot be written. The old one then stays as it was.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(".new");
    let new_path = path.with_file_name(name);
    // A killed process may have left its new file.
    match fs::remove_file(&new_path) {
        Err(err) if err.kind() != NotFound => return Err(err),
        _ => {}
    }
    // O_EXCL: a link or FIFO that another process put there is not opened.
    let mut new = OpenOptions::new();
    let mut file = new
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new_path)?;
    let replaced = file
        .write_all(text.as_bytes())
        // If the host crashes, the name must not refer to a file without content.
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new_path, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new_path);
    }
    replaced
}

/// Returns the text of a file with these lines, the most important first. Lines that do not fit into half of the
/// longest file are left out. `next` is greater than all ids that are assigned or reserved.
#[must_use]
pub fn text(lines: &[CacheLine], next: u32) -> String {
    // Sorted by id, because the library assigns the id after that of the last line. It has each id and each name once.
    let (mut by_id, mut names) = (BTreeMap::new(), HashSet::new());
    let mut bytes_left = usize::try_from(MAX_LEN / 2).unwrap_or(usize::MAX);
    for CacheLine { id, seen, name } in lines {
        let line = format!("{id} {seen} {name}\n");
        // The library compares names up to the first space. Names of this PMDA have no space.
        let known_as = name.split(' ').next();
        if line.len() <= bytes_left && !by_id.contains_key(id) && names.insert(known_as) {
            bytes_left -= line.len();
            by_id.insert(*id, line);
        }
    }
    if let Some(last) = next.checked_sub(1) {
        let highest = by_id.keys().next_back();
        if highest.is_none_or(|&highest| highest < last) {
            by_id.insert(last, format!("{last} 0 {RESERVED_NAME}\n"));
        }
    }
    let lines: String = by_id.into_values().collect();
    format!("{HEADER}{lines}")
}

/// Parses the lines of a text. Ignores lines that the library would not write, and a last line without its end.
fn parse_lines(text: &str) -> Vec<CacheLine> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.split('\n').skip(1).filter_map(parse_line).collect()
}

/// Parses id, time and name of a line in the format of the library.
fn parse_line(line: &str) -> Option<CacheLine> {
    let mut parts = line.splitn(3, ' ');
    // The library has 32-bit times, which end in 2038; here they have 64 bits. An id above HIGHEST_ID means a damaged
    // file.
    let (id, seen) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let id = Some(id).filter(|&id| id <= HIGHEST_ID)?;
    // The library reads a longer line as two lines. A bracket before the name begins a key of pmdacache(3), which no
    // name of this PMDA has.
    let name = parts.next().filter(|_| line.len() < 1000)?;
    let begins = name.chars().next()?;
    let is_name = !begins.is_ascii_whitespace() && begins != '[';
    is_name.then(|| CacheLine {
        id,
        seen,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn time_after_2038_is_kept() {
        let all = vec![CacheLine {
            id: 3,
            seen: 1 << 31,
            name: "a".into(),
        }];
        let text = text(&all, 4);
        assert!(text.ends_with("\n3 2147483648 a\n"), "{text}");
        assert_eq!(parse_lines(&text), all);
    }

    const FILE: &str = "2 0 2147483647\n0 11 a\n1 12 b\n7 13 c%20d\n";

    fn line(id: u32, seen: u64, name: &str) -> CacheLine {
        CacheLine {
            id,
            seen,
            name: name.into(),
        }
    }

    #[test]
    fn written_lines_are_read_back() {
        assert_eq!(text(&parse_lines(FILE), 8), FILE);
        assert_eq!(text(&parse_lines(FILE), 0), FILE);
        let ahead = text(&parse_lines(FILE), 72);
        assert_eq!(ahead, format!("{FILE}71 0 %\n"));
        assert_eq!(parse_lines(&ahead).last(), Some(&line(71, 0, "%")));
        assert_eq!(text(&[], 0), HEADER);
        assert_eq!(parse_lines(HEADER), []);
    }

    #[test]
    fn malformed_line_is_ignored() {
        for line in [
            "5",
            "5 5",
            "5 5 ",
            "5 5 [6b",
            "x 5 x",
            "-5 5 x",
            "33554432 5 x",
            "3000000000 5 x",
            "rubbish",
        ] {
            let text = format!("{FILE}{line}\n");
            assert_eq!(parse_lines(&text), parse_lines(FILE), "{line}");
        }
        let long = format!("5 5 {}", "n".repeat(1000));
        assert_eq!(parse_lines(&format!("{HEADER}{long}\n")), []);
    }

    #[test]
    fn truncated_last_line_is_ignored() {
        for len in 0..FILE.len() {
            let whole = FILE[..len].rfind('\n').map_or("", |end| &FILE[..=end]);
            assert_eq!(parse_lines(&FILE[..len]), parse_lines(whole), "{len}");
        }
        assert_eq!(
            parse_lines("2 0 2147483647\n12 1 a"),
            [],
            "it may have been 123 1 ab"
        );
    }

    #[test]
    fn duplicate_ids_and_names_are_written_once() {
        for other in [
            line(7, 1, "other"),
            line(8, 1, "c%20d"),
            line(8, 1, "c%20d more"),
            line(7, 13, "c%20d"),
        ] {
            let mut all = parse_lines(FILE);
            all.push(other);
            assert_eq!(text(&all, 0), FILE);
        }
    }

    #[test]
    fn text_never_exceeds_the_read_limit() {
        let name = |number: u32| format!("{number:0>900}");
        let all = (0..20_000).map(|number| line(number, 1, &name(number)));
        let text = text(&all.collect::<Vec<_>>(), 20_002);
        assert!(text.len() as u64 <= MAX_LEN && text.len() as u64 > MAX_LEN / 4);
        let kept = parse_lines(&text);
        assert!(kept.contains(&line(0, 1, &name(0))), "the first");
        assert!(!kept.contains(&line(19_999, 1, &name(19_999))), "the last");
        assert_eq!(kept.last(), Some(&line(20_001, 0, "%")));
    }

    #[test]
    fn file_is_replaced_atomically() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, new_path) = (dir.path().join("39.0"), dir.path().join("39.0.new"));
        fs::write(&new_path, "left by one that was killed").expect("written");
        write(&path, FILE).expect("written");
        assert_eq!(read(&path).expect("read"), parse_lines(FILE));
        assert!(!new_path.exists());
        let before = fs::metadata(&path).expect("there").ino();
        write(&path, HEADER).expect("written");
        assert_ne!(fs::metadata(&path).expect("there").ino(), before);
        // The directory at that path cannot be removed by remove_file.
        fs::create_dir(&new_path).expect("made");
        assert!(write(&path, FILE).is_err());
        assert_eq!(fs::read_to_string(&path).expect("there"), HEADER);
    }

    #[test]
    fn special_or_linked_file_is_rejected() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), FILE).expect("written");
        fs::hard_link(at("file"), at("link")).expect("made");
        symlink(at("file"), at("symlink")).expect("made");
        fs::create_dir(at("directory")).expect("made");
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        for name in ["link", "symlink", "directory", "fifo"] {
            let error = read(&at(name)).expect_err("no file").to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        assert_eq!(fs::read_to_string(at("file")).expect("there"), FILE);
        let long = File::create(at("long")).expect("made");
        long.set_len(MAX_LEN + 1).expect("a hole");
        let error = read(&at("long")).expect_err("too long").to_string();
        assert!(error.contains("too long"), "{error}");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("39.0");
        fs::write(&path, b"2 0 2147483647\n0 11 a\n\xff\n1 2 b\xff\n").expect("written");
        let found = read(&path).expect("read");
        assert_eq!(found, [line(0, 11, "a"), line(1, 2, "b\u{fffd}")]);
    }
}
