// SPDX-License-Identifier: GPL-2.0-or-later

//! The manifests of share/kubernetes, compared with the schemas that Kubernetes publishes and with each other.
//! `scripts/check-full image` builds the image and runs it as in the DaemonSet.

use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, output, project, run, text};
use glob::Pattern;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const POD: &str = "2a1b7c5e-0f4d-4c1e-9a53-6f2f1f0c9d11";

/// Text of a file of share/kubernetes.
fn shared(file: &str) -> String {
    let path = project("share/kubernetes").join(file);
    fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Checks a manifest against the schemas.
fn schemas(manifest: &str) -> Output {
    let python = run(&mut Command::new(project("qa/kubernetes/venv")));
    let mut check = Command::new(python.trim())
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

/// Documents of a file.
fn documents(file: &str) -> Vec<Value> {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(project("qa/kubernetes/manifest.py"));
    python.arg("--json");
    let documents = run(python.arg(project("share/kubernetes").join(file)));
    serde_json::from_str(&documents).expect("JSON")
}

fn of_kind(kind: &str) -> Value {
    let mut documents = documents("daemonset.yaml").into_iter();
    let found = documents.find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in daemonset.yaml"))
}

/// Elements of a list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Value that must be a string.
fn string(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is not a string"))
}

/// Names or paths in a list of objects.
fn all<'a>(objects: &'a Value, key: &str) -> Vec<&'a str> {
    let mut found: Vec<_> = list(objects).iter().map(|one| string(&one[key])).collect();
    found.sort_unstable();
    found
}

/// nixl.conf in the ConfigMap.
fn configuration() -> String {
    string(&of_kind("ConfigMap")["data"]["nixl.conf"]).to_owned()
}

#[test]
#[ignore = "needs schemas from PyPI"]
fn manifests_match_the_published_schemas() {
    let kinds = |file| {
        let output = schemas(&shared(file));
        assert!(output.status.success(), "{file}: {}", text(&output));
        let documents: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        let kind = |document: &Value| string(&document["kind"]).to_owned();
        documents.iter().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds("daemonset.yaml"),
        ["Namespace", "ConfigMap", "DaemonSet"]
    );
    assert_eq!(kinds("workload.yaml"), ["Pod", "Pod"]);
}

#[test]
#[ignore = "needs schemas from PyPI"]
fn corrupted_manifest_does_not_match_the_schemas() {
    for (file, was, spoiled, said) in [
        ("daemonset.yaml", "hostPID:", "hostPid:", "hostPid"),
        (
            "daemonset.yaml",
            "containerPort: 44322",
            "containerPort: pmproxy",
            "is not of type",
        ),
        (
            "daemonset.yaml",
            "HostToContainer",
            "[]",
            "mountPropagation",
        ),
        (
            "daemonset.yaml",
            "      volumes:\n",
            "      volume:\n",
            "volume",
        ),
        (
            "daemonset.yaml",
            "apiVersion: apps/v1",
            "apiVersion: apps/v9",
            "apps/v9",
        ),
        (
            "workload.yaml",
            "value: \"y\"",
            "value: true",
            "is not of type",
        ),
    ] {
        let manifest = shared(file);
        assert!(manifest.contains(was), "{file} has {was}");
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

#[test]
fn parts_of_the_daemonset_refer_to_each_other() {
    let set = of_kind("DaemonSet");
    let pod = &set["spec"]["template"];
    assert_eq!(
        set["spec"]["selector"]["matchLabels"],
        pod["metadata"]["labels"]
    );
    let container = &pod["spec"]["containers"][0];
    let (mounts, volumes) = (&container["volumeMounts"], &pod["spec"]["volumes"]);
    assert_eq!(all(mounts, "name"), all(volumes, "name"));
    let map = &of_kind("ConfigMap")["metadata"]["name"];
    let named = list(volumes).iter().filter_map(|volume| {
        let name = &volume["configMap"]["name"];
        (!name.is_null()).then_some(name)
    });
    assert_eq!(named.collect::<Vec<_>>(), [map]);
    for document in documents("daemonset.yaml").iter().skip(1) {
        assert_eq!(document["metadata"]["namespace"], "pmdanixl");
    }

    // Programs in the image, and ports.
    let image = shared("Containerfile");
    let ports: Vec<_> = list(&container["ports"])
        .iter()
        .map(|port| port["containerPort"].to_string())
        .collect();
    assert!(
        image.contains(&format!("EXPOSE {}\n", ports.join(" "))),
        "{ports:?}"
    );
    for probe in ["livenessProbe", "readinessProbe"] {
        let command = string(&container[probe]["exec"]["command"][0]);
        assert_eq!(command, "/usr/local/libexec/pmdanixl/probe");
    }
    assert!(shared("image").contains("share/kubernetes/probe \"$libexec\""));

    // The namespaces are those of the node, and the version is this one.
    let configured = configuration();
    for path in ["/var/lib/kubelet/pods", "/run/nixl"] {
        assert!(all(mounts, "mountPath").contains(&path) && configured.contains(path));
    }
    let tag = concat!("pmdanixl:", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], tag);
    assert!(image.contains(tag));
}

#[test]
fn container_may_open_files_of_other_pods_under_selinux() {
    let set = of_kind("DaemonSet");
    let rights = &set["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(rights["seLinuxOptions"]["type"], "spc_t");
    // The SELinux type does not replace capabilities.
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    assert!(rights["privileged"].is_null(), "{rights}");
}

#[test]
fn manifest_configuration_finds_rings_of_pods() {
    let home = Home::new();
    let kubelet = home.path("kubelet");
    let volumes = format!("pods/{POD}/volumes/kubernetes.io~empty-dir");
    let volume = |name| kubelet.join(&volumes).join(name);
    for name in ["nixl-telemetry", "nixl-stores", "cache"] {
        fs::create_dir_all(volume(name)).expect("made");
    }
    for ring in [
        volume("nixl-telemetry").join("in-a-pod"),
        volume("cache").join("not-for-us"),
        home.ring("on-the-node"),
    ] {
        RingWriter::create(&ring, Layout::V4, 16).expect("a ring");
    }
    let here = |text: String, from: &str, to: &std::path::Path| {
        assert!(text.contains(from), "{text}");
        text.replace(from, to.to_str().expect("UTF-8"))
    };
    let configuration = here(configuration(), "/var/lib/kubelet", &kubelet);
    home.configure(&here(configuration, "/run/nixl", &home.rings()));
    let (status, output) = home.check();
    assert!(
        status == 0 && output.contains("  in-a-pod: ring v4") && output.contains("  on-the-node: "),
        "{output}"
    );
    assert!(
        !output.contains("not-for-us") && !output.contains("warning"),
        "{output}"
    );
}

#[test]
fn workload_writes_into_a_scanned_directory() {
    let configuration: toml::Table = configuration().parse().expect("TOML");
    let patterns = |key: &str| match &configuration["nixl"][key] {
        toml::Value::Array(paths) => paths.clone(),
        path => vec![path.clone()],
    };
    let mut kinds = Vec::new();
    for pod in documents("workload.yaml") {
        let container = &pod["spec"]["containers"][0];
        let value = |name: &str| {
            let mut variables = list(&container["env"]).iter();
            let found = variables.find(|variable| variable["name"] == name);
            found.map(|variable| string(&variable["value"]).to_owned())
        };
        assert_eq!(value("NIXL_TELEMETRY_ENABLE").as_deref(), Some("y"));
        let exporter = value("NIXL_TELEMETRY_EXPORTER").expect("set");
        let (variable, key) = match exporter.as_str() {
            "BUFFER" => ("NIXL_TELEMETRY_DIR", "telemetry_dir"),
            "prometheus_mp" => ("NIXL_TELEMETRY_MULTIPROC_DIR", "multiproc_dir"),
            other => panic!("{other}"),
        };
        let directory = value(variable).expect("set");
        let mut mounts = list(&container["volumeMounts"]).iter();
        let mount = mounts.find(|mount| mount["mountPath"] == directory.as_str());
        let name = string(&mount.expect("a volume is mounted there")["name"]);
        let mut volumes = list(&pod["spec"]["volumes"]).iter();
        let volume = volumes.find(|volume| volume["name"] == name);
        assert!(volume.expect("the volume")["emptyDir"].is_object());
        let path = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/{name}");
        let looks = |pattern: &toml::Value| {
            let pattern = pattern.as_str().expect("a path");
            Pattern::new(pattern).expect("a pattern").matches(&path)
        };
        assert!(patterns(key).iter().any(looks), "{key}: {path}");
        kinds.push(exporter);
    }
    assert_eq!(kinds, ["BUFFER", "prometheus_mp"]);
}

#[test]
fn image_test_covers_every_step_of_the_container_file() {
    let file = shared("Containerfile");
    let steps: Vec<_> = file
        .lines()
        .filter_map(|line| line.strip_prefix("RUN "))
        .collect();
    for (step, name) in steps.iter().zip(["packages", "build", "activate"]) {
        assert!(
            step.contains(&format!("/image {name}")),
            "{step} calls the script"
        );
    }
    assert_eq!(steps.len(), 3, "{steps:?}");
    // Each line is one instruction, which qa/image needs to read this file.
    assert!(!file.contains("\\\n"));
    let reader = fs::read_to_string(project("qa/image")).expect("qa/image");
    assert!(
        reader.contains("done <\"$files/Containerfile\"")
            && reader.contains("*) fail \"Containerfile: ")
    );
    let syntax = output(Command::new("sh").arg("-n").arg(project("qa/image")));
    assert!(syntax.status.success(), "{}", text(&syntax));
}
