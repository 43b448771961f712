// SPDX-License-Identifier: GPL-2.0-or-later

//! Attaches uprobes to a libnixl, to measure what they cost its applications (`measure.py`).
//!
//!     uprobes LIBRARY
//!
//! reads commands from standard input, and answers each with a line:
//!
//! - `load SET METHOD`: loads a set of probes (`Set::load` has their names), for `perf` or `multi` (`Method`)
//! - `attach SET METHOD`: attaches a loaded set
//! - `show SET METHOD`: what its probes have counted since they were loaded, as JSON
//! - `detach`: detaches the set that was attached last
//!
//! It needs CAP_BPF and CAP_PERFMON, or root.

mod programs;

use pmdanixl::shm::bpf::{self, Attached, Map, MapType, Method};
use pmdanixl::trace::symbols::Symbols;
use programs::{BUCKETS, HANDLE_KEY, HANDLE_VALUE, HANDLES, Maps, PEER_KEY, PEERS, STATS_WORDS};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, Result, stdin};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const CONSTRUCTOR: &str = "_ZN12nixlXferReqHC1ERKNSt7__cxx1112basic_string";
const CREATE: &str = "_ZNK9nixlAgent13createXferReqE";
const MAKE: &str = "_ZNK9nixlAgent11makeXferReqE14nixl_xfer_op_t";
const POST: &str = "_ZNK9nixlAgent11postXferReqE";
const RELEASE: &str = "_ZNK9nixlAgent14releaseXferReqE";
const STATS: &str = "_ZN12nixlXferReqH18updateRequestStatsE";

/// Offset of the peer's name in a handle (`nixlXferReqH::remoteAgent`) of NIXL 1.4 and 1.5.
const NAME_IN_HANDLE: i32 = 0x60;

/// The maps of one attachment.
#[derive(Debug)]
struct Figures {
    peers: Map,
    count: Map,
    handles: Map,
    stats: Map,
    calls: Map,
}

impl Figures {
    fn new() -> Result<Self> {
        let stats = u32::try_from(STATS_WORDS * 8).map_err(Error::other)?;
        Ok(Self {
            peers: Map::new(MapType::Hash, PEER_KEY, 8, PEERS)?,
            count: Map::new(MapType::Array, 4, 8, 1)?,
            handles: Map::new(MapType::Hash, HANDLE_KEY, HANDLE_VALUE, HANDLES)?,
            stats: Map::new(MapType::Array, 4, stats, PEERS)?,
            calls: Map::new(MapType::Hash, 8, 16, 4096)?,
        })
    }

    fn maps(&self) -> Maps {
        Maps {
            peers: self.peers.number(),
            count: self.count.number(),
            handles: self.handles.number(),
            stats: self.stats.number(),
            calls: self.calls.number(),
        }
    }

    /// Returns the figures of all peers as JSON.
    fn show(&self) -> Result<String> {
        let mut peers = vec![("unknown".to_owned(), 0)];
        for (key, number) in self.peers.entries()? {
            let bytes: Vec<u8> = key[1..]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let name = String::from_utf8_lossy(&bytes)
                .trim_end_matches('\0')
                .to_owned();
            peers.push((name, number[0]));
        }
        let mut shown = Vec::new();
        for (name, number) in peers {
            let values = self.stats.get(&[number])?;
            let mut sums = [0_u64; STATS_WORDS];
            for (index, value) in values.iter().enumerate() {
                sums[index % STATS_WORDS] = sums[index % STATS_WORDS].wrapping_add(*value);
            }
            let [in_flight, posted, failed, lost, at_once, histogram @ ..] = sums;
            let released: u64 = histogram.iter().sum();
            let middle = histogram
                .iter()
                .scan(0, |below, count| {
                    *below += count;
                    Some(*below)
                })
                .take_while(|below| below * 2 < released)
                .count()
                .min(BUCKETS - 1);
            shown.push(format!(
                r#"{{"peer": {name:?}, "in_flight": {}, "posted": {posted}, "failed": {failed}, "lost": {lost}, "at_once": {at_once}, "released": {released}, "p50_ns": {}}}"#,
                i64::from_ne_bytes(in_flight.to_ne_bytes()),
                1_u64 << middle
            ));
        }
        Ok(format!(
            r#"{{"handles": {}, "peers": [{}]}}"#,
            self.handles.entries()?.len(),
            shown.join(", ")
        ))
    }
}

/// A program, loaded, and where it goes.
#[derive(Debug)]
struct Probe {
    program: OwnedFd,
    offset: u64,
    at_return: bool,
}

/// A set of probes, loaded, with its maps.
#[derive(Debug)]
struct Set {
    figures: Figures,
    probes: Vec<Probe>,
    method: Method,
}

impl Set {
    /// Loads a set of probes.
    fn load(symbols: &Symbols, name: &str, method: Method) -> Result<Self> {
        let figures = Figures::new()?;
        let maps = figures.maps();
        let entry = |function, code| (function, false, code);
        let at_return = |function, code| (function, true, code);
        let programs = match name {
            "entries" => vec![
                entry(CONSTRUCTOR, programs::constructor(&maps)),
                entry(POST, programs::post(&maps, false, None)),
                entry(RELEASE, programs::release(&maps)),
            ],
            "handles" => vec![
                entry(POST, programs::post(&maps, false, Some(NAME_IN_HANDLE))),
                entry(RELEASE, programs::release(&maps)),
            ],
            "stats" => vec![
                entry(STATS, programs::update_stats(&maps, NAME_IN_HANDLE)),
                entry(RELEASE, programs::release(&maps)),
            ],
            "returns" => vec![
                entry(CONSTRUCTOR, programs::constructor(&maps)),
                entry(POST, programs::post(&maps, true, None)),
                at_return(POST, programs::posted(&maps)),
                entry(RELEASE, programs::release(&maps)),
            ],
            "creates" => vec![
                entry(CREATE, programs::create_request(&maps)),
                at_return(CREATE, programs::created(&maps)),
                entry(MAKE, programs::make_request(&maps)),
                at_return(MAKE, programs::created(&maps)),
                entry(POST, programs::post(&maps, false, None)),
                entry(RELEASE, programs::release(&maps)),
            ],
            "nothing" => [CONSTRUCTOR, POST, RELEASE]
                .map(|function| entry(function, programs::nothing()))
                .into(),
            _ => return Err(Error::other(format!("no set {name}"))),
        };
        let mut probes = Vec::new();
        for (function, at_return, code) in programs {
            let program = bpf::load(&code, method)?;
            probes.push(Probe {
                program,
                offset: symbols.offset(function)?,
                at_return,
            });
        }
        Ok(Self {
            figures,
            probes,
            method,
        })
    }

    /// Attaches the probes to a library, until the result is dropped.
    fn attach(&self, library: &Path) -> Result<Vec<Attached>> {
        let attach = |probe: &Probe| {
            bpf::attach(
                &probe.program,
                library,
                probe.offset,
                probe.at_return,
                self.method,
            )
        };
        self.probes.iter().map(attach).collect()
    }
}

fn main() -> Result<()> {
    let library = std::env::args_os()
        .nth(1)
        .map(PathBuf::from)
        .ok_or_else(|| Error::other("usage: uprobes LIBRARY"))?;
    let symbols = Symbols::read(&File::open(&library)?)?;
    let mut sets: HashMap<String, Set> = HashMap::new();
    let mut attached = Vec::new();
    for line in stdin().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["load", set, method] => {
                let method = if method == "multi" {
                    Method::Multi
                } else {
                    Method::Perf
                };
                sets.insert(
                    format!("{set} {method:?}").to_lowercase(),
                    Set::load(&symbols, set, method)?,
                );
                "loaded".to_owned()
            }
            ["attach", set, method] => {
                attached = known(&sets, set, method)?.attach(&library)?;
                "attached".to_owned()
            }
            ["show", set, method] => known(&sets, set, method)?.figures.show()?,
            ["detach"] => {
                attached.clear();
                "detached".to_owned()
            }
            _ => return Err(Error::other(format!("no command {line}"))),
        };
        println!("{answer}");
    }
    Ok(())
}

fn known<'a>(sets: &'a HashMap<String, Set>, set: &str, method: &str) -> Result<&'a Set> {
    sets.get(&format!("{set} {method}"))
        .ok_or_else(|| Error::other(format!("{set} {method} is not loaded")))
}
