// SPDX-License-Identifier: GPL-2.0-or-later

//! Each derived metric pairs the values of its inputs by instance, not by their order.

use crate::support::share::{DERIVED, archive, names_in, text_of, tool};
use crate::support::{Home, run};
use pmdanixl::metrics::{METRICS, Semantics};
use std::collections::{BTreeMap, BTreeSet};

/// Agents, processes and peers by agent have the same names here.
const INSTANCES: [&str; 4] = ["a", "b", "c", "d"];
const SAMPLES: usize = 10;
/// Metric with a value in each sample.
const EACH: &str = "nixl.host.agents.live";

/// Values of an input for an instance: about a sixth of the samples have none. The last one has a value, since PCP
/// rejects a definition with an input that the archive lacks.
fn values(metric: &str, random: &mut fastrand::Rng) -> String {
    let own = METRICS
        .iter()
        .find(|own| metric == format!("nixl.{}", own.name));
    let is_counter = own.expect(metric).semantics == Semantics::Counter;
    let mut sum = 0;
    let samples = (1..=SAMPLES).map(|sample| {
        let value = random.u32(1..=4);
        sum += value;
        match sample < SAMPLES && random.u8(..) < 42 {
            true => "-".to_owned(),
            false => if is_counter { sum } else { value }.to_string(),
        }
    });
    Vec::from_iter(samples).join(" ")
}

/// Derived values of an archive of these rows, by `NAME-INSTANCE` and time.
fn derived(rows: &[String]) -> BTreeMap<(String, String), String> {
    let home = Home::new();
    let path = home.path("archive");
    // pmrep leaves out a sample without values, so that an interval spans two.
    let ones = ["1"; SAMPLES].join(" ");
    archive(&path, 3, &format!("{}\n{EACH} - {ones}\n", rows.join("\n")));
    let mut pmrep = tool("pmrep");
    pmrep.arg("-a").arg(&path);
    // Only the records of the archive, without interpolation.
    let shown = run(pmrep.args(["-u", "-p", "-o", "csv", "-P", "9", EACH, "nixl_derived"]));
    let mut lines = shown.lines().map(|line| line.split(','));
    let header = Vec::from_iter(lines.next().expect("a header"));
    let mut values = BTreeMap::new();
    for line in lines {
        let cells = Vec::from_iter(line);
        for (name, value) in header.iter().zip(&cells).skip(1) {
            let name = name.trim_matches('"').to_owned();
            values.insert((name, cells[0].to_owned()), (*value).to_owned());
        }
    }
    values
}

#[test]
fn derived_value_of_an_instance_does_not_depend_on_others() {
    let text = text_of(DERIVED);
    let definitions = text.lines().filter_map(|line| line.split_once(" = "));
    let definitions = definitions.filter(|(name, _)| !name.contains(['(', '#']));
    let (names, formulas): (Vec<_>, Vec<_>) = definitions.unzip();
    let inputs = BTreeSet::from_iter(formulas.iter().flat_map(|formula| names_in(formula)));
    let mut random = fastrand::Rng::with_seed(1);
    let mut rows = Vec::new();
    for metric in inputs {
        for instance in INSTANCES {
            rows.push(format!(
                "{metric} {instance} {}",
                values(metric, &mut random)
            ));
        }
    }
    let all = derived(&rows);
    for instance in INSTANCES {
        let is_own = |row: &&String| row.split(' ').nth(1) == Some(instance);
        let own = Vec::from_iter(rows.iter().filter(is_own).cloned());
        for ((name, time), value) in derived(&own) {
            let among_all = &all[&(name.clone(), time.clone())];
            assert_eq!(*among_all, value, "{name} at {time}");
        }
    }
    for name in names {
        let mut shown = all.iter().filter(|((shown, _), value)| {
            shown
                .rsplit_once('-')
                .is_some_and(|(metric, _)| metric == name)
                && !value.is_empty()
        });
        assert!(shown.nth(2).is_some(), "{name} has values");
    }
}
