// SPDX-License-Identifier: GPL-2.0-or-later

//! Replays: what the daemon answers and logs, step by step, compared with `qa/golden/replay`.
//!
//! A golden file has a paragraph for each step: the title, then the changes since the step before. `+` is a new
//! instance with its values, `-` a withdrawn one. Values of 0 of a new instance, and of the host at the start, are
//! omitted. Metrics without a value for a new instance are listed. `log:` is a line of the log. Only the test clock
//! drives the steps. Files appear one at a time, since a directory has no order.
//!
//! `BLESS=1 cargo test --test qa replay::` writes the files. A commit that changes one says why.

mod agents;
mod files;

use crate::support::golden;
use crate::support::kit::snapshot::{Row, Snapshot};
use crate::support::kit::store_writer::{StoreWriter, Who};
use crate::support::kit::{Core, log};
use crate::support::writer::{Layout, RingWriter};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Lead of the test clock over the machine's clock at the start: longer than any test takes.
const AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Width of a list in a golden file, in columns.
const WIDTH: usize = 100;

/// A daemon, and the text of the golden file so far.
struct Replay {
    core: Core,
    text: String,
    /// A metric of the host that depends on the granularity of file times.
    hidden: Option<&'static str>,
    shown: Snapshot,
}

impl Replay {
    fn new(settings: &str) -> Self {
        log::collect();
        let mut core = Core::new(&limited(settings));
        core.advance(AHEAD);
        let mut replay = Self {
            core,
            text: String::new(),
            hidden: None,
            shown: Snapshot::default(),
        };
        replay.shown.host = replay.core.snapshot().host;
        replay
            .shown
            .host
            .values_mut()
            .for_each(|value| "0".clone_into(value));
        replay.step("start");
        replay
    }

    /// Omits a metric of the host from here on.
    fn hide(&mut self, metric: &'static str) {
        self.shown.host.remove(metric);
        self.hidden = Some(metric);
    }

    /// Runs for two seconds, and writes the changes.
    fn step(&mut self, title: &str) {
        self.after(2, title);
    }

    /// Runs for so many seconds, and writes the changes.
    fn after(&mut self, seconds: u32, title: &str) {
        self.core.run(seconds);
        let separator = if self.text.is_empty() { "" } else { "\n" };
        self.line(&format!("{separator}== {title} ({seconds} s)"));
        let mut now = self.core.snapshot();
        now.host.retain(|metric, _| self.hidden != Some(*metric));
        let before = std::mem::replace(&mut self.shown, now);
        self.show_instances(&before);
        let changes = changes(&before.host, &self.shown.host);
        self.lines("", changes);
        for line in self.core.take_log() {
            self.line(&format!("log: {line}"));
        }
    }

    fn show_instances(&mut self, before: &Snapshot) {
        for (name, (id, _)) in &before.instances {
            let now = self.shown.instances.get(name);
            if now.is_none_or(|(now, _)| now != id) {
                self.line(&format!("- {name} (id {id})"));
            }
        }
        let now = std::mem::take(&mut self.shown.instances);
        for (name, (id, row)) in &now {
            match before.instances.get(name).filter(|(had, _)| had == id) {
                Some((_, had)) => self.lines(&format!("{name}: "), changes(had, row)),
                None => {
                    self.line(&format!("+ {name} (id {id})"));
                    let values = row.iter().filter(|(_, value)| *value != "0");
                    let values = values.map(|(metric, value)| format!("{metric} = {value}"));
                    self.lines("    ", values.collect());
                    self.lines("    ", without_value(row));
                }
            }
        }
        self.shown.instances = now;
    }

    fn lines(&mut self, prefix: &str, lines: Vec<String>) {
        for line in lines {
            self.line(&format!("{prefix}{line}"));
        }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("memory");
    }

    /// Reloads with these settings.
    fn reload(&mut self, settings: &str, title: &str) {
        let error = self.core.try_configure(&limited(settings));
        self.step(title);
        if let Some(error) = error {
            self.line(&format!("rejected: {error}"));
        }
    }

    /// Adds to the counters of a store, and ends a flush.
    fn send(&self, store: &StoreWriter, events: &[(usize, u64)]) {
        for &(kind, value) in events {
            store.count(kind, value);
        }
        self.core.flush(store);
    }

    /// Starts an agent with a store. The name of its file is the same in each run.
    fn store(&self, identity: &Who, started: u64) -> StoreWriter {
        let (directory, pid) = (self.core.stores(), 4242);
        let path = directory.join(format!("nixl.{pid}.{started}.{}.mmap", identity.instance));
        let store = StoreWriter::create_at(&path, &identity.clone().pid(pid)).expect("a store");
        self.core.flush(&store);
        store
    }

    /// Compares the text with a golden file.
    fn end(self, file: &str) {
        golden(&format!("replay/{file}.out"), &self.text);
    }
}

/// Settings with a max_agents for which any machine has enough descriptors.
fn limited(settings: &str) -> String {
    match settings.contains("max_agents") {
        true => settings.to_owned(),
        false => format!("{settings}\nmax_agents = 64"),
    }
}

/// Values that changed, appeared or disappeared.
fn changes(before: &Row, now: &Row) -> Vec<String> {
    let metrics = before.keys().chain(now.keys());
    let metrics: BTreeSet<_> = metrics.collect();
    let changes = metrics.into_iter().filter_map(|metric| {
        let [had, has] = [before, now].map(|row| row.get(metric));
        let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "none".into());
        (had != has).then(|| format!("{metric}: {} -> {}", shown(had), shown(has)))
    });
    changes.collect()
}

/// Lines with the metrics of agents without a value, one line for each group.
fn without_value(row: &Row) -> Vec<String> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for metric in Snapshot::of_agents().filter(|metric| !row.contains_key(metric)) {
        let (group, last) = metric.rsplit_once('.').expect("all are in groups");
        groups.entry(group).or_default().push(last);
    }
    let mut lines = vec!["without a value:".to_owned()];
    for (group, names) in groups {
        let word = match &names[..] {
            [name] => format!("{group}.{name}"),
            names => format!("{group}.{{{}}}", names.join(",")),
        };
        let line = lines.last_mut().expect("one");
        if line.len() + word.len() < WIDTH {
            write!(line, " {word}").expect("memory");
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
}

/// Pushes the four events of a WRITE transfer.
fn send(ring: &mut RingWriter, bytes: u64, microseconds: u64) {
    let post = microseconds / 10;
    assert_eq!(ring.push_transfer(false, bytes, microseconds, post), 4);
}

fn ring(path: &Path, layout: Layout, slots: u64) -> RingWriter {
    RingWriter::create(path, layout, slots).expect("a ring")
}
