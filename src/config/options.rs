// SPDX-License-Identifier: GPL-2.0-or-later

//! Command line: options of pmdanixl, and PCP's standard options, which pmdaGetOpt(3) reads.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Text of `--help`.
pub const USAGE: &str = "\
Usage: pmdanixl [options]

The PCP agent for NIXL telemetry. It is started by pmcd; see pmdanixl(1).

Options:
  -c, --config=FILE    read FILE instead of $PCP_SYSCONF_DIR/nixl/nixl.conf
      --check          say what would be done with each file, and end; exit
                       status 1 if something stops it from working
  -D, --debug=DBG      debug options, as in PCPIntro(1); appl0 logs all it does
  -d, --domain=NUM     metrics domain (default 39)
  -h, --helpfile=FILE  help text (default $PCP_PMDAS_DIR/nixl/help)
  -l, --log=FILE       log file (default nixl.log in pmcd's log directory)
  -p, --pipe           talk to pmcd by a pipe (the default)
  -i, --inet=PORT      talk to pmcd by an IPv4 port
  -6, --ipv6=PORT      talk to pmcd by an IPv6 port
  -u, --unix=FILE      talk to pmcd by a unix domain socket
  -U, --username=USER  account to run under; overrides the configuration
      --version        print the version, and end
  -?, --help           print this, and end
";

/// Options for pmdaGetOpt(3): short name, long name, and true if the option has a value.
const STANDARD: [(char, &str, bool); 8] = [
    ('D', "debug", true),
    ('d', "domain", true),
    ('h', "helpfile", true),
    ('l', "log", true),
    ('p', "pipe", false),
    ('i', "inet", true),
    ('6', "ipv6", true),
    ('u', "unix", true),
];

/// Options on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-c`.
    pub config: Option<PathBuf>,
    /// `--check`.
    pub check: bool,
    /// `--observer`, which only the daemon uses.
    pub observer: bool,
    /// `--observer-worker`, which only the observer uses.
    pub observer_worker: bool,
    /// `--observer-tracer`, which only the observer uses.
    pub observer_tracer: bool,
    /// `--help`.
    pub help: bool,
    /// `--version`.
    pub version: bool,
    /// `-D` with one of the application's own options.
    pub debug: bool,
    /// `-U`.
    pub username: Option<String>,
    /// Program name and PCP's standard options, for pmdaGetOpt(3).
    pub standard: Vec<CString>,
}

/// Reads a command line, with the name of the program first. `directory` is the working directory of the process; ""
/// means that of this process.
///
/// # Errors
/// An option is unknown, or its value is missing or wrong.
pub fn parse(
    directory: &Path,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Options, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options {
        standard: vec![c"pmdanixl".into()],
        ..Options::default()
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('c') | Long("config") => {
                // Absolute, since messages show it and each reload reads it again.
                let path = std::path::absolute(directory.join(parser.value()?));
                options.config = Some(path.map_err(|err| err.to_string())?);
            }
            Short('U') | Long("username") => options.username = Some(parser.value()?.string()?),
            Long("check") => options.check = true,
            Long("observer") => options.observer = true,
            Long("observer-worker") => options.observer_worker = true,
            Long("observer-tracer") => options.observer_tracer = true,
            Long("version") => options.version = true,
            Short('?') | Long("help") => options.help = true,
            _ => {
                let matches =
                    |option: &&(char, &str, bool)| arg == Short(option.0) || arg == Long(option.1);
                let Some((short, _, has_value)) = STANDARD.iter().find(matches) else {
                    return Err(arg.unexpected());
                };
                let value = has_value.then(|| parser.value()).transpose()?;
                if *short == 'D' {
                    let debug_options = value.as_deref().unwrap_or_default().to_string_lossy();
                    options.debug |= debug_options
                        .split(',')
                        .any(|name| name.trim_start().starts_with("appl") || name == "all");
                }
                for word in [Some(format!("-{short}").into()), value]
                    .into_iter()
                    .flatten()
                {
                    let word = CString::new(word.into_vec());
                    let word = word.map_err(|_| "an option contains a NUL byte")?;
                    options.standard.push(word);
                }
            }
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(Path::new(""), line.split(' ').map(OsString::from)).map_err(|err| err.to_string())
    }

    #[test]
    fn standard_options_are_passed_to_pcp_and_own_options_are_not() {
        let options = parsed("pmdanixl -d 39 -c /x -l log --inet=4711 -U pcp -Dlibpmda,appl0 -p")
            .expect("good");
        let standard: Vec<&str> = options
            .standard
            .iter()
            .map(|arg| arg.to_str().expect("ASCII"))
            .collect();
        assert_eq!(
            standard.join(" "),
            "pmdanixl -d 39 -l log -i 4711 -D libpmda,appl0 -p"
        );
        assert_eq!(
            (options.config, options.username.as_deref()),
            (Some("/x".into()), Some("pcp"))
        );
        assert!(options.debug && !options.check);
        assert!(!parsed("pmdanixl -D libpmda").expect("good").debug);
    }

    #[test]
    fn relative_file_is_below_the_working_directory() {
        let config = |directory: &str, file: &str| {
            let line = ["pmdanixl", "-c", file].map(OsString::from);
            parse(Path::new(directory), line).expect("good").config
        };
        assert_eq!(config("/etc", "./a/b"), Some("/etc/a/b".into()));
        assert_eq!(config("/etc", "/a"), Some("/a".into()));
        let here = std::path::absolute("a").expect("a working directory");
        assert_eq!(config("", "a"), Some(here));
    }

    #[test]
    fn wrong_option_is_named_in_the_error() {
        assert_eq!(
            parsed("pmdanixl --chek"),
            Err("invalid option '--chek'".into())
        );
        assert_eq!(
            parsed("pmdanixl -c"),
            Err("missing argument for option '-c'".into())
        );
        assert!(parsed("pmdanixl extra").is_err());
    }

    #[test]
    fn every_option_is_read_by_each_of_its_names() {
        let names = USAGE
            .split_whitespace()
            .filter(|word| word.starts_with('-'));
        for (at, names) in names
            .collect::<Vec<_>>()
            .chunk_by(|one, _| one.ends_with(','))
            .enumerate()
        {
            let (long, value) = names
                .last()
                .expect("a name")
                .split_once('=')
                .map_or((*names.last().expect("a name"), ""), |(long, _)| {
                    (long, " 1")
                });
            let short = names[0].strip_suffix(',');
            for name in short.into_iter().chain([long]) {
                let options = parsed(&format!("pmdanixl {name}{value}")).expect(name);
                assert_ne!(options, parsed("pmdanixl").expect("good"), "{at}: {name}");
                if !value.is_empty() {
                    assert!(parsed(&format!("pmdanixl {name}")).is_err(), "{name}");
                }
            }
        }
        for (short, long, _) in STANDARD {
            assert!(USAGE.contains(&format!("-{short}, --{long}")), "{long}");
        }
        assert!(USAGE.lines().all(|line| line.len() < 80), "{USAGE}");
    }
}
