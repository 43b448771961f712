// SPDX-License-Identifier: GPL-2.0-or-later

//! `other_user ACTION ...`: another user of the host. It acts in its working directory until its standard input ends.
//! It prints `ready` when the first effect is visible, and at the end how often it acted.
//!
//! - `exchange A B`: exchanges two names again and again (renameat2(2)).
//! - `flood RINGS SLOTS`: keeps rings full by moving their write positions; prints the number of reads of the
//!   least-read ring.
//! - `churn`: agents start, are drained, exit and remove their files; then agents with other names do this.
//! - `names RATE`: makes that many rings with one event per second, and removes each after a second.
//! - `rewrite FILES`: writes to that many files that are not rings, again and again.
//! - `rings NUMBER`: makes that many rings with one event each, all at once.
//! - `stores NUMBER`: makes that many stores that keep counting bytes; prints how many bytes each has counted.
//! - `torment DIRECTORY SEED FILES`: fills a directory with that many hostile files and keeps changing them; first
//!   prints how often it did each thing.
//! - `take NAME VALUE`: removes a ring of another user and makes one of the same name, full of events with that value.

use kit::store_writer::{StoreWriter, TX_BYTES, Who};
use kit::writer::{Kind, Layout, RingWriter};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::{SigSet, Signal};
use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

mod changes;
mod files;
#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../support/kit/mod.rs"]
mod kit;
mod torment;

/// Pause between two actions, so that the daemon gets CPU time.
const PAUSE: Duration = Duration::from_millis(1);

/// Number of agents that start and exit together.
const AT_ONCE: u64 = 8;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The kernel sends SIGIO when a process opens a file with a lease.
    SigSet::from(Signal::SIGIO).thread_block()?;
    let input = Input::new();
    let times = match words[..] {
        ["exchange", first, second] => exchange(&input, first, second)?,
        ["flood", rings, slots] => flood(&input, rings.parse()?, slots.parse()?)?,
        ["churn"] => churn(&input)?,
        ["names", rate] => names(&input, rate.parse()?)?,
        ["rewrite", files] => rewrite(&input, files.parse()?)?,
        ["stores", number] => stores(&input, number.parse()?)?,
        ["rings", number] => rings(&input, number.parse()?)?,
        ["torment", directory, seed, files] => {
            torment::torment(&input, Path::new(directory), seed.parse()?, files.parse()?)?
        }
        ["take", name, value] => take(&input, Path::new(name), value.parse()?)?,
        _ => return Err("the top of its source lists the actions".into()),
    };
    Ok(writeln!(io::stdout(), "{times}")?)
}

/// State of the standard input: open or ended.
struct Input(Receiver<()>);

impl Input {
    fn new() -> Self {
        let (open, ended) = channel();
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            drop(open);
        });
        Self(ended)
    }

    fn is_open(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Empty)
    }

    fn wait(&self) {
        let _ = self.0.recv();
    }
}

fn ready() -> Result<()> {
    Ok(writeln!(io::stdout(), "ready")?)
}

fn exchange(input: &Input, first: &str, second: &str) -> Result<u64> {
    let flags = RenameFlags::RENAME_EXCHANGE;
    let exchange = || renameat2(AT_FDCWD, first, AT_FDCWD, second, flags);
    let mut times = u64::from(exchange().is_ok());
    ready()?;
    while input.is_open() {
        times += u64::from(exchange().is_ok());
    }
    // After an even number of exchanges, each name has its first file.
    if times % 2 == 1 {
        exchange()?;
    }
    Ok(times)
}

fn flood(input: &Input, rings: usize, slots: u64) -> Result<u64> {
    let ring =
        |number| RingWriter::create(Path::new(&format!("flood-{number}")), Layout::V4, slots);
    let mut rings: Vec<RingWriter> = (0..rings).map(ring).collect::<io::Result<_>>()?;
    for ring in &mut rings {
        while ring.push(Kind::RxBytes, 1) {}
    }
    ready()?;
    let mut read = vec![0_u64; rings.len()];
    while input.is_open() {
        for (ring, read) in rings.iter_mut().zip(&mut read) {
            *read += u64::from(ring.pending() < slots - 1);
            ring.push_again();
        }
        std::thread::sleep(PAUSE);
    }
    Ok(read.into_iter().min().unwrap_or(0))
}

fn names(input: &Input, rate: u32) -> Result<u64> {
    ready()?;
    let mut names = std::collections::VecDeque::new();
    for number in 0.. {
        if !input.is_open() {
            break;
        }
        let name = format!("name-{number}");
        RingWriter::create(Path::new(&name), Layout::V4, 16)?.push(Kind::TxBytes, 1);
        names.push_back(name);
        if names.len() > rate as usize {
            names.pop_front().map(fs::remove_file).transpose()?;
        }
        std::thread::sleep(Duration::from_secs(1) / rate);
    }
    Ok(names.len() as u64)
}

fn churn(input: &Input) -> Result<u64> {
    ready()?;
    let mut times = 0;
    while input.is_open() {
        let names: Vec<String> = (times..times + AT_ONCE)
            .map(|time| format!("churn-{time}"))
            .collect();
        let ring = |name| RingWriter::create(Path::new(name), Layout::V4, 16);
        let mut rings: Vec<RingWriter> = names.iter().map(ring).collect::<io::Result<_>>()?;
        for ring in &mut rings {
            ring.push(Kind::TxBytes, 1);
        }
        while input.is_open() && rings.iter().any(|ring| ring.pending() > 0) {
            std::thread::sleep(PAUSE);
        }
        for name in &names {
            fs::remove_file(name)?;
        }
        times += AT_ONCE;
    }
    Ok(times)
}

fn rewrite(input: &Input, files: u64) -> Result<u64> {
    let mut times = 0_u64;
    while times == 0 || input.is_open() {
        for number in 0..files {
            fs::write(format!("junk-{number}"), times.to_le_bytes())?;
        }
        times += 1;
        if times == 1 {
            ready()?;
        }
    }
    Ok(times)
}

fn rings(input: &Input, number: u64) -> Result<u64> {
    let ring = |number| RingWriter::create(Path::new(&format!("ring-{number}")), Layout::V4, 8);
    let mut rings: Vec<RingWriter> = (0..number).map(ring).collect::<io::Result<_>>()?;
    for ring in &mut rings {
        ring.push(Kind::RxBytes, 1);
    }
    ready()?;
    input.wait();
    Ok(number)
}

fn stores(input: &Input, number: u64) -> Result<u64> {
    let store =
        |number| StoreWriter::create(Path::new("."), &Who::named(format!("store-{number}")));
    let stores: Vec<StoreWriter> = (0..number).map(store).collect::<io::Result<_>>()?;
    ready()?;
    let mut times = 0;
    while input.is_open() {
        stores.iter().for_each(|store| store.add(TX_BYTES, 1));
        times += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

fn take(input: &Input, name: &Path, value: u64) -> Result<u64> {
    fs::remove_file(name)?;
    let mut ring = RingWriter::create(name, Layout::V4, 512)?;
    // Not more, if the ring is drained meanwhile.
    let times = (0..511).filter(|_| ring.push(Kind::TxBytes, value)).count();
    ready()?;
    input.wait();
    Ok(times.try_into()?)
}
