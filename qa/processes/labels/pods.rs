// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels of agents in Kubernetes pods.

use super::{A_FEW, first_labels, worker};
use crate::support::sample::Sample;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, TX_BYTES, example, wait_for};
use serde_json::Value;
use std::fs;

const POD: &str = "0f3c2b1a-1111-2222-3333-444455556666";

#[test]
fn pod_label_comes_from_the_volume_path_without_proc_facts() {
    for proc_facts in [true, false] {
        let home = Home::new();
        let pods = home.path("kubelet/pods");
        let volume = pods.join(POD).join("volumes/kubernetes.io~empty-dir/nixl");
        fs::create_dir_all(&volume).expect("made");
        let logs = home.path("logs");
        fs::create_dir_all(logs.join(format!("inference_kvbm-0_{POD}"))).expect("made");
        home.configure(&format!(
            "[nixl]\nproc_facts = {proc_facts}\npod_logs = {logs:?}\n\
             telemetry_dir = \"{}/*/volumes/kubernetes.io~empty-dir/nixl\"\n",
            pods.display()
        ));
        let pmcd = Pmcd::start(&home);
        let command = worker(example("producer"), 0);
        let _agent = Sample::start_as(command, &volume, "kvbm-worker-0", A_FEW);
        let labels = first_labels(&pmcd, "kvbm-worker-0");
        assert_eq!(
            (&labels["pod_uid"], &labels["engine"]),
            (&POD.into(), &"kvbm".into())
        );
        assert_eq!(labels["nixl_agent"], "kvbm-worker-0");
        // Only a process scan finds these labels.
        if proc_facts {
            wait_for("the process scan has found the labels", || {
                let labels = pmcd.labels(TX_BYTES).remove("kvbm-worker-0")?;
                let found = ["local_rank", "pod", "namespace"].map(|name| labels.get(name));
                let expected = ["0", "kvbm-0", "inference"].map(Value::from);
                (found == expected.each_ref().map(Some)).then_some(())
            });
        } else {
            for name in ["local_rank", "pod", "namespace"] {
                assert!(!labels.contains_key(name), "{labels:?}");
            }
        }
    }
}

#[test]
fn second_agent_of_a_name_gets_the_uid_of_its_pod() {
    let home = Home::new();
    let pods = home.path("kubelet/pods");
    let other = POD.replace('2', "f");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = \"{}/*/volumes/kubernetes.io~empty-dir/nixl\"\n",
        pods.display()
    ));
    let _rings = [POD, &other].map(|uid| {
        let volume = pods.join(uid).join("volumes/kubernetes.io~empty-dir/nixl");
        fs::create_dir_all(&volume).expect("made");
        let mut ring = RingWriter::create(&volume.join("worker-0"), Layout::V4, 16);
        ring.as_mut().expect("a ring").push(Kind::TxBytes, 1);
        ring
    });
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("worker-0", 1), (&format!("worker-0@{other}"), 1)]);
}
