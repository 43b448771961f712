// SPDX-License-Identifier: GPL-2.0-or-later

//! The log file, which standard error becomes. The log of the run before stays beside it as `*.prev`.

use super::ffi::Pmda;
use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

/// Makes standard error the log file of the command line. Where the file cannot be opened, standard error stays what it
/// is.
pub fn open(pmda: &mut Pmda) {
    let kept = pmda.log_path().map_or(Ok(()), |path| keep_previous(&path));
    pmda.open_log();
    // Standard error was pmcd's before.
    if let Err((name, err)) = kept {
        tracing::warn!("log before: cannot be kept as {name:?} ({err}); remove what is there");
    }
}

/// Keeps the log of the run before. PCP 6 removes the file when it opens a log; PCP 7 renames it to the same name.
///
/// Returns the name that the log cannot be kept as, and the reason.
fn keep_previous(path: &Path) -> Result<(), (OsString, io::Error)> {
    if !path.exists() {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".prev");
    let _ = fs::remove_file(&name);
    // A second name rather than another one: PCP 7 removes `*.prev` before it renames the log.
    fs::hard_link(path, &name).map_err(|err| (name, err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_log_is_kept_unless_a_directory_has_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl.log");
        fs::write(&path, "a line\n").expect("written");
        let previous = dir.path().join("nixl.log.prev");
        for _ in 0..2 {
            keep_previous(&path).expect("kept");
            assert_eq!(fs::read_to_string(&previous).expect("there"), "a line\n");
        }
        fs::remove_file(&previous).expect("there");
        fs::create_dir(&previous).expect("made");
        let (name, err) = keep_previous(&path).expect_err("a directory is in the way");
        assert_eq!(name, previous.as_os_str());
        assert_eq!(err.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("there"), "a line\n");
        fs::remove_file(&path).expect("there");
        assert!(keep_previous(&path).is_ok(), "there was no run before");
    }
}
