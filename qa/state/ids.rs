// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance ids while their file cannot be read or written: no id may be lost or assigned to a second name.

use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, Pmcd, TX_BYTES, needs_root, run, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;

const FILE: &str = "var/config/pmda/39.0";
const STATE: &str = "run/nixl/state";

/// Starts an agent that has sent a byte.
fn agent(home: &Home, name: &str) -> RingWriter {
    let mut ring = home.new_ring(name, 64);
    assert!(ring.push(Kind::TxBytes, 1));
    ring
}

/// Waits until these agents are instances. Returns their ids.
fn ids<const N: usize>(pmcd: &Pmcd, names: [&str; N]) -> [u32; N] {
    wait_for("all are instances", || {
        let shown = run(pmcd.tool("pminfo").args(["-f", TX_BYTES]));
        // inst [7 or "a"] value 1
        let ids = shown.lines().filter_map(|line| {
            let (id, rest) = line.split_once("inst [")?.1.split_once(" or \"")?;
            Some((rest.split_once('"')?.0.to_owned(), id.parse().ok()?))
        });
        let ids: BTreeMap<String, u32> = ids.collect();
        let ids: Vec<u32> = names
            .iter()
            .filter_map(|name| ids.get(*name).copied())
            .collect();
        ids.try_into().ok()
    })
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

fn start(home: &Home, name: &str, file: impl FnOnce(&std::path::Path)) -> Pmcd {
    Pmcd::start_with(home, name, |dir| {
        fs::create_dir_all(dir.join("var/config/pmda")).expect("made");
        file(&dir.join(FILE));
    })
}

#[test]
fn unreadable_id_file_is_kept_and_read_later() {
    needs_root();
    let home = Home::new();
    let _a = agent(&home, "a");
    let text = format!("2 0 2147483647\n0 {0} x\n5 {0} y\n70 {0} z\n", now() - 60);
    let kept = home.path("kept");
    fs::write(&kept, &text).expect("written");
    // A link replaces the file.
    let pmcd = start(&home, "pcp", |file| symlink(&kept, file).expect("made"));
    let [first] = ids(&pmcd, ["a"]);
    let file = pmcd.path(FILE);
    wait_for("the reason is logged", || {
        let said = "39.0: the file of instance ids cannot be used: not a regular file, or one with several hard links; \
                    remove what is not a file of instance ids, or give the file to the user that pmdanixl runs as; until it can be read";
        pmcd.log().contains(said).then_some(())
    });
    assert_eq!(fs::read_to_string(&kept).expect("there"), text);
    fs::remove_file(&file).expect("there");
    fs::write(&file, &text).expect("written");
    // The daemon tries again every 10 s.
    wait_for("old and new ids are saved", || {
        let text = fs::read_to_string(&file).ok()?;
        text.contains(" a\n").then_some(())
    });
    let _others = ["x", "y", "z", "new"].map(|name| agent(&home, name));
    let [a, x, y, z, new] = ids(&pmcd, ["a", "x", "y", "z", "new"]);
    assert_eq!((a, x, y, z), (first, 0, 5, 70));
    assert!(new > 70 && new != a, "{new}");
    assert!(pmcd.log().matches("until it can be read").count() == 1);
}

#[test]
fn unwritable_id_file_is_written_later() {
    needs_root();
    let home = Home::new();
    let _a = agent(&home, "a");
    let text = format!("2 0 2147483647\n3 {0} x\n5 {0} y\n70 {0} z\n", now() - 60);
    let pmcd = start(&home, "pcp", |file| {
        fs::write(file, &text).expect("written");
        // A directory with the name of the temporary file.
        fs::create_dir(file.with_extension("0.new")).expect("made");
    });
    let [a] = ids(&pmcd, ["a"]);
    assert!(a > 70, "{a}");
    let file = pmcd.path(FILE);
    wait_for("the reason is logged", || {
        let said = "; make space, or give its directory to the user that pmdanixl runs as; until it can be written";
        let log = pmcd.log();
        let is_said = log.contains("39.0: the file of instance ids cannot be used: ");
        (is_said && log.contains(said)).then_some(())
    });
    assert_eq!(fs::read_to_string(&file).expect("there"), text, "unchanged");
    fs::remove_dir(file.with_extension("0.new")).expect("empty");
    let _y = agent(&home, "y");
    assert_eq!(ids(&pmcd, ["a", "y"]), [a, 5]);
    let text = wait_for("all ids are saved", || {
        let text = fs::read_to_string(&file).ok()?;
        text.contains(" a\n").then_some(text)
    });
    assert!(
        text.contains(&format!("{a} ")) && text.contains(" z\n"),
        "{text}"
    );
    wait_for("the reason is logged", || {
        let is_said = pmcd.log().contains("instance ids are saved again");
        is_said.then_some(())
    });
    assert!(pmcd.log().matches("until it can be written").count() == 1);
}

#[test]
fn id_of_an_agent_before_a_host_crash_is_not_reused() {
    needs_root();
    let home = Home::new();
    let _a = agent(&home, "a");
    let pmcd = start(&home, "pcp", |_| ());
    let [a] = ids(&pmcd, ["a"]);
    let saved = wait_for("the id is saved", || {
        let text = fs::read_to_string(pmcd.path(FILE)).ok()?;
        text.contains(" a\n").then_some(text)
    });
    // The file on the disk does not get later ids.
    let names: Vec<String> = (0..20).map(|number| format!("late-{number}")).collect();
    let _late: Vec<_> = names.iter().map(|name| agent(&home, name)).collect();
    let late: [&str; 20] = std::array::from_fn(|at| names[at].as_str());
    let given = ids(&pmcd, late);
    pmcd.stop();
    let _new = agent(&home, "new");
    let again = start(&home, "again", |file| {
        fs::write(file, saved).expect("written")
    });
    let [same, new] = ids(&again, ["a", "new"]);
    assert_eq!(same, a);
    assert!(!given.contains(&new), "{new} was one of {given:?}");
}

#[test]
fn id_file_without_a_free_id_is_logged_and_agents_get_ids() {
    needs_root();
    let home = Home::new();
    let _agents = ["a", "b"].map(|name| agent(&home, name));
    let text = format!("2 0 2147483647\n0 {0} x\n33554431 {0} z\n", now() - 60);
    let pmcd = start(&home, "pcp", |file| {
        fs::write(file, text).expect("written");
    });
    let mut given = ids(&pmcd, ["a", "b"]);
    given.sort_unstable();
    assert_eq!(given, [1, 2], "0 is known to be x's");
    let said = "no instance id is left, or the file is damaged";
    assert!(pmcd.log().contains(said));
}

/// Ids, names and counts of the buckets of a, as `pminfo -f` shows them.
fn ranges(pmcd: &Pmcd, metric: &str) -> BTreeMap<u32, (String, u64)> {
    let shown = run(pmcd.tool("pminfo").args(["-f", metric]));
    let instance = |line: &str| {
        // inst [7 or "a::0-10"] value 1
        let (id, rest) = line.split_once("inst [")?.1.split_once(" or \"")?;
        let (name, value) = rest.split_once("\"] value ")?;
        Some((id.parse().ok()?, (name.to_owned(), value.parse().ok()?)))
    };
    shown.lines().filter_map(instance).collect()
}

#[test]
fn other_bounds_keep_ids_unique_and_counters_monotonic() {
    needs_root();
    let home = Home::new();
    let set = |bounds: &str| home.set(&format!("histogram_buckets_us = {bounds}"));
    set("[10, 100, 1000]");
    let mut pmcd = Pmcd::start(&home);
    let mut ring = agent(&home, "a");
    let [id] = ids(&pmcd, ["a"]);
    let metrics = ["histogram", "bucket"].map(|metric| format!("nixl.latency.xfer_time.{metric}"));
    let mut known: [BTreeMap<u32, (String, u64)>; 2] = Default::default();
    let mut buckets = |pmcd: &Pmcd, ring: &mut RingWriter| {
        for time in [5, 70, 700, 7000] {
            assert!(ring.push(Kind::XferTime, time));
        }
        metrics.each_ref().map(|metric| {
            let known = &mut known[usize::from(metric == &metrics[1])];
            let now = ranges(pmcd, metric);
            for (id, (name, count)) in &now {
                let (first, before) = known.entry(*id).or_insert_with(|| (name.clone(), 0));
                assert_eq!(first, name, "{metric}: {id}");
                assert!(count >= before, "{metric}: {name}: {before}, then {count}");
                *before = *count;
            }
            now
        })
    };
    let bases = |ranges: &BTreeMap<u32, (String, u64)>| -> BTreeSet<u32> {
        ranges.keys().map(|inst| inst / 64).collect()
    };
    let [counts, _] = buckets(&pmcd, &mut ring);
    assert_eq!(
        bases(&counts),
        [id].into(),
        "the first buckets have the id of the agent"
    );
    let mut before = id;
    for bounds in ["[10, 50, 100]", "[100]", "[10, 100, 1000]"] {
        set(bounds);
        pmcd.reload(&home);
        let [counts, sums] = buckets(&pmcd, &mut ring);
        let inf = sums.values().find(|(name, _)| name == "a::le-inf");
        assert_eq!(inf, Some(&("a::le-inf".into(), 4)), "the counts begin at 0");
        let base = bases(&counts);
        assert!(
            base.len() == 1 && base.iter().all(|&base| base > before),
            "{base:?}"
        );
        before = *base.first().expect("one");
        let labels = run(pmcd.tool("pminfo").args(["-l", &metrics[1]]));
        assert_eq!(labels.matches("\"le\":\"+Inf\"").count(), 1, "{labels}");
    }
    // A restarted daemon knows the assigned ids.
    for (bounds, is_same) in [("[10, 100, 1000]", true), ("[10, 50, 1000]", false)] {
        set(bounds);
        pmcd.terminate();
        let state = pmcd.path(STATE);
        pmcd = Pmcd::start_with(&home, if is_same { "same" } else { "other" }, |dir| {
            let again = dir.join(STATE);
            fs::create_dir_all(again.parent().expect("one")).expect("made");
            fs::copy(state, again).expect("copied");
        });
        assert_eq!(ids(&pmcd, ["a"]), [id]);
        let [counts, _] = buckets(&pmcd, &mut ring);
        assert_eq!(bases(&counts) == [before].into(), is_same);
    }
}
