//! The agent: options, configuration, pmcd, and then the loop.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pmdanixl::config::Config;
use pmdanixl::config::options::{self, Options};
use pmdanixl::config::pcpconf::PcpConf;
use pmdanixl::config::source::{ConfigSource, announce};
use pmdanixl::metrics::{AGENTS, DOMAIN};
use pmdanixl::pcp::buckets::BucketIndoms;
use pmdanixl::pcp::callbacks;
use pmdanixl::pcp::daemon;
use pmdanixl::pcp::ffi::Pmda;
use pmdanixl::pcp::instances::AgentInstances;
use pmdanixl::pcp::log_file;
use pmdanixl::pcp::server::{Indoms, Server};
use pmdanixl::rights::confine::OwnPlaces;
use pmdanixl::rights::privilege::NotAllowed;
use pmdanixl::rights::{self, privilege};
use pmdanixl::state::Journal;
use pmdanixl::{check, log, shm};
use std::error::Error;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match options::parse(Path::new(""), std::env::args_os()) {
        Ok(options) => options,
        Err(err) => {
            return print_error(&format!("{err}\n\n{}", options::USAGE));
        }
    };
    let done = if options.help {
        print(options::USAGE)
    } else if options.version {
        print(concat!("pmdanixl ", env!("CARGO_PKG_VERSION"), "\n"))
    } else if options.check {
        run_check(&options)
    } else {
        log::start(options.debug);
        return match run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => {
                tracing::error!("{err}");
                ExitCode::FAILURE
            }
        };
    };
    done.unwrap_or_else(|err| match err.downcast_ref::<io::Error>() {
        Some(err) if err.kind() == ErrorKind::BrokenPipe => ExitCode::from(EXIT_SIGPIPE),
        _ => print_error(&err.to_string()),
    })
}

/// Exit status after the reader of the output has gone (`| head -1`): that of a command that SIGPIPE ends (128 + 13).
const EXIT_SIGPIPE: u8 = 141;

/// Prints why there is no result, if standard error can be written.
fn print_error(why: &str) -> ExitCode {
    let _ = writeln!(stderr(), "pmdanixl: {why}");
    ExitCode::FAILURE
}

/// Standard output is for these only: pmcd's pipe is what it is otherwise.
fn print(text: &str) -> Result<ExitCode, Box<dyn Error>> {
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn run_check(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    shm::guard_against_sigbus()?;
    raise_descriptor_limit();
    let conf = PcpConf::read();
    let source = ConfigSource::new(options, &conf);
    let own = own_places(&conf, &source);
    let loaded = source.read();
    let summary = check::run(
        &source.path,
        loaded.as_ref(),
        &own,
        &conf,
        &mut stdout().lock(),
    )?;
    Ok(ExitCode::from(u8::from(summary.problems > 0)))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let is_by_pipe = !options
        .standard
        .iter()
        .any(|option| [c"-i", c"-u", c"-6"].contains(&option.as_c_str()));
    if is_by_pipe && stdin().is_terminal() {
        return Err("is started by pmcd, not by hand; see pmdanixl(1), or try --check".into());
    }
    // pmcd's SIGHUP does not end a start.
    block(&[Signal::SIGHUP, Signal::SIGIO, Signal::SIGXFSZ])?;
    shm::guard_against_sigbus()?;
    let conf = PcpConf::read();
    let help = CString::new(conf.help().as_os_str().as_bytes())?;
    let mut pmda = Pmda::new(c"pmdanixl", DOMAIN, c"nixl.log", &help);
    let standard = options.standard.clone();
    pmda.options(standard)
        .map_err(|status| format!("command line: {status}; see pmdanixl --help"))?;
    log_file::open(&mut pmda);
    // pmcd waits 3 s for this, so nothing that could take long comes before it.
    pmda.connect().map_err(|status| {
        format!("cannot connect to pmcd: {status}; pmcd starts this program, see pmdanixl(1)")
    })?;
    let signals = block(&[
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGIO,
        // Where files may not grow, that is an error like others.
        Signal::SIGXFSZ,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ])?;
    let source = ConfigSource::new(options, &conf);
    let loaded = source.read();
    announce(&loaded);
    raise_descriptor_limit();
    let domain = pmda.domain();
    let journal = Journal::open(&conf.state());
    let state = journal.descriptor();
    let cache_path = conf.instance_cache(domain, AGENTS);
    let (own, cache) = (own_places(&conf, &source), cache_path.clone());
    let enter =
        Box::new(move |config: &Config| enter_account(config, &own, &cache, state.as_ref()));
    let reader = Box::new(move || source.read());
    let loaded = loaded.map(|loaded| loaded.config);
    let indoms = Indoms {
        agents: AgentInstances::new(pmda.instances(AGENTS)),
        buckets: BucketIndoms::new(|serial| pmda.instances(serial)),
    };
    let server = Server::new(domain, journal, cache_path, loaded, reader, enter, indoms)?;
    callbacks::init(&mut pmda)
        .map_err(|status| format!("cannot register the metrics: {status}"))?;
    daemon::serve(pmda, server, signals)?;
    Ok(())
}

/// Blocks signals, and gives what they are read from.
fn block(signals: &[Signal]) -> nix::Result<SignalFd> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// A ring costs a descriptor, and the usual limit is 1,024.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        if let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            tracing::warn!("the limit of open files cannot be raised to {hard}: {errno}");
        }
    }
}

/// What the daemon reads and writes beside the rings.
fn own_places(conf: &PcpConf, source: &ConfigSource) -> OwnPlaces {
    let parents = |paths: &[PathBuf]| {
        let parents = paths.iter().filter_map(|path| path.parent());
        parents.map(Path::to_owned).collect::<Vec<_>>()
    };
    // As it is given, and where links lead.
    let real = source.path.canonicalize().unwrap_or_default();
    let mut read = parents(&[conf.help(), source.path.clone(), real]);
    read.push(conf.path());
    // The log is open already.
    OwnPlaces {
        written: parents(&[conf.state(), conf.instance_cache(DOMAIN, AGENTS)]),
        read,
    }
}

/// Becomes the configured user; the files that it writes to in directories of PCP's become its own before.
fn enter_account(
    config: &Config,
    own: &OwnPlaces,
    cache: &Path,
    state: Option<&File>,
) -> Result<(), NotAllowed> {
    if let Some(account) = &config.user {
        let ids = privilege::hand_over(cache, account);
        // That there is no state file is said elsewhere.
        let (uid, gid) = (Some(account.uid), Some(account.gid));
        let state = state.map_or(Ok(()), |state| fchown(state, uid, gid));
        for (what, done) in [("the file of instance ids", ids), ("the state file", state)] {
            if let Err(err) = done {
                let user = &account.name;
                tracing::warn!(
                    "{what} cannot be given to {user}: {err}; it is not kept over a restart"
                );
            }
        }
    }
    tracing::info!("runs as user {}", rights::enter(config, own)?);
    Ok(())
}
