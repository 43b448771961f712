#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make engines`: compares pmdanixl with vLLM's own figures of its NIXL transfers, on CPUs.

    qa/engines/run.py CACHE BINARY [STEP...]

CACHE has vLLM in venv and the model in model (scripts/engines creates both). BINARY is pmdanixl. The default is all steps in the
order of STEPS below. The exit code is 1 if a step fails, except those in ALLOWED.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import cost
import kills
import lmcache_step
import processes
import steps
from pair import Pair
from report import Report
from values import Pmcd
from wait import Failure

STEPS = {
    "pull": (steps.pull, "two servers, kv_both; decode reads"),
    "sigterm": (kills.sigterm, "SIGTERM to the decode server"),
    "restart": (kills.restart, "restart of the decode server"),
    "kill-worker": (kills.worker, "kill -9 of the prefill worker under load"),
    "kill-api": (kills.api, "kill -9 of decode's API server"),
    "roles": (steps.roles, "kv_producer and kv_consumer; decode reads"),
    "tp2": (steps.ranks, "two tensor-parallel ranks each"),
    "tcp": (steps.tcp, "UCX over TCP alone: share of the bytes over TCP"),
    "pauses": (steps.pauses, "requests in bursts with pauses: no agent is suspected"),
    "stores": (steps.stores, "prometheus_mp stores in place of rings"),
    "lmcache": (lmcache_step.lmcache, "LMCache's own NIXL channel, without an engine"),
    "cost": (cost.cost, "cost of telemetry for the application"),
    "push": (steps.push, "the push connector; prefill writes"),
}
# Steps that may fail, with the reason.
ALLOWED = {"push": "vLLM's push connector stops for minutes while its engines have no other work"}


class World:
    """The common state of all steps: the cache, pmcd, the telemetry directories, the running pair."""

    def __init__(self, cache, binary):
        self.cache = cache
        self.work = tempfile.mkdtemp(prefix="engines.")
        self.directories = {"rings": self.work + "/rings", "stores": self.work + "/stores"}
        for directory in self.directories.values():
            os.mkdir(directory)
        self.pmcd = Pmcd(self.work + "/pcp", binary, *self.directories.values())
        self.running, self.kind = None, None

    def telemetry(self, writes):
        """Returns NIXL's variables for servers that write rings, stores or nothing."""
        if writes == "rings":
            return {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": "BUFFER",
                    "NIXL_TELEMETRY_DIR": self.directories["rings"]}
        if writes == "stores":
            return {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": "prometheus_mp",
                    "NIXL_TELEMETRY_MULTIPROC_DIR": self.directories["stores"], "NIXL_TELEMETRY_PROMETHEUS_LOCAL": "y",
                    "NIXL_TELEMETRY_PROMETHEUS_PORT": str(processes.free_ports(1))}
        return {}

    def pair(self, **kind):
        """Returns the running pair if it is of this kind and complete, otherwise a new one."""
        if self.running is None or self.kind != kind or not self.running.usable():
            self.no_pair()
            self.running, self.kind = Pair(self, **kind), kind
        return self.running

    def no_pair(self):
        """Ends the running pair."""
        if self.running is not None:
            self.running.stop()
        self.running = None


def interrupted(number, _frame):
    """Ends the run after a signal like after an error, so that all processes are ended."""
    raise SystemExit(128 + number)


def run_step(world, name):
    """Runs one step. Returns its line of the summary, and True if it passed or may fail."""
    step, about = STEPS[name]
    report = Report(name, about)
    start, broken = time.monotonic(), False
    try:
        step(world, report)
    except Exception as error:  # A broken step has failed; the others go on.
        broken = not isinstance(error, Failure)
        if broken:
            traceback.print_exc()
        report.check("the step is complete", False, error)
        # A pair may be incomplete.
        world.no_pair()
        processes.end_all(but=world.pmcd.process)
    result, right = report.result(), not report.failed
    if not right and not broken and name in ALLOWED:
        result, right = f"{result} (may fail: {ALLOWED[name]})", True
    return f"{name:<12} {(time.monotonic() - start) / 60:5.1f} min  {result}", right


def main():
    if len(sys.argv) < 3 or any(name not in STEPS for name in sys.argv[3:]):
        sys.exit(f"usage: qa/engines/run.py CACHE BINARY [STEP...]; the steps are {' '.join(STEPS)}")
    for number in signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
        signal.signal(number, interrupted)
    world = None
    try:
        world = World(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
        results = [run_step(world, name) for name in sys.argv[3:] or STEPS]
    finally:
        processes.end_all()
        if world is not None:
            shutil.rmtree(world.work)
    print("\n== summary")
    for line, _ in results:
        print("  ", line)
    sys.exit(not all(right for _, right in results))


if __name__ == "__main__":
    main()
