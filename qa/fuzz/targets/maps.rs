// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: `/proc/PID/maps`, which has file names that untrusted users have chosen.

use super::Input;
use pmdanixl::procfs::process_scan::scanned::shared_mapping;

/// The input is an inode, the path of the file, and then lines of maps.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let (ino, len) = (input.u64(), usize::from(input.u8()));
    let path = String::from_utf8_lossy(input.bytes(len)).into_owned();

    // Any line with any bytes.
    for line in input.0.split_inclusive(|&byte| byte == b'\n') {
        let Some((place, ino)) = shared_mapping(line) else {
            continue;
        };
        let text = String::from_utf8_lossy(line);
        let fields: Vec<&str> = text.trim_end_matches('\n').splitn(6, ' ').collect();
        assert!(fields[1].starts_with("rw") && fields[1].ends_with('s'));
        assert!(ino != 0 && fields[4].parse() == Ok(ino));
        let (device, path) = place.split_once(' ').expect("device and path");
        assert_eq!(device, fields[3]);
        assert_eq!(path, fields.get(5).map_or("", |path| path.trim_start()));
    }

    // A line in the format of the kernel: newlines in the path are \012, and columns follow the inode.
    let path = format!("/{}", path.replace('\n', "\\012"));
    for (mode, counts) in [
        ("rw-s", true),
        ("rwxs", true),
        ("r--s", false),
        ("rw-p", false),
    ] {
        let line = format!("7f0a1c000000-7f0a1c011000 {mode} 0000a000 fe:00 {ino}    {path}\n");
        let expected = (counts && ino != 0).then(|| (format!("fe:00 {path}"), ino));
        assert_eq!(shared_mapping(line.as_bytes()), expected, "{line:?}");
    }
}
