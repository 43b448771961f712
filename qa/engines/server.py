# SPDX-License-Identifier: GPL-2.0-or-later
"""A vLLM server on CPUs: its start, its figures, its processes, its end."""

import json
import os
import re
import time
import urllib.request

import processes
from wait import Failure, until

# Settings for CPUs. One OpenMP thread each, so that two ranks and their peers can run on two cores.
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1", "PYTHONFAULTHANDLER": "1",
}
# Seconds between two lines "KV Transfer metrics" of vLLM's log.
LOG_INTERVAL = 30
# Seconds that prefill keeps blocks that decode has not fetched.
LEASE = 600
# vLLM's metrics of the figures that pmdanixl has too.
FIGURES = {
    "transfers": "vllm:nixl_xfer_time_seconds_count", "bytes": "vllm:nixl_bytes_transferred_sum",
    "transfer time": "vllm:nixl_xfer_time_seconds_sum", "post time": "vllm:nixl_post_time_seconds_sum",
    "failed": "vllm:nixl_num_failed_transfers_total",
}
LINE = re.compile(r"KV Transfer metrics: (.*)")


class Server:
    """A vLLM server. `side` is prefill or decode, `role` is vLLM's kv_role, `variables` are added to its environment."""

    def __init__(self, cache, side, port, role="kv_both", connector="NixlConnector", ranks=1, variables=None):
        self.side, self.port, self.role, self.ranks = side, port, role, ranks
        self.log_path = os.path.join(cache, "logs", f"{side}-{port}-{time.time_ns() // 1000000}.log")
        venv = os.path.join(cache, "venv", "bin")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "UCX_"))}
        env.update(SETTINGS, VLLM_NIXL_SIDE_CHANNEL_PORT=str(port + 1), VLLM_LOG_STATS_INTERVAL=str(LOG_INTERVAL))
        env["PATH"] = venv + os.pathsep + env["PATH"]
        env.update(variables or {})
        transfer = {"kv_connector": connector, "kv_role": role, "kv_buffer_device": "cpu",
                    "kv_connector_extra_config": {"kv_lease_duration": LEASE}}
        # With bfloat16, vLLM uses the CPU's AMX, and SIGILL kills it on some machines. With block size 16 it does not start.
        command = [os.path.join(venv, "vllm"), "serve", os.path.join(cache, "model"), "--served-model-name", "tiny",
                   "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--enforce-eager",
                   "--max-model-len", "2048", "--max-num-seqs", "16", "--dtype", "float32", "--block-size", "32",
                   "--no-enable-prefix-caching", "--tensor-parallel-size", str(ranks),
                   "--kv-transfer-config", json.dumps(transfer)]
        os.makedirs(os.path.dirname(self.log_path), exist_ok=True)
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = processes.start(command, log, env, cwd=cache)

    def get(self, path, timeout=30):
        """Returns the text at a path of the server, or None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def ready(self):
        """Waits until the server answers."""
        until(f"{self.side} answers", lambda: self.ended() or self.get("/health") is not None, 900, 2)
        if self.ended():
            raise Failure(f"{self.side} ended at its start: see {self.log_path}\n{self.tail()}")

    def ended(self):
        """Returns True if the API server has ended."""
        return self.process.poll() is not None

    def tail(self):
        """Returns the last lines of the log."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-8:])

    def figures(self):
        """Returns vLLM's own figures of its transfers, in bytes and microseconds, or None if the server does not answer."""
        text = self.get("/metrics")
        if text is None:
            return None
        sums = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return {name: round(sums.get(series, 0.0) * (1e6 if "time" in name else 1)) for name, series in FIGURES.items()}

    def lines(self):
        """Returns the lines "KV Transfer metrics" of the log, each as a dictionary of numbers."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return [{name: float(value) for name, value in (pair.split("=") for pair in found.split(", "))}
                    for found in LINE.findall(log.read())]

    def workers(self, directory):
        """Returns the processes of this server that have mapped a file of `directory`: (pid, file name, rank by its title)."""
        # By inode, because NIXL creates a store without a name, and /proc keeps showing it as deleted.
        names = {os.stat(entry).st_ino: entry.name for entry in os.scandir(directory) if entry.is_file()}
        found = []
        for pid in processes.descendants(self.process.pid):
            maps = [line.split(None, 5) for line in processes.read(pid, "maps").splitlines() if directory + "/" in line]
            rank = re.match(r"VLLM::Worker_(TP\d+)", processes.read(pid, "cmdline"))
            found += [(pid, names[inode], rank and rank[1]) for inode in sorted({int(fields[4]) for fields in maps}) if inode in names]
        return found

    def stop(self):
        """Ends the server and its processes."""
        processes.end(self.process, patience=60)
