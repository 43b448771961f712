// SPDX-License-Identifier: GPL-2.0-or-later

//! Contents of packages: the place of each file on Debian, Fedora and RHEL, dependencies of the packages, and licences
//! of the crates.
//!
//! The packages are real, made by debhelper and rpmbuild, but contain the program that the other tests run. A new build
//! takes minutes (qa/packages does it).

mod crates;
mod packages;
mod release;

use crate::support::{Home, PMDANIXL, golden, project, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Lists every directory, link and file below a directory, with find(1).
fn listing(directory: &Path) -> String {
    let mut find = Command::new("find");
    find.current_dir(directory).args([".", "-type", "d"]);
    find.args(["-printf", "%P/\\n", "-o", "-type", "l"]);
    find.args(["-printf", "%P -> %l\\n", "-o", "-printf", "%P %m\\n"]);
    let found = run(&mut find);
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

/// Checks the place of each file after `make install` with these directories of PCP, and that `make uninstall` removes
/// all files.
fn layout(name: &str, agents: &str, commands: &str) {
    let home = Home::new();
    let (root, binary) = (home.path("root"), home.path("pmdanixl"));
    std::fs::write(&binary, "#!/bin/sh\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&binary, mode).expect("ours");
    // The modes of the files must not depend on the umask of root.
    let install = || {
        let mut install = Command::new("sh");
        install
            .args(["-c", "umask 077; exec \"$@\"", "sh"])
            .arg(project("scripts/install-files"))
            .env("DESTDIR", &root)
            .env("BINARY", &binary)
            .env("PCP_PMDASADM_DIR", agents)
            .env("PCP_BINADM_DIR", commands);
        install
    };
    run(&mut install());
    golden(&format!("layout.{name}"), &listing(&root));
    let mut closed = Command::new("find");
    closed.arg(&root).args(["-type", "d", "!", "-perm", "755"]);
    assert_eq!(run(&mut closed), "");
    run(install().arg("--remove"));
    let mut left = Command::new("find");
    left.arg(&root).args(["!", "-type", "d"]);
    assert_eq!(run(&mut left), "");
}

#[test]
fn each_source_file_and_script_names_its_licence() {
    let mut find = Command::new("find");
    find.current_dir(project("."));
    // Without the data of tests, and what tests and builds leave behind.
    let others = "target .git vendor golden corpus node_modules";
    find.args(
        others
            .split(' ')
            .flat_map(|name| ["-name", name, "-prune", "-o"]),
    );
    for path in run(find.args(["-type", "f", "-print"])).lines() {
        let Ok(text) = fs::read_to_string(project(path)) else {
            continue;
        };
        let is_source = [".rs", ".js", ".c", ".h", ".py"]
            .iter()
            .any(|end| path.ends_with(end));
        let mut first = text.lines().take(2);
        assert!(
            !(is_source || text.starts_with("#!") || text.starts_with("# Sourced"))
                || first.any(|line| line.contains("SPDX-License-Identifier: GPL-2.0-or-later")),
            "{path} has no SPDX-License-Identifier in its first two lines"
        );
    }
}

/// Runs a shell script in a root directory.
fn in_root(root: &Path, script: &str) {
    run(Command::new("sh")
        .args(["-euc", &format!("cd \"$1\"\n{script}"), "sh"])
        .arg(root));
}

/// Files of the Python PMDA in PCP's package, with the link to its configuration or, like PCP 7.2, without it.
fn bring_python(root: &Path, link: bool) {
    in_root(
        root,
        r#"
        real=usr/lib/pcp/pmdas/nixl links=var/lib/pcp/pmdas/nixl
        mkdir -p $real $links etc/pcp/nixl usr/share/man/man1
        for file in Install Remove pmdanixl.python; do
            rm -f $real/$file
            echo python >$real/$file
            ln -sfn /$real/$file $links/$file
        done
        echo man >usr/share/man/man1/pmdanixl.1.gz
        echo "[pmda]" >etc/pcp/nixl/nixl.conf
        "#,
    );
    if link {
        in_root(
            root,
            "ln -s /etc/pcp/nixl/nixl.conf var/lib/pcp/pmdas/nixl/",
        );
    }
}

/// Files in a root directory.
fn files(root: &Path) -> Vec<String> {
    let lines = listing(root);
    let files = lines.lines().filter(|line| !line.ends_with('/'));
    files.map(str::to_owned).collect()
}

fn install_files(root: &Path, arguments: &[&str]) {
    run(Command::new(project("scripts/install-files"))
        .args(arguments)
        .env("DESTDIR", root)
        .env("BINARY", PMDANIXL)
        .env("PCP_PMDASADM_DIR", "/usr/lib/pcp/pmdas"));
}

#[test]
fn uninstall_restores_the_python_pmda() {
    let home = Home::new();
    for link in [true, false] {
        let root = home.path(&format!("root-{link}"));
        fs::create_dir(&root).expect("made");
        bring_python(&root, link);
        let before = files(&root);
        for arguments in [&[][..], &[], &["--remove"]] {
            install_files(&root, arguments);
        }
        assert_eq!(files(&root), before, "with a link: {link}");
    }
}

#[test]
fn uninstall_keeps_a_later_python_pmda_and_leaves_no_link() {
    let home = Home::new();
    for again in [true, false] {
        let [root, alone] = ["root", "alone"].map(|name| home.path(&format!("{name}-{again}")));
        for root in [&root, &alone] {
            fs::create_dir(root).expect("made");
        }
        bring_python(&alone, false);
        install_files(&root, &[]);
        // Like an upgrade of PCP. Which of two files is the configuration is not checked here.
        bring_python(&root, false);
        if again {
            install_files(&root, &[]);
        }
        install_files(&root, &["--remove"]);
        let of_python = |root: &Path| {
            let mut files = files(root);
            files.retain(|file| !file.starts_with("etc/pcp/nixl/"));
            files
        };
        assert_eq!(
            of_python(&root),
            of_python(&alone),
            "installed again: {again}"
        );
    }
}

#[test]
fn installation_over_an_earlier_one_removes_rules_that_are_gone() {
    let home = Home::new();
    let root = home.path("root");
    fs::create_dir(&root).expect("made");
    in_root(
        &root,
        r#"
        mkdir -p etc/pcp/pmieconf/nixl var/lib/pcp/config/pmieconf/nixl
        for rule in pmieconf/nixl/remote_disconnect pmieconf/nixl/tcp_fallback_roce; do
            echo rule >etc/pcp/$rule
            ln -s /etc/pcp/$rule var/lib/pcp/config/$rule
        done
        "#,
    );
    install_files(&root, &[]);
    let files = files(&root);
    assert!(files.iter().any(|file| file.contains("pmieconf/nixl/")));
    for rule in ["remote_disconnect", "tcp_fallback_roce"] {
        assert!(!files.iter().any(|file| file.contains(rule)), "{rule}");
    }
}

#[test]
fn make_install_uses_the_debian_layout() {
    layout("debian", "/usr/lib/pcp/pmdas", "/usr/lib/pcp/bin");
}

#[test]
fn make_install_uses_the_fedora_and_rhel_layout() {
    layout("rpm", "/usr/libexec/pcp/pmdas", "/usr/libexec/pcp/bin");
}
