// SPDX-License-Identifier: GPL-2.0-or-later

//! The address of the repository: only Cargo.toml has it, and a release needs a real one.

use crate::support::{Home, output, project, run, text};
use std::fs;
use std::process::Command;

/// Runs scripts/release in a copy of what it reads first, with this address of the repository, and returns what it
/// says.
fn release_with(address: &str) -> String {
    let home = Home::new();
    let copy = home.path("pmdanixl");
    fs::create_dir(&copy).expect("made");
    let mut cp = Command::new("cp");
    cp.current_dir(project(".")).args(["-a", "--parents"]);
    cp.args(["scripts", "debian/changelog", "rpm/pmdanixl.spec"]);
    run(cp.arg(&copy));
    let manifest = fs::read_to_string(project("Cargo.toml")).expect("there");
    let ours = format!("\nrepository = \"{}\"\n", env!("CARGO_PKG_REPOSITORY"));
    assert_eq!(manifest.matches(&ours).count(), 1);
    let manifest = manifest.replace(&ours, &format!("\nrepository = \"{address}\"\n"));
    fs::write(copy.join("Cargo.toml"), manifest).expect("written");
    let mut release = Command::new(copy.join("scripts/release"));
    let said = output(release.env_remove("DIRTY"));
    // The copy has no sources, so that a release that begins fails, too.
    assert!(!said.status.success(), "{}", text(&said));
    assert_eq!(
        copy.join("target").exists(),
        !address.contains(".invalid"),
        "{}",
        text(&said)
    );
    text(&said)
}

#[test]
fn release_is_refused_while_the_address_is_a_placeholder() {
    let refusal = "release: repository in Cargo.toml is the placeholder";
    for address in ["https://pmdanixl.invalid", "https://pmdanixl.invalid/git"] {
        let said = release_with(address);
        assert!(said.contains(&format!("{refusal} {address}:")), "{said}");
    }
    let said = release_with("https://example.org/pmdanixl");
    assert!(!said.contains(refusal), "{said}");
}

#[test]
fn address_of_the_repository_is_only_in_cargo_toml() {
    let mut grep = Command::new("grep");
    grep.args(["-rlIF", env!("CARGO_PKG_REPOSITORY")]);
    let left_out = ["target", ".git", "node_modules", "vendor"];
    grep.args(left_out.map(|name| format!("--exclude-dir={name}")));
    // This file has the placeholder as an example.
    grep.args(["--exclude=release.rs", "."]);
    assert_eq!(run(grep.current_dir(project("."))), "./Cargo.toml\n");
}
