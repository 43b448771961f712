// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels of processes that use NIXL.

use super::own_user;
use crate::support::scripted::Process;
use crate::support::{Home, Pmcd, wait_for};
use nix::unistd::Uid;
use serde_json::json;

#[test]
fn process_has_pid_command_uid_and_user() {
    let home = Home::new();
    let process = Process::start(&home);
    let pmcd = Pmcd::start(&home);
    let labels = wait_for("the process is found", || {
        let mut all = pmcd.labels("nixl.process.agents").into_values();
        all.find(|labels| labels["pid"] == process.pid())
    });
    for (name, value) in [
        ("command", json!("python3")),
        ("uid", json!(Uid::current().as_raw())),
        ("user", json!(own_user())),
    ] {
        assert_eq!(labels[name], value, "{labels:?}");
    }
}
