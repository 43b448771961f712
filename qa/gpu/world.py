# SPDX-License-Identifier: GPL-2.0-or-later
"""What the rows of `make gpu` share: programs in processes of their own, private daemons, and the comparison of sums."""

import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "../engines"), os.path.join(HERE, "../compare")]
import application  # noqa: E402
import processes  # noqa: E402
from values import Pmcd  # noqa: E402
from wait import Failure, within  # noqa: E402

# Metric of each sum that a program counts.
SUMS = {
    "tx_requests": "nixl.transfer.tx_requests", "rx_requests": "nixl.transfer.rx_requests",
    "tx_bytes": "nixl.transfer.tx_bytes", "rx_bytes": "nixl.transfer.rx_bytes", "registered": "nixl.memory.registered",
    "xfer_time_us": "nixl.performance.xfer_time_us", "xfer_post_time_us": "nixl.performance.xfer_post_time_us",
}
FLUSH = 5  # seconds; NIXL writes its ring every 0.1 s, and the daemon reads it every 0.05 s


class Program:
    """A program of this folder that answers lines of JSON."""

    def __init__(self, world, name, script, *arguments, telemetry=None, **environment):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("NIXL_TELEMETRY_", "CUDA_VISIBLE_"))}
        # UCX writes a warning for each transfer that it cannot do in the best way.
        env |= {"UCX_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"}
        # The order of NVML, which numbers the GPUs of PCP's PMDA nvidia.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if telemetry:
            env |= {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": "BUFFER", "NIXL_TELEMETRY_DIR": telemetry}
        self.log = open(os.path.join(world.directory, name + ".log"), "w", encoding="utf-8")
        command = [sys.executable, "-B", os.path.join(HERE, script), *arguments]
        self.process = processes.start(command, self.log, env | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, **request):
        """Writes a request."""
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self):
        """Returns the next answer. Other lines are messages of NIXL, and go to the log."""
        for line in self.process.stdout:
            if line.startswith(b"{"):
                return json.loads(line)
            self.log.write(line.decode("utf-8", "replace"))
        self.log.flush()
        raise Failure(f"{os.path.basename(self.log.name)}: the process has ended")

    def ask(self, **request):
        """Writes a request and returns the answer."""
        self.tell(**request)
        return self.answer()

    def end(self):
        """Ends the process."""
        self.process.kill()
        processes.end(self.process)
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()


class Pair:
    """Two processes of peer.py. Each agent of the first one transfers to the agent of the second one that has its name and "-target"."""

    def __init__(self, world, agents, telemetry, **environment):
        """`agents` are kinds of memory by name."""
        def start(end):
            arguments = [f"{name}{end}:{kind}" for name, kind in agents.items()]
            name = "+".join(agents) + end
            return Program(world, name, "peer.py", str(world.size), *arguments, telemetry=telemetry, **environment)
        self.target, self.initiator, self.names = start("-target"), start(""), list(agents)
        self.kind = agents[self.names[0]]

    def connect(self):
        """Waits until both processes are ready and connects them. Returns this pair."""
        addresses, self.hello = self.target.answer()["addresses"], self.initiator.answer()
        self.initiator.ask(connect={name: addresses[name + "-target"] for name in self.names})
        return self

    def start(self, op, size, count=0, seconds=0.0, times=True):
        """Starts transfers; the answer of the initiator is their end."""
        self.initiator.tell(op=op, size=size, count=count, seconds=seconds, times=times)

    def run(self, op, size, count=0, seconds=0.0, times=True):
        """Does transfers. Returns their number and their time."""
        self.start(op, size, count, seconds, times)
        return self.initiator.answer()

    def sums(self):
        """Returns what the initiator has counted, by agent."""
        return self.initiator.ask(sums=True)

    def end(self):
        """Ends both processes."""
        self.initiator.end()
        self.target.end()


class World:
    """Directories, the GPU if there is one, and the daemon of the current rows."""

    def __init__(self, directory, rings, pmdanixl, producer, card):
        self.directory, self.rings, self.pmdanixl, self.producer, self.card = directory, rings, pmdanixl, producer, card
        self.kind = "VRAM" if card else "DRAM"
        self.size = (256 if card else 64) << 20
        self.pmcd = self.read = None

    def start(self, name):
        """Starts a daemon with an empty directory of rings, in place of the one before. Returns the directory."""
        self.stop()
        self.read = os.path.join(self.rings, name)
        os.mkdir(self.read)
        self.pmcd = Pmcd(os.path.join(self.directory, "pcp-" + name), self.pmdanixl, self.read, self.read)
        return self.read

    def stop(self):
        """Ends the daemon."""
        if self.pmcd is not None:
            self.pmcd.stop()
            self.pmcd.log.close()
        self.pmcd = None

    def value(self, metric, instance):
        """Returns a value of an agent, or None."""
        return self.pmcd.values(metric).get(metric, {}).get(instance)

    def differences(self, sums):
        """Waits until the daemon shows these sums. Returns those that differ: agent, name, shown and counted."""
        def compare():
            shown = self.pmcd.values(*SUMS.values())
            return [(agent, name, shown.get(SUMS[name], {}).get(agent), counted)
                    for agent, own in sums.items() for name, counted in own.items()
                    if shown.get(SUMS[name], {}).get(agent) != counted]
        within(FLUSH, lambda: not compare(), 0.2)
        return compare()

    def processor(self, seconds):
        """Returns the processor time of the daemon and its worker in % of a core, over so many seconds."""
        pids = [pid for pid in processes.descendants(self.pmcd.process.pid) if processes.read(pid, "comm").strip() == "pmdanixl"]
        before, start = application.processor(pids), time.monotonic()
        time.sleep(seconds)
        return 100 * application.spent(before, pids) / (time.monotonic() - start)
