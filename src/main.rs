//! The agent: options, configuration, pmcd, and then the loop.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pmdanixl::config::{self, Config, Loaded};
use pmdanixl::error::ConfigError;
use pmdanixl::metrics::{AGENTS, DOMAIN};
use pmdanixl::options::{self, Options};
use pmdanixl::pcp::daemon::{self, Server};
use pmdanixl::pcp::ffi::Pmda;
use pmdanixl::pcpconf::PcpConf;
use pmdanixl::privilege::NotAllowed;
use pmdanixl::{check, log, privilege, shm};
use std::error::Error;
use std::ffi::CString;
use std::io::{Write, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match options::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(err) => {
            eprintln!("pmdanixl: {err}\n\n{}", options::USAGE);
            return ExitCode::FAILURE;
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
        run(&options)
            .inspect_err(|err| tracing::error!("{err}"))
            .map(|()| ExitCode::SUCCESS)
    };
    done.unwrap_or(ExitCode::FAILURE)
}

/// Standard output is for these only: pmcd's pipe is what it is otherwise.
fn print(text: &str) -> Result<ExitCode, Box<dyn Error>> {
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn run_check(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let conf = PcpConf::read();
    let path = options.config.clone().unwrap_or_else(|| conf.nixl_conf());
    let loaded = read_config(options, &conf);
    let verdict = check::run(&path, loaded.as_ref(), &mut stdout().lock())?;
    Ok(ExitCode::from(u8::from(verdict.problems > 0)))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let signals = take_signals()?;
    shm::guard_against_sigbus()?;
    let conf = PcpConf::read();
    let help = CString::new(conf.help().as_os_str().as_bytes())?;
    let mut pmda = Pmda::new(c"pmdanixl", DOMAIN, c"nixl.log", &help);
    pmda.options(options.standard.clone())?;
    pmda.open_log();
    // pmcd waits 3 s for this, so nothing that could take long comes before it.
    pmda.connect().map_err(|status| {
        format!("cannot connect to pmcd: {status}; pmcd starts this program, see pmdanixl(1)")
    })?;
    let loaded = read_config(options, &conf);
    announce(&loaded);
    raise_descriptor_limit();
    let domain = pmda.domain();
    let enter = {
        let conf = conf.clone();
        Box::new(move |config: &Config| enter_account(config, &conf.instance_cache(domain, AGENTS)))
    };
    let options = options.clone();
    let reader = Box::new(move || read_config(&options, &conf));
    let server = Server::new(domain, loaded.map(|loaded| loaded.config), reader, enter)?;
    pmda.init()?;
    daemon::serve(pmda, server, signals)?;
    Ok(())
}

/// The signals that the loop reads. They are blocked first of all, so that pmcd's SIGHUP does not end a start.
fn take_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGIO,
    ] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// The file that -c names, or PCP's; without the latter the defaults hold.
fn read_config(options: &Options, conf: &PcpConf) -> Result<Loaded, ConfigError> {
    let telemetry_dir = std::env::var_os("NIXL_TELEMETRY_DIR");
    let default = conf.nixl_conf();
    let path = options.config.as_deref().unwrap_or(&default);
    let mut loaded = if options.config.is_none() && !path.exists() {
        config::without_file(telemetry_dir.as_deref())?
    } else {
        config::load(path, telemetry_dir.as_deref())?
    };
    if let Some(name) = &options.username {
        loaded.config.user = Some(config::account_option(name)?);
    }
    Ok(loaded)
}

fn announce(loaded: &Result<Loaded, ConfigError>) {
    match loaded {
        Ok(Loaded { config, warnings }) => {
            warnings
                .iter()
                .for_each(|warning| tracing::warn!("{warning}"));
            let paths: Vec<&str> = config
                .telemetry_dir
                .iter()
                .map(|pattern| pattern.path.as_str())
                .collect();
            let paths = paths.join(", ");
            tracing::info!(
                "version {} looks for rings in {paths}",
                env!("CARGO_PKG_VERSION")
            );
        }
        Err(err) => {
            tracing::error!("{err}");
            tracing::error!(
                "no directory is looked through until that is put right: pmstore nixl.control.reload 1"
            );
        }
    }
}

/// A ring costs a descriptor, and the usual limit is 1,024.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        if let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            tracing::warn!("the limit of open files cannot be raised to {hard}: {errno}");
        }
    }
}

/// Becomes the configured user; the file that it writes to in a directory of PCP's becomes its own before.
fn enter_account(config: &Config, cache: &Path) -> Result<(), NotAllowed> {
    let Some(account) = &config.user else {
        return Ok(());
    };
    if let Err(err) = privilege::hand_over(cache, account) {
        let (path, user) = (cache.display(), &account.name);
        tracing::warn!(
            "{path}: cannot be given to {user}: {err}; agents get new instance ids after a restart"
        );
    }
    privilege::become_user(account)?;
    tracing::info!("runs as user {}", account.name);
    Ok(())
}
