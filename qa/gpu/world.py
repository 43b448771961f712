# SPDX-License-Identifier: GPL-2.0-or-later
"""What the groups of rows of `make gpu` share: applications, private daemons, and the comparison of sums."""

import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Before PYTHONPATH, which may have other modules of these names.
sys.path[1:1] = [os.path.join(HERE, folder) for folder in ("../engines", "../compare", "../nixl")]
from application import processor, spent  # noqa: E402
import processes  # noqa: E402
from values import Pmcd, space  # noqa: E402
from wait import Failure, within  # noqa: E402

# Metric of each sum that an application counts.
SUMS = {
    "tx_requests": "nixl.transfer.tx_requests", "rx_requests": "nixl.transfer.rx_requests",
    "tx_bytes": "nixl.transfer.tx_bytes", "rx_bytes": "nixl.transfer.rx_bytes", "registered": "nixl.memory.registered",
    "deregistered": "nixl.memory.deregistered", "xfer_time_us": "nixl.performance.xfer_time_us",
    "xfer_post_time_us": "nixl.performance.xfer_post_time_us", "errors": "nixl.errors.total",
}
FLUSH = 5  # seconds; NIXL writes its ring every 0.1 s, and the daemon reads it every 0.05 s
SIZE = 64 << 20  # bytes of an agent's block
# Settings of the caller that would change what is measured.
SETTINGS = ("CUDA_VISIBLE_", "UCX_", "TORCH_ALLOW_TF32_")


class Application:
    """A process with NIXL: a script of this folder that answers lines of JSON. It uses the GPU of the run, if there is one."""

    def __init__(self, world, name, script, *arguments, telemetry=None, **environment):
        """`environment` has variables by name. None removes a variable."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)}
        # UCX writes a warning for each transfer that it cannot do in the best way.
        env |= {"UCX_LOG_LEVEL": "error", "UCX_POSIX_DIR": world.parent, "OMP_NUM_THREADS": "1", "NIXL_PACKAGE": world.package,
                "NIXL_TELEMETRY_ENABLE": "n"}
        # Otherwise UCX listens at the addresses of this host.
        env["UCX_NET_DEVICES"] = "lo"
        # The order of NVML, which numbers the GPUs of PCP's PMDA nvidia.
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": world.uuid}
        if telemetry:
            env |= {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": "BUFFER", "NIXL_TELEMETRY_DIR": telemetry}
        env = {key: value for key, value in (env | environment).items() if value is not None}
        self.rings = world.rings
        self.log = open(os.path.join(world.logs, name + ".log"), "w", encoding="utf-8")
        command = [sys.executable, "-B", os.path.join(HERE, script), *arguments]
        self.process = processes.start(command, self.log, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

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
        raise Failure(f"{os.path.basename(self.log.name)}: the process has ended; {space(self.rings)}")

    def ask(self, **request):
        """Writes a request and returns the answer."""
        self.tell(**request)
        return self.answer()


class Pair:
    """Two processes of peer.py. Each agent of the first one transfers to the agent of the second one that has its name and "-target"."""

    def __init__(self, world, agents, telemetry, **environment):
        """`agents` are kinds of memory by name."""
        def start(end):
            arguments = [f"{name}{end}:{kind}" for name, kind in agents.items()]
            name = "+".join(agents) + end
            return Application(world, name, "peer.py", str(SIZE), *arguments, telemetry=telemetry, **environment)
        self.world, self.target, self.initiator, self.names = world, start("-target"), start(""), list(agents)

    def connect(self):
        """Waits until both processes are ready and connects them. Returns this pair."""
        self.identities = [side.answer() for side in (self.initiator, self.target)]
        self.world.loaded |= {identity["nixl"] for identity in self.identities}
        addresses = self.identities[1]["addresses"]
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
        """Returns what both processes have counted, by agent."""
        return self.initiator.ask(sums=True) | self.target.ask(sums=True)

    def end(self):
        """Ends both processes."""
        processes.end(self.initiator.process, self.target.process)


class World:
    """The directories, the GPU if there is one, and the daemon of the current group."""

    def __init__(self, logs, parent, pmdanixl, producer, package, gpu, shared):
        """`parent` is the directory of the directories of rings, `package` the wheel of NIXL. `shared` is true if this host has GPUs
        that the run must not use."""
        self.logs, self.parent, self.pmdanixl, self.producer, self.package = logs, parent, pmdanixl, producer, package
        self.gpu, self.shared, self.loaded = gpu, shared, set()
        self.kind = "VRAM" if gpu else "DRAM"
        self.number, self.uuid = (str(gpu.index), gpu.uuid) if gpu else ("0", "GPU-00000000-0000-0000-0000-000000000000")
        self.pmcd = self.rings = None

    def start(self, name):
        """Starts a daemon with an empty directory of rings, in place of the one before. Returns the directory."""
        self.stop()
        self.rings = os.path.join(self.parent, name)
        os.mkdir(self.rings)
        self.pmcd = Pmcd(os.path.join(self.logs, "pcp-" + name), self.pmdanixl, self.rings, self.rings)
        return self.rings

    def stop(self):
        """Ends the daemon."""
        if self.pmcd is not None:
            self.pmcd.stop()
            self.pmcd.log.close()
        self.pmcd = None

    def end(self):
        """Ends all processes: the applications at once, then the daemon."""
        processes.end_all(but=self.pmcd and self.pmcd.process, patience=10)
        self.stop()

    def value(self, metric, instance):
        """Returns a value of an agent, or None."""
        return self.pmcd.values(metric).get(metric, {}).get(instance)

    def lost(self):
        """Returns the sums of nixl.ring.full and nixl.queue.dropped."""
        found = self.pmcd.values("nixl.ring.full", "nixl.queue.dropped")
        return [sum(found.get(f"nixl.ring.{name}", {}).values()) for name in ("full", "dropped")]

    def differences(self, sums):
        """Waits until the daemon shows these sums. Returns those that differ: agent, name, shown and counted."""
        def compare():
            shown = self.pmcd.values(*SUMS.values())
            return [(agent, name, shown.get(SUMS[name], {}).get(agent), counted)
                    for agent, own in sums.items() for name, counted in own.items()
                    if shown.get(SUMS[name], {}).get(agent, 0) != counted]
        within(FLUSH, lambda: not compare(), 0.2)
        return compare()

    def processor(self, seconds):
        """Returns the CPU time of the daemon and its worker in % of a core, over so many seconds."""
        pids = self.pmcd.pmda()
        before, start = processor(pids), time.monotonic()
        time.sleep(seconds)
        return 100 * spent(before, pids) / (time.monotonic() - start)
