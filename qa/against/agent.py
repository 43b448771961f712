#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""agent.py DIRECTORY NAME [UID]: writes a telemetry ring or store like a NIXL agent, controlled by lines on standard input.

It is written from NIXL's formats, not from this project's code. Each line is a JSON list: "ring" or "store", the name of a method, and
its arguments. The answer is a line "ok". The process ends at the end of the input or by a signal, and leaves its file, like NIXL.
"""
import fcntl
import json
import mmap
import os
import random
import struct
import sys
import time

# Event types by their numbers (v2 and later), and by the names that v1 and v2-named slots have.
NAMES = [
    "agent_tx_bytes", "agent_rx_bytes", "agent_tx_requests_num", "agent_rx_requests_num", "agent_memory_registered",
    "agent_memory_deregistered", "agent_xfer_time", "agent_xfer_post_time", "NIXL_ERR_NOT_POSTED", "NIXL_ERR_INVALID_PARAM",
    "NIXL_ERR_BACKEND", "NIXL_ERR_NOT_FOUND", "NIXL_ERR_MISMATCH", "NIXL_ERR_NOT_ALLOWED", "NIXL_ERR_REPOST_ACTIVE",
    "NIXL_ERR_UNKNOWN", "NIXL_ERR_NOT_SUPPORTED", "NIXL_ERR_REMOTE_DISCONNECT", "NIXL_ERR_CANCELED", "NIXL_ERR_NO_TELEMETRY",
    "agent_telemetry_events_dropped",
]
(TX_BYTES, RX_BYTES, TX_REQUESTS, RX_REQUESTS, REGISTERED, DEREGISTERED, XFER_TIME, POST_TIME) = range(8)
# Version and bytes of a slot, by layout.
LAYOUTS = {"v1": (1, 56), "v2named": (2, 48), "v2": (2, 16), "v3": (3, 16), "v4": (4, 16)}
HEADER = 40
# Limit of the wait for room in a ring, in seconds.
PATIENCE = 120


def transfer(draw):
    """Events of one transfer: post time, time, bytes, requests, in the order of NIXL 1.4."""
    post = draw.randrange(1, 200)
    write = draw.random() < 0.7
    return [
        (POST_TIME, post),
        (XFER_TIME, post + int(draw.lognormvariate(7, 1.5))),
        (TX_BYTES if write else RX_BYTES, 1 << draw.randrange(10, 28)),
        (TX_REQUESTS if write else RX_REQUESTS, 1),
    ]


class Ring:
    """Writer of a ring."""

    def __init__(self, path):
        self.path = path
        self.draw = random.Random(1)
        self.map = None

    def start(self, layout, capacity):
        """Creates the file, or re-initialises an existing one in place."""
        self.version, self.slot = LAYOUTS[layout]
        self.layout, self.capacity = layout, capacity
        size = HEADER + capacity * self.slot
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(descriptor, size)
        self.map = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self.words = memoryview(self.map)[: size // 8 * 8].cast("Q")
        self.words[0] = self.words[1] = 0
        self.words[3], self.words[4] = capacity, capacity - 1
        struct.pack_into("<ii", self.map, 16, self.version, self.version)

    def has_room(self):
        """True if one more event fits."""
        return (self.words[0] + 1) % self.capacity != self.words[1]

    def put(self, kind, value):
        """Writes one event, and then the position."""
        write = self.words[0]
        at = HEADER + write * self.slot
        name = NAMES[kind].encode() if kind < len(NAMES) else b"free_name"
        if self.layout == "v1":
            struct.pack_into("<Qi32s4xQ", self.map, at, 1, 1, name, value)
        elif self.layout == "v2named":
            struct.pack_into("<i32s4xQ", self.map, at, 1, name, value)
        elif self.layout == "v2":
            struct.pack_into("<iIQ", self.map, at, 1, kind, value)
        else:
            struct.pack_into("<IIQ", self.map, at, kind, 0xDEADBEEF, value)
        self.words[0] = (write + 1) % self.capacity

    def is_half_full(self):
        """True if half of the slots are not drained."""
        return (self.words[0] - self.words[1]) % self.capacity >= self.capacity // 2

    def events(self, events):
        """Writes events, and waits while the ring is half full, because a full ring would lose a part of a transfer."""
        for kind, value in events:
            end = time.monotonic() + PATIENCE
            while self.is_half_full():
                if time.monotonic() > end:
                    raise SystemExit("no room: no process drains this ring")
                time.sleep(0.001)
            self.put(kind, value)

    def transfers(self, count):
        """Writes transfers from a generator that has the same seed in all agents."""
        for _ in range(count):
            self.events(transfer(self.draw))

    def fill(self):
        """Writes until the ring is full, and loses the rest of the last transfer, as NIXL does."""
        while self.has_room():
            for event in transfer(self.draw):
                if self.has_room():
                    self.put(*event)

    def empty(self):
        """Waits until all events are read."""
        end = time.monotonic() + PATIENCE
        while self.words[0] != self.words[1]:
            if time.monotonic() > end:
                raise SystemExit("not read: no process drains this ring")
            time.sleep(0.001)

    def unlink(self):
        """Unlinks the file; the ring stays mapped."""
        os.unlink(self.path)


class Store:
    """Writer of a prometheus_mp store (schema 1)."""

    BOUNDS = [10.0, 100.0, 1000.0, 10_000.0, 100_000.0, 1_000_000.0, 10_000_000.0]
    SIZE, COUNTERS, LAST, COUNTS, SUMS = 6800, 752, 920, 1088, 6632

    def __init__(self, directory, agent):
        self.directory, self.agent = directory, agent
        self.draw = random.Random(2)

    def start(self, instance, rank):
        """Creates the store and locks it."""
        self.file = os.open(f"{self.directory}/{self.agent}.staging", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.file, self.SIZE)
        self.map = mmap.mmap(self.file, self.SIZE)
        struct.pack_into("<IIqQQQ", self.map, 8, 1, 21, 4242, time.monotonic_ns(), instance, len(self.BOUNDS))
        struct.pack_into("<256s128s64s", self.map, 48, self.agent.encode(), b"host", rank.encode())
        struct.pack_into(f"<{len(self.BOUNDS)}d", self.map, 496, *self.BOUNDS)
        self.map[0:8] = b"NIXLMPS1"
        fcntl.flock(self.file, fcntl.LOCK_EX)
        os.rename(f"{self.directory}/{self.agent}.staging", f"{self.directory}/nixl.4242.1.{instance}.mmap")

    def add(self, at, amount):
        """Adds to a value in place."""
        struct.pack_into("<Q", self.map, at, struct.unpack_from("<Q", self.map, at)[0] + amount)

    def events(self, events):
        """Counts events, and then the time of the last update."""
        for kind, value in events:
            self.add(self.COUNTERS + 8 * kind, value)
            struct.pack_into("<Q", self.map, self.LAST + 8 * kind, value)
            if kind in (XFER_TIME, POST_TIME):
                bucket = next((at for at, bound in enumerate(self.BOUNDS) if value <= bound), len(self.BOUNDS))
                self.add(self.COUNTS + 8 * (33 * kind + bucket), 1)
                self.add(self.SUMS + 8 * kind, value)
        struct.pack_into("<Q", self.map, 24, time.monotonic_ns())

    def transfers(self, count):
        """Counts transfers from a generator that has the same seed in all agents."""
        for _ in range(count):
            self.events(transfer(self.draw))


def main():
    """Runs the lines of standard input, one after the other."""
    directory, name = sys.argv[1:3]
    if len(sys.argv) > 3:
        os.setgid(int(sys.argv[3]))
        os.setuid(int(sys.argv[3]))
    sides = {"ring": Ring(os.path.join(directory, name)), "store": Store(directory + "-stores", name)}
    for line in sys.stdin:
        side, method, *arguments = json.loads(line)
        getattr(sides[side], method)(*arguments)
        print("ok", flush=True)


if __name__ == "__main__":
    main()
