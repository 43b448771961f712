//! pmcd's side of the pipe to the daemon, down to its PDUs: for tests that must know the time of an answer, or the requests
//! before it.
//!
//! The format is stated from what PCP 6 sends, independently of `src/`: a length, a type and a sender, then numbers of four
//! bytes, all big-endian.

use super::{Home, PATIENCE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmdanixl::metrics::{DOMAIN, METRICS};
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
/// A value beside its instance; anything else stands at an offset.
const IN_PLACE: u32 = 0;
const ELSEWHERE: u32 = 1;
/// Instance domain of the agents.
const AGENTS: u32 = DOMAIN << 22;

/// What a client stores to a metric.
#[derive(Clone, Debug)]
pub enum Sent {
    /// Numbers of 32 bits.
    Numbers(Vec<u32>),
    /// A value of this type (PM_TYPE_*), as these words.
    Block(u32, Vec<u32>),
}

impl Sent {
    /// How many words it takes beside its block.
    fn words(&self) -> usize {
        match self {
            Self::Numbers(numbers) if numbers.is_empty() => 2,
            Self::Numbers(numbers) => 3 + 2 * numbers.len(),
            Self::Block(..) => 5,
        }
    }
}

/// The agent, started as pmcd does it, and the pipe to it. Ends with the value.
#[derive(Debug)]
pub struct Link {
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    /// Number that pmcd gives to the client of these requests.
    pub sender: u32,
}

/// What a line of figures in the debug log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Events that were counted since the start.
    pub events: u64,
    /// Rings and stores that are attached.
    pub attached: u64,
    /// Agents that are remembered.
    pub agents: u64,
    /// Rejected files that are remembered.
    pub rejected: u64,
}

impl Figures {
    /// The lines of figures in a log.
    pub fn lines(log: &str) -> impl Iterator<Item = &str> {
        log.lines()
            .filter(|line| line.contains("Debug: since the start: "))
    }

    /// Reads one of these lines.
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
    /// Starts a program as the home's agent and does what pmcd does before its first request.
    ///
    /// # Errors
    /// The agent ends, or says something else.
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

    /// Starts a program that is an agent, with all its arguments, and does what pmcd does before its first request.
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

    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fetches metrics (`nixl.` left out); the values of each, by instance id, or under `u32::MAX` where it has no instances.
    ///
    /// # Errors
    /// No answer, or one that is none.
    pub fn fetch(&mut self, names: &[&str]) -> io::Result<Vec<BTreeMap<u32, u64>>> {
        let pmids: Vec<u32> = names.iter().map(|name| pmid(name)).collect();
        self.fetch_pmids(&pmids)
    }

    /// The same of any agent's metrics.
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

    /// Asks what a metric is (`nixl.` left out), as tools do before they store to it.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn describe(&mut self, name: &str) -> io::Result<()> {
        self.request(DESC_REQ, &[pmid(name)])?;
        self.answer(DESC).map(drop)
    }

    /// Says which user the client is. That has no answer.
    ///
    /// # Errors
    /// The agent has ended.
    pub fn be_user(&mut self, uid: u32) -> io::Result<()> {
        let mut text = uid.to_string().into_bytes();
        // Ended by a zero, and by more of them to a whole word.
        text.resize(text.len() / 4 * 4 + 4, 0);
        let words = text
            .chunks(4)
            .map(|chunk| u32::from_be_bytes(chunk.try_into().expect("four bytes")));
        let words: Vec<u32> = [USER_ID].into_iter().chain(words).collect();
        self.request(ATTRIBUTE, &words)
    }

    /// Stores to metrics (`nixl.` left out), in one request.
    ///
    /// # Errors
    /// As PCP's status, if it is refused: `status -12345`.
    pub fn store(&mut self, stores: &[(&str, Sent)]) -> io::Result<()> {
        let of = |&(name, ref sent): &(&str, Sent)| (pmid(name), sent.clone());
        self.store_pmids(&stores.iter().map(of).collect::<Vec<_>>())
    }

    /// The same, to what may be no metrics.
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

    /// The answer that has nothing but a status.
    fn done(&mut self) -> io::Result<()> {
        match Words(self.answer(ERROR)?).at(0)? {
            0 => Ok(()),
            refused => Err(status(refused)),
        }
    }

    /// The names of all instances.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn instances(&mut self) -> io::Result<BTreeMap<u32, String>> {
        self.request(INSTANCE_REQ, &[AGENTS, 0, 0, u32::MAX, 0])?;
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

    /// The values of a metric by instance name; under "" where it has no instances.
    ///
    /// # Errors
    /// As [`Link::fetch`].
    pub fn values(&mut self, name: &str) -> io::Result<BTreeMap<String, u64>> {
        let values = self.fetch(&[name])?.remove(0);
        let names = self.instances()?;
        let named = values.into_iter().map(|(id, value)| {
            let name = names.get(&id).cloned().unwrap_or_default();
            (name, value)
        });
        Ok(named.collect())
    }

    /// The figures that the daemon writes to its debug log when debug messages are switched on, as root.
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

    /// Whether it has ended by itself, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// Closes the connection, as pmcd does at its end; how the agent ends then.
    pub fn end(mut self) -> ExitStatus {
        self.requests = None;
        super::wait_for("pmdanixl ends with pmcd", || self.ended())
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

    /// The next answer, without its head.
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

/// The body of a PDU, as numbers.
struct Words(Vec<u8>);

impl Words {
    fn at(&self, index: usize) -> io::Result<u32> {
        let bytes = self.0.get(4 * index..4 * index + 4);
        let bytes = bytes.ok_or_else(|| odd("an end", index))?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
    }
}

/// An error of PCP's, a negative number.
fn status(word: u32) -> io::Error {
    let number = i32::from_ne_bytes(word.to_ne_bytes());
    io::Error::other(format!("status {number}"))
}

fn odd(what: &str, place: usize) -> io::Error {
    io::Error::other(format!("{what} at {place}"))
}

fn pmid(name: &str) -> u32 {
    let metric = METRICS.iter().find(|metric| metric.name == name);
    let metric = metric.unwrap_or_else(|| panic!("no metric {name}"));
    AGENTS | (metric.cluster << 10) | metric.item
}
