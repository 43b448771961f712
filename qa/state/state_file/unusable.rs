// SPDX-License-Identifier: GPL-2.0-or-later

//! A state file that cannot be read or written for a while.

use super::{home, ring};
use crate::support::pdu::Link;
use crate::support::writer::Kind;
use crate::support::{Home, PMDANIXL, needs_root, run, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Starts the daemon with a shell script that executes it.
fn wrapper(home: &Home, text: &str) -> PathBuf {
    let wrapper = home.path("wrapper");
    fs::write(&wrapper, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).expect("ours");
    wrapper
}

fn start(home: &Home, command: Command) -> Link {
    Link::start(home, command).expect("it starts")
}

/// Waits until the agent `a` has sent so many bytes, and the totals are persistent or not.
fn becomes(link: &mut Link, sent: u64, is_persistent: bool) {
    wait_for(
        &format!("{sent} bytes, persistent: {is_persistent}"),
        || {
            let values = link.values("transfer.tx_bytes").ok()?;
            let persistent = link.fetch(&["control.persistent"]).ok()?;
            let is_right = values.get("a") == Some(&sent)
                && persistent[0].get(&u32::MAX) == Some(&u64::from(is_persistent));
            is_right.then_some(())
        },
    );
}

#[test]
fn agents_get_records_when_the_file_can_grow_again() {
    let home = home();
    let mut agent = ring(&home, "a");
    agent.push(Kind::TxBytes, 5);
    // The file system has room for the header, but not for a record.
    let limited = wrapper(&home, &format!("ulimit -S -f 64\nexec {PMDANIXL:?} \"$@\""));
    let mut link = start(&home, Command::new(limited));
    becomes(&mut link, 5, false);
    let log = home.log();
    assert!(log.contains("the state file cannot grow"), "{log}");
    let mut raise = Command::new("prlimit");
    raise.args(["--pid", &link.pid().to_string(), "--fsize=1000000000:"]);
    run(&mut raise);
    becomes(&mut link, 5, true);
    link.end();
    agent.push(Kind::TxBytes, 2);
    let mut link = start(&home, Command::new(PMDANIXL));
    becomes(&mut link, 7, true);
    link.end();
}

#[test]
fn totals_go_on_after_the_file_could_not_be_read() {
    needs_root();
    let home = home();
    let mut agent = ring(&home, "a");
    agent.push(Kind::TxBytes, 5);
    let mut link = start(&home, Command::new(PMDANIXL));
    becomes(&mut link, 5, true);
    link.end();
    agent.push(Kind::TxBytes, 2);
    // In a separate mount namespace, the boot id is missing until the file is there.
    fs::write(home.path("empty"), "").expect("written");
    let [empty, mended] = ["empty", "mended"].map(|name| home.path(name));
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let text = format!(
        "exec unshare --mount sh -e -c 'mount --bind {empty:?} {boot_id}
        (for try in $(seq 2400); do [ ! -e {mended:?} ] || break; sleep 0.05; done
        umount {boot_id}) </dev/null >/dev/null 2>&1 &
        exec {PMDANIXL:?} \"$@\"' sh \"$@\""
    );
    let mut link = start(&home, Command::new(wrapper(&home, &text)));
    wait_for("the reason is logged", || {
        home.log()
            .contains("it has totals, and no ring")
            .then_some(())
    });
    assert_eq!(agent.pending(), 1, "nothing is drained without the state");
    fs::write(&mended, "").expect("written");
    becomes(&mut link, 7, true);
    link.end();
}
