//! What packages are made of: where each file goes on Debian and on Fedora and RHEL, and under which licences the crates are.

mod support;

use std::path::Path;
use std::process::Command;
use support::{Home, golden, project, run};

/// Every directory, link and file below one, as find(1) shows it.
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

/// Where `make install` puts each file, with these directories of PCP's, and that `make uninstall` takes each away.
fn layout(name: &str, agents: &str, commands: &str) {
    let home = Home::new();
    let (root, binary) = (home.path("root"), home.path("pmdanixl"));
    std::fs::write(&binary, "#!/bin/sh\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&binary, mode).expect("ours");
    let install = || {
        let mut install = Command::new(project("scripts/install-files"));
        install
            .env("DESTDIR", &root)
            .env("BINARY", &binary)
            .env("PCP_PMDASADM_DIR", agents)
            .env("PCP_BINADM_DIR", commands);
        install
    };
    run(&mut install());
    golden(&format!("layout.{name}"), &listing(&root));
    run(install().arg("--remove"));
    let mut left = Command::new("find");
    left.arg(&root).args(["!", "-type", "d"]);
    assert_eq!(run(&mut left), "");
}

#[test]
fn each_file_is_where_debian_has_it() {
    layout("debian", "/usr/lib/pcp/pmdas", "/usr/lib/pcp/bin");
}

#[test]
fn each_file_is_where_fedora_and_rhel_have_it() {
    layout("rpm", "/usr/libexec/pcp/pmdas", "/usr/libexec/pcp/bin");
}

#[test]
fn every_crate_has_a_licence_that_goes_with_ours() {
    let home = Home::new();
    let metadata = home.path("metadata.json");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    cargo.arg("--manifest-path").arg(project("Cargo.toml"));
    std::fs::write(&metadata, run(&mut cargo)).expect("written");
    run(Command::new(project("scripts/crates"))
        .arg("check")
        .arg(metadata));
}
