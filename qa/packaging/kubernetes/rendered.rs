// SPDX-License-Identifier: GPL-2.0-or-later

//! What `kubectl kustomize` makes of share/kubernetes, compared with the schemas that Kubernetes publishes, and for
//! PodMonitor with that in qa/kubernetes.

use super::{list, shared, string};
use crate::support::{Home, output, project, run, text};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Python of the environment with schemas. kubectl is beside it.
fn python() -> PathBuf {
    let python = run(&mut Command::new(project("qa/kubernetes/venv")));
    PathBuf::from(python.trim())
}

/// Manifest that `kubectl kustomize` makes of a directory, without a warning.
fn render(directory: &Path) -> String {
    let mut kubectl = Command::new(python().with_file_name("kubectl"));
    let output = output(kubectl.arg("kustomize").arg(directory));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Manifest that kubectl makes of a directory of share/kubernetes.
fn rendered(directory: &str) -> String {
    render(&project("share/kubernetes").join(directory))
}

/// Checks a manifest against the schemas.
fn schemas(manifest: &str) -> Output {
    let mut check = Command::new(python())
        .arg(project("qa/kubernetes/manifest.py"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the environment's python");
    let mut input = check.stdin.take().expect("piped");
    input.write_all(manifest.as_bytes()).expect("python reads");
    drop(input);
    check.wait_with_output().expect("our child")
}

/// Documents of a manifest that matches the schemas.
fn valid(manifest: &str) -> Vec<Value> {
    let output = schemas(manifest);
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Kinds and names of documents, without the hash of a ConfigMap.
fn names(documents: &[Value]) -> Vec<String> {
    let name = |document: &Value| {
        let kind = string(&document["kind"]);
        let name = string(&document["metadata"]["name"]);
        let name = match (kind, name.rsplit_once('-')) {
            ("ConfigMap", Some((name, _))) => name,
            _ => name,
        };
        format!("{kind} {name}")
    };
    documents.iter().map(name).collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
#[ignore = "needs kubectl and schemas from PyPI"]
fn base_renders_to_valid_manifests() {
    let documents = valid(&rendered("base"));
    assert_eq!(
        names(&documents),
        [
            "Namespace pmdanixl",
            "ConfigMap pmdanixl",
            "DaemonSet pmdanixl",
            "NetworkPolicy pmdanixl"
        ]
    );
    for document in &documents[1..] {
        assert_eq!(document["metadata"]["namespace"], "pmdanixl");
    }
    let map = of_kind(&documents, "ConfigMap");
    assert_eq!(map["data"]["nixl.conf"], shared("base/nixl.conf"));
    let pod = &of_kind(&documents, "DaemonSet")["spec"]["template"]["spec"];
    for port in list(&pod["containers"][0]["ports"]) {
        assert!(port["hostPort"].is_null(), "{port}");
    }
}

#[test]
#[ignore = "needs kubectl and schemas from PyPI"]
fn example_overlay_adds_each_component_to_the_base() {
    let documents = valid(&rendered("overlays/example"));
    assert_eq!(
        names(&documents),
        [
            "Namespace pmdanixl",
            "ConfigMap pmdanixl",
            "DaemonSet pmdanixl",
            "PodMonitor pmdanixl",
            "NetworkPolicy pmdanixl",
            "NetworkPolicy pmdanixl-host-ports",
            "NetworkPolicy pmdanixl-prometheus"
        ]
    );
    let pod = &of_kind(&documents, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let tag = concat!("registry.example.com/pmdanixl:", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], tag);
    let ports = list(&container["ports"]);
    assert_eq!(ports.len(), 2, "{ports:?}");
    for port in ports {
        assert_eq!(port["hostPort"], port["containerPort"]);
        assert!(port["name"].is_string(), "{port}");
    }
}

#[test]
#[ignore = "needs schemas from PyPI"]
fn workloads_match_the_schemas() {
    let server = ["Service", "Deployment"];
    for (file, kinds) in [
        ("vllm.yaml", server.repeat(2)),
        ("sglang.yaml", server.repeat(3)),
        ("stores.yaml", vec!["Pod"]),
    ] {
        let documents = valid(&shared(&format!("workloads/{file}")));
        let found: Vec<_> = documents.iter().map(|one| string(&one["kind"])).collect();
        assert_eq!(found, kinds, "{file}");
    }
}

/// Name of the ConfigMap that the DaemonSet in a manifest uses.
fn config_map_of_pods(manifest: &str) -> String {
    let documents = valid(manifest);
    let pod = &of_kind(&documents, "DaemonSet")["spec"]["template"]["spec"];
    let mut volumes = list(&pod["volumes"]).iter();
    let volume = volumes.find(|volume| volume["name"] == "config");
    let name = &volume.expect("a volume")["configMap"]["name"];
    let map = of_kind(&documents, "ConfigMap");
    assert_eq!(*name, map["metadata"]["name"]);
    string(name).to_owned()
}

#[test]
#[ignore = "needs kubectl and schemas from PyPI"]
fn changed_nixl_conf_of_an_overlay_changes_the_pods() {
    let home = Home::new();
    let copy = home.path("kubernetes");
    let mut copying = Command::new("cp");
    run(copying
        .arg("-r")
        .arg(project("share/kubernetes"))
        .arg(&copy));
    let overlay = copy.join("overlays/example");
    // The lines that docs/kubernetes.md says to use.
    let file = overlay.join("kustomization.yaml");
    let lines = fs::read_to_string(&file).expect("a kustomization");
    let (rest, commented) = lines
        .split_once("# configMapGenerator:")
        .expect("a generator");
    let generator = commented.replace("\n# ", "\n");
    fs::write(&file, format!("{rest}configMapGenerator:{generator}")).expect("written");
    let base = shared("base/nixl.conf");
    let config_map = |text: &str| {
        fs::write(overlay.join("nixl.conf"), text).expect("written");
        config_map_of_pods(&render(&overlay))
    };
    let same = config_map(&base);
    assert_eq!(same, config_map_of_pods(&rendered("overlays/example")));
    assert_ne!(same, config_map(&(base + "stalled_after = \"1min\"\n")));
}

#[test]
#[ignore = "needs kubectl and schemas from PyPI"]
fn corrupted_manifest_does_not_match_the_schemas() {
    let manifest = rendered("overlays/example");
    for (was, spoiled, said) in [
        ("hostPID:", "hostPid:", "hostPid"),
        (
            "containerPort: 44322",
            "containerPort: pmproxy",
            "is not of type",
        ),
        ("HostToContainer", "[]", "mountPropagation"),
        ("      volumes:\n", "      volume:\n", "volume"),
        ("apiVersion: apps/v1", "apiVersion: apps/v9", "apps/v9"),
        ("  policyTypes:", "  policyType:", "policyType"),
        ("podMetricsEndpoints:", "endpoints:", "podMetricsEndpoints"),
        ("scrapeTimeout: 30s", "scrapeTimeout: 30", "scrapeTimeout"),
        (
            "action: labeldrop",
            "action: labelremove",
            "relabelings[0].action",
        ),
    ] {
        assert!(manifest.contains(was), "{was}");
        let output = schemas(&manifest.replacen(was, spoiled, 1));
        let found = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && found.contains(said),
            "{was} -> {spoiled}: {found}"
        );
    }
    assert!(
        !schemas("").status.success(),
        "an empty file is not a manifest"
    );
}
