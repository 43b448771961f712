// SPDX-License-Identifier: GPL-2.0-or-later

//! Entry point of the daemon and of `--check`: options, configuration, handshake with pmcd, then the event loop.

use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pmdanixl::base::text;
use pmdanixl::config::loader::{ConfigLoader, log_start};
use pmdanixl::config::options::{self, Options};
use pmdanixl::config::pcpconf::PcpConf;
use pmdanixl::config::{Config, UserAccount};
use pmdanixl::journal::Journal;
use pmdanixl::metrics::{AGENTS, DOMAIN, PEERS, PROCESSES, ROLE_TIMES, TRACED, TRACED_TIMES};
use pmdanixl::observer::client::ObserverHandle;
use pmdanixl::pcp::buckets::BucketIndoms;
use pmdanixl::pcp::callbacks;
use pmdanixl::pcp::daemon;
use pmdanixl::pcp::ffi::Pmda;
use pmdanixl::pcp::instances::KeyedInstances;
use pmdanixl::pcp::log_file;
use pmdanixl::pcp::server::{Entered, Indoms, Server};
use pmdanixl::rights::confine::OwnPaths;
use pmdanixl::rights::privilege::NotAllowed;
use pmdanixl::rights::{self, privilege};
use pmdanixl::{check, log, observer, shm, trace};
use std::error::Error;
use std::ffi::CString;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match options::parse(Path::new(""), std::env::args_os()) {
        Ok(options) => options,
        Err(err) => {
            let _ = print_error(&err);
            let _ = write!(stderr(), "\n{}", options::USAGE);
            return ExitCode::FAILURE;
        }
    };
    let done = if options.help {
        print(options::USAGE)
    } else if options.version {
        print(concat!("pmdanixl ", env!("CARGO_PKG_VERSION"), "\n"))
    } else if options.check {
        run_check(&options)
    } else if options.observer || options.observer_worker || options.observer_tracer {
        observe(&options)
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
        _ => print_error(&err),
    })
}

/// This program. Another file may be at its path by the time it is started again.
const PROGRAM: &str = "/proc/self/exe";

/// Exit status when the reader of the output has gone (`| head -1`): that of a command that SIGPIPE kills (128 + 13).
const EXIT_SIGPIPE: u8 = 141;

/// Prints an error to standard error, if that can be written. Returns the exit status.
fn print_error(why: &dyn Display) -> ExitCode {
    let why = text::one_line(&why.to_string());
    let _ = writeln!(stderr(), "pmdanixl: {why}");
    ExitCode::FAILURE
}

/// Prints a text to standard output. As a PMDA, the process has its pipe to pmcd there and prints nothing.
fn print(text: &str) -> Result<ExitCode, Box<dyn Error>> {
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn run_check(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // As in the daemon: SIGIO comes when another process opens a file with a lease, SIGXFSZ at the limit of the size of
    // the output.
    block(&[Signal::SIGIO, Signal::SIGXFSZ])?;
    shm::guard_against_sigbus()?;
    raise_descriptor_limit();
    let conf = PcpConf::read();
    let loader = ConfigLoader::new(options, &conf);
    let own = own_paths(&conf, &loader);
    let loaded = loader.read();
    let mut observer = ObserverHandle::start(Path::new(PROGRAM), &privilege::of_reader())?;
    let (loaded, out) = (loaded.as_ref(), stdout().lock());
    let summary = check::run(&loader.path, loaded, &own, &conf, &mut observer, out)?;
    Ok(ExitCode::from(u8::from(summary.problems > 0)))
}

/// Serves the daemon as its observer, or the observer as a worker or tracer, with no more rights than that needs.
fn observe(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // Otherwise the name is that of the link to the program.
    set_name(c"pmdanixl")?;
    // The daemon blocks signals, and a new process inherits that.
    SigSet::empty().thread_set_mask()?;
    observer::worker::close_inherited()?;
    if options.observer {
        privilege::limit_observer()?;
        observer::service::run(PROGRAM.into(), stdin().lock(), stdout().lock())?;
    } else {
        // It is killed with the observer.
        set_pdeathsig(Signal::SIGKILL)?;
        if options.observer_tracer {
            privilege::limit_tracer()?;
            trace::tracer::run(stdin().lock(), stdout().lock())?;
        } else {
            privilege::limit_worker()?;
            observer::worker::run(stdin().lock(), stdout().lock())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let is_by_pipe = !options
        .standard
        .iter()
        .any(|option| [c"-i", c"-u", c"-6"].contains(&option.as_c_str()));
    if is_by_pipe && stdin().is_terminal() {
        return Err(
            "pmdanixl is started by pmcd, not by hand; run ./Install, or try --check".into(),
        );
    }
    // SIGHUP, for example from a terminal, must not end the process before the event loop reads it.
    block(&[Signal::SIGHUP, Signal::SIGIO, Signal::SIGXFSZ])?;
    shm::guard_against_sigbus()?;
    let conf = PcpConf::read();
    let help = CString::new(conf.help().as_os_str().as_bytes())?;
    let mut pmda = Pmda::new(&help);
    let standard = options.standard.clone();
    pmda.options(standard)
        .map_err(|status| format!("command line: {status}; see pmdanixl --help"))?;
    log_file::open(&mut pmda);
    // pmcd waits 3 s for the handshake, so nothing slow may come before it.
    pmda.connect().map_err(|status| {
        format!("cannot connect to pmcd: {status}; pmcd starts this program, see pmdanixl(1)")
    })?;
    let signals = block(&[
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGIO,
        // A write beyond RLIMIT_FSIZE then fails with EFBIG instead of ending the process.
        Signal::SIGXFSZ,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ])?;
    let loader = ConfigLoader::new(options, &conf);
    let loaded = loader.read();
    log_start(&loaded);
    raise_descriptor_limit();
    if loaded.is_err() {
        privilege::suspend()
            .map_err(|errno| format!("capabilities cannot be given up: {errno}"))?;
    }
    let domain = pmda.domain();
    let cache_path = conf.instance_cache(domain, AGENTS);
    let own = own_paths(&conf, &loader);
    let enter = Box::new(move |config: &Config| enter_account(config, &own, &conf.state()));
    // The file may be readable for its owner only.
    let reader = Box::new(move || privilege::raised(|| loader.read()));
    let loaded = loaded.map(|loaded| loaded.config);
    let indoms = Indoms {
        agents: KeyedInstances::new(pmda.instances(AGENTS)),
        processes: KeyedInstances::new(pmda.instances(PROCESSES)),
        peers: KeyedInstances::new(pmda.instances(PEERS)),
        traced: KeyedInstances::new(pmda.instances(TRACED)),
        traced_times: KeyedInstances::new(pmda.instances(TRACED_TIMES)),
        role_times: KeyedInstances::new(pmda.instances(ROLE_TIMES)),
        buckets: BucketIndoms::new(|serial| pmda.instances(serial)),
    };
    let server = Server::new(domain, cache_path, loaded, reader, enter, indoms)?;
    callbacks::init(&mut pmda)
        .map_err(|status| format!("cannot register the metrics: {status}"))?;
    daemon::serve(pmda, server, signals)?;
    Ok(())
}

/// Blocks signals. Returns a descriptor to read them from.
fn block(signals: &[Signal]) -> nix::Result<SignalFd> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Raises the soft limit of open files to the hard limit. Each ring needs a descriptor, and the usual limit is 1,024.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        if let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            tracing::warn!("the limit of open files cannot be raised to {hard}: {errno}");
        }
    }
}

/// Returns the directories that the daemon reads and writes, other than the telemetry directories.
fn own_paths(conf: &PcpConf, loader: &ConfigLoader) -> OwnPaths {
    let parents = |paths: &[PathBuf]| {
        let parents = paths.iter().filter_map(|path| path.parent());
        parents.map(Path::to_owned).collect::<Vec<_>>()
    };
    // The configured path and the target of its links.
    let real = loader.path.canonicalize().unwrap_or_default();
    let mut read = parents(&[conf.help(), loader.path.clone(), real]);
    read.extend([conf.path.clone(), conf.labels()]);
    // Without the log, which is already open.
    OwnPaths {
        written: parents(&[conf.state(), conf.instance_cache(DOMAIN, AGENTS)]),
        read,
    }
}

/// Opens the state file, gives it to the configured user, becomes that user, and starts the observer.
fn enter_account(config: &Config, own: &OwnPaths, state: &Path) -> Result<Entered, NotAllowed> {
    let journal = privilege::raised(|| {
        let journal = Journal::open(state);
        if let Some(account) = &config.user {
            give_state_file(&journal, account);
        }
        journal
    });
    let mut observer = ObserverHandle::default();
    let user = rights::enter(config, own, || {
        observer = start_observer(config);
    })?;
    tracing::info!("runs as user {user}");
    Ok(Entered { journal, observer })
}

/// Starts the observer, unless the configuration needs none.
fn start_observer(config: &Config) -> ObserverHandle {
    if !config.proc_facts {
        return ObserverHandle::default();
    }
    let kept = privilege::of_observer(config);
    let observer = ObserverHandle::start(Path::new(PROGRAM), &kept);
    let observer = observer.unwrap_or_else(|err| {
        let consequence = observer::client::CONSEQUENCE;
        tracing::error!("observer: cannot be started: {err}; {consequence}");
        ObserverHandle::default()
    });
    let names = privilege::names(kept.iter().copied());
    match privilege::lacks_ptrace(config, &kept) {
        false => tracing::info!("observer: has {names}"),
        true => tracing::warn!(
            "observer: has {names}, and not CAP_SYS_PTRACE, so that processes of other users cannot be read; give it to the container (docker run --cap-add SYS_PTRACE)"
        ),
    }
    observer
}

/// Gives the state file to a user.
fn give_state_file(journal: &Journal, account: &UserAccount) {
    // A missing state file has its own message.
    let Some(state) = journal.descriptor() else {
        return;
    };
    if let Err(err) = fchown(state, Some(account.uid), Some(account.gid)) {
        let user = &account.name;
        tracing::warn!(
            "the state file cannot be given to {user}: {err}; its content does not survive a restart; correct its owner"
        );
    }
}
