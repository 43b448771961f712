//! Whether somebody still writes to a file, and who: to a ring or a store.

use crate::base::file::FileFacts;
use crate::producer::facts::Facts;
use crate::producer::life::Life;
use crate::producer::survey::{Mappers, without_children};
use crate::producer::writer::{self, Holder, Writer};
use crate::shm::LeaseKind;
use nix::sys::stat::fstat;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often this is asked of a ring without new events, where there are not many.
const CHECK: Duration = Duration::from_secs(1);
/// How often at least.
const RARE_CHECK: Duration = Duration::from_secs(5);
/// Of how many rings it is asked in a second, unless it would be asked of one too rarely.
const CHECKS: u32 = 200;

/// How often it is asked of each of so many.
#[must_use]
pub fn check_every(files: usize) -> Duration {
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    (CHECK * files / CHECKS).clamp(CHECK, RARE_CHECK)
}
/// How often /proc is asked anew about a ring that somebody has and that says nothing: its agent may have let go of it, and the
/// process gone on.
const ASK: Duration = Duration::from_secs(60);
/// At which of so many checks it is read in /proc whether a writer still runs. At the others it is only asked whether a process has
/// its id, which costs a tenth: one that has ended has one as long as it was not waited for, and another may get its id, but not
/// soon.
const READ: u32 = 10;
/// How long a ring is taken for live after its last event where the kernel does not tell who has it.
const BENEFIT_OF_DOUBT: Duration = Duration::from_secs(60);

/// What is known of a file's holders.
#[derive(Debug)]
pub struct Presence {
    holder: Holder,
    /// How the kernel is asked.
    lease: LeaseKind,
    /// The process that writes, where /proc has shown it.
    writer: Option<Writer>,
    /// The one that wrote before the producer was started anew.
    previous: Option<Writer>,
    /// When it was last read in /proc whether the writer runs.
    read: Instant,
    /// What is known of the last process that was seen to write; it stays when that has ended.
    process_facts: Option<Facts>,
    unlinked: bool,
    /// Since when nobody has had the file.
    nobody_since: Option<Instant>,
    last_check: Instant,
    last_event: Instant,
    /// Change time of the file at the last check.
    changed: (i64, i64),
    /// Whether /proc is to be asked who writes.
    asks: bool,
    /// The file's change time when it was asked last: an agent that starts changes it.
    asked: Option<(i64, i64)>,
    last_asked: Instant,
    /// How long after that it is asked again: at first not long where /proc did not show everything, since that passes where a
    /// process was just about to end.
    again: Duration,
    /// Whether it then showed nobody who writes: whoever has the file only reads it.
    bystanders: bool,
}

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Somebody has the file who may write to it.
    Held,
    /// The same, and the file has changed since nobody had it: a producer was started.
    Started,
    /// Nobody is known who could write.
    Silent,
    /// Certainly nobody, and the file is unlinked: nobody will.
    Gone,
}

impl Presence {
    /// Asks for the first time.
    #[must_use]
    pub fn new(file: &File, facts: &FileFacts, lease: LeaseKind, now: Instant) -> Self {
        let holder = writer::holder(file, lease);
        // Rings that were found together are not all asked for their writers in one tick.
        let offset = Duration::from_millis(facts.id.ino % 1000);
        Self {
            holder,
            lease,
            writer: None,
            previous: None,
            read: now,
            process_facts: None,
            unlinked: false,
            nobody_since: (holder == Holder::Nobody).then_some(now),
            last_check: now.checked_sub(offset).unwrap_or(now),
            last_event: now,
            changed: facts.changed,
            asks: holder != Holder::Nobody,
            asked: None,
            last_asked: now,
            again: CHECK,
            bystanders: false,
        }
    }

    /// There were events, so that a process wrote. If none had the file before, a process scan is to find it: while events keep
    /// coming the kernel is not asked, and only whether the process that is known to write still runs: another may have taken
    /// its place.
    pub fn saw_events(&mut self, now: Instant, every: Duration) {
        self.asks |= self.holder == Holder::Nobody;
        if self.is_read_due(now, every) && !self.writer_runs(now, every) {
            self.asks |= self.writer.take().is_some();
        }
        (self.last_event, self.last_check) = (now, now);
        self.holder = Holder::Somebody;
        (self.bystanders, self.nobody_since) = (false, None);
    }

    /// The file was removed: in a while it is asked whether somebody met it before.
    pub fn unlinked(&mut self, now: Instant) {
        (self.unlinked, self.last_check) = (true, now);
        self.holder = Holder::Unknown;
        self.last_event = now;
    }

    /// Somebody had the file when it was to be removed.
    pub fn saw_somebody(&mut self, now: Instant) {
        self.nobody_since = None;
        self.last_check = now;
    }

    /// The producer was started anew: it may be another process.
    pub fn renewed(&mut self) {
        self.previous = self.writer.take();
        self.process_facts = None;
        self.asks = true;
    }

    /// Whether its agent lives: somebody writes, or has done so lately.
    #[must_use]
    pub fn life(&self, lately: bool) -> Life {
        let bystanders = self.bystanders && self.asked == Some(self.changed);
        if self.holder == Holder::Nobody || bystanders {
            return Life::Exited;
        }
        let is_writer = self.lease == LeaseKind::NoWriter && self.holder == Holder::Somebody;
        match self.writer.is_some() || lately || is_writer {
            true => Life::Live,
            false => Life::Unknown,
        }
    }

    /// The process that wrote when that was asked last.
    #[must_use]
    pub fn writer(&self) -> Option<Writer> {
        self.writer
    }

    /// What is known of that process, and after its end, of what it was. `None` until a survey has shown it, and again from the
    /// start of a new producer on.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        self.process_facts.as_ref()
    }

    /// Whether the kernel says that nobody else has the file.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.holder == Holder::Nobody
    }

    /// Whether the kernel says that somebody has it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder == Holder::Somebody
    }

    /// For how long it has said so.
    #[must_use]
    pub fn abandoned_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.nobody_since?))
    }

    /// Whether the file has no name any more.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.unlinked
    }

    /// Asks the kernel now.
    pub fn ask_kernel(&mut self, file: &File, now: Instant) -> Holder {
        self.last_check = now;
        self.holder = writer::holder(file, self.lease);
        match self.holder {
            Holder::Nobody => {
                self.nobody_since.get_or_insert(now);
                self.writer = None;
            }
            Holder::Somebody | Holder::Unknown => self.nobody_since = None,
        }
        self.holder
    }

    /// Finds out who has a ring without new events, if that was not asked for as long as `every`.
    pub fn check(&mut self, file: &File, now: Instant, every: Duration) -> Seen {
        let (was_abandoned, changed) = (self.is_abandoned(), self.changed);
        if now >= self.next_check(every) {
            self.ask_kernel(file, now);
            if let Ok(stat) = fstat(file) {
                let facts = FileFacts::new(&stat);
                (self.unlinked, self.changed) = (facts.links == 0, facts.changed);
            }
            if self.holder != Holder::Nobody {
                if !self.writer_runs(now, every) {
                    // The one that has ended may not have been the only one.
                    let ended = self.writer.take().is_some();
                    if ended || self.asked != Some(self.changed) {
                        (self.asks, self.last_asked, self.again) = (true, now, CHECK);
                    }
                }
                let idle = now.saturating_duration_since(self.last_event.max(self.last_asked));
                if idle >= self.again {
                    (self.asks, self.last_asked) = (true, now);
                }
            }
        }
        let bystanders = self.bystanders && self.asked == Some(self.changed);
        match self.holder {
            Holder::Nobody if self.unlinked => Seen::Gone,
            Holder::Nobody => Seen::Silent,
            _ if bystanders => Seen::Silent,
            Holder::Somebody if was_abandoned && self.changed != changed => Seen::Started,
            Holder::Somebody => Seen::Held,
            Holder::Unknown => {
                let doubt = now.saturating_duration_since(self.last_event) < BENEFIT_OF_DOUBT;
                if self.writer.is_some() || doubt {
                    Seen::Held
                } else {
                    Seen::Silent
                }
            }
        }
    }

    /// Whether the process that wrote still runs, as far as that is asked now.
    fn writer_runs(&mut self, now: Instant, every: Duration) -> bool {
        let is_read = self.is_read_due(now, every);
        if is_read {
            self.read = now;
        }
        // Where /proc is another PID namespace's, kill(2) knows nobody in it: only /proc says that one has ended.
        let runs = |writer: Writer| (!is_read && writer.has_process()) || writer.is_running();
        self.writer.is_some_and(runs)
    }

    fn is_read_due(&self, now: Instant, every: Duration) -> bool {
        now.saturating_duration_since(self.read) >= READ * every
    }

    /// When it is time to find out who has the file, where that is asked so often.
    #[must_use]
    pub fn next_check(&self, every: Duration) -> Instant {
        self.last_check + every
    }

    /// Whether a survey of /proc could tell more.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Has the next survey ask who writes, whatever is known.
    pub fn ask_again(&mut self) {
        self.asks = self.holder != Holder::Nobody;
    }

    /// A survey begins: what it shows holds for the file as it is now.
    pub fn begin_survey(&mut self, file: &File) {
        self.asks = false;
        let changed = fstat(file).ok().map(|stat| FileFacts::new(&stat).changed);
        self.bystanders &= changed == self.asked;
        self.asked = changed;
    }

    /// Takes what a survey showed of the file.
    pub fn end_survey(&mut self, mappers: &Mappers, facts: &FileFacts, path: &Path) {
        let (dev, ino) = (facts.id.dev, facts.id.ino);
        let shown = mappers.of(dev, ino, path).into_iter();
        let shown = Vec::from_iter(shown.filter(|mapper| mapper.is_agent()));
        let (before, previous) = (self.writer, self.previous);
        let is_store = self.lease == LeaseKind::NoWriter;
        // The process before a restart may go on for a while, and a scan that began before may show it once more. Of several
        // agents it is the first that was started.
        let writers = without_children(&shown).into_iter();
        self.writer = writers
            .map(|mapper| mapper.process)
            .min_by_key(|&writer| {
                let is = |other| Some(writer) == other;
                (is(previous), !is(before), writer.start)
            })
            // A store is locked as well, which is shown to everybody.
            .or_else(|| mappers.locker(dev, ino).filter(|_| is_store));
        if let Some(writer) = self.writer {
            // Of one process what was shown stays: a title that it gives itself writes over its arguments and its environment.
            let known = self.process_facts.take();
            let known = known.filter(|_| before == self.writer);
            self.process_facts = match mappers.facts(writer) {
                Some(facts) => Some(facts.clone().merge(&known.unwrap_or_default())),
                None => known,
            };
        }
        // Seen through a container's layers a file may have another device, but keeps its number.
        self.bystanders = (mappers.complete && !mappers.is_possible(ino))
            || (is_store && self.writer.is_none() && mappers.is_unlocked(dev, ino));
        self.again = match mappers.complete {
            true => ASK,
            false => (self.again * 2).min(ASK),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::holdups::Avoided;
    use std::collections::HashSet;
    use std::os::fd::AsFd;

    /// A file as a ring is attached to it, and where it is.
    fn file() -> (tempfile::NamedTempFile, FileFacts, Instant) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(4096).expect("room");
        let facts = FileFacts::new(&fstat(file.as_file().as_fd()).expect("open"));
        (file, facts, Instant::now())
    }

    /// All of /proc, with nothing hidden.
    fn survey(presence: &mut Presence, file: &tempfile::NamedTempFile, facts: &FileFacts) {
        presence.begin_survey(file.as_file());
        let mut mappers = Mappers::read(
            &[(facts.id.ino, facts.uid)].into(),
            Some(&HashSet::new()),
            &Avoided::default(),
            &mut |_| (),
        );
        mappers.complete = true;
        presence.end_survey(&mappers, facts, file.path());
    }

    /// A process that does nothing, as if a survey had shown that it writes.
    fn shown_to_write(presence: &mut Presence) -> (std::process::Child, Writer) {
        let mut process = std::process::Command::new("sleep");
        let process = process.arg("600").spawn().expect("it starts");
        let writer = Writer::of(process.id()).expect("it runs");
        (presence.writer, presence.bystanders) = (Some(writer), false);
        (process, writer)
    }

    #[test]
    fn events_of_a_file_that_no_process_had_ask_for_the_writer() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let facts = FileFacts::new(&fstat(file.as_file()).expect("open"));
        let now = Instant::now();
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        assert!(presence.is_abandoned() && !presence.asks());
        presence.saw_events(now, CHECK);
        assert!(presence.is_held() && presence.asks());
        presence.begin_survey(file.as_file());
        presence.saw_events(now, CHECK);
        assert!(!presence.asks(), "once");
    }

    #[test]
    fn the_more_files_there_are_the_more_rarely_each_is_asked_about() {
        let seconds =
            [0, 1, 200, 400, 1000, 1 << 20, usize::MAX].map(|files| check_every(files).as_secs());
        assert_eq!(seconds, [1, 1, 1, 2, 5, 5, 5]);
        let (file, facts, now) = file();
        let _agent = File::options()
            .append(true)
            .open(file.path())
            .expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        presence.saw_events(now, CHECK);
        drop(_agent);
        let seen =
            [1, 2, 3].map(|second| presence.check(file.as_file(), now + second * CHECK, 3 * CHECK));
        assert_eq!(seen, [Seen::Held, Seen::Held, Seen::Silent]);
    }

    #[test]
    fn who_has_a_file_open_to_read_it_does_not_keep_its_agent() {
        let (file, facts, now) = file();
        let _tail = File::open(file.path()).expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
        survey(&mut presence, &file, &facts);
        assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Silent);
        assert!(!presence.is_abandoned() && presence.abandoned_for(now).is_none());
        // An agent that starts makes it as long as its ring is.
        std::thread::sleep(crate::base::file::COARSE);
        file.as_file().set_len(8192).expect("room");
        assert_eq!(
            presence.check(file.as_file(), now + 2 * CHECK, CHECK),
            Seen::Held
        );
        assert!(presence.asks());
    }

    #[test]
    fn producer_that_starts_on_a_file_that_nobody_had_is_told_from_a_reader_once() {
        let (file, facts, now) = file();
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        let mut second = 0;
        let mut check = || {
            second += 1;
            presence.check(file.as_file(), now + second * CHECK, CHECK)
        };
        assert_eq!(check(), Seen::Silent);
        let tail = File::open(file.path()).expect("there");
        assert_eq!(check(), Seen::Held);
        drop(tail);
        assert_eq!(check(), Seen::Silent);
        let agent = File::options().append(true).open(file.path());
        std::thread::sleep(crate::base::file::COARSE);
        agent.as_ref().expect("there").set_len(8192).expect("room");
        assert_eq!([check(), check()], [Seen::Started, Seen::Held]);
    }

    #[test]
    fn an_agent_that_let_go_of_its_ring_while_its_process_goes_on_is_noticed() {
        let (file, facts, now) = file();
        let _tail = File::open(file.path()).expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        survey(&mut presence, &file, &facts);
        // As if that had shown a process that still runs.
        presence.writer = Some(Writer::of(std::process::id()).expect("this one"));
        presence.bystanders = false;
        assert_eq!(
            presence.check(file.as_file(), now + CHECK, CHECK),
            Seen::Held
        );
        assert!(!presence.asks());
        let later = now + ASK;
        assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Held);
        assert!(presence.asks());
        survey(&mut presence, &file, &facts);
        assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Silent);
        // It is not taken for live again while that is asked once more.
        presence.begin_survey(file.as_file());
        assert_eq!(
            presence.check(file.as_file(), later + CHECK, CHECK),
            Seen::Silent
        );
    }

    #[test]
    fn when_the_process_that_wrote_has_ended_it_is_asked_at_once_who_else_does() {
        let (file, facts, now) = file();
        let _tail = File::open(file.path()).expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        survey(&mut presence, &file, &facts);
        let (mut agent, _) = shown_to_write(&mut presence);
        assert_eq!(
            presence.check(file.as_file(), now + CHECK, CHECK),
            Seen::Held
        );
        assert!(!presence.asks());
        agent.kill().expect("it runs");
        agent.wait().expect("our child");
        assert_eq!(
            presence.check(file.as_file(), now + 2 * CHECK, CHECK),
            Seen::Held
        );
        assert!(presence.asks());
        survey(&mut presence, &file, &facts);
        assert_eq!(
            presence.check(file.as_file(), now + 2 * CHECK, CHECK),
            Seen::Silent
        );
    }

    #[test]
    fn writer_that_ends_while_another_writes_is_asked_for_in_spite_of_events() {
        let (file, facts, now) = file();
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        let (mut agent, writer) = shown_to_write(&mut presence);
        presence.saw_events(now, CHECK);
        agent.kill().expect("it runs");
        agent.wait().expect("our child");
        presence.saw_events(now + CHECK, CHECK);
        assert_eq!(presence.writer(), Some(writer), "not at every event");
        presence.asks = false;
        presence.saw_events(now + READ * CHECK, CHECK);
        assert!(presence.writer().is_none() && presence.asks());
    }

    #[test]
    fn scan_that_began_before_a_restart_does_not_keep_the_process_before() {
        let (file, facts, now) = file();
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        let (mut old, before) = shown_to_write(&mut presence);
        presence.renewed();
        let (mut new, next) = shown_to_write(&mut presence);
        presence.writer = None;
        for (shown, expected) in [(&[before][..], before), (&[before, next], next)] {
            let mappers = Mappers::of_processes(&facts, file.path(), shown);
            presence.end_survey(&mappers, &facts, file.path());
            assert_eq!(presence.writer(), Some(expected));
        }
        for process in [&mut old, &mut new] {
            process.kill().expect("it runs");
            process.wait().expect("our child");
        }
    }

    #[test]
    fn a_writer_that_was_not_waited_for_is_found_out_at_the_tenth_check() {
        let (file, facts, now) = file();
        let _tail = File::open(file.path()).expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        survey(&mut presence, &file, &facts);
        let (mut agent, writer) = shown_to_write(&mut presence);
        agent.kill().expect("it runs");
        // Until its parent has asked for how it ended, it has its id.
        while writer.is_running() {
            std::thread::yield_now();
        }
        assert!(writer.has_process());
        for second in 1..10 {
            presence.check(file.as_file(), now + second * CHECK, CHECK);
            assert!(!presence.asks(), "after {second} s");
        }
        presence.check(file.as_file(), now + READ * CHECK, CHECK);
        assert!(presence.asks());
        agent.wait().expect("our child");
    }

    #[test]
    fn a_survey_that_does_not_see_everything_leaves_it_open_and_is_made_again() {
        let (file, facts, now) = file();
        let _tail = File::open(file.path()).expect("there");
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        // Where it never does, this is asked ever more rarely.
        let mut asked = vec![];
        for second in 1..200 {
            let now = now + second * CHECK;
            assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
            if presence.asks() {
                asked.push(second);
                presence.begin_survey(file.as_file());
                presence.end_survey(&Mappers::default(), &facts, file.path());
            }
        }
        assert_eq!(asked, [1, 3, 7, 15, 31, 63, 123, 183]);
        let now = now + 300 * CHECK;
        assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Held);
        survey(&mut presence, &file, &facts);
        assert_eq!(presence.check(file.as_file(), now, CHECK), Seen::Silent);
    }

    #[test]
    fn a_file_that_nobody_has_is_abandoned_since_then_and_gone_when_unlinked() {
        let (file, facts, now) = file();
        let mut presence = Presence::new(file.as_file(), &facts, LeaseKind::Alone, now);
        assert!(presence.is_abandoned() && !presence.asks());
        let later = now + 5 * CHECK;
        assert_eq!(presence.check(file.as_file(), later, CHECK), Seen::Silent);
        assert_eq!(presence.abandoned_for(later), Some(5 * CHECK));
        presence.saw_events(later, CHECK);
        assert_eq!(presence.abandoned_for(later), None);
        let (file, _path) = file.keep().expect("kept");
        std::fs::remove_file(&_path).expect("there");
        assert_eq!(presence.check(&file, later + 2 * CHECK, CHECK), Seen::Gone);
    }
}
