// SPDX-License-Identifier: GPL-2.0-or-later

//! Licences and origin of crates, checked by `scripts/crates`.

use crate::support::{Home, leave_out, output, project, run, text};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

#[test]
fn every_crate_has_a_compatible_licence() {
    let home = Home::new();
    let metadata = home.path("metadata.json");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--offline", "--format-version", "1"]);
    cargo.arg("--manifest-path").arg(project("Cargo.toml"));
    let output = cargo.output().expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("--offline") {
        leave_out("not all crates are here, and they cannot be fetched (cargo fetch)");
    }
    assert!(output.status.success(), "{errors}");
    fs::write(&metadata, output.stdout).expect("written");
    run(Command::new(project("scripts/crates"))
        .arg("check")
        .arg(metadata));
}

/// Runs `scripts/crates check` for pmdanixl with one other crate, which has these values, and with these crates banned.
fn check_of_a_crate(values: &[(&str, Value)], banned: &str) -> (bool, String) {
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    let package = |name: &str, source: Value| {
        json!({
            "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source, "dependencies": [],
            "targets": [{"kind": ["lib"]}], "manifest_path": "Cargo.toml",
        })
    };
    let mut other = package("other", registry.into());
    for (key, value) in values {
        other[*key] = value.clone();
    }
    let metadata = json!({
        "packages": [package("pmdanixl", Value::Null), other],
        "resolve": {
            "root": "pmdanixl",
            "nodes": [
                {"id": "pmdanixl", "deps": [{"pkg": "other", "dep_kinds": [{"kind": null}]}]},
                {"id": "other", "deps": []},
            ],
        },
    });
    // The script reads the rules beside its directory.
    let home = Home::new();
    let script = home.path("scripts/crates");
    fs::create_dir(home.path("scripts")).expect("made");
    fs::copy(project("scripts/crates"), &script).expect("there");
    let rules = fs::read_to_string(project("deny.toml")).expect("there");
    assert!(rules.contains("deny = []"), "{rules}");
    let rules = rules.replace("deny = []", &format!("deny = [{banned}]"));
    fs::write(home.path("deny.toml"), rules).expect("written");
    fs::write(home.path("metadata.json"), metadata.to_string()).expect("written");
    let mut check = Command::new(script);
    let said = output(check.arg("check").arg(home.path("metadata.json")));
    (said.status.success(), text(&said))
}

#[test]
fn crate_of_another_origin_or_banned_crate_is_rejected() {
    let (passed, said) = check_of_a_crate(&[], "");
    assert!(passed, "{said}");
    let git = "git+https://example.org/other?rev=1#1";
    let registry = "registry+https://example.org/index";
    let any = json!([{"name": "third", "req": "*"}]);
    for (key, value, expected) in [
        ("source", json!(git), "other 1.0.0: comes from git+"),
        (
            "source",
            json!(registry),
            "other 1.0.0: comes from registry+",
        ),
        ("source", Value::Null, "other 1.0.0: comes from Cargo.toml"),
        ("dependencies", any, "other 1.0.0: any version of third"),
        ("license", json!("Apache-2.0"), "other 1.0.0: Apache-2.0"),
    ] {
        let (passed, said) = check_of_a_crate(&[(key, value)], "");
        assert!(!passed && said.contains(expected), "{expected}: {said}");
    }
    let (passed, said) = check_of_a_crate(&[], "\"other\"");
    assert!(!passed && said.contains("other 1.0.0: is banned"), "{said}");
}
