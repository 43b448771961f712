//! Agents that are started anew in place while their ring stands at its start, where its positions do not tell that.

mod support;
#[allow(clippy::duplicate_mod, reason = "support has it as well")]
#[path = "support/world.rs"]
mod world;

use pmdanixl::agents::agent::Agent;
use pmdanixl::event::EventType;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::sample::Sample;
use support::{example, needs_root, wait_for, writer};
use world::{LONG, SECOND, World};

fn start(rings: &Path, options: &str) -> Sample {
    let mut command = Command::new(example("producer"));
    command.args(["--capacity", "16"]);
    Sample::start_as(command, rings, "agent", options)
}

/// What the world's only agent is like after a tick, if it is an instance. The clock is that of the processes, whose starts are
/// compared with it.
fn tick<T>(world: &mut World, of: impl FnOnce(&Agent) -> T) -> Option<T> {
    std::thread::sleep(Duration::from_millis(5));
    let passed = Instant::now().saturating_duration_since(world.now);
    world.tick(1, passed, LONG);
    world.agents.tidy(world.now, Instant::now() + LONG);
    let &key = world.instances.first()?;
    Some(of(world.agents.get(key)?))
}

#[test]
fn a_start_is_counted_though_the_ring_went_round_to_its_start() {
    needs_root();
    let mut world = World::new(|_| ());
    let rings = world.dir.path().to_owned();
    // 16 events: the positions are those of the beginning.
    let options =
        "--register 1000 --errors 2 --transfers 3 --rate 0 --read-every 0 --size 100 --linger 600";
    let sent = |agent: &Agent| agent.total(EventType::TxBytes);
    let first = start(&rings, options);
    let look = |agent: &Agent| (sent(agent), agent.entry.starts, agent.entry.resets);
    wait_for("all is counted", || {
        (tick(&mut world, look) == Some((300, 1, 0))).then_some(())
    });
    first.kill();
    let _second = start(&rings, "--rate 0.001");
    wait_for("the second start is seen", || {
        (tick(&mut world, look) == Some((300, 2, 1))).then_some(())
    });
}

#[test]
fn one_that_is_started_anew_is_there_before_its_first_event() {
    needs_root();
    let mut world = World::new(|config| config.retain = SECOND);
    let rings = world.dir.path().to_owned();
    let options = "--rate 0.001";
    for start in 1..=3 {
        let agent = self::start(&rings, options);
        wait_for("it is an instance", || {
            let starts = tick(&mut world, |agent| agent.entry.starts);
            (starts == Some(start)).then_some(())
        });
        agent.kill();
        wait_for("it has left", || {
            tick(&mut world, |_| ()).is_none().then_some(())
        });
    }
}
