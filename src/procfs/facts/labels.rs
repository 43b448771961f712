// SPDX-License-Identifier: GPL-2.0-or-later

//! Facts about an agent, and the labels of its instance.

use crate::procfs::facts::{engine_by_name, gpu, kubelet};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Limit of a user's name, in bytes (LOGIN_NAME_MAX of Linux). A longer name is not shown.
pub const MAX_USER_NAME: usize = 256;
/// Title or program of the process, without arguments: a fact that is not a label.
const COMMAND: &str = "command";
/// GPUs of the process as it lists them: a fact that is not a label. The labels `gpu`, `gpus`, `uuid` and `uuids` are
/// made from it.
pub const GPU_LIST: &str = "gpu_list";

/// Facts about an agent. Their names are the labels that docs/metrics.md lists, `COMMAND` and
/// `GPU_LIST`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts(BTreeMap<String, String>);

impl Facts {
    /// Returns the facts of a file, from its owner, name and directory.
    #[must_use]
    pub fn of_file(user: Option<&str>, name: &OsStr, directory: &Path) -> Self {
        let mut facts = Self::default();
        facts.set("user", user.filter(|user| user.len() <= MAX_USER_NAME));
        facts.set("pod_uid", kubelet::pod_uid(directory));
        facts.set("engine", engine_by_name::engine(&name.to_string_lossy()));
        facts
    }

    /// Returns the fact with this name, if it is known.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns engine, role and HTTP port of the agent's server, for example `vllm decode:8200`. All ranks of a server
    /// have the same.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        let mut text = String::new();
        for (name, before) in [("engine", ""), ("role", " "), ("port", ":")] {
            if let Some(value) = self.get(name) {
                text += if text.is_empty() && name != "port" {
                    ""
                } else {
                    before
                };
                text += value;
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// Returns the rank in the server, for example `TP0`, else the number of the process on this host.
    #[must_use]
    pub fn rank(&self) -> Option<String> {
        let local = || Some(format!("rank {}", self.get("local_rank")?));
        self.get("rank").map(str::to_owned).or_else(local)
    }

    /// Sets a fact to a value. Without a value, the fact stays as it is.
    pub fn set(&mut self, name: &str, value: Option<impl ToString>) {
        let known = value.map(|value| (name.to_owned(), value.to_string()));
        self.0.extend(known);
    }

    /// Returns these facts, completed with weaker ones. Facts of a file are stronger than facts of a process: the
    /// kubelet names the directory of a volume, and one process may have agents of several engines.
    #[must_use]
    pub fn merge(self, weaker: &Self) -> Self {
        let mut all = weaker.0.clone();
        all.extend(self.0);
        Self(all)
    }

    /// Returns the labels of an agent's instance: a JSON object of strings and numbers. `raw_name` is the unchanged
    /// name of the file (bytes that are not UTF-8 become U+FFFD). `uid` is the owner of the file, and `telemetry` the
    /// kind of file that the numbers come from.
    #[must_use]
    pub fn labels(&self, raw_name: &OsStr, uid: u32, telemetry: &str) -> Value {
        let given = [
            ("nixl_agent", raw_name.to_string_lossy().into()),
            ("telemetry", telemetry.into()),
            ("uid", uid.into()),
        ];
        let known = self.0.iter().filter(|(name, _)| *name != COMMAND);
        let known = known.flat_map(|(name, value)| match &**name {
            GPU_LIST => gpu::labels(value),
            name => vec![(name, Value::from(&**value))],
        });
        let labels = given.into_iter().chain(known);
        labels
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::ffi::OsStrExt;

    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn facts<const N: usize>(known: [(&str, &str); N]) -> Facts {
        let mut facts = Facts::default();
        for (name, value) in known {
            facts.set(name, Some(value));
        }
        facts
    }

    #[test]
    fn file_facts_are_user_pod_and_engine() {
        let directory = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/t");
        let name = OsStr::new("kvbm-worker-0");
        let found = Facts::of_file(Some("root"), name, Path::new(&directory));
        let expected = facts([("user", "root"), ("pod_uid", POD), ("engine", "kvbm")]);
        assert_eq!(found, expected);
        let found = Facts::of_file(None, OsStr::new("a"), Path::new("/var/tmp"));
        assert_eq!(found, Facts::default());
    }

    #[test]
    fn server_is_engine_role_and_port() {
        let server = |engine, role, port| {
            let known = [("engine", engine), ("role", role), ("port", port)];
            let mut facts = facts([("rank", "TP0")]);
            for (name, value) in known {
                facts.set(name, value);
            }
            facts.server()
        };
        for (engine, role, port, expected) in [
            (
                Some("vllm"),
                Some("decode"),
                Some("8200"),
                Some("vllm decode:8200"),
            ),
            (Some("vllm"), None, Some("8200"), Some("vllm:8200")),
            (Some("vllm"), Some("both"), None, Some("vllm both")),
            (Some("sglang"), None, None, Some("sglang")),
            (None, Some("prefill"), Some("1"), Some("prefill:1")),
            (None, Some("prefill"), None, Some("prefill")),
            (None, None, Some("8200"), Some(":8200")),
            (None, None, None, None),
        ] {
            assert_eq!(server(engine, role, port).as_deref(), expected);
        }
    }

    #[test]
    fn rank_of_the_server_is_preferred_to_the_local_one() {
        let rank = |known: Facts| known.rank();
        let both = facts([("rank", "TP3"), ("local_rank", "1")]);
        assert_eq!(rank(both).as_deref(), Some("TP3"));
        let local = facts([("local_rank", "1")]);
        assert_eq!(rank(local).as_deref(), Some("rank 1"));
        assert_eq!(rank(Facts::default()), None);
    }

    #[test]
    fn weaker_facts_fill_gaps_only() {
        let all = facts([("engine", "vllm"), ("user", "dynamo"), ("port", "8100")]);
        let strong = facts([("engine", "kvbm"), ("user", "root")]);
        let expected = facts([("engine", "kvbm"), ("user", "root"), ("port", "8100")]);
        assert_eq!(strong.merge(&all), expected);
        assert_eq!(Facts::default().merge(&all), all);
        assert_eq!(all.clone().merge(&Facts::default()), all);
    }

    #[test]
    fn labels_are_the_known_facts() {
        let labels = Facts::default().labels(OsStr::new("a b"), 0, "ring");
        let expected = json!({ "nixl_agent": "a b", "telemetry": "ring", "uid": 0 });
        assert_eq!(labels, expected);
        let known = facts([("command", "VLLM::Worker_TP3"), ("rank", "TP3")]);
        assert_eq!(
            known.labels(OsStr::new("a"), 1000, "store"),
            json!({ "nixl_agent": "a", "telemetry": "store", "uid": 1000, "rank": "TP3" })
        );
        let labels = facts([(GPU_LIST, "3")]).labels(OsStr::new("a"), 0, "ring");
        let expected = json!({ "nixl_agent": "a", "telemetry": "ring", "uid": 0, "gpu": 3 });
        assert_eq!(labels, expected);
    }

    #[test]
    fn labels_of_any_name_are_within_pcp_limits() {
        let known = facts([
            (GPU_LIST, &"x".repeat(gpu::MAX_LIST)),
            ("nixl_hostname", &"\"".repeat(127)),
        ]);
        for byte in [1, b'"', 0xff] {
            let name = [byte; 255];
            let labels = known.labels(OsStr::from_bytes(&name), u32::MAX, "ring");
            assert!(labels.to_string().len() < 65_535 / 8, "{labels}");
            assert!(labels.as_object().is_some_and(|labels| labels.len() == 5));
        }
    }
}
