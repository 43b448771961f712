# SPDX-License-Identifier: GPL-2.0-or-later
"""Stand-in for the servers of vLLM and SGLang in docs/recipes.md: processes, titles and transfers like theirs, by real NIXL in host
memory.

The command line is that of the real server, behind the python of an environment with NIXL (qa/nixl/venv). Of it, these are used: the
role, the number of ranks, and the port. A server has one worker for each rank, and each worker an agent. A prefill worker tells its
memory on the port of its server plus 1000 and its rank. A decode worker finds it by the variable PREFILL_PORT, since no router hands it
a request. Then the side that starts transfers in the real engine does so, PACE times a second: decode reads with vLLM's NixlConnector,
prefill writes with SGLang.
"""

import base64
import ctypes
import json
import logging
import os
import socket
import sys
import time
import uuid

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "nixl"))
import workload  # noqa: E402

BLOCK = 1 << 20
PACE = 25


def set_title(title):
    """Overwrites arguments and environment, as the package setproctitle does (proc_pid_stat(5))."""
    # Copies that NIXL and UCX find in place of the overwritten variables.
    for name, value in os.environ.items():
        os.environ[name] = value
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    arg_start, arg_end, env_start, env_end = (int(fields[field - 3]) for field in range(48, 52))
    ctypes.memset(env_start, 0, env_end - env_start)
    ctypes.memset(arg_start, 0, arg_end - arg_start)
    ctypes.memmove(arg_start, title, min(len(title), arg_end - arg_start - 1))


def option(arguments, name, default=None):
    """Returns the value of an option of the command line."""
    return arguments[arguments.index(name) + 1] if name in arguments else default


def connect(port):
    """Returns a connection to the worker of the other side, as soon as it listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)


def told(connection, agent, at):
    """Tells the other worker what it needs for transfers, and returns what that tells."""
    lines = connection.makefile("rw", encoding="utf-8")
    print(json.dumps({"metadata": base64.b64encode(agent.get_agent_metadata()).decode(), "at": at}), file=lines, flush=True)
    other = json.loads(lines.readline())
    remote = agent.add_remote_agent(base64.b64decode(other["metadata"]))
    return remote.decode() if isinstance(remote, bytes) else remote, other["at"]


def work(is_prefill, kind, port):
    """Runs a worker: exchanges addresses with the other side, then starts transfers of this kind, or only serves (None)."""
    import numpy

    api, _ = workload.load_api()
    agent = api.nixl_agent(str(uuid.uuid4()), api.nixl_agent_config(backends=["UCX"]))
    block = numpy.ones(BLOCK, dtype=numpy.uint8)
    agent.register_memory([(block.ctypes.data, BLOCK, 0, "block")], "DRAM")
    if is_prefill:
        listener = socket.create_server(("127.0.0.1", port))
        connection, _ = listener.accept()
    else:
        connection = connect(port)
    remote, at = told(connection, agent, block.ctypes.data)
    while kind is None:
        time.sleep(3600)
    ours = agent.get_xfer_descs([(block.ctypes.data, BLOCK, 0)], "DRAM")
    theirs = agent.get_xfer_descs([(at, BLOCK, 0)], "DRAM")
    while True:
        handle = agent.initialize_xfer(kind, ours, theirs, remote, b"")
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        time.sleep(1 / PACE)


def main():
    logging.disable(logging.INFO)
    arguments = sys.argv[1:]
    if "--disaggregation-mode" in arguments:
        is_prefill = option(arguments, "--disaggregation-mode") == "prefill"
        kind, ranks, title = "WRITE" if is_prefill else None, option(arguments, "--tp", "1"), "sglang::scheduler_TP{}"
    else:
        is_prefill = json.loads(option(arguments, "--kv-transfer-config"))["kv_role"] == "kv_producer"
        kind, ranks, title = None if is_prefill else "READ", option(arguments, "--tensor-parallel-size", "1"), "VLLM::Worker_TP{}"
    port = int(option(arguments, "--port") if is_prefill else os.environ["PREFILL_PORT"]) + 1000
    for rank in range(int(ranks)):
        if os.fork() == 0:
            set_title(title.format(rank).encode())
            work(is_prefill, kind, port + rank)
    os.wait()
    sys.exit("a worker has ended")


if __name__ == "__main__":
    main()
