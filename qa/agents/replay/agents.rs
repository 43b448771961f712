// SPDX-License-Identifier: GPL-2.0-or-later

//! Replays of agents that exit, return, get labels, are evicted, and outlive the daemon.

use super::{Replay, ring, send};
use crate::support::kit::push_to;
use crate::support::kit::store_writer::{TX_BYTES, Who};
use crate::support::needs_root;
use crate::support::writer::Layout;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;

#[test]
fn exited_agents_return_with_their_totals() {
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
    replay.core.kill_before_release();
    first.set_read_pos(pending);
    replay.core.start();
    replay.step("it was killed before it released the batch");
    let pending = first.read_pos();
    send(&mut first, 1000, 20);
    replay.step("a transfer");
    replay.core.kill_before_release();
    first.set_read_pos(pending);
    send(&mut first, 1000, 20);
    replay.core.start();
    replay.step("it was killed before the release, and one more transfer came");
    let pending = first.read_pos();
    send(&mut first, 1000, 20);
    replay.step("a transfer");
    replay.core.kill_before_release();
    first.set_read_pos(pending);
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
    // The time of the next check of a rejected file depends on the resolution of file times.
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
