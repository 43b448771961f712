// SPDX-License-Identifier: GPL-2.0-or-later

//! Install, Remove, Install again and Upgrade in namespaces of their own. `qa/install.sh` runs them and reports the
//! results.

use crate::support::{PMDANIXL, note_left_out, output, project, text};
use std::process::Command;

#[test]
fn install_remove_and_upgrade_work_and_leave_nothing() {
    let output = output(Command::new(project("qa/install.sh")).arg(PMDANIXL));
    let said = text(&output);
    match output.status.code() {
        // The script prints what is missing.
        Some(77) => note_left_out(said.trim()),
        status => assert!(
            status == Some(0) && said.contains("ok "),
            "{status:?}\n{said}"
        ),
    }
}
