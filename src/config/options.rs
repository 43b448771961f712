//! The command line: our own options, and PCP's standard ones, which pmdaGetOpt(3) reads.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// An option: all that is known of it, for the parser, `--help` and the test of the manual page.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// `-c`.
    pub short: Option<char>,
    /// `--config`.
    pub long: &'static str,
    /// What its value is called; `None`: it has none.
    pub value: Option<&'static str>,
    /// What `--help` says of it, a line each.
    help: &'static [&'static str],
    meaning: Meaning,
}

#[derive(Clone, Copy, Debug)]
enum Meaning {
    Config,
    Check,
    Version,
    Help,
    Username,
    Debug,
    /// For pmdaGetOpt(3).
    Standard,
}

/// A row of the table of options.
const fn known(
    short: Option<char>,
    long: &'static str,
    value: Option<&'static str>,
    help: &'static [&'static str],
    meaning: Meaning,
) -> Known {
    Known {
        short,
        long,
        value,
        help,
        meaning,
    }
}

/// All options, in the order of `--help`.
#[rustfmt::skip] // a row is a line
pub const OPTIONS: &[Known] = &[
    known(Some('c'), "config", Some("FILE"), &["read FILE instead of $PCP_SYSCONF_DIR/nixl/nixl.conf"], Meaning::Config),
    known(None, "check", None, &["say what would be done with each file, and end; exit", "status 1 if something stops it from working"], Meaning::Check),
    known(Some('D'), "debug", Some("DBG"), &["debug options, as in PCPIntro(1); appl0 logs all it does"], Meaning::Debug),
    known(Some('d'), "domain", Some("NUM"), &["metrics domain (default 39)"], Meaning::Standard),
    known(Some('h'), "helpfile", Some("FILE"), &["help text (default $PCP_PMDAS_DIR/nixl/help)"], Meaning::Standard),
    known(Some('l'), "log", Some("FILE"), &["log file (default nixl.log in pmcd's log directory)"], Meaning::Standard),
    known(Some('p'), "pipe", None, &["talk to pmcd by a pipe (the default)"], Meaning::Standard),
    known(Some('i'), "inet", Some("PORT"), &["talk to pmcd by an IPv4 port"], Meaning::Standard),
    known(Some('6'), "ipv6", Some("PORT"), &["talk to pmcd by an IPv6 port"], Meaning::Standard),
    known(Some('u'), "unix", Some("FILE"), &["talk to pmcd by a unix domain socket"], Meaning::Standard),
    known(Some('U'), "username", Some("USER"), &["account to run under; overrides the configuration"], Meaning::Username),
    known(None, "version", None, &["print the version, and end"], Meaning::Version),
    known(Some('?'), "help", None, &["print this, and end"], Meaning::Help),
];

/// What `--help` prints.
#[must_use]
pub fn usage() -> String {
    let mut text = String::from(
        "Usage: pmdanixl [options]\n\nThe PCP agent for NIXL telemetry. It is started by pmcd; see pmdanixl(1).\n\nOptions:\n",
    );
    for option in OPTIONS {
        let short = option
            .short
            .map_or("    ".into(), |short| format!("-{short}, "));
        let value = option
            .value
            .map_or(String::new(), |value| format!("={value}"));
        let mut names = format!("  {short}--{}{value}", option.long);
        for line in option.help {
            text.push_str(&format!("{names:<22} {line}\n"));
            names.clear();
        }
    }
    text
}

/// What the command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-c`.
    pub config: Option<PathBuf>,
    /// `--check`.
    pub check: bool,
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

/// Reads a command line, the program's name first.
///
/// # Errors
/// An option that there is not, or one whose value is missing or wrong.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Options, lexopt::Error> {
    parse_in(Path::new(""), args)
}

/// Reads the command line of a process with this working directory, the program's name first; "" is that of this process.
///
/// # Errors
/// As [`parse`].
pub fn parse_in(
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
        let is_meant = |option: &&Known| match arg {
            Short(short) => option.short == Some(short),
            Long(long) => option.long == long,
            Value(_) => false,
        };
        let Some(option) = OPTIONS.iter().find(is_meant) else {
            return Err(arg.unexpected());
        };
        let value = match option.value {
            Some(_) => Some(parser.value()?),
            None => None,
        };
        match (option.meaning, value) {
            (Meaning::Config, Some(value)) => {
                options.config = Some(absolute(&directory.join(value))?);
            }
            (Meaning::Username, Some(value)) => options.username = Some(value.string()?),
            (Meaning::Check, _) => options.check = true,
            (Meaning::Version, _) => options.version = true,
            (Meaning::Help, _) => options.help = true,
            (Meaning::Debug, value) => {
                let named = value.as_deref().unwrap_or_default().to_string_lossy();
                options.debug |= named
                    .split(',')
                    .any(|name| name.trim_start().starts_with("appl") || name == "all");
                pass(option, value, &mut options.standard)?;
            }
            (_, value) => pass(option, value, &mut options.standard)?,
        }
    }
    Ok(options)
}

/// The file as seen from where we are now; messages name it so.
fn absolute(path: &Path) -> Result<PathBuf, lexopt::Error> {
    let failed = |err| lexopt::Error::Custom(format!("{path:?}: {err}").into());
    std::path::absolute(path).map_err(failed)
}

/// Hands an option on to pmdaGetOpt(3), by its short name.
fn pass(
    option: &Known,
    value: Option<OsString>,
    standard: &mut Vec<CString>,
) -> Result<(), lexopt::Error> {
    let name = option.short.map(|short| format!("-{short}").into());
    for word in name.into_iter().chain(value) {
        let word = CString::new(word.into_vec());
        standard.push(word.map_err(|_| "an option holds a NUL byte")?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(line.split(' ').map(OsString::from)).map_err(|err| err.to_string())
    }

    #[test]
    fn pcps_options_are_handed_on_and_ours_are_not() {
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
            parse_in(Path::new(directory), line).expect("good").config
        };
        assert_eq!(config("/etc", "./a/b"), Some("/etc/a/b".into()));
        assert_eq!(config("/etc", "/a"), Some("/a".into()));
        let here = std::path::absolute("a").expect("a working directory");
        assert_eq!(config("", "a"), Some(here));
    }

    #[test]
    fn a_wrong_option_is_named() {
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
    fn every_option_is_taken_by_each_of_its_names_and_shown() {
        for option in OPTIONS {
            let value = option.value.map_or("", |_| " 1");
            for name in [
                option.short.map(|short| format!("-{short}")),
                Some(format!("--{}", option.long)),
            ]
            .into_iter()
            .flatten()
            {
                let options = parsed(&format!("pmdanixl {name}{value}")).expect(&name);
                let plain = parsed("pmdanixl").expect("good");
                assert_ne!(options, plain, "{name} does something");
                assert!(usage().contains(&name), "{name}");
                if option.value.is_some() {
                    assert!(parsed(&format!("pmdanixl {name}")).is_err(), "{name}");
                }
            }
        }
    }

    #[test]
    fn the_usage_is_aligned_and_fits_a_terminal() {
        let usage = usage();
        assert!(usage.contains(
            "\n  -c, --config=FILE    read FILE instead of $PCP_SYSCONF_DIR/nixl/nixl.conf\n      --check          say"
        ));
        assert!(usage.lines().all(|line| line.len() < 80), "{usage}");
    }
}
