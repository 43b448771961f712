// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents that restart in place while the positions of their ring are 0, which does not show the restart. Through the
//! test kit.

use crate::support::drain::Bench;
use crate::support::kit::{Core, LONG};
use crate::support::sample::Sample;
use crate::support::{example, needs_root, wait_for};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn start(rings: &Path, options: &str) -> Sample {
    let mut command = Command::new(example("producer"));
    command.args(["--capacity", "16"]);
    Sample::start_as(command, rings, "agent", options)
}

/// Bytes sent, starts and resets of the agent after a tick, if it is an instance. Uses the real clock, with which the
/// start times of processes are compared.
fn tick(core: &mut Core) -> Option<[u64; 3]> {
    std::thread::sleep(Duration::from_millis(5));
    let passed = Instant::now().saturating_duration_since(core.now());
    core.tick(1, passed, LONG);
    core.tidy();
    let names = ["transfer.tx_bytes", "agent.starts", "ring.resets"];
    let is_instance = core.instances().contains_key("agent");
    is_instance.then(|| names.map(|name| core.value(name, "agent")))
}

#[test]
fn restart_of_a_ring_that_wrapped_to_0_is_counted() {
    needs_root();
    let mut core = Core::new("proc_facts = true");
    core.observe();
    let rings = core.rings();
    // After 16 events, the positions are 0 again. The ring has room for 15.
    let options = "--register 1000 --errors 2 --transfers 3 --rate 0 --read-every 0 --size 100 \
                   --full-timeout 120 --linger 600";
    let first = start(&rings, options);
    wait_for("all is counted, and the process known", || {
        let counted = tick(&mut core)?;
        let is_all = counted == [300, 1, 0] && core.value("memory.deregistered", "agent") == 1000;
        (is_all && core.get("agent.pid", "agent").is_some()).then_some(())
    });
    first.kill();
    let _second = start(&rings, "--rate 0.001");
    wait_for("the second start is seen", || {
        (tick(&mut core) == Some([300, 2, 1])).then_some(())
    });
}

#[test]
fn restarted_agent_is_an_instance_before_its_first_event() {
    needs_root();
    let mut core = Core::new("retain = \"1s\"");
    let rings = core.rings();
    let options = "--rate 0.001";
    for start in 1..=3 {
        let agent = self::start(&rings, options);
        wait_for("the agent is an instance", || {
            let [_, starts, _] = tick(&mut core)?;
            (starts == start).then_some(())
        });
        agent.kill();
        wait_for("the agent is withdrawn", || {
            tick(&mut core).is_none().then_some(())
        });
    }
}

#[test]
fn running_ring_that_is_taken_for_a_restarted_one_is_doubtful() {
    let program = example("one_drain");
    let mut bench = Bench::new(&program, 16);
    bench.finish();
    // A full ring, whose last slot then gets the bytes that it had before the restart.
    bench.restart(15);
    bench.finish();
    bench.push(1);
    // Changes the times of the file.
    bench.leave_at(15);
    let dir = bench.dir.path();
    let mut core = Core::on(&dir.join("rings"), &dir.join("nixl/state"), "");
    core.run(2);
    assert_eq!(core.only()[0], bench.pushed - 1);
    assert_eq!(core.host("control.drain.doubtful"), 1);
}
