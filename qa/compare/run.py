#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make compare`: measures the ways to export telemetry of NIXL under one load, in turn, and prints a table in Markdown.

    qa/compare/run.py PYTHON BINARY RUNS SECONDS

PYTHON has NIXL (qa/nixl/venv). BINARY is pmdanixl. Each way is measured RUNS times. Each measurement has two phases of SECONDS: ranks
that transfer as fast as possible, and ranks with a rate. docs/testing.md describes all.
"""

import os
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path[1:1] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../engines")]
import application  # noqa: E402
import output  # noqa: E402
import processes  # noqa: E402
import table  # noqa: E402
import ways  # noqa: E402
from wait import Failure, within  # noqa: E402

RANKS = 8
RATE = 40000  # events per second of all ranks, in the second phase
INTERVAL = 5  # seconds between two fetches
FLUSH = 0.3  # seconds; NIXL exports every 0.1 s
LIMIT = 180  # seconds for one measurement besides its two phases; a rank that hangs ends the run


def settled(way, ranks):
    """Fetches until all events of the ranks that are shown have arrived, or no more come. Returns the last values."""
    last, still = None, time.monotonic()
    while True:
        values = way.fetch()
        shown = output.events(values)
        if all(shown[rank] == ranks.own[rank] for rank in shown):
            return values
        if shown != last:
            last, still = shown, time.monotonic()
        if time.monotonic() - still > 2:
            return values
        time.sleep(0.2)


def phase(way, ranks, seconds, rate, before):
    """Runs the load once. `before` are the values before it. Returns the results and the values after it."""
    own = dict(ranks.own)
    outside = way.outside()
    threads = ranks.threads()
    clocks = application.processor(sum(outside.values(), []))
    start = time.monotonic()
    ranks.begin(seconds, rate)
    fetch = start + INTERVAL / 2
    while fetch < start + seconds:
        time.sleep(max(0, fetch - time.monotonic()))
        way.fetch()
        fetch += INTERVAL
    transfers = ranks.end()
    time.sleep(FLUSH)
    used = ranks.spent(threads)
    found = dict(transfers=transfers, application=100 * used / seconds,
                 outside={name: 100 * application.spent(clocks, pids) / seconds for name, pids in outside.items()})
    values = settled(way, ranks)
    was, shown = output.events(before), output.events(values)
    found["events"] = {rank: now - own[rank] for rank, now in ranks.own.items()}
    found["lost"] = {rank: found["events"][rank] - (shown[rank] - was.get(rank, 0)) for rank in shown}
    losses = output.losses(before)
    found["losses"] = {name: now - losses.get(name, 0) for name, now in output.losses(values).items()}
    return found, values


def measure(kind, python, binary, seconds, log):
    """Measures one way once. Returns the results."""
    others = application.busy()
    way, ranks = kind(binary, RANKS), None
    signal.alarm(LIMIT + round(2 * seconds))
    try:
        way.start()
        ranks = application.Ranks(python, way, log)
        # Connections, memory for transfers, and the first export.
        ranks.begin(1, 0)
        ranks.end()
        within(5 if kind is not ways.Off else 0, lambda: len(output.ranks(way.fetch())) == RANKS, 0.2)
        values = settled(way, ranks)
        ranks.find_polling()
        found = dict(others=others)
        found["fast"], values = phase(way, ranks, seconds, 0, values)
        found["paced"], values = phase(way, ranks, seconds, RATE / 4 / RANKS, values)
        found["memory"] = application.memory(ranks.pids())
        found["outside"] = {name: application.memory(pids) for name, pids in way.outside().items()}
        found["seen"] = len(output.ranks(values))
        found["figures"] = output.figures(values)
        return found
    finally:
        if ranks is not None:
            ranks.stop()
        way.stop()
        signal.alarm(0)


def interrupted(number, _frame):
    """Ends the run after a signal like after an error, so that all processes are ended."""
    if number == signal.SIGALRM:
        raise Failure("a measurement takes too long: a rank or an exporter hangs")
    raise SystemExit(128 + number)


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: qa/compare/run.py PYTHON BINARY RUNS SECONDS")
    python, binary = map(os.path.abspath, sys.argv[1:3])
    runs, seconds = int(sys.argv[3]), float(sys.argv[4])
    for number in signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM:
        signal.signal(number, interrupted)
    average = os.getloadavg()[0]
    work = tempfile.mkdtemp(prefix="compare.")
    results = {kind: [] for kind in ways.ALL}
    messages = {}
    try:
        for run in range(runs):
            for number, kind in enumerate(ways.ALL):
                path = os.path.join(work, f"{run}.{number}.log")
                with open(path, "w", encoding="utf-8", buffering=1) as log:
                    try:
                        found = measure(kind, python, binary, seconds, log)
                    except Exception:
                        with open(path, encoding="utf-8", errors="replace") as said:
                            print(said.read()[-4000:], file=sys.stderr)
                        raise
                results[kind].append(found)
                messages[kind] = application.complaints(path)
                print(f"compare: run {run + 1} of {runs}, {kind.title}: {found['fast']['transfers']:.0f} transfers/s, "
                      f"{found['seen']} ranks; before it, others used {found['others']:.2f} CPUs", file=sys.stderr, flush=True)
    finally:
        processes.end_all()
        shutil.rmtree(work)
    print(table.text({kind.title: found for kind, found in results.items()}, RANKS, RATE))
    others = [one["others"] for found in results.values() for one in found]
    print(f"\nCPUs that others used before each measurement: {table.spread(others, 2)}. "
          f"Load average at the start: {average:.2f}.")
    for kind, found in messages.items():
        for text, count in found.items():
            print(f"\nIn the log of {kind.title}, {count} times in the last run: {text}")


if __name__ == "__main__":
    main()
