// SPDX-License-Identifier: GPL-2.0-or-later

//! The manifests of share/kubernetes, compared with each other. `scripts/check-full image` builds the image and runs
//! it as in the DaemonSet.

mod rendered;

use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, project, run, wait_for};
use glob::Pattern;
use serde_json::Value;
use std::fs;
use std::process::Command;

const POD: &str = "2a1b7c5e-0f4d-4c1e-9a53-6f2f1f0c9d11";

/// Text of a file of share/kubernetes.
fn shared(file: &str) -> String {
    let path = project("share/kubernetes").join(file);
    fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Documents of a file.
fn documents(file: &str) -> Vec<Value> {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(project("qa/kubernetes/manifest.py"));
    python.arg("--json");
    let documents = run(python.arg(project("share/kubernetes").join(file)));
    serde_json::from_str(&documents).expect("JSON")
}

/// Document of a file that has one.
fn only(file: &str) -> Value {
    let mut documents = documents(file);
    assert_eq!(documents.len(), 1, "{file}");
    documents.remove(0)
}

fn daemon_set() -> Value {
    only("base/daemonset.yaml")
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

/// nixl.conf of the ConfigMap.
fn configuration() -> String {
    shared("base/nixl.conf")
}

#[test]
fn parts_of_the_daemonset_refer_to_each_other() {
    let set = daemon_set();
    let pod = &set["spec"]["template"];
    assert_eq!(
        set["spec"]["selector"]["matchLabels"],
        pod["metadata"]["labels"]
    );
    let container = &pod["spec"]["containers"][0];
    let (mounts, volumes) = (&container["volumeMounts"], &pod["spec"]["volumes"]);
    assert_eq!(all(mounts, "name"), all(volumes, "name"));
    let map = &only("base/kustomization.yaml")["configMapGenerator"][0]["name"];
    let named = list(volumes).iter().filter_map(|volume| {
        let name = &volume["configMap"]["name"];
        (!name.is_null()).then_some(name)
    });
    assert_eq!(named.collect::<Vec<_>>(), [map]);

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
    for (probe, metric) in [
        ("livenessProbe", "nixl.control.version"),
        ("readinessProbe", "nixl.host.agents.live"),
    ] {
        let command = list(&container[probe]["exec"]["command"]);
        assert_eq!(command[0], "/usr/local/libexec/pmdanixl/probe");
        assert_eq!(command[1], metric);
    }
    assert!(shared("image").contains("share/kubernetes/probe "));

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
    let set = daemon_set();
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

/// Asserts that a pod template of a workload has telemetry that the configuration of the DaemonSet finds. Returns the
/// exporter.
fn telemetry(spec: &Value, configuration: &toml::Table) -> String {
    let container = &spec["containers"][0];
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
    let mut volumes = list(&spec["volumes"]).iter();
    let volume = volumes.find(|volume| volume["name"] == name);
    assert_eq!(volume.expect("the volume")["emptyDir"]["medium"], "Memory");
    let path = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/{name}");
    let patterns = match &configuration["nixl"][key] {
        toml::Value::Array(paths) => paths.clone(),
        path => vec![path.clone()],
    };
    let looks = |pattern: &toml::Value| {
        let pattern = pattern.as_str().expect("a path");
        Pattern::new(pattern).expect("a pattern").matches(&path)
    };
    assert!(patterns.iter().any(looks), "{key}: {path}");
    exporter
}

#[test]
fn workloads_write_into_scanned_directories() {
    let configuration: toml::Table = configuration().parse().expect("TOML");
    let exporter = |spec: &Value| telemetry(spec, &configuration);
    assert_eq!(
        exporter(&only("workloads/stores.yaml")["spec"]),
        "prometheus_mp"
    );
    for (file, engines) in [
        ("workloads/vllm.yaml", ["vllm-prefill", "vllm-decode"]),
        ("workloads/sglang.yaml", ["sglang-prefill", "sglang-decode"]),
    ] {
        let documents = documents(file);
        let mut found = Vec::new();
        for document in documents.iter().filter(|one| one["kind"] == "Deployment") {
            let spec = &document["spec"]["template"]["spec"];
            assert_eq!(spec["enableServiceLinks"], false, "{document}");
            if spec["containers"][0]["name"] != "router" {
                assert_eq!(exporter(spec), "BUFFER");
                found.push(string(&document["metadata"]["name"]));
            }
        }
        assert_eq!(found, engines, "{file}");
    }
}

#[test]
fn recipe_shows_lines_of_the_workload() {
    let page = fs::read_to_string(project("docs/recipes.md")).expect("the page");
    let (_, block) = page
        .split_once("```yaml\n          env:")
        .expect("a manifest");
    let (block, _) = block.split_once("```").expect("its end");
    let workload = shared("workloads/sglang.yaml");
    for line in block.lines().filter(|line| !line.is_empty()) {
        let found = workload.lines().filter(|one| {
            let (value, _) = one.split_once(" #").unwrap_or((one, ""));
            value == line
        });
        assert!(found.count() >= 2, "{line}: in prefill and in decode");
    }
}

#[test]
fn services_of_workloads_have_pods_and_ports() {
    for file in ["workloads/vllm.yaml", "workloads/sglang.yaml"] {
        let documents = documents(file);
        let of_kind = |kind: &'static str| documents.iter().filter(move |one| one["kind"] == kind);
        for deployment in of_kind("Deployment") {
            let (spec, name) = (&deployment["spec"], &deployment["metadata"]["name"]);
            let labels = &spec["template"]["metadata"]["labels"];
            assert_eq!(spec["selector"]["matchLabels"], *labels, "{name}");
            let mut services = of_kind("Service");
            let service = services.find(|service| service["spec"]["selector"] == *labels);
            let ports = |value: &Value, key: &str| -> Vec<Value> {
                list(value).iter().map(|port| port[key].clone()).collect()
            };
            let container = &spec["template"]["spec"]["containers"][0];
            let open = ports(&container["ports"], "containerPort");
            let service = service.unwrap_or_else(|| panic!("{name} has a service"));
            assert_eq!(ports(&service["spec"]["ports"], "port"), open, "{name}");
            let arguments = [&container["args"], &container["command"]]
                .map(list)
                .concat();
            for port in open {
                assert!(arguments.contains(&Value::String(port.to_string())));
            }
        }
        let calls = shared(file);
        for service in of_kind("Service") {
            let address = format!("http://{}:", string(&service["metadata"]["name"]));
            let is_called = calls.contains(&address);
            let is_behind = file.contains("sglang") && address != "http://sglang:";
            assert_eq!(is_called, is_behind, "{address}");
        }
    }
}

#[test]
fn network_policies_select_the_pods_and_their_ports() {
    let pod = daemon_set()["spec"]["template"].clone();
    let ports = all(&pod["spec"]["containers"][0]["ports"], "name");
    for file in [
        "base/networkpolicy.yaml",
        "components/host-ports/networkpolicy.yaml",
        "components/pod-monitor/networkpolicy.yaml",
    ] {
        let spec = &only(file)["spec"];
        let selected = &spec["podSelector"]["matchLabels"];
        assert_eq!(*selected, pod["metadata"]["labels"], "{file}");
        let open = all(&spec["ingress"][0]["ports"], "port");
        assert!(open.iter().all(|port| ports.contains(port)), "{file}");
        assert_eq!(open.len() == 2, !file.contains("pod-monitor"), "{file}");
    }
    let base = &only("base/networkpolicy.yaml")["spec"];
    assert_eq!(base["policyTypes"][1], "Egress");
    assert!(base["egress"].is_null(), "no connection is allowed");
}

#[test]
fn pod_monitor_scrapes_what_the_page_recommends() {
    let monitor = only("components/pod-monitor/podmonitor.yaml");
    let labels = &daemon_set()["spec"]["template"]["metadata"]["labels"];
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], *labels);
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let page = fs::read_to_string(project("docs/grafana.md")).expect("the page");
    let (_, listed) = page
        .split_once("      names:\n        - \"")
        .expect("a list");
    let (listed, _) = listed.split_once('"').expect("its end");
    let listed = listed.replace("\\\n", "").replace(' ', "");
    assert_eq!(endpoint["params"]["names"], serde_json::json!([listed]));
    let interval = string(&endpoint["interval"]);
    let line = format!("scrape_interval: {interval}\n");
    assert!(page.contains(&line), "{line}");
    let mut relabelings = list(&endpoint["relabelings"]).iter();
    let job = relabelings.find(|one| one["targetLabel"] == "job");
    let job = string(&job.expect("a job")["replacement"]);
    assert!(page.contains(&format!("- job_name: {job}\n")));
}

/// Labels that Prometheus gives to a pod on node-1 by the relabelings of the PodMonitor.
fn labels_of_a_target() -> Option<Value> {
    let monitor = only("components/pod-monitor/podmonitor.yaml");
    let relabelings = &monitor["spec"]["podMetricsEndpoints"][0]["relabelings"];
    let relabelings = relabelings.to_string();
    let relabelings = relabelings.replace("sourceLabels", "source_labels");
    let relabelings = relabelings.replace("targetLabel", "target_label");
    let home = Home::new();
    let config = home.path("prometheus.yml");
    let text = format!(
        "scrape_configs:\n- job_name: pods\n  relabel_configs: {relabelings}\n  static_configs:\n  - targets: ['192.0.2.1:44322']\n    \
         labels: {{namespace: pmdanixl, pod: pmdanixl-x, container: pmdanixl, __meta_kubernetes_pod_node_name: node-1}}\n"
    );
    fs::write(&config, text).expect("written");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "service-discovery", "--timeout=2s"]);
    let found = run(promtool.arg(&config).arg("pods"));
    let found: Value = serde_json::from_str(&found).ok()?;
    let mut labels = found.get(0)?["labels"].as_object()?.clone();
    labels.retain(|name, _| !name.starts_with("__"));
    Some(labels.into())
}

#[test]
fn targets_have_the_node_and_no_labels_that_agents_have() {
    let labels = wait_for("promtool finds the target", labels_of_a_target);
    assert_eq!(
        labels,
        serde_json::json!({"instance": "node-1", "job": "pcp-nixl"})
    );
}

#[test]
fn container_file_calls_each_step_of_the_script() {
    let file = shared("Containerfile");
    let lines = file.lines().filter_map(|line| line.strip_prefix("RUN "));
    let steps: Vec<_> = lines
        .map(|line| line.split_once("/image ").expect("a step").1)
        .collect();
    assert_eq!(steps, ["packages", "build /image", "activate"]);
    let script = shared("image");
    for step in steps {
        let (function, _) = step.split_once(' ').unwrap_or((step, ""));
        assert!(script.contains(&format!("\n{function}() {{\n")), "{step}");
    }
}
