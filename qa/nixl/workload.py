#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs real NIXL transfers on this host, and prints the expected totals of their telemetry.

Two agents in one process transfer between blocks of host memory over UCX, without GPU and network. The initiator, PREFIX-A, does
all transfers. The target, PREFIX-B, only registers memory. At the end, one line of JSON per agent has the expected totals, in the
format of the sample producer (qa/producer). Tested with nixl-cu12 0.10.1, 1.1.0, 1.2.0, 1.3.2, 1.4.1 and 1.5.1.

    PYTHON=$(qa/nixl/venv 1.5.1)
    NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_DIR=DIR NIXL_TELEMETRY_BUFFER_SIZE=65536 \\
        $PYTHON qa/nixl/workload.py --transfers 2000 --rate 1500

or, since NIXL 1.5.0, into prometheus_mp stores:

    NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_EXPORTER=prometheus_mp NIXL_TELEMETRY_MULTIPROC_DIR=DIR \\
    NIXL_TELEMETRY_PROMETHEUS_LOCAL=y NIXL_TELEMETRY_PROMETHEUS_PORT=19090 LOCAL_RANK=0 \\
        $PYTHON qa/nixl/workload.py ...

NIXL stages its events, and writes them every NIXL_TELEMETRY_RUN_INTERVAL ms (100). The JSON follows when all events are in the ring
or store ("flushed": true), or after --flush-timeout. NIXL loses events if an interval has more than one buffer of them, or if the
ring is not drained: if totals matter, limit the rate and set the buffer size. An agent that ends loses its last interval.
"""

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import select
import signal
import struct
import sys
import time
import types

ERRORS = ("not_posted", "invalid_param", "backend", "not_found", "mismatch", "not_allowed", "repost_active", "unknown",
          "not_supported", "remote_disconnect", "canceled", "no_telemetry")


class Stop:
    """Blocks and polls SIGTERM and SIGINT. Made before NIXL starts threads, which inherit the mask."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        self.requested = False

    def sleep(self, seconds):
        """Sleeps until a signal comes or the time ends. Returns true if a signal has come."""
        if not self.requested:
            self.requested = signal.sigtimedwait(self.SIGNALS, max(0.0, seconds)) is not None
        return self.requested


class Truth:
    """Counts of what one agent did: the expected totals of its telemetry."""

    def __init__(self, agent):
        self.agent = agent
        self.sums = dict.fromkeys(("tx_requests", "rx_requests", "tx_bytes", "rx_bytes", "registered", "deregistered",
                                   "xfer_time_us", "xfer_post_time_us"), 0)
        self.errors = dict.fromkeys(ERRORS, 0)
        self.events = 0

    def add(self, name, value):
        self.sums[name] += value
        self.events += 1

    def error(self, name):
        self.errors[name] += 1
        self.events += 1

    def counters(self):
        """Expected counters of the store, in the order of NIXL's event types, without dropped events."""
        sums = ("tx_bytes", "rx_bytes", "tx_requests", "rx_requests", "registered", "deregistered",
                "xfer_time_us", "xfer_post_time_us")
        return (*(self.sums[name] for name in sums), *(self.errors[name] for name in ERRORS), 0)


class Initiator:
    """The two agents, ready for transfers of one size."""

    def __init__(self, api, prefix, size):
        import numpy

        backend = os.environ.get("NIXL_BACKEND", "UCX")
        conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=[backend])
        self.agent, self.peer = (api.nixl_agent(f"{prefix}-{name}", conf) for name in "AB")
        self.truth, self.peer_truth = Truth(f"{prefix}-A"), Truth(f"{prefix}-B")
        self.size = size
        self.blocks = [numpy.ones(size, dtype=numpy.uint8) for _ in range(3)]
        source, target, self.extra = ((block.ctypes.data, size, 0) for block in self.blocks)
        self.agent.register_memory([(*source, "source")], "DRAM")
        self.truth.add("registered", size)
        self.peer.register_memory([(*target, "target")], "DRAM")
        self.peer_truth.add("registered", size)
        remote = self.agent.add_remote_agent(self.peer.get_agent_metadata())
        self.remote = remote.decode() if isinstance(remote, bytes) else remote
        self.source = self.agent.get_xfer_descs([source], "DRAM")
        self.target = self.agent.get_xfer_descs([target], "DRAM")

    def memory_round(self):
        block = self.agent.register_memory([(*self.extra, "extra")], "DRAM")
        self.truth.add("registered", self.size)
        self.agent.deregister_memory(block)
        self.truth.add("deregistered", self.size)

    def transfer(self, read):
        handle = self.agent.initialize_xfer("READ" if read else "WRITE", self.source, self.target, self.remote, b"")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"transfer ended as {state}")
        # Exactly the numbers in NIXL's telemetry. Without telemetry, there are none.
        times = self.agent.get_xfer_telemetry(handle)
        self.agent.release_xfer_handle(handle)
        self.truth.add("xfer_post_time_us", times.postDuration)
        self.truth.add("xfer_time_us", times.xferDuration)
        self.truth.add("rx_bytes" if read else "tx_bytes", self.size)
        self.truth.add("rx_requests" if read else "tx_requests", 1)

    def failure(self):
        """Requests a transfer with an agent that does not exist: the one error that needs no broken network."""
        try:
            self.agent.initialize_xfer("WRITE", self.source, self.target, "no-such-agent", b"")
        except Exception:
            self.truth.error("not_found")
        else:
            raise RuntimeError("a transfer with an agent that does not exist was accepted")


def load_api(packages=("nixl_cu12", "nixl_cu13")):
    """Returns the Python API of the first of these NIXL wheels that is installed, and its version."""
    # Otherwise ~/.nixl.cfg or /etc/nixl.cfg would set variables that the caller leaves unset.
    os.environ["NIXL_CONFIG_FILE"] = "/dev/null"
    if importlib.util.find_spec("torch") is None:
        torch = types.ModuleType("torch")  # the wheels need only its type names
        torch.Tensor = type("Tensor", (), {})
        torch.device = torch.dtype = object
        sys.modules["torch"] = torch
    for package in packages:
        if importlib.util.find_spec(package) is not None:
            return importlib.import_module(package + "._api"), importlib.metadata.version(package)
    sys.exit(f"workload: {sys.executable} has no NIXL; run it with the python that qa/nixl/venv VERSION prints")


class Pace:
    """Limits an agent to the events that its ring and NIXL's staging of equal size have room for."""

    def __init__(self, truth, stop):
        self.truth, self.stop = truth, stop
        self.path = os.path.join(os.environ["NIXL_TELEMETRY_DIR"], truth.agent)
        # The earlier events of an agent from an earlier run have been read.
        _, self.read, _ = ring_header(self.path)
        self.total = truth.events if self.read else 0

    def wait(self):
        """Waits until the ring is less than half full of unread events."""
        end = time.monotonic() + 120
        while True:
            if time.monotonic() > end:
                sys.exit(f"workload: {self.path} was not read for two minutes")
            _, read, capacity = ring_header(self.path)
            self.total += (read - self.read) % capacity
            self.read = read
            if self.truth.events - self.total < capacity // 2 or self.stop.sleep(0.001):
                return


def run(initiator, args, stop):
    """Runs the requested transfers, paced by --rate or by the reader of the ring."""
    pace = Pace(initiator.truth, stop) if args.paced else None
    for _ in range(args.memory_rounds):
        initiator.memory_round()
    for _ in range(args.errors):
        initiator.failure()
    start = time.monotonic()
    done = 0
    while not stop.requested and (args.until_signal or done < args.transfers):
        initiator.transfer(read=args.read_every > 0 and done % args.read_every == 0)
        done += 1
        if pace and done % 64 == 0:
            pace.wait()
        stop.sleep(start + done / args.rate - time.monotonic() if args.rate else 0)
    stop.requested = stop.requested and not args.until_signal  # expected: only a second signal ends the process
    return time.monotonic() - start


def wait_flushed(truths, timeout):
    """Waits until all events are in the ring or store. Returns false after the timeout.

    The write position of a ring counts events modulo the capacity. If it stays equal for longer than NIXL's interval,
    no more events come. If it is not the expected one then, or the ring is full, NIXL has lost events.
    """
    interval = int(os.environ.get("NIXL_TELEMETRY_RUN_INTERVAL") or 100) / 1000
    exporter = os.environ.get("NIXL_TELEMETRY_EXPORTER", "BUFFER")
    end = time.monotonic() + timeout
    if exporter == "prometheus_mp":
        return wait_stored(truths, end)
    directory = os.environ.get("NIXL_TELEMETRY_DIR")
    if not directory or exporter != "BUFFER":
        time.sleep(3 * interval)  # an exporter without local files
        return None
    still, last = time.monotonic(), None
    while True:
        rings = [ring_header(os.path.join(directory, truth.agent)) for truth in truths]
        written = [write for write, _, _ in rings]
        if written != last:
            still, last = time.monotonic(), written
        agree = all(truth.events % capacity == write for truth, (write, _, capacity) in zip(truths, rings))
        full = any((write - read) % capacity == capacity - 1 for write, read, capacity in rings)
        if (agree or full) and time.monotonic() - still > 1.5 * interval:
            return agree
        if time.monotonic() > end:
            return False
        time.sleep(interval / 10)


def wait_stored(truths, end):
    """Waits until the sums in the stores are the expected ones. Returns false after the timeout."""
    while True:
        stores = newest_stores(os.environ["NIXL_TELEMETRY_MULTIPROC_DIR"])
        if all(stores.get(truth.agent.encode()) == truth.counters() for truth in truths):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.01)


def newest_stores(directory):
    """Counters of the stores of this process by agent name. The last of several agents with one name counts."""
    stores = {}
    for entry in os.scandir(directory):
        if not (entry.name.startswith(f"nixl.{os.getpid()}.") and entry.name.endswith(".mmap")):
            continue
        with open(entry.path, "rb") as store:
            data = store.read()
        instance, = struct.unpack_from("<Q", data, 32)
        name = data[48:304].split(b"\0")[0]
        if instance >= stores.get(name, (0,))[0]:
            stores[name] = instance, struct.unpack_from("<21Q", data, 752)
    return {name: counters for name, (_, counters) in stores.items()}


def wait_drained(truths, timeout):
    """Waits until all events are read. Returns false after the timeout, and None without a timeout."""
    end = time.monotonic() + timeout
    while timeout:
        rings = [ring_header(os.path.join(os.environ["NIXL_TELEMETRY_DIR"], truth.agent)) for truth in truths]
        if all(write == read for write, read, _ in rings):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return None


def ring_header(path):
    """Write position, read position and capacity of a ring."""
    with open(path, "rb") as ring:
        write, read, _, capacity = struct.unpack("<QQQQ", ring.read(32))
    return write, read, max(capacity, 1)


def linger(seconds, hold, stop):
    """Keeps the agents alive."""
    end = time.monotonic() + seconds
    while hold and not stop.sleep(0):
        readable, _, _ = select.select([0], [], [], 0.1)
        if readable and not os.read(0, 4096):
            break
    stop.sleep(end - time.monotonic())


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--prefix", default="agent", help="the agents are PREFIX-A and PREFIX-B [agent]")
    add("--transfers", type=int, default=100, metavar="N", help="transfers to do [100]")
    add("--until-signal", action="store_true", help="run until SIGTERM or SIGINT instead")
    add("--rate", type=float, default=0, metavar="R", help="transfers per second; 0: as fast as possible [0]")
    add("--paced", action="store_true",
        help="wait at intervals until the reader has freed half of the ring")
    add("--size", type=int, default=65536, metavar="BYTES", help="bytes per transfer and memory block [65536]")
    add("--read-every", type=int, default=3, metavar="N",
        help="every Nth transfer, from the first, is a READ, the others WRITEs; 0: none [3]")
    add("--memory-rounds", type=int, default=0, metavar="N", help="register and deregister another block N times [0]")
    add("--errors", type=int, default=0, metavar="N", help="request N transfers with an agent that does not exist [0]")
    add("--flush-timeout", type=float, default=120, metavar="SECONDS",
        help="maximum wait until all events are in the ring or store [120]")
    add("--linger", type=float, default=0, metavar="SECONDS", help="stay alive after the JSON [0]")
    add("--hold", action="store_true", help="stay alive after the JSON until standard input is closed")
    add("--buffer-size", metavar="N", help="overrides NIXL_TELEMETRY_BUFFER_SIZE")
    add("--drain-timeout", type=float, default=0, metavar="SECONDS",
        help="maximum wait until all events are read, before the JSON [0]")
    add("--serve", action="store_true",
        help="read command lines from standard input, and run each with new agents, which end after it")
    add("--keep", action="store_true",
        help="with --serve: keep the agents, and use them for the next line with their prefix")
    return parser.parse_args(arguments)


def main():
    args = options()
    if not os.environ.get("NIXL_TELEMETRY_ENABLE"):
        sys.exit("workload: NIXL_TELEMETRY_ENABLE is not set; set it to y, or NIXL has no telemetry")
    logging.disable(logging.INFO)  # the wheels log to standard output
    stop = Stop()
    api, version = load_api()
    if not args.serve:
        perform(api, version, args, stop, {})
        return
    kept = {}  # agents that stay for later runs, by prefix
    for line in sys.stdin:
        perform(api, version, options(line.split()), stop, kept)
        gc.collect()
        if len(mapped_files()) > 2 * len(kept):
            sys.exit("workload: an agent did not end: its ring or store is still mapped")


def mapped_files():
    """Paths of the rings and stores that this process has mapped."""
    directories = [os.environ[name] for name in ("NIXL_TELEMETRY_DIR", "NIXL_TELEMETRY_MULTIPROC_DIR")
                   if os.environ.get(name)]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return {line.split(maxsplit=5)[-1] for line in maps if any(name in line for name in directories)}


def perform(api, version, args, stop, kept):
    """Runs two agents, or those of an earlier run with --keep. They end after the run without --keep."""
    if args.buffer_size:
        os.environ["NIXL_TELEMETRY_BUFFER_SIZE"] = args.buffer_size
    initiator = kept.pop(args.prefix, None) or Initiator(api, args.prefix, args.size)
    if args.keep:
        kept[args.prefix] = initiator
    seconds = run(initiator, args, stop)
    truths = (initiator.truth, initiator.peer_truth)
    try:
        flushed = wait_flushed(truths, args.flush_timeout)
        drained = wait_drained(truths, args.drain_timeout)
    except OSError as err:
        sys.exit(f"workload: {err}; NIXL created no ring there, see its messages above")
    for truth in truths:
        line = dict(agent=truth.agent, nixl=version, **truth.sums, errors=truth.errors, events=truth.events,
                    flushed=flushed, drained=drained, seconds=round(seconds, 3))
        print(json.dumps(line), flush=True)
    linger(args.linger, args.hold, stop)


if __name__ == "__main__":
    main()
