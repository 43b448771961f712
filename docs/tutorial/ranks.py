#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Ranks of an engine that sends its KV cache with real NIXL. docs/tutorial/record records them.

    ranks.py drive PYTHON ARCHIVE    starts four ranks, a target for each in the network namespace `peer`, and sends them orders
    ranks.py rank N SIZE             runs one rank with the link railN
    ranks.py target N SIZE           provides the memory at the other end of that link

A step is one request of an engine: each rank writes its share of the cache to its target, in blocks. The next step begins when all
ranks are done. So a slow rank delays the others, as in a model with tensor parallelism. `ARCHIVES` has the faults and their times.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "qa", "nixl"))

RANKS = 4
BLOCKS = 2
STEPS_PER_SECOND = 10
GROUPS = "/sys/fs/cgroup/cpu/nixl-tutorial"
# An archive: size of a block; transports of UCX; scenes. A scene: duration in seconds; link: speed of one link (others: FAST); share:
# percentage of a CPU for one rank; burst: rank that also writes blocks of 64 bytes as fast as possible; restart: rank that is
# started again, and its transports; stop: rank whose target is halted at the beginning, and for how many seconds.
FAST = "1gbit"
ARCHIVES = {
    "node1": (256 * 1024, "tcp,self", [
        {"seconds": 50},
        {"seconds": 80, "link": (2, "15mbit")},
        {"seconds": 80, "share": (1, 1)},
        {"seconds": 15},
        {"seconds": 10, "burst": 3},
        {"seconds": 5},
    ]),
    "node2": (1024 * 1024, "all", [
        {"seconds": 80},
        {"seconds": 100, "restart": (2, "tcp,self")},
        {"seconds": 170, "stop": (2, 140)},
    ]),
}


def agent(name, link, has_thread):
    """Returns a NIXL agent that can use only this link. A thread of its own makes progress for what others transfer with it."""
    os.environ["UCX_NET_DEVICES"] = link
    import logging
    logging.disable(logging.INFO)
    from workload import load_api
    api, _ = load_api()
    return api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=has_thread, enable_listen_thread=False,
                                                      backends=["UCX"]))


def memory(nixl, size):
    """Returns a block of host memory that is registered with NIXL."""
    import numpy
    block = numpy.ones(size, dtype=numpy.uint8)
    nixl.register_memory([(block.ctypes.data, size, 0, "block")], "DRAM")
    return block


def say(**what):
    print(json.dumps(what), flush=True)


def target(number, size):
    nixl = agent(f"target-{number}", f"rail{number}", has_thread=True)
    block = memory(nixl, size)
    say(metadata=base64.b64encode(nixl.get_agent_metadata()).decode(), address=block.ctypes.data)
    sys.stdin.read()


def rank(number, block_size):
    nixl = agent(f"rank-{number}", f"rail{number}", has_thread=False)
    block = memory(nixl, block_size)
    say(here=True)
    peer = json.loads(sys.stdin.readline())
    remote = nixl.add_remote_agent(base64.b64decode(peer["metadata"]))
    remote = remote.decode() if isinstance(remote, bytes) else remote

    def write(size):
        source = nixl.get_xfer_descs([(block.ctypes.data, size, 0)], "DRAM")
        destination = nixl.get_xfer_descs([(peer["address"], size, 0)], "DRAM")
        handle = nixl.initialize_xfer("WRITE", source, destination, remote, b"")
        state = nixl.transfer(handle)
        while state == "PROC":
            time.sleep(0.0002)
            state = nixl.check_xfer_state(handle)
        nixl.release_xfer_handle(handle)
        if state != "DONE":
            sys.exit(f"ranks: a transfer ended as {state}")

    write(block_size)  # connects
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        for _ in range(BLOCKS):
            write(block_size)
        end = time.monotonic() + order["burst"]
        while time.monotonic() < end:
            write(64)
        say(done=True)


def start(python, archive, role, number, transports, *before):
    size, _, scenes = ARCHIVES[archive]
    environment = dict(os.environ, LOCAL_RANK=str(number), UCX_TLS=transports)
    if role == "target":  # another host
        environment.pop("NIXL_TELEMETRY_ENABLE")
        environment.pop("NIXL_TELEMETRY_DIR")
    elif any(scene.get("burst") == number for scene in scenes):
        environment["NIXL_TELEMETRY_BUFFER_SIZE"] = "256"
    return subprocess.Popen([*before, python, os.path.abspath(__file__), role, str(number), str(size)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def send(process, **what):
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def reply(process):
    line = process.stdout.readline()
    while line and not line.startswith("{"):
        line = process.stdout.readline()
    return json.loads(line) if line else sys.exit("ranks: a process has ended")


def set_link(number, speed):
    subprocess.run(["tc", "qdisc", "replace", "dev", f"rail{number}", "root", "tbf", "rate", speed, "burst", "256k",
                    "latency", "200ms"], check=True)


def set_share(number, percent):
    """Limits a rank to a percentage of one CPU. 0: no limit."""
    with open(f"{GROUPS}/rank-{number}/cpu.cfs_quota_us", "w", encoding="ascii") as quota:
        quota.write(str(percent * 1000 if percent else -1))


def start_rank(python, archive, number, transports):
    process = start(python, archive, "rank", number, transports)
    with open(f"{GROUPS}/rank-{number}/cgroup.procs", "w", encoding="ascii") as group:
        group.write(str(process.pid))
    reply(process)
    return process


def end(process):
    process.stdin.close()
    process.wait()


def drive(python, archive):
    _, transports, scenes = ARCHIVES[archive]
    for number in range(RANKS):
        set_link(number, FAST)
    targets = [start(python, archive, "target", number, transports, "ip", "netns", "exec", "peer") for number in range(RANKS)]
    ranks = []
    for number in range(RANKS):
        ranks.append(start_rank(python, archive, number, transports))
        time.sleep(2)  # so that pmdanixl finds the ranks in this order
    addresses = [reply(to) for to in targets]
    for address, process in zip(addresses, ranks):
        send(process, **address)
    for process in ranks:
        reply(process)
    say(ready=True)
    sys.stdin.readline()  # pmlogger runs
    begin = until = time.monotonic()
    for scene in scenes:
        link, share = scene.get("link"), scene.get("share")
        if "restart" in scene:
            number, transports = scene["restart"]
            end(ranks[number])
            ranks[number] = start_rank(python, archive, number, transports)
            send(ranks[number], **addresses[number])
            reply(ranks[number])
        if link:
            set_link(*link)
        if share:
            set_share(*share)
        if "stop" in scene:
            number, duration = scene["stop"]
            targets[number].send_signal(signal.SIGSTOP)
            # The next step waits for it.
            threading.Timer(duration, targets[number].send_signal, [signal.SIGCONT]).start()
        until += scene["seconds"]
        say(**scene, after=round(time.monotonic() - begin))
        while time.monotonic() < until:
            next_step = time.monotonic() + 1 / STEPS_PER_SECOND
            for number, process in enumerate(ranks):
                send(process, burst=0.5 if scene.get("burst") == number else 0)
            for process in ranks:
                reply(process)
            time.sleep(max(0, next_step - time.monotonic()))
        if link:
            set_link(link[0], FAST)
        if share:
            set_share(share[0], 0)
    for process in ranks + targets:
        end(process)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["drive", program, name]:
            drive(program, name)
        case ["rank", which, size]:
            rank(int(which), int(size))
        case ["target", which, size]:
            target(int(which), int(size))
        case _:
            sys.exit(__doc__)
