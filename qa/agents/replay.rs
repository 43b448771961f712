//! Replays: what the daemon answers and logs, step by step, compared with `qa/golden/replay`.
//!
//! A golden file has a paragraph for each step: its title, then what changed since the step before. `+` is an instance that
//! appeared, with its values below; `-` is one that left. Values of 0 of a new instance, and of the host at the start, are not
//! shown; metrics that a new instance has no value of are listed. `log:` is a line of the log. The test clock alone drives the
//! steps. Files appear one at a time, since a directory has no order.
//!
//! `BLESS=1 cargo test --test agents replay::` writes the files. A commit that changes one says why.

use crate::support::kit::snapshot::{Row, Snapshot};
use crate::support::kit::store_writer::{BACKEND, StoreWriter, TX_BYTES, Who, XFER_TIME};
use crate::support::kit::{Core, log, push, push_to};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{golden, needs_root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How far the test clock is ahead of the machine's at the start. No test takes as long, so that it stays ahead.
const AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Columns of a list in a golden file.
const WIDTH: usize = 100;

/// A daemon, and the text of what it did so far.
struct Replay {
    core: Core,
    text: String,
    /// A metric of the host whose values depend on how coarse the times of files are.
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

    /// Shows no more values of a metric of the host.
    fn hide(&mut self, metric: &'static str) {
        self.shown.host.remove(metric);
        self.hidden = Some(metric);
    }

    /// Lets two seconds pass and shows what changed.
    fn step(&mut self, title: &str) {
        self.after(2, title);
    }

    /// Lets so many seconds pass and shows what changed.
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
    fn store(&self, who: &Who, started: u64) -> StoreWriter {
        let (directory, pid) = (self.core.stores(), 4242);
        let path = directory.join(format!("nixl.{pid}.{started}.{}.mmap", who.instance));
        let store = StoreWriter::create_at(&path, &who.clone().pid(pid)).expect("a store");
        self.core.flush(&store);
        store
    }

    /// Compares all with a golden file.
    fn end(self, file: &str) {
        golden(&format!("replay/{file}.out"), &self.text);
    }
}

/// Settings with as many agents as there are descriptors for on any machine.
fn limited(settings: &str) -> String {
    match settings.contains("max_agents") {
        true => settings.to_owned(),
        false => format!("{settings}\nmax_agents = 64"),
    }
}

/// Values that changed, came or went.
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

/// The metrics of agents that have no value, as lines. Those of one group share its name.
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

/// Writes the four events of a transfer, a WRITE.
fn send(ring: &mut RingWriter, bytes: u64, microseconds: u64) {
    let post = microseconds / 10;
    assert_eq!(ring.push_transfer(false, bytes, microseconds, post), 4);
}

fn ring(path: &Path, layout: Layout, slots: u64) -> RingWriter {
    RingWriter::create(path, layout, slots).expect("a ring")
}

/// Changes bytes of a file.
fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path);
    std::os::unix::fs::FileExt::write_all_at(&file.expect("there"), bytes, offset)
        .expect("written");
}

#[test]
fn files_of_all_layouts_appear_and_are_written() {
    let mut replay = Replay::new("");
    let mut rings = Vec::new();
    for layout in Layout::ALL {
        rings.push(ring(&replay.core.path(layout.name()), layout, 64));
        replay.step(&format!("a ring of layout {} appears", layout.name()));
    }
    for (number, (ring, layout)) in (1..).zip(rings.iter_mut().zip(Layout::ALL)) {
        send(ring, 4096 * number, 150 * number);
        assert_eq!(ring.push_transfer(true, 100, 30, 3), 4);
        assert!(ring.push(Kind::MemoryRegistered, 1 << 20));
        assert!(ring.push(Kind::MemoryDeregistered, 1 << 10));
        replay.step(&format!("{}: a WRITE, a READ, and memory", layout.name()));
    }
    for (ring, layout) in rings.iter_mut().zip(Layout::ALL) {
        for raw in [8, 10, 17, 25] {
            assert!(ring.push_raw(raw, 1));
        }
        replay.step(&format!("{}: errors, and an unknown type", layout.name()));
    }
    replay.after(61, "a minute without an event");
    replay.end("layouts");
}

#[test]
fn producers_restart_in_place() {
    let mut replay = Replay::new("");
    let path = replay.core.path("a");
    let mut writer = ring(&path, Layout::V4, 64);
    send(&mut writer, 1000, 20);
    replay.step("16 slots of 64 are written");
    for (layout, slots) in [
        (Layout::V4, 64),
        (Layout::V4, 16),
        (Layout::V4, 256),
        (Layout::V3, 256),
        (Layout::V1, 64),
        (Layout::V4, 64),
    ] {
        send(&mut writer, 7, 20);
        drop(writer);
        writer = ring(&path, layout, slots);
        let title = format!("restart in place: {}, {slots} slots", layout.name());
        replay.step(&format!("{title}; a transfer was pending"));
        send(&mut writer, 1000, 20);
        replay.step("a transfer");
    }
    replay.end("restarts");
}

#[test]
fn files_are_unlinked_and_created_again() {
    let mut replay = Replay::new("retain = \"20s\"");
    let path = replay.core.path("a");
    let mut old = ring(&path, Layout::V4, 64);
    send(&mut old, 1000, 20);
    replay.step("a ring");
    fs::remove_file(&path).expect("there");
    send(&mut old, 1000, 20);
    replay.step("it is unlinked and still written");
    let mut new = ring(&path, Layout::V4, 32);
    send(&mut new, 10, 20);
    send(&mut old, 1000, 20);
    replay.step("another is created beside it, and both are written");
    send(&mut old, 1000, 20);
    drop(old);
    replay.step("the first ends, with a transfer pending");
    send(&mut new, 10, 20);
    fs::remove_file(&path).expect("there");
    drop(new);
    replay.step("the second is unlinked and ends, with a transfer pending");
    let new = push_to(ring(&path, Layout::V2, 32), 1);
    replay.step("a third is created");
    let other = replay.core.path("made");
    drop(new);
    let moved = push_to(ring(&other, Layout::V4, 32), 1);
    fs::rename(&other, &path).expect("moved");
    replay.step("it ends, and another file is moved over it");
    drop(moved);
    fs::remove_file(&path).expect("there");
    replay.after(25, "that ends too, and retain passes");
    replay.end("unlinks");
}

#[test]
fn another_users_files_have_the_same_names() {
    needs_root();
    let mut replay = Replay::new("retain = \"20s\"");
    let path = replay.core.path("a");
    let first = push_to(ring(&path, Layout::V4, 32), 1);
    replay.step("a ring of root");
    fs::remove_file(&path).expect("there");
    let second = push_to(ring(&path, Layout::V4, 32), 10);
    chown(&path, Some(54_321), None).expect("root may");
    replay.step("it is unlinked, and uid 54321 creates one");
    drop(first);
    replay.step("the one of root ends");
    drop(second);
    fs::remove_file(&path).expect("there");
    let third = push_to(ring(&path, Layout::V4, 32), 100);
    replay.step("uid 54321 unlinks its own, and root creates another");
    replay.core.kill();
    replay.core.start();
    push_to(third, 100);
    replay.step("the daemon is killed and started, and root's ends");
    fs::remove_file(&path).expect("there");
    replay.after(25, "retain passes");
    replay.end("users");
}

#[test]
fn agents_exit_and_return() {
    let mut replay = Replay::new("retain = \"30s\"\nidle_after = \"10s\"\nremember = \"100s\"");
    let path = replay.core.path("a");
    let mut writer = ring(&path, Layout::V4, 64);
    send(&mut writer, 1000, 20);
    replay.step("a transfer");
    replay.after(12, "idle_after passes");
    send(&mut writer, 1000, 20);
    replay.step("a transfer");
    send(&mut writer, 1000, 20);
    drop(writer);
    replay.step("it exits with a transfer pending");
    replay.after(20, "nothing happens");
    let mut writer = ring(&path, Layout::V4, 64);
    send(&mut writer, 1, 20);
    replay.step("it returns within retain");
    drop(writer);
    fs::remove_file(&path).expect("there");
    replay.after(40, "it exits without a file, and retain passes");
    let writer = push_to(ring(&path, Layout::V4, 64), 1);
    replay.step("it returns after retain");
    drop(writer);
    replay.after(40, "it exits, its file stays, and retain passes");
    fs::remove_file(&path).expect("there");
    replay.after(120, "the file goes, and remember passes");
    let writer = push_to(ring(&path, Layout::V4, 64), 1);
    replay.step("it returns after remember");
    drop(writer);
    replay.end("exits");
}

#[test]
fn stores_follow_rings_and_rings_follow_stores() {
    let mut replay = Replay::new("retain = \"30s\"");
    // The file of an agent that has exited is looked at again only some time later.
    replay.hide("control.files.refused");
    let store = replay.store(&Who::named("kv").rank("3"), 1);
    replay.step("a store of rank 3 appears");
    replay.send(&store, &[(TX_BYTES, 1000), (XFER_TIME, 15), (BACKEND, 2)]);
    replay.step("its agent counts");
    drop(store);
    replay.step("its agent exits");
    let mut writer = ring(&replay.core.path("kv"), Layout::V4, 64);
    send(&mut writer, 20, 20);
    replay.step("a ring of the same name");
    drop(writer);
    replay.step("it exits");
    let store = replay.store(&Who::named("kv").rank("3").bounds(&[10.0, 20.0]), 2);
    replay.send(&store, &[(TX_BYTES, 300), (XFER_TIME, 15)]);
    replay.step("a store again, with other bounds");
    let other = replay.store(&Who::named("kv").rank("4"), 3);
    replay.send(&other, &[(TX_BYTES, 7)]);
    replay.step("a store of another rank");
    drop(other);
    replay.after(35, "that exits, and retain passes");
    let writer = push_to(ring(&replay.core.path("ring"), Layout::V4, 64), 1);
    replay.step("an agent with a ring");
    drop(writer);
    replay.step("it exits");
    let next = replay.store(&Who::named("ring").rank("0"), 4);
    replay.send(&next, &[(TX_BYTES, 10)]);
    replay.step("it comes back with a store");
    replay.core.kill();
    replay.send(&next, &[(TX_BYTES, 10)]);
    replay.send(&store, &[(TX_BYTES, 300)]);
    replay.core.start();
    replay.step("the daemon is killed, both count, and it is started");
    replay.end("stores");
}

#[test]
fn agents_are_labelled_by_directories_and_ranks() {
    let mut replay = Replay::new("");
    let [red, blue]: [PathBuf; 2] = ["red", "blue"].map(|name| {
        let path = replay.core.rings().join(name);
        fs::create_dir(&path).expect("made");
        path
    });
    let directories = format!(
        "telemetry_dir = [{{ path = {red:?}, label = \"red\" }}, {{ path = {blue:?}, label = \"blue\" }}]"
    );
    replay.reload(&directories, "two directories with labels");
    let _first = push_to(ring(&red.join("a"), Layout::V4, 16), 1);
    replay.step("an agent in the first");
    let _second = push_to(ring(&blue.join("a"), Layout::V4, 16), 10);
    replay.step("one of the same name in the second");
    let _odd = push_to(ring(&blue.join("odd name%"), Layout::V4, 16), 10);
    replay.step("one whose name PCP does not take");
    let store = replay.store(&Who::named("kv").rank("7"), 1);
    replay.step("a store of rank 7");
    replay.core.restart();
    replay.send(&store, &[(TX_BYTES, 10)]);
    replay.step("the daemon is killed and started");
    replay.end("labels");
}

#[test]
fn reloads_change_directories_bounds_and_retain() {
    let mut replay = Replay::new("");
    let mut writer = ring(&replay.core.path("a"), Layout::V4, 64);
    send(&mut writer, 1000, 20);
    replay.step("a transfer of 20 microseconds");
    let bounds = "histogram_buckets_us = [1, 30, 100]";
    replay.reload(bounds, "other bounds");
    send(&mut writer, 1000, 20);
    replay.step("a transfer");
    replay.reload("retain = 5", "a mistake: retain has no unit");
    replay.reload("retian = \"5s\"", "a mistake: an unknown key");
    send(&mut writer, 1000, 20);
    replay.step("a transfer");
    let elsewhere = replay.core.rings().join("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    let other = push_to(ring(&elsewhere.join("b"), Layout::V4, 64), 1);
    let moved = format!("telemetry_dir = {elsewhere:?}\nretain = \"5s\"\n{bounds}");
    replay.reload(&moved, "another directory, and retain of 5 s");
    replay.after(10, "retain passes");
    send(&mut writer, 1000, 20);
    drop(other);
    replay.after(10, "the agent of that directory exits, and retain passes");
    replay.reload("", "all as at the start");
    send(&mut writer, 1000, 20);
    replay.step("a transfer");
    replay.end("reloads");
}

#[test]
fn totals_and_ids_survive_kills() {
    let mut replay = Replay::new("");
    let mut first = ring(&replay.core.path("a"), Layout::V4, 64);
    replay.step("an agent");
    let mut second = ring(&replay.core.path("b"), Layout::V2Named, 64);
    replay.step("another");
    send(&mut first, 1000, 20);
    send(&mut second, 10, 200);
    replay.step("both transfer");
    replay.core.restart();
    replay.step("the daemon is killed and started");
    replay.core.kill();
    send(&mut first, 1000, 20);
    replay.core.start();
    replay.step("it is killed, one transfers, and it is started");
    let pending = first.read_pos();
    send(&mut first, 1000, 20);
    replay.step("a transfer");
    replay.core.kill_before_release(&first, pending);
    replay.core.start();
    replay.step("it was killed before it released the batch");
    let pending = first.read_pos();
    send(&mut first, 1000, 20);
    replay.step("a transfer");
    replay.core.kill_before_release(&first, pending);
    send(&mut first, 1000, 20);
    replay.core.start();
    replay.step("it was killed before the release, and one more transfer came");
    let pending = first.read_pos();
    send(&mut first, 1000, 20);
    replay.step("a transfer");
    replay.core.kill_before_release(&first, pending);
    drop(first);
    let mut first = ring(&replay.core.path("a"), Layout::V4, 64);
    send(&mut first, 1000, 20);
    replay.core.start();
    replay.step("it was killed before the release, and the producer restarted");
    replay.core.kill();
    drop(second);
    replay.core.start();
    replay.step("it is killed, the other agent exits, and it is started");
    let _third = push_to(ring(&replay.core.path("c"), Layout::V4, 64), 1);
    replay.step("a third agent gets an id of its own");
    replay.end("kills");
}

#[test]
fn agents_are_evicted_at_max_agents() {
    let mut replay = Replay::new("max_agents = 3");
    let mut rings = Vec::new();
    for name in ["a", "b", "c"] {
        rings.push(push_to(ring(&replay.core.path(name), Layout::V4, 16), 1));
        replay.step(&format!("agent {name}"));
    }
    rings.push(push_to(ring(&replay.core.path("d"), Layout::V4, 16), 1));
    replay.step("a fourth, for which there is no room");
    drop(rings.remove(1));
    replay.after(5, "b exits");
    // When a rejected file is looked at again depends on how coarse the times of files are.
    fs::remove_file(replay.core.path("b")).expect("there");
    replay.step("its file goes");
    rings.push(push_to(ring(&replay.core.path("e"), Layout::V4, 16), 1));
    replay.after(5, "a fifth, for which there is no room");
    replay.reload("max_agents = 10", "room for all");
    replay.after(5, "the next scans");
    replay.end("places");
}

#[test]
fn another_user_evicts_at_max_agents() {
    needs_root();
    let mut replay = Replay::new("max_agents = 3");
    let mut rings = Vec::new();
    for name in ["a", "b", "c"] {
        let path = replay.core.path(name);
        rings.push(push_to(ring(&path, Layout::V4, 16), 1));
        replay.step(&format!("agent {name}"));
    }
    for name in ["x", "y", "z"] {
        let path = replay.core.path(name);
        let made = replay.core.stores().join(name);
        rings.push(push_to(ring(&made, Layout::V4, 16), 1));
        chown(&made, Some(54_321), None).expect("root may");
        fs::rename(made, path).expect("moved");
        replay.after(5, &format!("agent {name} of uid 54321"));
    }
    replay.end("places_of_users");
}

#[test]
fn rings_fill_up_and_events_drop() {
    let mut replay = Replay::new("");
    let mut writer = ring(&replay.core.path("a"), Layout::V4, 16);
    for _ in 0..15 {
        push(&mut writer, 1);
    }
    assert!(!writer.push(Kind::TxBytes, 1));
    replay.step("a ring of 16 slots is full");
    for _ in 0..15 {
        push(&mut writer, 1);
    }
    replay.step("it is full again");
    assert!(writer.push_raw(20, 5));
    push(&mut writer, 1);
    replay.step("the agent reports that it dropped 5 events");
    let mut writer = ring(&replay.core.path("large"), Layout::V3, 1 << 14);
    while writer.push(Kind::RxBytes, 1) {}
    replay.step("a ring of more than a batch is full");
    replay.end("overflow");
}

#[test]
fn unsupported_and_rejected_files_are_reported() {
    let mut replay = Replay::new("max_capacity = 1024");
    let made = replay.core.stores().join("made");
    let mut rings = Vec::new();
    let mut make = |replay: &mut Replay, name: &str, title: &str, change: &dyn Fn(&Path)| {
        rings.push(push_to(ring(&made, Layout::V4, 64), 1));
        change(&made);
        fs::rename(&made, replay.core.path(name)).expect("moved");
        replay.step(title);
    };
    make(&mut replay, "a", "a ring as it should be", &|_| ());
    let versions = [9_u32.to_le_bytes(), 9_u32.to_le_bytes()].concat();
    make(&mut replay, "future", "version 9", &|path| {
        write_at(path, 16, &versions);
    });
    make(&mut replay, "short", "a file that is cut", &|path| {
        let file = fs::OpenOptions::new().write(true).open(path);
        let size = fs::metadata(path).expect("there").size();
        file.expect("ours").set_len(size - 1).expect("cut");
    });
    make(&mut replay, "mask", "a wrong mask", &|path| {
        write_at(path, 32, &5_u64.to_le_bytes());
    });
    make(
        &mut replay,
        "position",
        "a write position outside",
        &|path| {
            write_at(path, 0, &1_000_000_u64.to_le_bytes());
        },
    );
    drop(ring(&replay.core.path("large"), Layout::V4, 2048));
    replay.step("more slots than max_capacity");
    fs::write(replay.core.path("text"), "not a ring".repeat(10)).expect("written");
    replay.step("a text");
    symlink(replay.core.path("a"), replay.core.path("link")).expect("made");
    replay.step("a symbolic link to the ring");
    fs::hard_link(replay.core.path("future"), replay.core.path("second")).expect("made");
    replay.step("a second link to the file of version 9");
    let store = replay.store(&Who::named("store"), 1);
    store.put(1, (21 << 32) | 2);
    replay.step("a store of schema 2");
    fs::remove_file(replay.core.path("future")).expect("there");
    fs::remove_file(replay.core.path("second")).expect("there");
    fs::remove_file(replay.core.path("mask")).expect("there");
    replay.step("files go");
    replay.end("rejections");
}
