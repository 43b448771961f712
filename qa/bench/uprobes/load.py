#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Transfers of real NIXL between two processes, for measure.py.

    load.py target NAME        prints a line that describes its memory, and serves until standard input is closed
    load.py initiator NAME     reads that line, prints the path of libnixl, then reads a command in each line

A command is `USAGE SIZE COUNT PAUSE`: COUNT transfers of SIZE bytes, with so many seconds before each. It is answered with the median
time of a transfer in ns. USAGE is

- prepared: makeXferReq with prepared descriptors, post, poll, release, as vLLM and LMCache do
- created: createXferReq, post, poll, release
- reposted: one handle for all transfers: post, poll
"""

import base64
import json
import logging
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../nixl"))
import workload  # noqa: E402

BLOCK = 1 << 20


def agent_with_memory(name):
    """Returns an agent, and a registered block of memory."""
    import numpy

    api, _ = workload.load_api()
    conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"])
    agent = api.nixl_agent(name, conf)
    block = numpy.ones(BLOCK, dtype=numpy.uint8)
    agent.register_memory([(block.ctypes.data, BLOCK, 0, "block")], "DRAM")
    return agent, block


class Initiator:
    """An agent, and the descriptors of one size on both sides."""

    def __init__(self, agent, block, line):
        said = json.loads(line)
        self.agent, self.block, self.at = agent, block, said["at"]
        remote = agent.add_remote_agent(base64.b64decode(said["metadata"]))
        self.remote = remote.decode() if isinstance(remote, bytes) else remote
        self.size = None

    def resize(self, size):
        """Makes the descriptors for this size."""
        if size == self.size:
            return
        self.size = size
        ours, theirs = (self.agent.get_xfer_descs([(at, size, 0)], "DRAM") for at in (self.block.ctypes.data, self.at))
        self.descriptors = ours, theirs
        self.prepared_sides = (self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", ours),
                               self.agent.prep_xfer_dlist(self.remote, theirs))

    def finish(self, handle):
        """Posts a transfer and polls until its end."""
        agent = self.agent
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"load: a transfer ended as {state}")

    def prepared(self):
        """One transfer with prepared descriptors."""
        ours, theirs = self.prepared_sides
        handle = self.agent.make_prepped_xfer("READ", ours, [0], theirs, [0], b"")
        self.finish(handle)
        self.agent.release_xfer_handle(handle)

    def created(self):
        """One transfer with descriptors that NIXL checks each time."""
        ours, theirs = self.descriptors
        handle = self.agent.initialize_xfer("READ", ours, theirs, self.remote, b"")
        self.finish(handle)
        self.agent.release_xfer_handle(handle)

    def reposted(self):
        """One transfer with a handle that was used before."""
        self.finish(self.handle)

    def run(self, usage, count, pause):
        """Returns the median time of a transfer in ns."""
        transfer, times = getattr(self, usage), []
        if usage == "reposted":
            ours, theirs = self.prepared_sides
            self.handle = self.agent.make_prepped_xfer("READ", ours, [0], theirs, [0], b"")
        for _ in range(count):
            if pause:
                time.sleep(pause)
            start = time.perf_counter_ns()
            transfer()
            times.append(time.perf_counter_ns() - start)
        if usage == "reposted":
            self.agent.release_xfer_handle(self.handle)
        return statistics.median(times)


def library():
    """Returns the path of the libnixl that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split(None, 5)[5].strip() for line in maps if line.rstrip().endswith("/libnixl.so"))


def main():
    logging.disable(logging.INFO)  # the wheels log to standard output
    role, name = sys.argv[1:]
    agent, block = agent_with_memory(name)
    if role == "target":
        metadata = base64.b64encode(agent.get_agent_metadata()).decode()
        print(json.dumps({"metadata": metadata, "at": block.ctypes.data}), flush=True)
        sys.stdin.read()
        return
    initiator = Initiator(agent, block, sys.stdin.readline())
    os.sched_setaffinity(0, {1})  # this thread; NIXL's threads and the target stay on the CPU that the caller has chosen
    print(library(), flush=True)
    for line in sys.stdin:
        usage, size, count, pause = line.split()
        initiator.resize(int(size))
        print(initiator.run(usage, int(count), float(pause)), flush=True)


if __name__ == "__main__":
    main()
