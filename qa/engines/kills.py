# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps that end a server, and compare the values of pmdanixl with those of vLLM afterwards."""

import os
import signal
import threading
import time

import processes
from pair import Interval
from steps import REQUESTS, labels, sent
from wait import until, within

HELD = 8
ERRORS = ("not_posted", "invalid_param", "backend", "not_found", "mismatch", "not_allowed", "repost_active", "unknown",
          "not_supported", "remote_disconnect", "canceled", "no_telemetry")
STATES = {1: "live", 2: "idle", 3: "exited"}


def state(world, instance):
    """The state of an agent in words."""
    return STATES.get(world.pmcd.values("nixl.agent.state").get("nixl.agent.state", {}).get(instance))


def exited(world, report, instance, what):
    """Checks that the state of an agent becomes exited."""
    right = within(60, lambda: state(world, instance) == "exited")
    report.check(f"{what} is shown as exited", right, state(world, instance))


def errors(world, instances):
    """Number of errors of all kinds of these agents."""
    names = [f"nixl.errors.{name}" for name in ERRORS]
    values = world.pmcd.values(*names)
    return sum(values.get(name, {}).get(instance, 0) for name in names for instance in instances)


def after_load(pair, report, seed):
    """Sends requests and compares the figures of decode. Returns its interval and vLLM's figures."""
    interval, load = Interval(pair, pair.decode), pair.load(seed=seed)
    load.run(REQUESTS)
    report.say(f"{REQUESTS} requests: {load.text()}")
    return interval, interval.compare(report, REQUESTS)[1]


def sigterm(world, report):
    """Sends SIGTERM to a server directly after its transfers. All must be counted, and its agent must be exited."""
    pair = world.pair()
    interval, vllm = after_load(pair, report, seed=3)
    before = world.pmcd.values("nixl.memory.current")["nixl.memory.current"].get(interval.instances[0])
    start = time.monotonic()
    pair.decode.process.send_signal(signal.SIGTERM)
    until("the server ends", lambda: not processes.in_group(pair.decode.process.pid) or pair.decode.ended(), 120)
    report.say(f"the API server ended after {time.monotonic() - start:.1f} s, exit code {pair.decode.process.wait()}")
    exited(world, report, interval.instances[0], "its agent")
    pmda = pair.now(interval.instances)
    report.check("its figures stay", all(pmda[name] - interval.pmda[name] == vllm[name] for name in pmda))
    after = world.pmcd.values("nixl.memory.current").get("nixl.memory.current", {}).get(interval.instances[0])
    report.check("nixl.memory.current of the exited agent has no value", after is None, f"it was {before:,}")


def restart(world, report):
    """Starts the same command again. It must be a new agent that counts from 0. The old one stays, and host totals go on."""
    pair = world.running if world.running is not None and world.kind == {} else world.pair()
    old = set(world.pmcd.values("nixl.agent.pid").get("nixl.agent.pid", {}))
    held = world.pmcd.value("nixl.host.transfer.rx_bytes")
    pair.again("decode")
    new = set(pair.agents(pair.decode))
    report.check("the restarted server has a new agent", len(new) == 1 and not new & old)
    figures = pair.decode.figures()
    report.check("it begins at 0", pair.now(new)["transfers"] == figures["transfers"],
                 f"{figures['transfers']} transfers since its start")
    interval = sent(pair, report, pair.decode)
    labels(pair, report)
    total = world.pmcd.value("nixl.host.transfer.rx_bytes")
    report.check("nixl.host.transfer.rx_bytes goes on", total == held + pair.now(interval.instances)["bytes"],
                 f"{held:,}, now {total:,}")


def worker(world, report):
    """Kills prefill's worker with SIGKILL under load, while decode still has to fetch requests."""
    pair = world.pair()
    interval = Interval(pair, pair.decode)
    before = errors(world, interval.instances)
    lost, = pair.agents(pair.prefill)
    pid = pair.agents(pair.prefill)[lost][0]
    load = pair.load(seed=4, patience=120)
    held = load.hold(HELD)
    thread = threading.Thread(target=load.run, args=(10 * REQUESTS, 8))
    thread.start()
    until("a third of the requests are done", lambda: load.done >= REQUESTS / 3, 300)
    os.kill(pid, signal.SIGKILL)
    load.finish(held)
    load.stopped.set()
    thread.join()
    report.say(f"kill -9 of pid {pid} after {REQUESTS // 3} requests; then {HELD} that waited in prefill: {load.text()}")
    pmda, vllm = interval.compare(report, 1)
    report.check("vLLM counts failed transfers", vllm["failed"] > 0, vllm["failed"])
    counted = errors(world, interval.instances) - before
    report.check("NIXL reports no error of them (if it does, NIXL was fixed: change this step and docs/errors.md)",
                 counted == 0, counted)
    exited(world, report, lost, "prefill's agent")
    report.check("decode's agent is not", state(world, interval.instances[0]) in ("live", "idle"),
                 state(world, interval.instances[0]))
    report.say(f"prefill's API server {'has ended' if pair.prefill.ended() else 'still runs'}")


def api(world, report):
    """Kills decode's API server with SIGKILL. Its worker ends or goes on, and the state of its agent must match."""
    pair = world.pair()
    interval, vllm = after_load(pair, report, seed=5)
    (instance, (pid, _)), = pair.agents(pair.decode).items()
    label = world.pmcd.pminfo("nixl.agent.pid")[1][instance]
    pair.decode.process.kill()
    pair.decode.process.wait()
    start = time.monotonic()
    if not within(60, lambda: not processes.runs(pid)):
        report.say("the worker still runs a minute later")
        report.check("its agent is not shown as exited", state(world, instance) in ("live", "idle"), state(world, instance))
    else:
        report.say(f"the worker ended by itself, {time.monotonic() - start:.1f} s later")
        exited(world, report, instance, "its agent")
    pmda = pair.now(interval.instances)
    report.check("its figures stay", all(pmda[name] - interval.pmda[name] == vllm[name] for name in pmda))
    report.check("its labels stay", world.pmcd.pminfo("nixl.agent.pid")[1].get(instance) == label,
                 " ".join(f"{name}={label[name]}" for name in sorted(label)))
