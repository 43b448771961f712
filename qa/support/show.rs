// SPDX-License-Identifier: GPL-2.0-or-later

//! Values and labels of agents as PCP's own tools show them.

use super::{Pmcd, run};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Values as texts, by metric and instance name.
pub type Shown = BTreeMap<String, BTreeMap<String, String>>;

impl Pmcd {
    /// Values of these metrics and their subtrees, as `pminfo -f` shows them. A metric without values has no instances
    /// here. The value of a metric without instances is under "".
    pub fn shown(&self, metrics: &[&str]) -> Shown {
        let said = run(self.tool("pminfo").arg("-f").args(metrics));
        let (mut shown, mut metric) = (Shown::new(), String::new());
        for line in said.lines() {
            if line.starts_with("nixl.") {
                metric = line.split_whitespace().next().expect("a name").to_owned();
                shown.entry(metric.clone()).or_default();
            } else if let Some((place, value)) = line.trim().split_once("value ") {
                let name = place.split_once(" or \"").map_or("", |(_, name)| name);
                let name = name.trim_end_matches([' ', ']', '"']).to_owned();
                let values = shown.get_mut(&metric).expect("a value after its metric");
                values.insert(name, value.trim_matches('"').to_owned());
            }
        }
        shown
    }

    /// Labels of the instances of a metric, as `pminfo -l` shows them, with the labels of all levels above.
    pub fn labels(&self, metric: &str) -> BTreeMap<String, Map<String, Value>> {
        let said = run(self.tool("pminfo").args(["-l", metric]));
        let mut labels = BTreeMap::new();
        for line in said.lines() {
            let Some((place, json)) = line.split_once("\"] labels ") else {
                continue;
            };
            let name = place.split_once(" or \"").map_or("", |(_, name)| name);
            let parsed = serde_json::from_str(json);
            let parsed = parsed.unwrap_or_else(|err| panic!("{err}: {line}"));
            labels.insert(name.to_owned(), parsed);
        }
        labels
    }

    /// Number of values of a metric, as pmprobe shows it. An error is a negative number.
    pub fn count(&self, metric: &str) -> i64 {
        let said = run(self.tool("pmprobe").args(["-v", metric]));
        let count = said.split_whitespace().nth(1).map(str::parse);
        count
            .and_then(Result::ok)
            .unwrap_or_else(|| panic!("{said}"))
    }
}
