#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""One rank of the load of `make compare`: a process with one agent of real NIXL, which transfers to and from the agent of another rank.

    $(qa/nixl/venv 1.5.1) qa/compare/rank.py NAME SIZE

It prints a line that says where its memory is, and reads the line of the other rank. Then each line `SECONDS RATE` makes it transfer
SIZE bytes at a time for so long, RATE times a second, or as fast as possible with the rate 0. Every third transfer is a READ, the others
are WRITEs. After each such line it prints how many transfers have completed.
"""

import base64
import json
import logging
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../nixl"))
import workload  # noqa: E402

# Seconds between two bursts of a load with a rate, and the maximum number of transfers between two checks of the time.
PAUSE = 0.005
BURST = 64


class Rank:
    """The agent, its block of memory, and the prepared descriptors of both ends."""

    def __init__(self, name, size):
        import numpy

        api, _ = workload.load_api()
        conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"])
        self.agent = api.nixl_agent(name, conf)
        self.block = numpy.ones(2 * size, dtype=numpy.uint8)
        self.size = size
        self.done = 0
        self.agent.register_memory([(self.block.ctypes.data, 2 * size, 0, "block")], "DRAM")

    def address(self):
        """Returns what another rank needs to transfer to this one."""
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return dict(metadata=metadata, at=self.block.ctypes.data + self.size)

    def connect(self, address):
        """Prepares transfers with another rank."""
        remote = self.agent.add_remote_agent(base64.b64decode(address["metadata"]))
        remote = remote.decode() if isinstance(remote, bytes) else remote
        ours = self.agent.get_xfer_descs([(self.block.ctypes.data, self.size, 0)], "DRAM")
        theirs = self.agent.get_xfer_descs([(address["at"], self.size, 0)], "DRAM")
        self.sides = (self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", ours), [0],
                      self.agent.prep_xfer_dlist(remote, theirs), [0])

    def transfer(self):
        """Does one transfer and waits for its end."""
        handle = self.agent.make_prepped_xfer("READ" if self.done % 3 == 0 else "WRITE", *self.sides)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"rank: a transfer ended as {state}")
        self.agent.release_xfer_handle(handle)
        self.done += 1

    def run(self, seconds, rate):
        """Does transfers for so long. Returns their number and the time that they took."""
        before, start = self.done, time.monotonic()
        while (passed := time.monotonic() - start) < seconds:
            due = int(passed * rate) - (self.done - before) if rate else BURST
            for _ in range(min(due, BURST)):
                self.transfer()
            if due <= 0:
                time.sleep(PAUSE)
        return dict(transfers=self.done - before, seconds=time.monotonic() - start)


def main():
    logging.disable(logging.INFO)  # the wheels log to standard output
    rank = Rank(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(rank.address()), flush=True)
    rank.connect(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        seconds, rate = map(float, line.split())
        print(json.dumps(rank.run(seconds, rate)), flush=True)


if __name__ == "__main__":
    main()
