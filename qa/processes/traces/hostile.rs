// SPDX-License-Identifier: GPL-2.0-or-later

//! Users that misuse what is traced: endless names, 100,000 handles, wrong layouts, thousands of peers.

use super::{home, process, rows, wait_for_probes, wait_for_rows};
use crate::support::other_user::open_to_all;
use crate::support::pdu::Link;
use crate::support::scripted::Process;
use crate::support::{Home, wait_for};
use std::fs;

/// A user with one handle in flight, and another user that may load the same library.
fn victim_and_stranger(home: &Home) -> (Process, Process) {
    open_to_all(home.dir(), 0o755);
    open_to_all(&home.path("libnixl.so"), 0o755);
    let victim = process(home, &["victim"]);
    let mut stranger = process(home, &[]);
    stranger.run("become(4243)");
    (victim, stranger)
}

#[test]
fn hostile_names_and_handles_cost_other_users_nothing() {
    let Some(home) = home("") else { return };
    let (mut victim, mut stranger) = victim_and_stranger(&home);
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    victim.run("lib.make(1, b'peer', 4); lib.post(1, 1)");
    wait_for("the victim has a row", || {
        rows(&mut link, "in_flight")
            .contains_key("victim::peer")
            .then_some(())
    });
    // Lengths and addresses that are wrong: none, of the kernel, beyond the address space, without an end.
    stranger.run("lib.make.argtypes = [ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong]");
    stranger.run("lib.make_at.argtypes = [ctypes.c_ulong, ctypes.c_ulong]");
    for (text, length) in [
        ("0", "2**64 - 1"),
        ("0xffffffff81000000", "64"),
        ("2**63", "2**63"),
        (
            "ctypes.addressof(ctypes.create_string_buffer(b'x' * 64))",
            "2**64 - 1",
        ),
    ] {
        stranger.run(&format!(
            "lib.make(2, {text}, {length}); lib.post(2, 1); lib.release(2)"
        ));
        stranger.run(&format!(
            "lib.make_at(3, {text}); lib.post(3, 1); lib.release(3)"
        ));
    }
    stranger.run(
        "lib.hold.argtypes = [ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]",
    );
    stranger.run("lib.hold(2**32, ctypes.cast(b'y', ctypes.c_void_p), 1, 100000)");
    // More peers than a user may have, with names that are not text.
    stranger.run("for n in range(3000): lib.transfer(struct.pack('<Q', n), ctypes.c_ulong(8), ctypes.c_ulong(1))");
    wait_for("handles and pairs found no room", || {
        let lost = link.values("control.trace.lost").expect("an answer");
        (lost[""] > 100_000 - 16_384 + 1000).then_some(())
    });
    victim.run("lib.hold(100, b'peer', 4, 1000); lib.make(9, b'new', 3); lib.post(9, 1)");
    wait_for("the victim's transfers are exact", || {
        let rows = rows(&mut link, "in_flight");
        let of_victim = ["victim::peer", "victim::new"].map(|name| rows.get(name).copied());
        let is_named = rows.keys().all(|name| {
            name.bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        });
        assert!(rows.len() <= 1024 && is_named, "{rows:?}");
        (of_victim == [Some(1001), Some(1)]).then_some(())
    });
    drop(stranger);
    wait_for_rows(
        &mut link,
        "in_flight",
        &[("victim::new", 1), ("victim::peer", 1001)],
    );
}

#[test]
fn library_without_the_functions_is_named_once() {
    let Some(home) = home("") else { return };
    let mut victim = process(&home, &["victim"]);
    // Another file, with a table of symbols that leads nowhere.
    let mut library = fs::read(home.path("libnixl.so")).expect("there");
    library[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::create_dir(home.path("other")).expect("made");
    let files = ["libnixl.so", "libplugin_UCX.so"].map(|name| home.path("other").join(name));
    for file in &files {
        fs::write(file, &library).expect("written");
    }
    let others = [(); 2].map(|()| Process::with_files(&[], &files));
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    victim.run("lib.make(1, b'peer', 4); lib.post(1, 1)");
    wait_for_rows(&mut link, "in_flight", &[("victim::peer", 1)]);
    wait_for("the library is named", || {
        home.log().contains("it cannot be traced").then_some(())
    });
    // In the next reading it is not named again, and neither is it for the other process.
    victim.run("lib.post(1, 1)");
    wait_for_rows(&mut link, "posted", &[("victim::peer", 2)]);
    let log = home.log();
    assert_eq!(log.matches("it cannot be traced").count(), 1, "{log}");
    drop(others);
}
