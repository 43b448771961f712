//! The command line: our own options, and PCP's standard ones, which pmdaGetOpt(3) reads.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What `--help` prints.
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
    use lexopt::prelude::*;
    let mut options = Options {
        standard: vec![c"pmdanixl".into()],
        ..Options::default()
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('c') | Long("config") => options.config = Some(absolute(parser.value()?)?),
            Long("check") => options.check = true,
            Long("version") => options.version = true,
            Short('?') | Long("help") => options.help = true,
            Short('U') | Long("username") => options.username = Some(parser.value()?.string()?),
            Short('p') | Long("pipe") => options.standard.push(c"-p".into()),
            Short('D') | Long("debug") => {
                let value = parser.value()?;
                let named = value.to_string_lossy();
                options.debug |= named
                    .split(',')
                    .any(|name| name.trim_start().starts_with("appl") || name == "all");
                pass('D', value, &mut options.standard)?;
            }
            Short('d') | Long("domain") => pass('d', parser.value()?, &mut options.standard)?,
            Short('h') | Long("helpfile") => pass('h', parser.value()?, &mut options.standard)?,
            Short('l') | Long("log") => pass('l', parser.value()?, &mut options.standard)?,
            Short('i') | Long("inet") => pass('i', parser.value()?, &mut options.standard)?,
            Short('6') | Long("ipv6") => pass('6', parser.value()?, &mut options.standard)?,
            Short('u') | Long("unix") => pass('u', parser.value()?, &mut options.standard)?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

/// The file as seen from where we are now; messages name it so.
fn absolute(path: OsString) -> Result<PathBuf, lexopt::Error> {
    let failed = |err| lexopt::Error::Custom(format!("{path:?}: {err}").into());
    std::path::absolute(&path).map_err(failed)
}

/// Hands an option on to pmdaGetOpt(3).
fn pass(option: char, value: OsString, standard: &mut Vec<CString>) -> Result<(), lexopt::Error> {
    let value = CString::new(value.into_vec()).map_err(|_| "an option holds a NUL byte")?;
    standard.extend([
        CString::new(format!("-{option}")).unwrap_or_default(),
        value,
    ]);
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
    fn every_option_is_in_the_usage() {
        for option in [
            "-c, --config",
            "--check",
            "-D, --debug",
            "-d, --domain",
            "-h, --helpfile",
            "-l, --log",
            "-p, --pipe",
        ] {
            assert!(USAGE.contains(option), "{option}");
        }
        for option in [
            "-i, --inet",
            "-6, --ipv6",
            "-u, --unix",
            "-U, --username",
            "--version",
            "-?, --help",
        ] {
            assert!(USAGE.contains(option), "{option}");
        }
    }
}
