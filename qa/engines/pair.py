# SPDX-License-Identifier: GPL-2.0-or-later
"""A prefill and a decode server, and the comparison of their figures with those of pmdanixl."""

import processes
from load import Load
from server import LOG_INTERVAL, Server
from wait import Failure, until, within

# pmdanixl's metrics for each figure of vLLM.
SAME = {
    "transfers": ("nixl.transfer.rx_requests", "nixl.transfer.tx_requests"),
    "bytes": ("nixl.transfer.rx_bytes", "nixl.transfer.tx_bytes"),
    "transfer time": ("nixl.performance.xfer_time_us",),
    "post time": ("nixl.performance.xfer_post_time_us",),
}
UNITS = {"transfers": "transfers", "bytes": "bytes", "transfer time": "sum of transfer times, us",
         "post time": "sum of post times, us"}


class Pair:
    """Two servers of one kind. `writes` is what NIXL writes: rings, stores or None. `transports` is UCX_TLS."""

    def __init__(self, world, roles=("kv_both", "kv_both"), connector="NixlConnector", ranks=1, writes="rings",
                 transports="tcp,self,sm"):
        self.world, self.roles, self.connector, self.ranks = world, roles, connector, ranks
        self.writes, self.transports = writes, transports
        # One for the API, one for the side channel of each rank.
        self.ports = [processes.free_ports(1 + ranks) for _ in roles]
        self.directory = world.directories.get(writes)
        self.prefill, self.decode = self.server("prefill"), self.server("decode")
        self.ready()

    def server(self, side):
        """Starts the server of this side."""
        index = ("prefill", "decode").index(side)
        return Server(self.world.cache, side, self.ports[index], self.roles[index], self.connector, self.ranks,
                      {**self.world.telemetry(self.writes), "UCX_TLS": self.transports})

    def load(self, **options):
        """Returns a Load for this pair."""
        return Load(self.prefill, self.decode, **options)

    def ready(self):
        """Waits for both servers, and for their first transfer. The first handshake of two servers may fail."""
        for server in self.prefill, self.decode:
            server.ready()
        for seed in range(5):
            load = self.load(seed=100 + seed, patience=180)
            load.run(1)
            if load.ends["ok"]:
                return
        raise Failure(f"no request passes through prefill and decode\n{self.decode.tail()}")

    def again(self, side):
        """Restarts the server of this side."""
        getattr(self, side).stop()
        setattr(self, side, self.server(side))
        self.ready()

    def usable(self):
        """True if both servers have all their processes."""
        return all(not server.ended() and (self.directory is None or len(server.workers(self.directory)) == self.ranks)
                   for server in (self.prefill, self.decode))

    def stop(self):
        """Ends both servers."""
        for server in self.prefill, self.decode:
            if server.process in processes.RUNNING:
                server.stop()

    def agents(self, server):
        """Returns the agents of a server by the files that its processes have mapped: {instance: (pid, rank by its title)}."""
        return agents(self.world.pmcd, server, self.directory)

    def now(self, instances):
        """Returns pmdanixl's figures, added up over these instances."""
        values = self.world.pmcd.values(*(metric for metrics in SAME.values() for metric in metrics))
        return {name: sum(values.get(metric, {}).get(instance, 0) for metric in metrics for instance in instances)
                for name, metrics in SAME.items()}


def agents(pmcd, server, directory):
    """Returns the agents of a server by the files that its processes have mapped: {instance: (pid, rank)}."""
    paths = pmcd.values("nixl.agent.path").get("nixl.agent.path", {})
    by_path = {path: instance for instance, path in paths.items()}
    return {by_path.get(f"{directory}/{name}", f"no instance of {name}"): (pid, rank)
            for pid, name, rank in server.workers(directory)}


class Interval:
    """The changes of vLLM's and pmdanixl's figures of one server since the construction."""

    def __init__(self, pair, server):
        self.pair, self.server = pair, server
        self.instances = list(pair.agents(server))
        self.pmda, self.vllm = pair.now(self.instances), server.figures()
        # vLLM's latest figures, because a server that has ended does not answer.
        self.last = self.vllm

    def differences(self):
        """Returns the changes of (pmdanixl's figures, vLLM's figures)."""
        pmda, self.last = self.pair.now(self.instances), self.server.figures() or self.last
        return ({name: pmda[name] - self.pmda[name] for name in pmda},
                {name: self.last[name] - self.vllm[name] for name in self.last})

    def settled(self, at_least):
        """Waits until both are equal with at least this number of transfers, for a minute at most. Returns the differences."""
        def equal():
            pmda, vllm = self.differences()
            return vllm["transfers"] >= at_least and all(pmda[name] == vllm[name] for name in pmda)

        within(60, equal, 1)
        return self.differences()

    def compare(self, report, at_least):
        """Prints rows for all figures, and checks the minimum number of transfers. Returns the differences."""
        pmda, vllm = self.settled(at_least)
        report.heads("", "pmdanixl", "vLLM", "")
        for name in SAME:
            report.row(UNITS[name], pmda[name], vllm[name])
        report.check(f"at least {at_least} transfers", vllm["transfers"] >= at_least, vllm["transfers"])
        return pmda, vllm


def next_line(server, count):
    """Waits for the line after the first `count` lines "KV Transfer metrics" in the log, and returns it."""
    return until("a line KV Transfer metrics", lambda: server.lines()[count:], 4 * LOG_INTERVAL)[0]
