# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways to export telemetry that `make compare` measures. Each is used once: start, environment of each rank, fetches, stop."""

import http.client
import os
import shutil
import subprocess
import sys
import tempfile

import output

sys.path[1:1] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../engines")]
import processes  # noqa: E402
from values import Pmcd  # noqa: E402

# As docs/enabling-nixl.md recommends for rings and stores.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
PATIENCE = 30  # seconds until an endpoint has answered


class Off:
    """No telemetry."""

    title = "telemetry off"

    def __init__(self, binary, ranks):
        self.binary, self.ranks = binary, ranks
        self.directory = tempfile.mkdtemp(prefix="nixl-compare.", dir=MEMORY)

    def start(self):
        """Starts what does not run in the processes of the application."""

    def environment(self, rank):
        """Returns NIXL's variables for a rank."""
        return {}

    def fetch(self):
        """Returns all values that are shown now."""
        return []

    def outside(self):
        """Returns the processes that are not of the application, by program."""
        return {}

    def stop(self):
        """Ends what was started."""
        shutil.rmtree(self.directory)


class Rings(Off):
    """Rings and pmdanixl, fetched through a private pmcd by pminfo."""

    title = "rings and pmdanixl"
    pmcd = None

    def start(self):
        self.pmcd_directory = tempfile.mkdtemp(prefix="compare.")
        self.pmcd = Pmcd(self.pmcd_directory + "/pcp", self.binary, self.directory, self.directory)

    def environment(self, rank):
        return {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": "BUFFER", "NIXL_TELEMETRY_DIR": self.directory}

    def fetch(self):
        text = subprocess.run(["pminfo", "-f", "nixl"], env=self.pmcd.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False).stdout
        return output.of_pminfo(text)

    def outside(self):
        found = {}
        for pid in processes.descendants(self.pmcd.process.pid):
            found.setdefault(processes.read(pid, "comm").strip(), []).append(pid)
        return found

    def stop(self):
        if self.pmcd is not None:
            self.pmcd.stop()
            self.pmcd.log.close()
        shutil.rmtree(self.pmcd_directory)
        super().stop()


class Prometheus(Off):
    """NIXL's exporter `prometheus`, with the configuration of a host: one port."""

    title = "`prometheus`, one port"
    exporter = "prometheus"
    several = False  # True: a port for each rank

    def start(self):
        count = self.ranks if self.several else 1
        first = processes.free_ports(count)
        self.ports = range(first, first + count)

    def environment(self, rank):
        return {"NIXL_TELEMETRY_ENABLE": "y", "NIXL_TELEMETRY_EXPORTER": self.exporter, "NIXL_TELEMETRY_PROMETHEUS_LOCAL": "y",
                "NIXL_TELEMETRY_PROMETHEUS_PORT": str(self.ports[rank % len(self.ports)])}

    def fetch(self):
        values = []
        for port in self.ports:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            try:
                connection.request("GET", "/metrics")
                values += output.of_prometheus(connection.getresponse().read().decode())
            except ConnectionRefusedError:
                pass  # no rank has this port
            finally:
                connection.close()
        return values


class PrometheusPorts(Prometheus):
    """NIXL's exporter `prometheus`, if the launcher gives each rank another port."""

    title = "`prometheus`, a port per rank"
    several = True


class Stores(Prometheus):
    """NIXL's exporter `prometheus_mp`: stores, which one of the ranks serves."""

    title = "`prometheus_mp`"
    exporter = "prometheus_mp"

    def environment(self, rank):
        return super().environment(rank) | {"NIXL_TELEMETRY_MULTIPROC_DIR": self.directory}


ALL = (Off, Rings, Prometheus, PrometheusPorts, Stores)
