// SPDX-License-Identifier: GPL-2.0-or-later

//! The rows of `make gpu` (qa/gpu) that need no GPU, with NIXL 1.5.1.

use crate::support::{Home, Nixl, PMDANIXL, example, output, project, text};
use std::process::Command;

/// Rows that pass without GPU, torch and transformers.
const ROWS: usize = 16;

#[test]
#[ignore = "real NIXL for minutes, with twelve processes that poll"]
fn rows_of_make_gpu_pass_in_host_memory() {
    let home = Home::new();
    let python = Nixl::new("1.5.1", &home.rings()).python();
    let mut command = Command::new(python);
    command
        .args(["-B".as_ref(), project("qa/gpu/run.py").as_os_str()])
        .args(["--host-memory".as_ref(), "--dir".as_ref(), home.dir()])
        .arg(PMDANIXL)
        .arg(example("producer"));
    let made = output(&mut command);
    let said = text(&made);
    assert!(made.status.success(), "{said}");
    let table = String::from_utf8_lossy(&made.stdout);
    assert_eq!(table.matches("| PASS |").count(), ROWS, "{said}");
}
