// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: the command line, which comes from the configuration of pmcd.

use pmdanixl::config::options::{USAGE, parse};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The input is the arguments after the program name, each ended by a NUL as in `/proc/PID/cmdline`.
pub fn run(input: &[u8]) {
    let arguments = input.split(|&byte| byte == 0);
    let arguments = arguments.map(|argument| OsStr::from_bytes(argument).to_owned());
    let options = match parse(
        Path::new(""),
        std::iter::once("pmdanixl".into()).chain(arguments),
    ) {
        Ok(options) => options,
        Err(err) => return assert!(!err.to_string().is_empty()),
    };
    if let Some(path) = &options.config {
        assert!(path.is_absolute(), "{path:?}");
    }
    // Arguments for pmdaGetOpt(3): the program name, then options that it knows, each with its value.
    let mut standard = options.standard.iter();
    assert_eq!(standard.next(), Some(&CString::from(c"pmdanixl")));
    while let Some(option) = standard.next() {
        let option = option.to_str().expect("an option in ASCII");
        assert!(USAGE.contains(&format!("{option}, --")), "{option}");
        assert!(option == "-p" || standard.next().is_some(), "{option}");
    }
    // A second parse is equal. A value may begin with a dash.
    let again = options.standard.iter().cloned();
    let again = parse(
        Path::new(""),
        again.map(|argument| OsString::from_vec(argument.into_bytes())),
    );
    assert_eq!(again.expect("good before").standard, options.standard);
}
