// SPDX-License-Identifier: GPL-2.0-or-later

//! Exact counts of the events that an agent pushed, and their line of JSON.

use std::time::Duration;

use serde_json::{Map, Value};

use super::writer::Kind;

/// Fields of the JSON that are the sum of one kind of event.
const SUMS: [(&str, Kind); 8] = [
    ("tx_requests", Kind::TxRequests),
    ("rx_requests", Kind::RxRequests),
    ("tx_bytes", Kind::TxBytes),
    ("rx_bytes", Kind::RxBytes),
    ("registered", Kind::MemoryRegistered),
    ("deregistered", Kind::MemoryDeregistered),
    ("xfer_time_us", Kind::XferTime),
    ("xfer_post_time_us", Kind::XferPostTime),
];

/// Exact counts of what an agent pushed.
#[derive(Debug, Default)]
pub struct Truth {
    sums: [u64; Kind::ALL.len()],
    /// Events pushed.
    pub events: u64,
    /// Events that were lost because the ring was full.
    pub lost: u64,
    /// Lost events of a flush with more events than the ring has slots, into an empty ring. Only a reader that runs
    /// during the flush could have read them.
    pub excess: u64,
    /// Number of starts after the first.
    pub restarts: u64,
    /// Events that a restart discarded before they were read.
    pub wiped: u64,
    /// Time from the first start to the last transfer.
    pub time: Duration,
}

impl Truth {
    /// Counts a pushed event.
    pub fn count(&mut self, kind: Kind, value: u64) {
        let sum = &mut self.sums[kind as usize];
        *sum = sum.wrapping_add(value);
        self.events += 1;
    }

    /// Line of JSON, without its newline.
    pub fn json(&self, agent: &str, layout: &str) -> String {
        let sum = |kind: Kind| Value::from(self.sums[kind as usize]);
        let error = |kind: &Kind| {
            let name = kind.name().trim_start_matches("NIXL_ERR_");
            (name.to_lowercase(), sum(*kind))
        };
        let mut json = Map::new();
        json.extend([
            ("agent".to_owned(), agent.into()),
            ("layout".to_owned(), layout.into()),
        ]);
        json.extend(SUMS.map(|(name, kind)| (name.to_owned(), sum(kind))));
        json.insert(
            "errors".into(),
            Value::Object(Kind::errors().iter().map(error).collect()),
        );
        let counts = [
            ("events", self.events),
            ("lost", self.lost),
            ("excess", self.excess),
            ("restarts", self.restarts),
            ("wiped", self.wiped),
        ];
        json.extend(counts.map(|(name, count)| (name.to_owned(), count.into())));
        json.insert("seconds".into(), self.time.as_secs_f64().into());
        Value::Object(json).to_string()
    }
}
