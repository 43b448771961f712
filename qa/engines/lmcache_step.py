# SPDX-License-Identifier: GPL-2.0-or-later
"""LMCache: the channel through which its prefill writes to its decode, without an engine."""

import json
import os
import subprocess

import processes
from pair import SAME, UNITS
from wait import Failure, within

WRITES = 200


def start(world, *arguments):
    """Starts one end of the channel."""
    log = open(os.path.join(world.cache, "logs", f"lmcache-{arguments[0]}.log"), "w", encoding="utf-8")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "channel.py")
    env = {**os.environ, **world.telemetry("rings"), "UCX_TLS": "tcp,self,sm", "LMCACHE_TRACK_USAGE": "false"}
    return processes.start([os.path.join(world.cache, "venv/bin/python"), "-B", script, *arguments], log, env,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def line(process):
    """Returns the next line of a process that is not of its log."""
    for text in process.stdout:
        if text.startswith((b"ready", b"{")):
            return text
    raise Failure("LMCache's channel ended: see logs/lmcache-*.log in the cache")


def lmcache(world, report):
    """Compares the sender's transfers and bytes with those of LMCache's channel."""
    world.no_pair()
    os.makedirs(os.path.join(world.cache, "logs"), exist_ok=True)
    port = str(processes.free_ports(1))
    receiver = start(world, "receiver", port)
    line(receiver)
    sender = start(world, "sender", port, str(WRITES))
    line(sender)
    reported = json.loads(line(sender))

    def shown(process):
        pids = world.pmcd.values("nixl.agent.pid").get("nixl.agent.pid", {})
        instances = [instance for instance, pid in pids.items() if pid == process.pid]
        values = world.pmcd.values(*SAME["transfers"], *SAME["bytes"])
        return {name: sum(values[metric].get(instance, 0) for metric in SAME[name][1:] for instance in instances)
                for name in reported}, len(instances)

    within(60, lambda: shown(sender)[0] == reported)
    report.heads("", "pmdanixl", "LMCache", "")
    for name, value in reported.items():
        report.row(f"{UNITS[name]}, sent", shown(sender)[0][name], value)
    for name, process, sent in ("sender", sender, True), ("receiver", receiver, False):
        figures, agents = shown(process)
        report.check(f"{name} has one agent, and {'transfers' if sent else 'none'}", agents == 1 and bool(figures["transfers"]) == sent)
    for process in sender, receiver:
        process.stdin.close()
        processes.end(process)
