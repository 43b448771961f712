// SPDX-License-Identifier: GPL-2.0-or-later

//! The load on the daemon while one of its system calls fails.

use super::trace::{self, Call};
use crate::support::pdu::Link;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, PATIENCE, PMDANIXL, TX_BYTES};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Ids of names without an agent.
const TAKEN: [u32; 3] = [0, 1, 7];
const PERSISTENT: &str = "control.persistent";

/// State before the daemon starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// A state file that the daemon continues with.
    Kept,
    /// No state file. The daemon becomes another user, and removes the files of exited agents.
    Nothing,
    /// An invalid state file.
    Rubbish,
}

impl Before {
    pub const ALL: [Self; 3] = [Self::Kept, Self::Nothing, Self::Rubbish];
}

/// Fault: a system call that fails once.
#[derive(Clone, Debug)]
pub struct Fault {
    pub call: String,
    /// Number of the call, from 1.
    pub when: usize,
    pub error: &'static str,
}

/// A home, and the bytes that its agents have sent.
pub struct Scene {
    home: Home,
    before: Before,
}

/// Total bytes sent, by agent name.
#[derive(Default)]
struct Sent {
    all: BTreeMap<String, u64>,
}

impl Sent {
    fn push(&mut self, name: &str, ring: &mut RingWriter, value: u64) {
        assert!(ring.push(Kind::TxBytes, value), "{name} is full");
        *self.all.entry(name.to_owned()).or_default() += value;
    }

    /// True if the values are exactly the sent bytes.
    fn is_right(&self, shown: &BTreeMap<String, u64>) -> bool {
        let mut all = self.all.iter();
        all.all(|(name, sent)| shown.get(name) == Some(sent))
    }

    /// True if no byte is counted twice.
    fn is_bound(&self, shown: &BTreeMap<String, u64>) -> bool {
        shown.iter().all(|(name, shown)| {
            let sent = self.all.get(name).copied().unwrap_or_default();
            *shown <= sent
        })
    }
}

fn until<T>(what: &str, mut condition: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match condition() {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() >= end => return Err(format!("{what}: {why}")),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn drained(ring: &RingWriter) -> Result<(), String> {
    until("a drain", || match ring.pending() {
        0 => Ok(()),
        pending => Err(format!("{pending} events wait")),
    })
}

impl Scene {
    pub fn new(before: Before) -> Self {
        let home = Home::new();
        let more = match before {
            Before::Nothing => "user = \"nobody\"\nremove_exited_after = \"0s\"",
            Before::Kept | Before::Rubbish => "",
        };
        home.set(&format!(
            "drain_interval = \"20ms\"\nretain = \"1h\"\n{more}"
        ));
        // Names that had ids a minute ago, and a limit above the assigned ids.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seen = now.expect("after 1970").as_secs() - 60;
        let lines: String = TAKEN.map(|id| format!("{id} {seen} name-{id}\n")).concat();
        let file = home.path("var/config/pmda/39.0");
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, format!("2 0 2147483647\n{lines}")).expect("written");
        // The other user must be able to read the directory.
        fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
        Self { home, before }
    }

    pub fn log(&self) -> String {
        self.home.log()
    }

    /// Traced system calls of the run: all, or those with the name of the failing one.
    pub fn calls(&self) -> Vec<Call> {
        let trace = fs::read(self.home.path("trace")).unwrap_or_default();
        trace::calls(&String::from_utf8_lossy(&trace))
    }

    fn ring(&self, name: &str, layout: Layout, capacity: u64) -> RingWriter {
        RingWriter::create(&self.home.ring(name), layout, capacity).expect("a ring")
    }

    /// Agents start, send, restart in place and exit; a ring is truncated, another unlinked. Then the daemon is started
    /// again without the fault.
    ///
    /// # Errors
    /// The first wrong result.
    pub fn run(&self, fault: Option<&Fault>) -> Result<(), String> {
        let mut sent = Sent::default();
        let mut steady = self.ring("steady", Layout::V4, 64);
        let mut cut = self.ring("cut", Layout::V3, 4096);
        let mut restarts = self.ring("restarts", Layout::V2, 64);
        let mut gone = self.ring("gone", Layout::V1, 64);
        if self.before == Before::Kept {
            for (name, ring) in [("steady", &mut steady), ("restarts", &mut restarts)] {
                sent.push(name, ring, 1);
            }
            let mut link = self.start(Command::new(PMDANIXL))?;
            self.all_right(&mut link, &sent)?;
            self.end(link)?;
        }
        if self.before == Before::Rubbish {
            fs::create_dir_all(self.home.path("run/nixl")).expect("made");
            fs::write(self.home.path("run/nixl/state"), "rubbish").expect("written");
        }
        fs::write(self.home.ring("notes"), "no ring").expect("written");
        let rings = [&mut steady, &mut cut, &mut restarts, &mut gone];
        for (name, ring) in ["steady", "cut", "restarts", "gone"].into_iter().zip(rings) {
            sent.push(name, ring, 10);
        }
        let mut link = self.start(self.traced(fault))?;
        for ring in [&steady, &cut, &restarts, &gone] {
            drained(ring)?;
        }
        // A truncated ring, an unlinked one, a restarted one, a new one, and one that continues.
        drop((cut, gone));
        fs::write(self.home.ring("cut"), "").expect("there");
        fs::remove_file(self.home.ring("gone")).expect("there");
        let mut restarts = self.ring("restarts", Layout::V4, 256);
        sent.push("restarts", &mut restarts, 100);
        let mut late = self.ring("late", Layout::V2Named, 16);
        sent.push("late", &mut late, 100);
        sent.push("steady", &mut steady, 100);
        self.all_right(&mut link, &sent)?;
        // The next tick finds the new file.
        fs::remove_file(self.home.ring("cut")).expect("there");
        let mut cut = self.ring("cut", Layout::V4, 64);
        sent.push("cut", &mut cut, 100);
        let persistent = self.all_right(&mut link, &sent)?;
        let ids = self.ids(&mut link)?;
        if self.before == Before::Nothing {
            drop(late);
            until("the ring of an exited agent is removed", || {
                let failed = fault.is_some() && self.calls().iter().any(|call| call.injected);
                if failed || !self.home.ring("late").exists() {
                    Ok(())
                } else {
                    Err("it is there".into())
                }
            })?;
        }
        self.end(link)?;
        self.check_log(persistent)?;
        // The next daemon counts nothing twice, and loses nothing if the totals were persistent.
        sent.push("steady", &mut steady, 1000);
        let mut link = self.start(Command::new(PMDANIXL))?;
        let right = until("what the next one says", || {
            let shown = link.values(TX_BYTES).map_err(|err| err.to_string())?;
            let kept = sent.is_right(&shown);
            if (kept || !persistent) && sent.is_bound(&shown) {
                Ok(())
            } else {
                Err(format!(
                    "{shown:?} of {:?}, persistent: {persistent}",
                    sent.all
                ))
            }
        });
        right?;
        let again = self.ids(&mut link)?;
        for (id, name) in &again {
            let before = ids.iter().find(|(_, before)| *before == name);
            let moved = before.is_some_and(|(before, _)| before != id);
            if ids.get(id).is_some_and(|before| before != name) || moved {
                return Err(format!("{name} has the id {id} now; before it was {ids:?}"));
            }
        }
        self.end(link)
    }

    /// Names by instance id, without the ids from before the scene.
    fn ids(&self, link: &mut Link) -> Result<BTreeMap<u32, String>, String> {
        let ids = link.instances().map_err(|err| err.to_string())?;
        match ids.iter().find(|(id, _)| TAKEN.contains(id)) {
            Some((id, name)) => Err(format!("{name} has the id {id}, which was another's")),
            None => Ok(ids),
        }
    }

    fn start(&self, command: Command) -> Result<Link, String> {
        Link::start(&self.home, command).map_err(|err| format!("it does not start: {err}"))
    }

    /// Waits until the values are right. Returns true if the totals are persistent.
    fn all_right(&self, link: &mut Link, sent: &Sent) -> Result<bool, String> {
        until("what is shown", || {
            let shown = link.values(TX_BYTES).map_err(|err| err.to_string())?;
            let persistent = link.fetch(&[PERSISTENT]).map_err(|err| err.to_string())?;
            let persistent = persistent[0].get(&u32::MAX) == Some(&1);
            if sent.is_right(&shown) {
                Ok(persistent)
            } else {
                Err(format!(
                    "{shown:?} of {:?}, persistent: {persistent}",
                    sent.all
                ))
            }
        })
    }

    fn end(&self, link: Link) -> Result<(), String> {
        match link.end() {
            status if status.success() => Ok(()),
            status => Err(format!("it ended: {status}")),
        }
    }

    /// Asserts that the log has one line for the fault, and one for the persistence of the totals.
    fn check_log(&self, persistent: bool) -> Result<(), String> {
        let log = self.home.log();
        let mut lines: BTreeMap<&str, u32> = BTreeMap::new();
        for line in log
            .lines()
            .filter_map(|line| line.split_once("): ").or(line.split_once(") ")))
        {
            *lines.entry(line.1).or_default() += 1;
        }
        let lost = log.matches("totals begin at zero").count()
            + log.matches("do not survive a restart").count();
        if log.contains("internal error") {
            Err("it panicked".into())
        } else if let Some(line) = lines.iter().find(|(_, times)| **times > 2) {
            Err(format!("it says {line:?} times"))
        } else if !persistent && lost != 1 {
            Err(format!("{lost} lines say that totals are lost"))
        } else {
            Ok(())
        }
    }

    /// The daemon under strace(1), which is not its parent.
    fn traced(&self, fault: Option<&Fault>) -> Command {
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-qq", "-y", "-o"]);
        command.arg(self.home.path("trace"));
        if let Some(Fault { call, when, error }) = fault {
            command.args(["--seccomp-bpf".into(), format!("--trace={call}")]);
            command.arg(format!("--inject={call}:error={error}:when={when}"));
        }
        command.arg(PMDANIXL);
        command
    }
}
