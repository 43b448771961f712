// SPDX-License-Identifier: GPL-2.0-or-later

//! `nixl.host.processes.silent`, the number of processes without telemetry: through the test kit, and with a real pmcd.

use super::{Agent, libraries};
use crate::support::kit::{Core, LONG};
use crate::support::{Home, Pmcd, sees_all_processes, wait_for};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Starts a process that maps these files.
fn mapper(files: &[&Path]) -> Agent {
    let script = "import mmap, os, sys\n\
                  files = [open(name, 'r+b') for name in sys.argv[1:]]\n\
                  mapped = [mmap.mmap(file.fileno(), 0) for file in files]\n\
                  print('ready', os.getpid(), flush=True)\n\
                  sys.stdin.read()\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).args(files);
    Agent::ready(command)
}

#[test]
fn silent_counts_processes_with_a_backend_and_no_file() {
    let mut core = Core::new("proc_facts = true");
    let [nixl, plugin] = libraries(|name| core.path(name));
    drop(core.ring("heard"));
    let ring = core.path("heard");
    let files = [
        &[&*nixl][..],
        &[&*nixl, &*plugin],
        &[&*nixl, &*plugin, &*ring],
    ];
    let [importer, silent, heard] = files.map(mapper);
    let mut scan_after = |seconds| {
        core.advance(Duration::from_secs(seconds));
        core.tick(1, Duration::ZERO, LONG);
        core.tidy();
        let found = core.silent()?;
        let is_found = |agent: &Agent| found.contains(&agent.pid);
        Some([is_found(&importer), is_found(&silent), is_found(&heard)])
    };
    if !sees_all_processes() {
        // In its own PID namespace, the daemon does not see the processes outside.
        (0..200).for_each(|_| assert_eq!(scan_after(61), None));
        return;
    }
    wait_for("the process with a backend alone is found", || {
        (scan_after(61) == Some([false, true, false])).then_some(())
    });
    // The interval between process scans is a minute.
    let scans = core.process_scans();
    for _ in 0..50 {
        core.advance(Duration::from_secs(1));
        core.tidy();
    }
    assert!(core.process_scans() <= scans + 1);
    let gone = silent.pid;
    drop(silent);
    wait_for("an ended process is not counted", || {
        core.advance(Duration::from_secs(61));
        core.tidy();
        (!core.silent()?.contains(&gone)).then_some(())
    });
}

#[test]
fn silent_has_a_value_only_if_all_processes_are_visible() {
    let home = Home::new();
    let [core, plugin] = libraries(|name| home.path(name));
    let _process = mapper(&[&core, &plugin]);
    let pmcd = Pmcd::start(&home);
    let value = |pmcd: &Pmcd| pmcd.values("nixl.host.processes.silent").remove("");
    if sees_all_processes() {
        let silent = wait_for("silent processes are counted", || value(&pmcd));
        assert!(silent >= 1, "{silent}");
    }
    pmcd.stop();
    home.set("proc_facts = false");
    let pmcd = Pmcd::start_with(&home, "again", |_| ());
    assert_eq!(value(&pmcd), None, "no process scan");
}
