// SPDX-License-Identifier: GPL-2.0-or-later

//! The guard after the tests (qa/guard): it must detect each kind of harm. The tests cause the harm in a mount
//! namespace with separate devices, and in a separate PCP configuration.

use crate::support::{Home, note_left_out, output, project, text};
use std::fs;
use std::process::Command;

/// Shell commands between the two runs of the guard, and its message; "" for no message.
const HARMS: &[(&str, &str)] = &[
    ("true", ""),
    ("sleep 100 & echo x >$dir/other; touch /dev/shm/other", ""),
    ("rm /dev/null; echo >/dev/null", "/dev/null is -rw-r--r--"),
    ("rm /dev/null", "/dev/null is not there"),
    ("chmod 600 /dev/null", "/dev/null is crw-------"),
    ("chmod 644 /dev/zero", "/dev/zero is crw-r--r--"),
    (
        "rm /dev/full; mknod -m 666 /dev/full c 1 3",
        "/dev/full is crw-rw-rw- device 1:3",
    ),
    (
        "rm /dev/random; ln -s null /dev/random",
        "/dev/random is a link to null",
    ),
    ("echo >>$dir/etc/pmcd/pmcd.conf", "/etc/pmcd/pmcd.conf was "),
    ("rm $dir/etc/pmcd/pmcd.conf", "/etc/pmcd/pmcd.conf was "),
    (
        "chmod 600 $dir/etc/pmcd/pmcd.conf",
        "/etc/pmcd/pmcd.conf was ",
    ),
    ("touch $dir/var/pmns/nixl", "/var/pmns/nixl was not there"),
    ("mkdir $dir/var/pmdas/nixl", "/var/pmdas/nixl was not there"),
    (
        "touch $dir/var/config/pmlogconf",
        "/var/config/pmlogconf was not there",
    ),
    (
        "NIXL_QA_RUN=$run setsid sleep 100 & until grep -qx sleep /proc/$!/comm; do sleep 0.1; done",
        " is left: sleep 100",
    ),
    ("mount -t tmpfs tmpfs $run", "a mount is left: "),
    ("touch $run/a", "a file is left: "),
    (
        "touch /dev/shm/${run##*/}-nixl",
        "a file is left: /dev/shm/",
    ),
];

/// Namespace with devices that a test may damage.
const NAMESPACE: &[&str] = &["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];

#[test]
fn guard_names_each_harm_and_ignores_foreign_changes() {
    let probe = output(Command::new("unshare").args(NAMESPACE).arg("true"));
    if !probe.status.success() {
        note_left_out("there are no rights to make namespaces");
        return;
    }
    for (harm, expected) in HARMS {
        let home = Home::new();
        for dir in [
            "etc/pmcd",
            "var/pmns",
            "var/pmdas",
            "var/config",
            "nixl-qa.made-up",
        ] {
            fs::create_dir_all(home.path(dir)).expect("made");
        }
        fs::write(home.path("etc/pmcd/pmcd.conf"), "[access]\n").expect("written");
        let dir = home.dir().display();
        let settings = format!(
            "PCP_SYSCONF_DIR={dir}/etc\nPCP_VAR_DIR={dir}/var\nPCP_PMDAS_DIR={dir}/var/pmdas\n\
             PCP_PMCDCONF_PATH={dir}/etc/pmcd/pmcd.conf\n"
        );
        fs::write(home.path("pcp.conf"), settings).expect("written");
        let script = format!(
            "set -e\n\
             mount -t tmpfs tmpfs /dev\n\
             mkdir /dev/shm\n\
             for device in null:3 zero:5 full:7 random:8 urandom:9; do\n\
                 mknod -m 666 /dev/${{device%:*}} c 1 ${{device#*:}}\n\
             done\n\
             dir={dir} run={dir}/nixl-qa.made-up\n\
             unset NIXL_QA_RUN\n\
             \"{guard}\" before $dir/before\n\
             {harm}\n\
             \"{guard}\" after $dir/before $run 0\n",
            guard = project("qa/guard").display()
        );
        let mut guarded = Command::new("unshare");
        guarded.args(NAMESPACE).args(["sh", "-c", &script]);
        let found = output(guarded.env("PCP_CONF", home.path("pcp.conf")));
        let said = text(&found);
        assert_eq!(
            found.status.success(),
            expected.is_empty(),
            "{harm}: {said}"
        );
        let lines = said.lines().filter(|line| line.starts_with("guard: "));
        let all = lines.collect::<Vec<_>>();
        assert_eq!(
            all.len(),
            usize::from(!expected.is_empty()),
            "{harm}: {said}"
        );
        assert!(said.contains(expected), "{harm}: {said}");
    }
}
