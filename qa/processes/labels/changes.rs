// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels after restarts, later process scans and changes of the configuration.

use super::{A_FEW, expected, own_labels, own_user, wait_until_mapped, worker};
use crate::support::kill::{kill_process, wait_for_orphans};
use crate::support::kit::{Core, LONG, push_to};
use crate::support::sample::Sample;
use crate::support::{Home, Pmcd, TX_BYTES, example, wait_for};
use serde_json::{Map, Value};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

#[test]
fn labels_survive_the_agent_and_a_kill_of_all_processes() {
    let home = Home::new();
    let mut pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 5);
    command.arg0("VLLM::Worker_TP5");
    let agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    let user = own_user();
    let right = expected(&[
        ("nixl_agent", "agent"),
        ("user", &user),
        ("engine", "vllm"),
        ("rank", "TP5"),
        ("local_rank", "5"),
        ("slurm_job_id", "4711"),
    ]);
    wait_for("the labels are known, and all is counted", || {
        let labels = pmcd.labels(TX_BYTES).remove("agent").map(own_labels);
        let is_known = labels.as_ref() == Some(&right);
        (is_known && pmcd.sent()["agent"] == 30 * 3000).then_some(())
    });
    for agent in [Some(agent), None] {
        let pmda = pmcd.pmda_pid();
        kill_process(pmda);
        pmcd.kill();
        wait_for_orphans(&pmcd.path("log"));
        // The second time, the process has ended, so a process scan cannot find its facts.
        drop(agent);
        pmcd.start_anew();
        pmcd.wait_until_it_answers();
        assert_ne!(pmcd.pmda_pid(), pmda);
        let first = pmcd.labels(TX_BYTES).remove("agent").map(own_labels);
        assert_eq!(first.as_ref(), Some(&right), "in the first answer");
        assert_eq!(pmcd.sent()["agent"], 30 * 3000);
    }
}

#[test]
fn process_scan_for_another_agent_keeps_labels() {
    let mut core = Core::new("proc_facts = true");
    // A busy agent does not cause process scans.
    let rings = core.rings();
    let mut command = Command::new(example("producer"));
    command.args(["--capacity", "64"]);
    let _agent = Sample::start_as(command, &rings, "agent", "--rate 0");
    let mut run_once = |seconds| {
        core.advance(Duration::from_secs(seconds));
        core.scan();
        core.drain();
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        let labels = is_instance.then(|| core.labels("agent"));
        (labels, core.process_scans())
    };
    let user = own_user();
    let has_user = |labels: &Option<Map<String, Value>>| {
        let labels = labels.as_ref();
        labels.is_some_and(|labels| labels.get("user").is_some_and(|name| *name == *user))
    };
    let (_, scans) = wait_for("the user is known", || {
        Some(run_once(1)).filter(|(labels, _)| has_user(labels))
    });
    // Once a minute, a process scan looks for processes without telemetry.
    wait_for("two more process scans", || {
        let (labels, now) = run_once(61);
        assert!(has_user(&labels), "{labels:?}");
        (now >= scans + 2).then_some(())
    });
}

#[test]
fn restarted_agent_keeps_old_labels_until_it_has_new_ones() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let user = own_user();
    let start = |rank| {
        let mut command = worker(example("producer"), rank);
        command.arg0(format!("VLLM::Worker_TP{rank}"));
        let agent = Sample::start_as(command, &rings, "5c0d7a1e-vllm-0", A_FEW);
        wait_until_mapped(&agent, &rings.join("5c0d7a1e-vllm-0"));
        agent
    };
    let mut run_once = || {
        core.tick(1, Duration::from_micros(500), LONG);
        core.tidy();
        let instance = core.instances().into_keys().next()?;
        let starts = core.value("agent.starts", &instance);
        let owner = core.text("agent.user", &instance);
        Some((core.labels(&instance), owner, starts))
    };
    let before = start(1);
    let (first, owner, starts) = wait_for("the agent is an instance", &mut run_once);
    assert_eq!(
        (&first["local_rank"], owner.as_deref()),
        (&"1".into(), Some(&*user))
    );
    before.kill();
    let _after = start(2);
    wait_for("the labels of the second agent are there", || {
        let (labels, owner, now) = run_once().expect("an instance");
        for name in ["nixl_agent", "user", "engine", "slurm_job_id"] {
            assert_eq!(labels.get(name), first.get(name), "{name}");
        }
        assert_eq!(owner.as_deref(), Some(&*user));
        (now > starts && labels["local_rank"] == "2").then_some(())
    });
}

#[test]
fn agent_without_labels_waits_for_them_after_a_restart() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let mut command = worker(example("producer"), 3);
    command.arg0("VLLM::Worker_TP3");
    let _agent = Sample::start_as(command, &rings, "agent", A_FEW);
    wait_for("the events are counted", || {
        core.tick(1, Duration::from_micros(200), LONG);
        (core.host_sent() == 30 * 3000).then_some(())
    });
    core.restart();
    assert_eq!(core.known(), 1);
    wait_for("the agent is an instance", || {
        let instances = core.instances();
        core.tick(1, Duration::from_micros(200), LONG);
        core.tidy();
        (!instances.is_empty()).then_some(())
    });
    assert_eq!(core.labels("agent")["local_rank"], "3");
}

#[test]
fn agent_is_published_at_its_deadline_after_a_restart() {
    let mut core = Core::new("proc_facts = true");
    let _ring = push_to(core.ring("agent"), 5);
    core.scan();
    core.drain();
    core.restart();
    assert!(core.instances().is_empty(), "the labels may become known");
    // Without its file, no process scan looks for the writer.
    fs::remove_file(core.path("agent")).expect("there");
    core.drain();
    assert!(core.instances().is_empty());
    core.run(2);
    core.assert_sent([("agent", 5)]);
    core.restart();
    core.assert_sent([("agent", 5)]);
}

#[test]
fn agent_that_ended_while_it_awaited_labels_is_published_after_a_restart() {
    let mut core = Core::new("proc_facts = true");
    let ring = push_to(core.ring("agent"), 5);
    core.scan();
    core.drain();
    core.kill();
    drop(ring);
    core.start();
    core.scan();
    core.drain();
    core.assert_sent([("agent", 5)]);
}

#[test]
fn labels_of_a_busy_agent_follow_proc_facts() {
    let mut core = Core::new("proc_facts = true");
    let rings = core.rings();
    let mut command = worker(example("producer"), 3);
    command.arg0("VLLM::Worker_TP3");
    let _agent = Sample::start_as(command, &rings, "agent", "--rate 100");
    let has_rank = |core: &mut Core| {
        core.tick(1, Duration::from_millis(2), LONG);
        core.tidy();
        let is_instance = core.instances().contains_key("agent");
        is_instance && core.labels("agent").contains_key("local_rank")
    };
    for enabled in [true, false, true] {
        core.configure(&format!("proc_facts = {enabled}"));
        wait_for("the labels follow proc_facts", || {
            (has_rank(&mut core) == enabled).then_some(())
        });
    }
}

#[test]
fn labels_are_off_after_a_restart_without_proc_facts() {
    let home = Home::new();
    let mut pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 3);
    command.arg0("VLLM::Worker_TP3");
    let _agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    wait_for("the labels are found", || {
        let labels = pmcd.labels(TX_BYTES);
        let agent = labels.get("agent")?;
        agent.contains_key("slurm_job_id").then_some(())
    });
    pmcd.terminate();
    home.set("proc_facts = false");
    let state = pmcd.path("run/nixl/state");
    let pmcd = Pmcd::start_with(&home, "again", |dir| {
        fs::create_dir_all(dir.join("run/nixl")).expect("made");
        fs::copy(state, dir.join("run/nixl/state")).expect("copied");
    });
    let labels = pmcd.labels(TX_BYTES);
    assert!(!labels["agent"].contains_key("slurm_job_id"), "{labels:?}");
}
