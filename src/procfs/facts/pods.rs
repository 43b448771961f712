// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of the pods of a node, from the directories that the kubelet creates for their logs.
//!
//! The kubelet has a directory `NAMESPACE_NAME_UID` for each pod in `/var/log/pods`, or in `podLogsDir` of its
//! configuration (`pkg/kubelet/kuberuntime/helpers.go`, BuildPodLogsDirectory). Names and namespaces are DNS labels and
//! subdomains, which have no underscore (RFC 1123).

use crate::base::file::list_names_at;
use crate::procfs::facts::kubelet;
use crate::procfs::facts::labels::Facts;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

/// Limit of directories. A node has some hundreds of pods, and the kubelet removes the directories of former pods.
const MAX_PODS: usize = 1 << 14;
/// Labels of namespace and name.
const LABELS: [&str; 2] = ["namespace", "pod"];

/// Namespaces and names of the pods of this node, by UID.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pods(HashMap<String, [String; 2]>);

impl Pods {
    /// Reads the pods from the directory of their logs. Returns no pods if it cannot be read, since only labels are
    /// lost.
    #[must_use]
    pub fn read(logs: &Path) -> Self {
        let names = list_names_at(logs).unwrap_or_default();
        let pods = names.iter().take(MAX_PODS);
        Self(pods.filter_map(|name| pod(name)).collect())
    }

    /// Adds the name of the pod to an agent's facts. `before` are the earlier facts of the agent. A name in them stays
    /// while the pod does not change, because the kubelet removes the directory of an old pod.
    pub fn name(&self, facts: &mut Facts, before: Option<&Facts>) {
        let Some(uid) = facts.get("pod_uid") else {
            return;
        };
        let before = before.filter(|before| before.get("pod_uid") == Some(uid));
        let pod = self.0.get(uid);
        for (number, label) in LABELS.into_iter().enumerate() {
            let known = pod.map(|pod| &*pod[number]);
            facts.set(label, known.or_else(|| before?.get(label)));
        }
    }
}

/// Returns UID, namespace and name of a pod, from the name of its directory.
fn pod(directory: &OsStr) -> Option<(String, [String; 2])> {
    let mut parts = directory.to_str()?.split('_');
    let [namespace, name, uid] = [parts.next()?, parts.next()?, parts.next()?];
    let is_whole = !namespace.is_empty() && !name.is_empty() && parts.next().is_none();
    let pod = [namespace, name].map(str::to_owned);
    is_whole.then_some((kubelet::uid(uid)?, pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn facts(uid: &str) -> Facts {
        let mut facts = Facts::default();
        facts.set("pod_uid", Some(uid));
        facts
    }

    fn named(pods: &Pods, uid: &str, before: Option<&Facts>) -> (Option<String>, Option<String>) {
        let mut facts = facts(uid);
        pods.name(&mut facts, before);
        (
            facts.get("namespace").map(str::to_owned),
            facts.get("pod").map(str::to_owned),
        )
    }

    #[test]
    fn pod_name_and_namespace_come_from_its_log_directory() {
        let logs = tempfile::tempdir().expect("a directory");
        let of_a_file = "0123456789abcdef0123456789abcdef";
        for name in [
            format!("inference_vllm-decode-0.a_{UID}"),
            format!("kube-system_proxy-node1_{of_a_file}"),
        ] {
            std::fs::create_dir(logs.path().join(name)).expect("made");
        }
        let pods = Pods::read(logs.path());
        let both = |namespace: &str, name: &str| (Some(namespace.into()), Some(name.into()));
        assert_eq!(
            named(&pods, UID, None),
            both("inference", "vllm-decode-0.a")
        );
        assert_eq!(
            named(&pods, of_a_file, None),
            both("kube-system", "proxy-node1")
        );
        let other = "00000000-b29f-11e7-9350-020968147796";
        assert_eq!(named(&pods, other, None), (None, None));
        // Without the directory, the name of this pod stays, and another pod gets no name.
        let mut before = facts(UID);
        pods.name(&mut before, None);
        let none = Pods::read(&logs.path().join("not-there"));
        assert_eq!(
            named(&none, UID, Some(&before)),
            both("inference", "vllm-decode-0.a")
        );
        assert_eq!(named(&none, other, Some(&before)), (None, None));
        let mut nowhere = Facts::default();
        pods.name(&mut nowhere, Some(&before));
        assert_eq!(nowhere, Facts::default());
    }

    #[test]
    fn other_directory_name_has_no_pod() {
        for name in [
            String::new(),
            UID.to_owned(),
            format!("a_{UID}"),
            format!("a_b_c_{UID}"),
            format!("a_b_{UID}_"),
            format!("_b_{UID}"),
            format!("a__{UID}"),
            "a_b_2c48913c".to_owned(),
        ] {
            assert_eq!(pod(OsStr::new(&name)), None, "{name}");
        }
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(pod(OsStr::from_bytes(b"a_\xff_2c48913c")), None);
    }
}
