# SPDX-License-Identifier: GPL-2.0-or-later
"""The application of `make compare`: the ranks, what they count themselves, and the CPU time and memory of processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import output

sys.path[1:1] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../engines")]
import processes  # noqa: E402
from wait import Failure  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
IDLE = 0.5  # seconds to find the threads that poll
PREFIX = re.compile(r"[EWIF]\d{4} [\d:.]+ +\d+ \S+\] ")


class Ranks:
    """Running ranks, in a ring: each transfers to and from the next one."""

    def __init__(self, python, way, log):
        self.log = log
        self.processes = []
        for rank in range(way.ranks):
            env = os.environ | {"LOCAL_RANK": str(rank)} | way.environment(rank)
            command = [python, os.path.join(HERE, "rank.py"), f"rank-{rank}", str(output.SIZE)]
            self.processes.append(processes.start(command, log, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.own = {f"rank-{rank}": 0 for rank in range(way.ranks)}
        self.polling = set()
        addresses = self.answers()
        for number, process in enumerate(self.processes):
            self.tell(process, json.dumps(addresses[(number + 1) % len(addresses)]))

    def tell(self, process, line):
        """Writes a line to a rank."""
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()

    def answers(self):
        """Returns the next answer of each rank. Other lines are messages of NIXL, and go to the log."""
        found = []
        for process in self.processes:
            for line in process.stdout:
                if line.startswith(b"{"):
                    found.append(json.loads(line))
                    break
                self.log.write(line.decode("utf-8", "replace"))
            else:
                raise Failure(f"a rank has ended: see {self.log.name}")
        return found

    def begin(self, seconds, rate):
        """Makes all ranks transfer, each with this rate."""
        for process in self.processes:
            self.tell(process, f"{seconds} {rate}")

    def end(self):
        """Waits until the transfers have ended. Returns the transfers per second of all ranks together."""
        answers = self.answers()
        for name, answer in zip(self.own, answers):
            self.own[name] += 4 * answer["transfers"]
        return sum(answer["transfers"] / answer["seconds"] for answer in answers)

    def pids(self):
        return [process.pid for process in self.processes]

    def find_polling(self):
        """Finds the thread of each rank that uses the CPU without transfers: NIXL's progress thread."""
        before = self.threads()
        time.sleep(IDLE)
        used = {thread: seconds - before.get(thread, 0) for thread, seconds in self.threads().items()}
        for pid in self.pids():
            seconds, busiest = max((used[thread], thread) for thread in used if thread[0] == pid)
            if seconds > IDLE / 50:
                self.polling.add(busiest)

    def threads(self):
        """Returns the CPU time in seconds of the threads of all ranks that do not poll, by process and thread."""
        found = {}
        for pid in self.pids():
            for thread in os.listdir(f"/proc/{pid}/task"):
                if (pid, thread) not in self.polling:
                    used = processes.read(pid, f"task/{thread}/schedstat").split()
                    found[pid, thread] = int(used[0]) / 1e9 if used else 0
        return found

    def spent(self, before):
        """Returns the CPU time of these threads since `before`, in seconds."""
        return sum(seconds - before.get(thread, 0) for thread, seconds in self.threads().items())

    def stop(self):
        """Ends the ranks."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            processes.end(process)
            process.stdin.close()
            process.stdout.close()


def processor(pids):
    """Returns the CPU time of each of these processes, in seconds, by the kernel's clock of a process (clock_getcpuclockid(3))."""
    found = {}
    for pid in pids:
        try:
            found[pid] = time.clock_gettime((~pid << 3) | 2)
        except OSError:
            pass  # the process has ended
    return found


def spent(before, pids):
    """Returns the CPU time of these processes since `before`, in seconds."""
    return sum(now - before.get(pid, 0) for pid, now in processor(pids).items())


def memory(pids):
    """Returns the memory of these processes in MiB: the sum of Pss, where shared pages count once."""
    total = 0
    for pid in pids:
        match = re.search(r"^Pss:\s+(\d+) kB", processes.read(pid, "smaps_rollup"), re.M)
        total += int(match[1]) if match else 0
    return total / 1024


def complaints(path):
    """Returns the messages of NIXL about its exporters with the number of ranks that have them."""
    found = {}
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            if re.search(r"port|bind|address|telemetry", line, re.I) and re.search(r"warn|err|fail|cannot|already", line, re.I):
                text = PREFIX.sub("", line.strip())
                found[text] = found.get(text, 0) + 1
    return found


def busy():
    """Returns how many CPUs are in use now, as a mean of half a second."""
    def read():
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [int(field) for field in stat.readline().split()[1:9]]
        return sum(fields), sum(fields) - fields[3] - fields[4]
    (total, used) = read()
    time.sleep(0.5)
    (total_after, used_after) = read()
    return os.cpu_count() * (used_after - used) / max(1, total_after - total)
