// SPDX-License-Identifier: GPL-2.0-or-later

//! Pauses of the daemon between two answers, on a host with many agents.

use super::Extent;
use super::report::Table;
use super::support::pdu::Link;
use super::support::sample::Sample;
use super::support::{Home, PMDANIXL, wait_for};
use std::process::Command;
use std::time::{Duration, Instant};

const AGENTS: usize = 4096;
/// A metric without instances, so that the answer itself takes almost no time.
const METRIC: &str = "control.cpu_time";

/// Times between two answers while something happens, in milliseconds, in order.
fn pauses(link: &mut Link, time: Duration, event: impl FnOnce() + Send) -> Vec<f64> {
    std::thread::scope(|scope| {
        scope.spawn(event);
        let (end, mut last, mut times) = (Instant::now() + time, Instant::now(), Vec::new());
        while last < end {
            link.fetch(&[METRIC]).expect("an answer");
            times.push(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
        times.sort_by(f64::total_cmp);
        times
    })
}

/// Table of the pauses.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "Pauses between two answers",
        "agents | what happens | answers | p99 ms | max ms | at most",
        "A client that asks for one value again and again, of the daemon alone. Labels change where the process of all agents is killed \
         and another one opens their rings: the daemon finds it by a process scan. The second row of each number is without that.",
    );
    for &agents in extent.of(&[64, AGENTS][..], &[64][..]) {
        let home = Home::new();
        let options = format!("--agents {agents} --rate 1 --capacity 64 --on-full drop");
        let start = || Sample::start(&home, "agent", &options);
        let mut sample = Some(start());
        let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
        wait_for("all agents are shown", || {
            let shown = link.fetch(&["ring.events"]).expect("an answer");
            (shown[0].len() == agents).then_some(())
        });
        let time = extent.of(Duration::from_secs(10), Duration::from_secs(2));
        for what in ["labels change", "nothing"] {
            let mut all = Vec::new();
            for _ in 0..extent.of(5, 1) {
                all.extend(pauses(&mut link, time, || {
                    if what != "nothing" {
                        sample.take().expect("there").kill();
                        sample = Some(start());
                    }
                }));
            }
            all.sort_by(f64::total_cmp);
            let at = |percent: usize| all[(all.len() - 1) * percent / 100];
            table.row([
                agents.to_string(),
                what.into(),
                all.len().to_string(),
                format!("{:.1}", at(99)),
                format!("**{:.1}**", at(100)),
                if agents == AGENTS { "10.0" } else { "-" }.into(),
            ]);
        }
        drop(sample);
        assert!(link.end().success());
    }
    table
}
