// SPDX-License-Identifier: GPL-2.0-or-later

//! Saved agents with an instance name of an earlier version, which escaped fewer characters.

use crate::support::kit::layers;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, TX_BYTES};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;

const RAW: &str = "$(id>pwn)";
const NAME: &str = "%24%28id%3Epwn%29";

/// Ids of instances by name, in an instance domain.
fn ids(home: &Home, serial: u32) -> BTreeMap<String, u32> {
    // A fetch drains.
    let shown = home.dbpmda(&format!("fetch {TX_BYTES}\ninstance 39.{serial}"));
    let lines = shown.lines().filter_map(|line| {
        let (id, name) = line.split_once("inst: ")?.1.split_once(" name: ")?;
        Some((name.trim_matches('"').to_owned(), id.parse().ok()?))
    });
    lines.collect()
}

/// The record of the state file with an instance name. The numbers of words are those of src/journal/record.rs.
struct Record {
    file: fs::File,
    at: u64,
}

impl Record {
    fn find(home: &Home, instance: &str) -> Self {
        let path = home.path("run/nixl/state");
        let bytes = fs::read(&path).expect("there");
        let records = (1..).map(|number| number * layers::RECORD);
        let name = |at: &usize| &bytes[at + 8 * 40..][..instance.len()];
        let mut found = records.take_while(|at| *at + layers::RECORD <= bytes.len());
        let at = found.find(|at| name(at) == instance.as_bytes());
        let file = fs::File::options().read(true).write(true).open(&path);
        Self {
            file: file.expect("ours"),
            at: at.expect("a record") as u64,
        }
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        let written = self.file.write_all_at(bytes, self.at + offset);
        written.expect("ours");
    }

    /// Makes the record say that the slots of the last batch are not released.
    fn set_unreleased(&self) {
        self.put(8 * 4, &u64::MAX.to_ne_bytes());
    }

    /// Writes the instance name as an earlier version left it.
    fn set_name(&self, instance: &str) {
        self.put(8 * 40, instance.as_bytes());
        let len = u16::try_from(instance.len()).expect("short");
        self.put(8 * 3 + 2, &len.to_ne_bytes());
    }
}

/// Replaces a text in the file of instance ids.
fn rename_in_id_file(home: &Home, from: &str, to: &str) {
    let file = home.path("var/config/pmda/39.0");
    let saved = fs::read_to_string(&file).expect("there");
    fs::write(&file, saved.replace(from, to)).expect("written");
}

/// A home with two agents, whose daemon was killed between commit and release of a batch of the first one. `instance` is the
/// saved name of the first one.
fn killed_with_name(instance: &str) -> (Home, [RingWriter; 2], BTreeMap<String, u32>) {
    let home = Home::new();
    home.set("proc_facts = false");
    let mut rings = [RAW, "plain"].map(|name| home.new_ring(name, 64));
    rings[1].push(Kind::TxBytes, 1);
    ids(&home, 0);
    rings[0].push(Kind::TxBytes, 7);
    let before = ids(&home, 0);
    assert_eq!(rings[0].pending(), 0);
    let record = Record::find(&home, NAME);
    record.set_unreleased();
    record.set_name(instance);
    rings[0].set_read_pos(0);
    assert_eq!(rings[0].pending(), 1);
    rename_in_id_file(&home, NAME, RAW);
    (home, rings, before)
}

#[test]
fn agent_with_an_outdated_name_keeps_its_totals_under_another_id() {
    // Without a name: the daemon was killed while it renamed the agent.
    for instance in [RAW, ""] {
        let (home, mut rings, before) = killed_with_name(instance);
        rings[0].push(Kind::TxBytes, 100);
        rings[1].push(Kind::TxBytes, 10);
        let after = ids(&home, 0);
        assert_eq!(after["plain"], before["plain"]);
        assert_eq!(after.keys().collect::<Vec<_>>(), [NAME, "plain"]);
        let highest = before.values().max().expect("two");
        assert!(after[NAME] > *highest, "{instance}: {before:?} {after:?}");
        let buckets = ids(&home, 1);
        let ours = buckets.iter().filter(|(name, _)| name.starts_with(NAME));
        let bases: Vec<u32> = ours.map(|(_, id)| id / 64).collect();
        assert!(!bases.is_empty() && bases.iter().all(|base| *base == after[NAME]));
        let shown = home.dbpmda(&format!(
            "fetch {TX_BYTES}\nfetch nixl.host.transfer.tx_bytes"
        ));
        for line in [
            format!("[{} or ???] value 107", after[NAME]),
            format!("[{} or ???] value 11", after["plain"]),
            "vlist[]:\n   value 118".to_owned(),
        ] {
            assert!(shown.contains(&line), "{line} in\n{shown}");
        }
        assert_eq!(ids(&home, 0), after, "the name and the id stay");
        let file = fs::read_to_string(home.path("var/config/pmda/39.0")).expect("there");
        let old = format!("\n{} ", before[NAME]);
        let line = { file.split_once(&old) }.and_then(|(_, rest)| rest.lines().next());
        assert!(line.is_none_or(|line| line.ends_with(RAW)), "{file}");
    }
}

/// Two directories: the agent with a label keeps its label, whichever was seen last.
#[test]
fn agents_with_one_outdated_name_stay_apart() {
    for last in [0, 1] {
        let home = Home::new();
        let dirs = ["one", "other"].map(|name| home.path(name));
        dirs.iter()
            .for_each(|dir| fs::create_dir(dir).expect("made"));
        home.configure(&format!(
            "[nixl]\nproc_facts = false\ntelemetry_dir = [{:?}, {{ path = {:?}, label = \"gpu\" }}]\n",
            dirs[0], dirs[1]
        ));
        let mut rings =
            dirs.map(|dir| RingWriter::create(&dir.join("a;"), Layout::V4, 64).expect("a ring"));
        for (ring, value) in rings.iter_mut().zip([1, 2]) {
            ring.push(Kind::TxBytes, value);
        }
        let before = ids(&home, 0);
        let labelled = before.keys().any(|name| name == "a%3B@gpu");
        assert!(before.contains_key("a%3B") && labelled, "{before:?}");
        rings[last].push(Kind::TxBytes, 10);
        ids(&home, 0);
        Record::find(&home, "a%3B@gpu").set_name("a;@gpu");
        Record::find(&home, "a%3B").set_name("a;");
        rename_in_id_file(&home, "%3B", ";");
        let after = ids(&home, 0);
        let shown = home.dbpmda(&format!("fetch {TX_BYTES}"));
        assert_eq!(after.len(), 2, "{after:?}");
        let values = [[11, 2], [1, 12]][last];
        for (name, value) in ["a%3B", "a%3B@gpu"].into_iter().zip(values) {
            let line = format!("[{} or ???] value {value}\n", after[name]);
            assert!(shown.contains(&line), "{name}: {line} in\n{shown}");
        }
        let unchanged = after
            .iter()
            .any(|(_, id)| before.values().any(|old| old == id));
        assert!(!unchanged, "{before:?} {after:?}");
    }
}
