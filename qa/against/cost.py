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
# Time in which the agents appear and the first process scans are over, and time of the measurement, in seconds.
SETTLING = 15
INTERVAL = 20
# Even, so that each program is started first as often as the other. Two starts of one program differ by several percent.
ROUNDS = 10


def cpu_time(pid):
    """Returns the CPU time of a daemon, in nanoseconds, without the worker that reads /proc: that is there at times only."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as line:
            total += int(line.read().split()[0])
    return total


def share_of(programs, load, where):
    """Runs both programs beside each other under a load. Returns the share of a CPU that each takes by label, in percent."""
    sides, producers = [], []
    try:
        for label, program in programs:
            sides.append(Side(label, program, where))
            producer = [os.path.join(TOP, "target", "release", "examples", "producer"), "--dir", sides[-1].rings, "--agents", "64", *load]
            producers.append(subprocess.Popen(producer, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        time.sleep(SETTLING)
        daemons = {side.label: side.daemon() for side in sides}
        before = {label: cpu_time(pid) for label, pid in daemons.items()}
        time.sleep(INTERVAL)
        return {label: (cpu_time(pid) - before[label]) / INTERVAL / 1e7 for label, pid in daemons.items()}
    finally:
        for producer in producers:
            producer.terminate()
            producer.wait()
        for side in sides:
            side.end()


def measure(programs):
    """Prints the CPU time of the programs under each load."""
    subprocess.run(["cargo", "build", "--release", "--locked", "--example", "producer"], cwd=TOP, stdin=subprocess.DEVNULL, check=True)
    print(f"\nCPU time of the daemons beside each other: medians and quartiles of {ROUNDS} rounds", flush=True)
    order = list(zip(["base", "now"], programs))
    for load, arguments in LOADS.items():
        shares = []
        for _ in range(ROUNDS):
            where = tempfile.mkdtemp(prefix="against.")
            os.chmod(where, 0o755)
            try:
                shares.append(share_of(order, arguments, where))
            finally:
                shutil.rmtree(where)
            order.reverse()
        low, ratio, high = statistics.quantiles((share["now"] / share["base"] for share in shares), n=4)
        base, now = (statistics.median(share[label] for share in shares) for label in ["base", "now"])
        print(f"{load}: now / base {ratio:.3f} ({low:.3f} to {high:.3f}); base {base:.3f} %, now {now:.3f} % of a CPU", flush=True)
