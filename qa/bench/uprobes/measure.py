#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures what uprobes on libnixl cost a transfer, with real NIXL between two processes.

    measure.py PYTHON UPROBES [--rounds N] [--only CELL...] [--write PAGE]

PYTHON has NIXL (`qa/nixl/venv 1.5.1`), UPROBES is the program of main.rs. It must run as root, on a quiet machine. HOW below says
what is measured. The speed of a shared machine drifts; a round is short enough that this hardly matters.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
# A set of probes, and how they are attached (main.rs).
SETS = ("nothing multi", "entries multi", "entries perf", "handles multi", "stats multi", "returns multi", "creates multi")
TRANSPORTS = {"sm": "tcp,self,sm", "tcp": "tcp,self"}
# Name: transport, usage, size, transfers of a run, pause before each in seconds.
CELLS = {
    "sm-4k": ("sm", "prepared", 4096, 500, 0),
    "sm-4k-created": ("sm", "created", 4096, 500, 0),
    "sm-4k-reposted": ("sm", "reposted", 4096, 500, 0),
    "sm-4k-paced": ("sm", "prepared", 4096, 50, 0.001),
    "sm-64k": ("sm", "prepared", 65536, 500, 0),
    "sm-1m": ("sm", "prepared", 1 << 20, 300, 0),
    "tcp-4k": ("tcp", "prepared", 4096, 300, 0),
    "tcp-4k-paced": ("tcp", "prepared", 4096, 50, 0.001),
    "tcp-64k": ("tcp", "prepared", 65536, 200, 0),
    "tcp-1m": ("tcp", "prepared", 1 << 20, 50, 0),
}
WARM_UP = 20
# `make bench` keeps this section (qa/bench/end_to_end/report.rs has the title).
TITLE = "\n## What uprobes on NIXL cost\n"
HOW = """
For developers who want to see transfers in flight. `make uprobes` measures it, and `make bench` keeps this section. Real NIXL, with
telemetry, transfers between two processes through UCX: over shared memory (`sm`) or over TCP on loopback (`tcp`). The rows `created`
use createXferReq, the others makeXferReq as vLLM does. The rows `reposted` post one handle again and again. The rows `paced` wait a
millisecond before each transfer, as engines do; caches are cold then.

Each of {rounds} rounds has a run of 50 to 500 transfers without probes, and one with each set. The result of a run is its median
transfer. The columns of sets have the difference to the run without: the median of all rounds, and the quartiles. A run fails if the
probes have not counted each transfer exactly once.

| set | probes on libnixl | what it sees |
| --- | --- | --- |
| `nothing` | three, without work | |
| `entries` | constructor of nixlXferReqH, postXferReq, releaseXferReq | the peer; from the post to the release |
| `handles` | postXferReq, releaseXferReq; reads the peer's name in the handle | as `entries` |
| `stats` | updateRequestStats, releaseXferReq; reads the peer's name in the handle | the peer; from the end of the post to the end, exactly. Needs telemetry |
| `returns` | as `entries`, and the return of postXferReq | also transfers that are done or fail at the post |
| `creates` | as `entries`, with createXferReq and makeXferReq and their returns in place of the constructor | as `entries` |

`trace = true` in nixl.conf has the probes of `entries`, with `trace_failed_posts` those of `returns`. Programs are attached by a link of the
type uprobe_multi (`multi`) or, before Linux 6.6, by perf_event_open(2) (`perf`).

"""


class Program:
    """A process that answers each line with a line."""

    def __init__(self, command, variables, processor=None):
        def pin():
            os.sched_setaffinity(0, {processor})

        self.process = subprocess.Popen(command, env={**os.environ, **variables}, stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, preexec_fn=None if processor is None else pin)

    def ask(self, line):
        """Sends a line, and returns the answer."""
        print(line, file=self.process.stdin, flush=True)
        return self.read()

    def read(self):
        """Returns the next line."""
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"measure: {self.process.args} has ended")
        return line.strip()

    def end(self):
        """Ends the process by the end of its input."""
        self.process.stdin.close()
        self.process.wait()


class Bench:
    """A target, an initiator on another CPU, and the probes on their library."""

    def __init__(self, python, uprobes, transport):
        self.rings = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="uprobes.")
        variables = {"UCX_TLS": TRANSPORTS[transport], "NIXL_CONFIG_FILE": "/dev/null", "NIXL_TELEMETRY_ENABLE": "y",
                     "NIXL_TELEMETRY_EXPORTER": "BUFFER", "NIXL_TELEMETRY_DIR": self.rings.name}
        load = os.path.join(HERE, "load.py")
        self.target = Program([python, load, "target", "target"], variables, 0)
        self.initiator = Program([python, load, "initiator", "initiator"], variables, 0)
        library = self.initiator.ask(self.target.read())
        self.probes = Program([uprobes, library], {})
        self.counts = dict.fromkeys(SETS, 0)
        for probes in SETS:
            self.probes.ask(f"load {probes}")

    def end(self):
        """Ends all processes."""
        for program in self.initiator, self.target, self.probes:
            program.end()
        self.rings.cleanup()

    def run(self, probes, usage, size, count, pause):
        """Returns the median time of a transfer in us, with these probes or None."""
        if probes:
            self.probes.ask(f"attach {probes}")
            self.counts[probes] += count + WARM_UP
        self.initiator.ask(f"{usage} {size} {WARM_UP} 0")
        time = float(self.initiator.ask(f"{usage} {size} {count} {pause}")) / 1000
        if probes:
            self.probes.ask("detach")
        return time

    def check(self):
        """Fails if the probes have not counted each transfer."""
        for probes, count in self.counts.items():
            found = json.loads(self.probes.ask(f"show {probes}"))
            peers = {peer["peer"]: peer for peer in found["peers"]}
            nothing = dict.fromkeys(peers["unknown"], 0)
            known, unknown = peers.get("target", nothing), peers["unknown"]
            wanted = 0 if "nothing" in probes else count
            right = (known["posted"] + unknown["at_once"] == wanted and found["handles"] == 0
                     and known["in_flight"] == known["lost"] == unknown["posted"] == 0)
            if not right:
                sys.exit(f"measure: {count} transfers, but {probes} has counted {found}")


def quartiles(values, digits=1):
    """Returns the median and the quartiles as text."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def write(page, lines, rounds):
    """Replaces the last section of the page."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    with open(page, "w", encoding="utf-8") as file:
        file.write(text.partition(TITLE)[0] + TITLE + HOW.format(rounds=rounds) + "\n".join(lines) + "\n")


def measure(bench, cell, rounds):
    """Returns the row of a cell."""
    _, *load = CELLS[cell]
    times = {probes: [] for probes in (None, *SETS)}
    for number in range(rounds):
        order = list(times)
        order = order[number % len(order):] + order[:number % len(order)]
        for probes in order:
            times[probes].append(bench.run(probes, *load))
    bench.check()
    low, middle, high = statistics.quantiles(times[None], n=4)
    columns = [quartiles([time - base for time, base in zip(times[probes], times[None])]) for probes in SETS]
    return f"| {cell} | {middle:.1f} ({low:.1f} to {high:.1f}) | {' | '.join(columns)} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("python")
    parser.add_argument("uprobes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=CELLS, default=list(CELLS))
    parser.add_argument("--write", metavar="PAGE")
    args = parser.parse_args()
    lines = [f"| us of a transfer | without | {' | '.join(SETS)} |", "| --- |" + " --- |" * (len(SETS) + 1)]
    print("\n".join(lines), flush=True)
    for transport in TRANSPORTS:
        cells = [cell for cell in args.only if CELLS[cell][0] == transport]
        if cells:
            bench = Bench(args.python, args.uprobes, transport)
            for cell in cells:
                lines.append(measure(bench, cell, args.rounds))
                print(lines[-1], flush=True)
            bench.end()
    if args.write:
        write(args.write, lines, args.rounds)


if __name__ == "__main__":
    main()
