// SPDX-License-Identifier: GPL-2.0-or-later

//! Command line of the sample producer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::{Arg, Error, Parser, ValueExt};

use super::writer::Layout;

/// Text of `--help`.
pub const HELP: &str = "\
Writes the telemetry rings of pretended NIXL agents, and at the end prints what it wrote, one line of JSON per agent.

Usage: producer --dir DIR [options]

  --dir DIR              directory of the rings; made if it is missing
  --name NAME            name of the agent and of its file [sample-A]
  --agents N             number of agents; with more than one, NAME-0, NAME-1, ... [1]
  --layout LAYOUT        v1, v2named, v2, v3 or v4 [v4]
  --capacity N           slots of each ring, a power of two [4096]
  --rate R               transfers per second and agent, 0.5 if need be; 0: as fast as it goes [100]
  --transfers N          transfers per agent; 0: until SIGTERM or SIGINT [0]
  --burst N              push N transfers at a time; else what is due every 100 ms, as NIXL does
  --size BYTES           bytes per transfer [65536]
  --read-every N         every Nth transfer, from the first, is a READ, the others WRITEs; 0: none [3]
  --vary                 draw sizes (4 KiB to 64 MiB), times and pace from a small random generator
  --seed N               seed of --vary [1]
  --register BYTES       register memory at each start, deregister it before each end [0: none]
  --errors N             errors of all twelve types in turn, spread over the transfers; endless: per 1000 [0]
  --on-full wait|drop    full ring: wait for room, or lose the event as NIXL does [wait]
  --full-timeout SECONDS longest wait for room, and for an empty ring before a restart [10]
  --restart-every N      restart the agent in place after every N transfers [0: never]
  --linger SECONDS       stay alive after the JSON, unless a signal came [0]
  --keep                 leave the rings behind, as NIXL does; the default
  --unlink               remove the rings at exit
  --progress             a line per second on stderr
  --help                 this text
";

/// Options of the command line.
#[allow(missing_docs)] // one field per option of HELP
#[derive(Debug)]
pub struct Options {
    pub dir: PathBuf,
    pub name: OsString,
    pub agents: u64,
    pub layout: Layout,
    pub capacity: u64,
    /// Time per transfer. `None`: as fast as possible.
    pub pace: Option<Duration>,
    pub transfers: u64,
    pub burst: u64,
    pub size: u64,
    pub read_every: u64,
    pub vary: bool,
    pub seed: u64,
    pub register: u64,
    pub errors: u64,
    pub wait_if_full: bool,
    pub full_timeout: Duration,
    pub restart_every: u64,
    pub linger: Duration,
    pub unlink: bool,
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            name: "sample-A".into(),
            agents: 1,
            layout: Layout::V4,
            capacity: 4096,
            pace: Some(Duration::from_millis(10)),
            transfers: 0,
            burst: 0,
            size: 65536,
            read_every: 3,
            vary: false,
            seed: 1,
            register: 0,
            errors: 0,
            wait_if_full: true,
            full_timeout: Duration::from_secs(10),
            restart_every: 0,
            linger: Duration::ZERO,
            unlink: false,
            progress: false,
        }
    }
}

/// Parses the command line. Returns `None` for `--help`.
pub fn parse(mut args: Parser) -> Result<Option<Options>, Error> {
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        let Arg::Long(option) = arg else {
            return Err(arg.unexpected());
        };
        let option = option.to_owned();
        match option.as_str() {
            "help" => return Ok(None),
            "dir" => options.dir = args.value()?.into(),
            "name" => options.name = file_name(args.value()?)?,
            "agents" => options.agents = value(&mut args, &option, positive)?,
            "layout" => options.layout = value(&mut args, &option, Layout::from_str)?,
            "capacity" => options.capacity = value(&mut args, &option, power_of_two)?,
            "rate" => options.pace = value(&mut args, &option, pace)?,
            "transfers" => options.transfers = value(&mut args, &option, whole)?,
            "burst" => options.burst = value(&mut args, &option, whole)?,
            "size" => options.size = value(&mut args, &option, whole)?,
            "read-every" => options.read_every = value(&mut args, &option, whole)?,
            "vary" => options.vary = true,
            "seed" => options.seed = value(&mut args, &option, whole)?,
            "register" => options.register = value(&mut args, &option, whole)?,
            "errors" => options.errors = value(&mut args, &option, whole)?,
            "on-full" => options.wait_if_full = value(&mut args, &option, wait_or_drop)?,
            "full-timeout" => options.full_timeout = value(&mut args, &option, seconds)?,
            "restart-every" => options.restart_every = value(&mut args, &option, whole)?,
            "linger" => options.linger = value(&mut args, &option, seconds)?,
            "keep" => options.unlink = false,
            "unlink" => options.unlink = true,
            "progress" => options.progress = true,
            _ => return Err(format!("--{option}: no such option; see --help").into()),
        }
    }
    if options.dir.as_os_str().is_empty() {
        return Err("--dir is missing: name the directory of the rings".into());
    }
    Ok(Some(options))
}

/// Value of an option. The error of `read` says which values are allowed.
fn value<T>(
    args: &mut Parser,
    option: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, Error> {
    let text = args.value()?.string()?;
    read(&text).map_err(|allowed| format!("--{option} {text:?}: {allowed}").into())
}

fn file_name(name: OsString) -> Result<OsString, Error> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(format!("--name {name:?}: must be a file name, without a directory").into());
    }
    Ok(name)
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "must be a whole number".into())
}

fn positive(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "must be a whole number above 0".into())
}

fn power_of_two(text: &str) -> Result<u64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &u64| number.is_power_of_two());
    number.ok_or_else(|| "must be a power of two, 4096 for example".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number).ok());
    seconds.ok_or_else(|| "must be a number of seconds, 0 or more".into())
}

/// Time per transfer for a rate per second.
fn pace(text: &str) -> Result<Option<Duration>, String> {
    let rate: f64 = text.parse().unwrap_or(f64::NAN);
    if rate == 0.0 {
        return Ok(None);
    }
    let pace = Duration::try_from_secs_f64(1.0 / rate)
        .ok()
        .filter(|pace| !pace.is_zero());
    pace.map(Some)
        .ok_or_else(|| "must be a number of transfers per second, or 0".into())
}

fn wait_or_drop(text: &str) -> Result<bool, String> {
    match text {
        "wait" => Ok(true),
        "drop" => Ok(false),
        _ => Err("must be wait or drop".into()),
    }
}
