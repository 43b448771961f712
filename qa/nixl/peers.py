#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Transfers between two processes with real NIXL, one agent each, to test what pmdanixl says of transports.

    PYTHON=$(qa/nixl/venv 1.5.1)
    UCX_TLS=tcp $PYTHON qa/nixl/peers.py target NAME
    UCX_TLS=tcp NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_DIR=DIR $PYTHON qa/nixl/peers.py initiator NAME

The target prints a line that says where its memory is, and serves until standard input is closed. The initiator reads the lines of one
or more targets, then commands: `write N SIZE TARGET` or `read N SIZE TARGET`, N transfers of SIZE bytes, at most 16 MiB, with the target
of that number (the first is 0, and the default). `hold N SIZE TARGET` posts N writes, and `drop` releases their handles. After each command it prints
"done".
"""

import base64
import json
import logging
import sys
import time

sys.dont_write_bytecode = True
import workload  # noqa: E402

BLOCK = 16 << 20


def agent_with_memory(name):
    """Returns an agent, and a registered block of memory."""
    import numpy

    api, _ = workload.load_api()
    conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"])
    agent = api.nixl_agent(name, conf)
    block = numpy.ones(BLOCK, dtype=numpy.uint8)
    agent.register_memory([(block.ctypes.data, BLOCK, 0, "block")], "DRAM")
    return agent, block


def serve(agent, block):
    """Serves as a target until standard input is closed."""
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    print(json.dumps(dict(metadata=metadata, at=block.ctypes.data)), flush=True)
    sys.stdin.read()


def initiate(agent, block):
    """Does the transfers that standard input asks for."""
    targets, held = [], []
    for line in sys.stdin:
        if line.startswith("{"):
            said = json.loads(line)
            remote = agent.add_remote_agent(base64.b64decode(said["metadata"]))
            targets.append((remote.decode() if isinstance(remote, bytes) else remote, said["at"]))
            continue
        if line == "drop\n":
            while held:
                agent.release_xfer_handle(held.pop())
            print("done", flush=True)
            continue
        kind, count, size, *number = line.split()
        remote, at = targets[int(number[0]) if number else 0]
        ours = agent.get_xfer_descs([(block.ctypes.data, int(size), 0)], "DRAM")
        theirs = agent.get_xfer_descs([(at, int(size), 0)], "DRAM")
        for _ in range(int(count)):
            operation = "WRITE" if kind == "hold" else kind.upper()
            handle = agent.initialize_xfer(operation, ours, theirs, remote, b"")
            state = agent.transfer(handle)
            if kind == "hold":
                held.append(handle)
                continue
            began = time.monotonic()
            while state == "PROC":
                state = agent.check_xfer_state(handle)
                if time.monotonic() - began > 1:
                    time.sleep(0.01)  # it may hang, and others need the processor
            if state != "DONE":
                sys.exit(f"peers: a transfer ended as {state}")
            agent.release_xfer_handle(handle)
        print("done", flush=True)


def main():
    logging.disable(logging.INFO)  # the wheels log to standard output
    role, name = sys.argv[1:]
    agent, block = agent_with_memory(name)
    {"target": serve, "initiator": initiate}[role](agent, block)


if __name__ == "__main__":
    main()
