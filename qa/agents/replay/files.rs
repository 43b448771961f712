// SPDX-License-Identifier: GPL-2.0-or-later

//! Replays of rings and stores that appear, are replaced, fill up or are rejected.

use super::{Replay, ring, send};
use crate::support::kit::store_writer::{BACKEND, TX_BYTES, Who, XFER_TIME};
use crate::support::kit::{push, push_to};
use crate::support::needs_root;
use crate::support::writer::{Kind, Layout};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;

/// Overwrites bytes of a file.
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
fn ring_and_stores_of_one_name_are_separate_instances() {
    let mut replay = Replay::new("retain = \"30s\"");
    // The file of an exited agent is checked again only after some time.
    replay.hide("control.files.rejections");
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
    replay.step("a store of the same name");
    replay.core.kill();
    replay.send(&next, &[(TX_BYTES, 10)]);
    replay.send(&store, &[(TX_BYTES, 300)]);
    replay.core.start();
    replay.step("the daemon is killed, both count, and it is started");
    replay.end("stores");
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

#[test]
fn agents_whose_rings_cannot_be_read_are_unknown() {
    let mut replay = Replay::new("");
    let path = replay.core.path("a");
    let mut writer = push_to(ring(&path, Layout::V4, 64), 1);
    replay.step("a ring");
    write_at(&path, 32, &5_u64.to_le_bytes());
    write_at(&path, 24, &0_u64.to_le_bytes());
    replay.step("its header breaks, while its agent writes on");
    for _ in 0..2 {
        replay.core.restart();
        replay.step("the daemon is killed and started");
    }
    write_at(&path, 32, &63_u64.to_le_bytes());
    write_at(&path, 24, &64_u64.to_le_bytes());
    push(&mut writer, 1);
    replay.after(20, "its header is mended");
    replay.core.kill();
    replay
        .core
        .set("telemetry_dir = \"/nowhere\"\nmax_agents = 64");
    replay.core.start();
    replay.step("the daemon starts with another directory");
    replay.core.kill();
    replay.core.set("max_agents = 64");
    replay.core.start();
    push(&mut writer, 1);
    replay.step("it starts with the right one");
    drop(writer);
    replay.step("the agent exits");
    fs::remove_file(&path).expect("there");
    replay.step("its ring is removed");
    for _ in 0..2 {
        replay.core.restart();
        replay.step("the daemon is killed and started");
    }
    replay.end("unreadable");
}
