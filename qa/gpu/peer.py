#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A process with agents of real NIXL, for `make gpu`.

    peer.py BYTES NAME:KIND...

Each agent has one block of BYTES in GPU memory (KIND is VRAM) or host memory (DRAM). The process first prints a line of JSON with the
addresses of its agents. It then answers each line of JSON on standard input with one, and ends with its standard input:

    {"connect": {AGENT: ADDRESS}}                               connects each agent to an agent of another process
    {"op": "WRITE", "size": 4096, "count": 10, "seconds": 0, "times": true}
                                                                each agent does `count` transfers, or transfers for `seconds` if
                                                                `count` is 0; "times": false does not ask NIXL for the times, which
                                                                it has with telemetry only
    {"sums": true}                                              what each agent has counted

NIXL_PACKAGE is the wheel of NIXL: nixl_cu12 or nixl_cu13. LATE_DEVICES becomes CUDA_VISIBLE_DEVICES after the start of the process.
"""

import base64
import json
import logging
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path[1:1] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../nixl")]
import workload  # noqa: E402


def load_nixl():
    """Returns NIXL's API, and the package and version that are loaded."""
    api, version = workload.load_api([os.environ["NIXL_PACKAGE"]])
    return api, f"{api.__package__} {version}"


class Agent:
    """An agent of NIXL with one registered block of memory, and the sums that pmdanixl has to show."""

    def __init__(self, api, name, kind, at, size):
        conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"])
        self.agent = api.nixl_agent(name, conf)
        self.kind, self.at = kind, at
        self.agent.register_memory([(at, size, 0, "block")], kind)
        self.sums = dict(tx_requests=0, rx_requests=0, tx_bytes=0, rx_bytes=0, registered=size, deregistered=0,
                         xfer_time_us=0, xfer_post_time_us=0, errors=0)

    def address(self):
        """Returns what another agent needs to transfer to this one."""
        return dict(metadata=base64.b64encode(self.agent.get_agent_metadata()).decode(), at=self.at)

    def connect(self, address):
        """Connects to the agent that has this address."""
        remote = self.agent.add_remote_agent(base64.b64decode(address["metadata"]))
        self.remote, self.remote_at = remote.decode() if isinstance(remote, bytes) else remote, address["at"]

    def descs(self, at, pieces):
        """Returns descriptors of pieces of a block, each an offset and a length."""
        return self.agent.get_xfer_descs([(at + offset, size, 0) for offset, size in pieces], self.kind)

    def transfer(self, op, ours, theirs, size, times=True):
        """Does one transfer of `size` bytes and waits for its end. Adds it to the sums, without `times` except for its times."""
        handle = self.agent.initialize_xfer(op, ours, theirs, self.remote, b"")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"a transfer has ended as {state}")
        if times:
            own = self.agent.get_xfer_telemetry(handle)
            self.sums["xfer_time_us"] += own.xferDuration
            self.sums["xfer_post_time_us"] += own.postDuration
        self.agent.release_xfer_handle(handle)
        side = "rx" if op == "READ" else "tx"
        self.sums[side + "_requests"] += 1
        self.sums[side + "_bytes"] += size


def allocate(kind, size):
    """Returns a block of memory, its address, and the UUID of its GPU ("" for host memory)."""
    if kind == "VRAM":
        import torch

        block = torch.ones(size, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        return block, block.data_ptr(), f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    import numpy

    block = numpy.ones(size, dtype=numpy.uint8)
    return block, block.ctypes.data, ""


def run(agents, op, size, count, seconds, times):
    """Does `count` transfers with each agent, or transfers for `seconds` if `count` is 0. Returns their number and time."""
    ends = [(agent.descs(agent.at, [(0, size)]), agent.descs(agent.remote_at, [(0, size)])) for agent in agents]
    start, done = time.monotonic(), 0
    while done < count if count else time.monotonic() - start < seconds:
        for agent, (ours, theirs) in zip(agents, ends):
            agent.transfer(op, ours, theirs, size, times)
        done += 1
    return dict(transfers=done * len(agents), seconds=time.monotonic() - start)


def answer(line):
    """Prints a line of JSON."""
    print(json.dumps(line), flush=True)


def main():
    if "LATE_DEVICES" in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LATE_DEVICES"]
    logging.disable(logging.INFO)  # the wheels log to standard output
    api, loaded = load_nixl()
    size, agents, blocks, uuid = int(sys.argv[1]), {}, [], ""
    for name, kind in (argument.split(":") for argument in sys.argv[2:]):
        block, at, own = allocate(kind, size)
        blocks.append(block)
        uuid = uuid or own
        agents[name] = Agent(api, name, kind, at, size)
    answer(dict(pid=os.getpid(), nixl=loaded, uuid=uuid, addresses={name: agent.address() for name, agent in agents.items()}))
    for line in sys.stdin:
        request = json.loads(line)
        if "connect" in request:
            for name, address in request["connect"].items():
                agents[name].connect(address)
            answer({})
        elif "op" in request:
            answer(run(agents.values(), **request))
        else:
            answer({name: agent.sums for name, agent in agents.items()})


if __name__ == "__main__":
    main()
