# SPDX-License-Identifier: GPL-2.0-or-later
"""What CPU time the daemons of two sides take under the same load."""
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from side import TOP, Side

# Arguments of the sample producer.
LOADS = {
    "64 agents with 400 transfers/s each": ["--rate", "400", "--vary"],
    "64 agents without transfers": ["--rate", "1", "--transfers", "1", "--linger", "3600"],
}
# Time in which the agents appear and the first process scans are over, and that of an interval, in seconds.
SETTLING = 20
INTERVAL = 10
INTERVALS = 9


def processes(pid):
    """Returns a process and those that it has started."""
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as line:
            children += line.read().split()
    return [pid, *(found for child in children for found in processes(child))]


def cpu_time(pid):
    """Returns the CPU time of a daemon and its processes, in nanoseconds."""
    total = 0
    for process in processes(pid):
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/schedstat", encoding="utf-8") as line:
                total += int(line.read().split()[0])
    return total


def interval(sides):
    """Returns the share of a CPU that each daemon takes in an interval, in percent."""
    before = [cpu_time(side.daemon()) for side in sides]
    time.sleep(INTERVAL)
    after = [cpu_time(side.daemon()) for side in sides]
    return [(end - start) / INTERVAL / 1e7 for start, end in zip(before, after)]


def compare(programs, load, where):
    """Runs both programs beside each other under a load. Returns the median of the ratio now / base, and of each."""
    sides, producers = [], []
    try:
        for label, program in programs:
            sides.append(Side(label, program, where))
            producer = [os.path.join(TOP, "target", "release", "examples", "producer"), "--dir", sides[-1].rings, "--agents", "64", *load]
            producers.append(subprocess.Popen(producer, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        time.sleep(SETTLING)
        both = sorted(sides, key=lambda side: side.label)
        shares = [interval(both) for _ in range(INTERVALS)]
        ratio = statistics.median(now / base for base, now in shares)
        return ratio, *(statistics.median(share) for share in zip(*shares))
    finally:
        for producer in producers:
            producer.terminate()
            producer.wait()
        for side in sides:
            side.end()


def measure(programs):
    """Prints the CPU time of the programs under each load, with each of them started first."""
    subprocess.run(["cargo", "build", "--release", "--locked", "--example", "producer"], cwd=TOP, stdin=subprocess.DEVNULL, check=True)
    print("\nCPU time of the daemons beside each other, medians", flush=True)
    pairs = list(zip(["base", "now"], programs))
    for load, arguments in LOADS.items():
        for order in [pairs, pairs[::-1]]:
            where = tempfile.mkdtemp(prefix="against.")
            os.chmod(where, 0o755)
            try:
                ratio, base, now = compare(order, arguments, where)
            finally:
                shutil.rmtree(where)
            first = f"{order[0][0]} started first"
            print(f"{load}, {first}: now / base {ratio:.3f}; base {base:.3f} %, now {now:.3f} % of a CPU", flush=True)
