// SPDX-License-Identifier: GPL-2.0-or-later

//! pmcd's side of the pipe to the daemon, down to the PDUs: for tests that measure the time of an answer or choose
//! every request.
//!
//! Written from the PDUs of PCP 6, not from `src/`: a length, a type and a sender, then numbers of four bytes, all
//! big-endian.

use super::{Home, PATIENCE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmdanixl::metrics::{DOMAIN, METRICS, Metric};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

const ERROR: u32 = 0x7000;
const RESULT: u32 = 0x7001;
const PROFILE: u32 = 0x7002;
const FETCH: u32 = 0x7003;
const DESC_REQ: u32 = 0x7004;
const DESC: u32 = 0x7005;
const INSTANCE_REQ: u32 = 0x7006;
const INSTANCE: u32 = 0x7007;
const CREDS: u32 = 0x700c;
const ATTRIBUTE: u32 = 0x7011;
/// Attribute with the user id of a client, in decimal digits.
const USER_ID: u32 = 11;
/// Format of values that are beside their instances. Values of other formats are at an offset.
const IN_PLACE: u32 = 0;
const ELSEWHERE: u32 = 1;
/// Part of all PMIDs and instance domains of NIXL.
const NIXL: u32 = DOMAIN << 22;

/// Value in a pmStore request.
#[derive(Clone, Debug)]
pub enum Sent {
    /// PM_TYPE_U32 in place, one for each number.
    Numbers(Vec<u32>),
    /// Block of a type (PM_TYPE_*) with these words.
    Block(u32, Vec<u32>),
}

impl Sent {
    /// Number of words without the block.
    fn words(&self) -> usize {
        match self {
            Self::Numbers(numbers) if numbers.is_empty() => 2,
            Self::Numbers(numbers) => 3 + 2 * numbers.len(),
            Self::Block(..) => 5,
        }
    }
}

/// A daemon that was started like pmcd does it, and the pipe to it. Dropping it ends the daemon.
#[derive(Debug)]
pub struct Link {
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    /// Number that pmcd gives to the client of these requests.
    pub sender: u32,
}

/// A line of figures in the debug log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Events counted since the start.
    pub events: u64,
    /// Attached rings and stores.
    pub attached: u64,
    /// Records of agents.
    pub agents: u64,
    /// Records of rejected files.
    pub rejected: u64,
}

impl Figures {
    /// Lines of figures in a log.
    pub fn lines(log: &str) -> impl Iterator<Item = &str> {
        log.lines()
            .filter(|line| line.contains("Debug: since the start: "))
    }

    /// Parses a line of figures.
    pub fn read(line: &str) -> Self {
        let before = |what: &str| {
            let (number, _) = line.split_once(what).expect(what);
            let (_, number) = number.rsplit_once(' ').expect(what);
            number.parse().expect("a number")
        };
        Self {
            events: before(" events"),
            attached: before(" files attached"),
            agents: before(" agents"),
            rejected: before(" rejected files"),
        }
    }
}

impl Link {
    /// Starts the daemon of a home, and does the handshake of pmcd.
    pub fn open(home: &Home) -> Self {
        Self::start(home, Command::new(super::PMDANIXL)).expect("it starts")
    }

    /// Starts a program as the daemon of a home, and does the handshake of pmcd.
    ///
    /// # Errors
    /// If the program ends or answers anything else.
    pub fn start(home: &Home, mut command: Command) -> io::Result<Self> {
        home.prepare();
        command
            .args([
                "-d".as_ref(),
                "39".as_ref(),
                "-c".as_ref(),
                home.conf().as_os_str(),
            ])
            .args(["-l".as_ref(), home.path("nixl.log").as_os_str()])
            .args(["-h".as_ref(), home.path("pmda/help").as_os_str()])
            .env("PCP_VAR_DIR", home.path("var"))
            .env("PCP_RUN_DIR", home.path("run"))
            .env("PCP_TMP_DIR", home.path("."));
        Self::greet(command)
    }

    /// Starts any PMDA with its arguments, and does the handshake of pmcd.
    ///
    /// # Errors
    /// As [`Link::start`].
    pub fn greet(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut link = Self {
            requests: child.stdin.take(),
            answers: child.stdout.take().expect("piped"),
            sender: 0,
            child,
        };
        // One credential: the version of the protocol, 2.
        link.answer(CREDS)?;
        link.request(CREDS, &[1, 0x0102_0000])?;
        // All instances.
        link.request(PROFILE, &[0; 4])?;
        Ok(link)
    }

    /// Pid of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fetches metrics. Returns the values of each by instance id, with `u32::MAX` for a metric without instances.
    ///
    /// # Errors
    /// If there is no valid answer.
    pub fn fetch(&mut self, names: &[&str]) -> io::Result<Vec<BTreeMap<u32, u64>>> {
        let pmids: Vec<u32> = names.iter().map(|name| pmid(name)).collect();
        self.fetch_pmids(&pmids)
    }

    /// Fetches metrics of any PMDA.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn fetch_pmids(&mut self, pmids: &[u32]) -> io::Result<Vec<BTreeMap<u32, u64>>> {
        let count = u32::try_from(pmids.len()).map_err(io::Error::other)?;
        self.request(FETCH, &[&[0, 0, 0, count], pmids].concat())?;
        let answer = Words(self.answer(RESULT)?);
        let mut at = 3;
        let mut values = Vec::new();
        for &pmid in pmids {
            if answer.at(at)? != pmid {
                return Err(odd("another metric", at));
            }
            let count = answer.at(at + 1)?;
            if count > u32::MAX / 2 {
                return Err(status(count));
            }
            at += 2;
            let mut of = BTreeMap::new();
            if count > 0 {
                let format = answer.at(at)?;
                at += 1;
                for _ in 0..count {
                    let (instance, value) = (answer.at(at)?, answer.at(at + 1)?);
                    at += 2;
                    let value = if format == IN_PLACE {
                        value.into()
                    } else {
                        // Counted from the start of the PDU. The block begins with its type and its length.
                        let block = value as usize - 3;
                        let [high, low] = [answer.at(block + 1)?, answer.at(block + 2)?];
                        (u64::from(high) << 32) | u64::from(low)
                    };
                    of.insert(instance, value);
                }
            }
            values.push(of);
        }
        Ok(values)
    }

    /// Requests the descriptor of a metric, as tools do before a pmStore request.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn describe(&mut self, name: &str) -> io::Result<()> {
        self.request(DESC_REQ, &[pmid(name)])?;
        self.answer(DESC).map(drop)
    }

    /// Sends the user id of the client. There is no answer.
    ///
    /// # Errors
    /// If the daemon has ended.
    pub fn be_user(&mut self, uid: u32) -> io::Result<()> {
        let mut text = uid.to_string().into_bytes();
        // The text ends in 1 to 4 zeros, up to a whole word.
        text.resize(text.len() / 4 * 4 + 4, 0);
        let words = text
            .chunks(4)
            .map(|chunk| u32::from_be_bytes(chunk.try_into().expect("four bytes")));
        let words: Vec<u32> = [USER_ID].into_iter().chain(words).collect();
        self.request(ATTRIBUTE, &words)
    }

    /// Sends one pmStore request for metrics.
    ///
    /// # Errors
    /// The status of PCP if the request is rejected: `status -12345`.
    pub fn store(&mut self, stores: &[(&str, Sent)]) -> io::Result<()> {
        let of = |&(name, ref sent): &(&str, Sent)| (pmid(name), sent.clone());
        self.store_pmids(&stores.iter().map(of).collect::<Vec<_>>())
    }

    /// Sends one pmStore request for PMIDs, which need not exist.
    ///
    /// # Errors
    /// As [`Link::store`].
    pub fn store_pmids(&mut self, stores: &[(u32, Sent)]) -> io::Result<()> {
        let count = u32::try_from(stores.len()).map_err(io::Error::other)?;
        let (mut sets, mut blocks) = (vec![0, 0, count], Vec::new());
        let words: usize = stores.iter().map(|(_, sent)| sent.words()).sum();
        // Counted from the start of the PDU.
        let end = 3 + sets.len() + words;
        for (pmid, sent) in stores {
            sets.push(*pmid);
            match sent {
                Sent::Numbers(numbers) => {
                    sets.push(u32::try_from(numbers.len()).map_err(io::Error::other)?);
                    sets.extend((!numbers.is_empty()).then_some(IN_PLACE));
                    sets.extend(numbers.iter().flat_map(|&number| [u32::MAX, number]));
                }
                Sent::Block(kind, words) => {
                    let place = u32::try_from(end + blocks.len()).map_err(io::Error::other)?;
                    sets.extend([1, ELSEWHERE, u32::MAX, place]);
                    let len = u32::try_from(4 * (words.len() + 1)).map_err(io::Error::other)?;
                    blocks.push((kind << 24) | len);
                    blocks.extend(words);
                }
            }
        }
        self.request(RESULT, &[sets, blocks].concat())?;
        self.done()
    }

    /// Reads an answer that is only a status.
    fn done(&mut self) -> io::Result<()> {
        match Words(self.answer(ERROR)?).at(0)? {
            0 => Ok(()),
            error => Err(status(error)),
        }
    }

    /// Ids and names of all agents.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn instances(&mut self) -> io::Result<BTreeMap<u32, String>> {
        self.instances_of(pmdanixl::metrics::AGENTS)
    }

    /// Ids and names of all instances of a domain, by its serial number.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn instances_of(&mut self, serial: u32) -> io::Result<BTreeMap<u32, String>> {
        self.request(INSTANCE_REQ, &[NIXL | serial, 0, 0, u32::MAX, 0])?;
        let answer = Words(self.answer(INSTANCE)?);
        let mut at = 2;
        let mut names = BTreeMap::new();
        for _ in 0..answer.at(1)? {
            let (id, len) = (answer.at(at)?, answer.at(at + 1)? as usize);
            let padded = len.div_ceil(4);
            let bytes = answer.0.get(4 * (at + 2)..4 * (at + 2) + len);
            let bytes = bytes.ok_or_else(|| odd("a name that is cut off", at))?;
            names.insert(id, String::from_utf8_lossy(bytes).into_owned());
            at += 2 + padded;
        }
        Ok(names)
    }

    /// Values of a metric by instance name, with "" for a metric without instances.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn values(&mut self, name: &str) -> io::Result<BTreeMap<String, u64>> {
        let values = self.fetch(&[name])?.remove(0);
        let names = match metric(name).indom() {
            Some(serial) => self.instances_of(serial)?,
            None => BTreeMap::new(),
        };
        let named = values.into_iter().map(|(id, value)| {
            let name = names.get(&id).cloned().unwrap_or_default();
            (name, value)
        });
        Ok(named.collect())
    }

    /// Bytes sent by instance.
    pub fn sent(&mut self) -> BTreeMap<String, u64> {
        self.values(super::TX_BYTES).expect("an answer")
    }

    /// Values of a metric of type text by instance name.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn texts(&mut self, name: &str) -> io::Result<BTreeMap<String, String>> {
        self.request(FETCH, &[0, 0, 0, 1, pmid(name)])?;
        let answer = Words(self.answer(RESULT)?);
        let names = match metric(name).indom() {
            Some(serial) => self.instances_of(serial)?,
            None => BTreeMap::new(),
        };
        let mut texts = BTreeMap::new();
        for number in 0..answer.at(4)? as usize {
            let (instance, place) = (answer.at(6 + 2 * number)?, answer.at(7 + 2 * number)?);
            // Counted from the start of the PDU. The length in the first word includes that word.
            let block = place as usize - 3;
            let len = answer.at(block)? as usize & 0xff_ffff;
            let bytes = answer.0.get(4 * block + 4..4 * block + len);
            let bytes = bytes.ok_or_else(|| odd("a text that is cut off", block))?;
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim_end_matches('\0').to_owned();
            texts.insert(names.get(&instance).cloned().unwrap_or_default(), text);
        }
        Ok(texts)
    }

    /// Switches debug messages on as root, and returns the figures that the daemon then logs.
    pub fn figures(&mut self, home: &Home) -> Figures {
        let lines = || Figures::lines(&home.log()).count();
        let before = lines();
        let set = |value| [("control.debug", Sent::Numbers(vec![value]))];
        self.be_user(0)
            .and_then(|()| self.store(&set(1)))
            .expect("set");
        super::wait_for("the figures are logged", || {
            (lines() > before).then_some(())
        });
        self.store(&set(0)).expect("set");
        let log = home.log();
        Figures::read(Figures::lines(&log).last().expect("logged"))
    }

    /// Exit status of the daemon if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// Closes the connection, as pmcd does at its end. Returns the exit status of the daemon.
    pub fn end(mut self) -> ExitStatus {
        self.requests = None;
        super::wait_for("pmdanixl ends without a client", || self.ended())
    }

    fn request(&mut self, kind: u32, words: &[u32]) -> io::Result<()> {
        let len = u32::try_from(4 * (words.len() + 3)).map_err(io::Error::other)?;
        let head = [len, kind, self.sender];
        let bytes: Vec<u8> = head
            .iter()
            .chain(words)
            .flat_map(|word| word.to_be_bytes())
            .collect();
        self.requests
            .as_mut()
            .expect("open until the end")
            .write_all(&bytes)
    }

    /// Reads the next answer. Returns the body.
    fn answer(&mut self, kind: u32) -> io::Result<Vec<u8>> {
        let head = Words(self.read(12)?);
        let body = self.read((head.at(0)? as usize).saturating_sub(12))?;
        match head.at(1)? {
            found if found == kind => Ok(body),
            ERROR => Err(status(Words(body).at(0)?)),
            found => Err(odd("another answer", found as usize)),
        }
    }

    fn read(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let patience = PollTimeout::try_from(PATIENCE).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        let mut have = 0;
        while have < len {
            let mut ready = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, patience)? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.answers.read(&mut bytes[have..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => have += more,
            }
        }
        Ok(bytes)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Body of a PDU, as numbers.
struct Words(Vec<u8>);

impl Words {
    fn at(&self, index: usize) -> io::Result<u32> {
        let bytes = self.0.get(4 * index..4 * index + 4);
        let bytes = bytes.ok_or_else(|| odd("an end", index))?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
    }
}

/// Error of PCP, a negative number.
fn status(word: u32) -> io::Error {
    let number = i32::from_ne_bytes(word.to_ne_bytes());
    io::Error::other(format!("status {number}"))
}

fn odd(what: &str, place: usize) -> io::Error {
    io::Error::other(format!("{what} at {place}"))
}

/// Metric by its name, with or without `nixl.`.
fn metric(name: &str) -> &'static Metric {
    let name = name.strip_prefix("nixl.").unwrap_or(name);
    let metric = METRICS.iter().find(|metric| metric.name == name);
    metric.unwrap_or_else(|| panic!("no metric {name}"))
}

fn pmid(name: &str) -> u32 {
    let metric = metric(name);
    NIXL | (metric.cluster << 10) | metric.item
}
