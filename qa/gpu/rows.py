# SPDX-License-Identifier: GPL-2.0-or-later
"""The rows of `make gpu`. Each function of GROUPS makes a group of rows.

A new row is a call of table.check, table.figure or table.leave_out in a group, and a line in docs/testing.md. If this host lacks what
the row needs, leave_out gives the reason. world.kind is the kind of memory: VRAM, or DRAM without a GPU. A new group first calls
world.start, which gives it a daemon with an empty directory of rings. Its applications end after the group. qa/processes/gpu.rs has
the number of rows that pass without a GPU.
"""

import importlib.util
import json
import os
import signal
import subprocess
import time

import nvml
from table import amount
from world import Application, Failure, Pair, processes, space, within
from workload import ring_header

KIB, MIB = 1 << 10, 1 << 20
ROUND, ROUNDS = 5, 12  # seconds of steady load between two checks of tcp_share, and the most rounds
CAPACITY = 4096  # slots of a ring by default; one of them stays empty
BURST = 2000
EVENTS = 4  # of a transfer: its request, its bytes, its time and its time to post
RANK = "7"  # label local_rank, which shows that the daemon has read the environment of a process


def pairs(world, table):
    """Six pairs of processes, one of them with two agents in each process: sums, shares, labels."""
    rings = world.start("pairs")
    tcp = "tcp,cuda_copy" if world.gpu else "tcp"
    unset = {} if world.shared else {"CUDA_VISIBLE_DEVICES": None}

    def pair(agents, **environment):
        return Pair(world, agents, rings, LOCAL_RANK=RANK, **environment)
    every = {
        "number": pair({"by-number": world.kind}, CUDA_VISIBLE_DEVICES=world.number),
        "uuid": pair({"by-uuid": world.kind}, CUDA_VISIBLE_DEVICES=world.uuid),
        "late": pair({"set-late": world.kind}, LATE_DEVICES=world.number, **unset),
        "tcp": pair({"by-tcp": world.kind}, UCX_TLS=tcp, **unset),
        "host": pair({"host-memory": "DRAM"}, CUDA_VISIBLE_DEVICES=""),
        "two": pair({"first": world.kind, "second": "DRAM"}),
    }
    for one in every.values():
        one.connect()
    done = steady(world, table, every)
    done += sizes(table, every)
    sums = {}
    for one in every.values():
        sums |= one.sums()
    equal(world, table, f"sums of {len(sums)} agents after {done:,} transfers: requests, bytes, both times, memory, errors", sums)
    labels(world, table, every)
    facts(world, table, every)


def equal(world, table, what, sums, right=True, seen=""):
    """Adds a row for the sums that applications have counted. Events that NIXL has lost have a verdict of their own."""
    different, (full, dropped) = world.differences(sums), world.lost()
    count = sum(map(len, sums.values()))
    table.check(what, right and not different, f"{count - len(different)} of {count} equal{seen}, `ring.full` {full}, `queue.dropped` "
                f"{dropped}" + "".join(f"; {one}" for one in different), "FAIL: NIXL has lost events" if full + dropped else "FAIL")


def steady(world, table, every):
    """Transfers of 16 MiB until each pair has a share of TCP. Returns their number."""
    metric, done = "nixl.agent.tcp_share", 0
    names = [one.names[0] for one in every.values() if len(one.names) == 1]
    for _ in range(ROUNDS):
        for one in every.values():
            one.start("WRITE", 16 * MIB, seconds=ROUND)
        done += sum(one.initiator.answer()["transfers"] for one in every.values())
        shares = world.pmcd.values(metric).get(metric, {})
        if all(name in shares for name in names):
            break
    share = shares.get("by-tcp")
    # NIXL counts the bytes of a transfer at its end, TCP at once: on a slow host, one more of 16 MiB. Bytes counted twice are 2.
    table.check("`tcp_share` with UCX_TLS=tcp", share is not None and 0.9 <= share <= 1.5, amount(share))
    others = [shares.get(name) for name in names if name != "by-tcp"]
    table.check("`tcp_share` of the others", None not in others and max(others) < 0.05, ", ".join(map(amount, others)))
    seen = [name for name in every["two"].names if name in shares]
    table.check("`tcp_share` of two agents in a process: none, the bytes of a process are not divided", not seen,
                ", ".join(seen) or "none")
    found = world.pmcd.values("nixl.latency.xfer_time.p50", "nixl.operation.bandwidth.p50")

    def median(metric, name, unit):
        value = found.get(f"nixl.{metric}.p50", {}).get(name)
        return amount(value and value / unit)
    for name in ("by-number", "by-tcp", "host-memory"):
        table.figure(f"p50 and bandwidth.p50 of 16 MiB, `{name}`",
                     f"{median('latency.xfer_time', name, 1e3)} ms, {median('bandwidth', name, 1e6)} MB/s")
    return done


def sizes(table, every):
    """Transfers of other sizes, and a large READ. Returns their number. The counts of small ones fit into a ring."""
    done = 0
    for op, size, count, tcp_count in (("WRITE", 4 * KIB, 900, 6), ("WRITE", MIB, 500, 6), ("WRITE", 64 * MIB, 20, 1),
                                       ("READ", 4 * KIB, 450, 3)):
        for one in every.values():
            one.start(op, size, tcp_count if one is every["tcp"] else count // len(one.names))
        done += sum(one.initiator.answer()["transfers"] for one in every.values())
        time.sleep(0.3)
    for op in ("WRITE", "READ"):
        answer = every["number"].run(op, 64 * MIB, count=1)
        table.figure(f"one {op} of 64 MiB, `by-number`", f"{amount(1e3 * answer['seconds'])} ms")
    return done + 2


def labels(world, table, every):
    """The label `gpu` or `uuid` for each way to choose a GPU, and what it joins."""
    _, found = world.pmcd.pminfo("nixl.agent.pid")
    minor = str(world.gpu.minor) if world.gpu else None
    ways = {
        "number": ("a number", world.number), "uuid": ("a UUID", world.uuid),
        "tcp": ("not set", minor), "late": ("set after the start", minor), "host": ("empty", None),
    }
    gpus = {}
    for way, (title, wanted) in ways.items():
        what = f"label `{'uuid' if way == 'uuid' else 'gpu'}`, CUDA_VISIBLE_DEVICES {title}"
        if world.shared and way in ("tcp", "late"):
            table.leave_out(what, "this host has GPUs that the run must not use")
            continue
        own = found.get(every[way].names[0], {})
        names = {"number": ("gpu",), "uuid": ("uuid",)}.get(way, ("gpu", "gpus", "uuid"))
        shown = gpus[way] = next((str(own[name]) for name in names if name in own), None)
        # A process has the device files of all GPUs that it opens, not only of the one that it uses.
        right = shown == wanted or bool(wanted and shown) and way in ("tcp", "late") and wanted in shown.split(",")
        table.check(what, right and own.get("local_rank") == RANK, shown or ("none" if own else "no such agent"))
    joins, kernel = "labels `gpu` and `uuid` join PCP's PMDA nvidia: number and UUID in NVML", "UUID in /proc/driver/nvidia/gpus"
    if not world.gpu:
        table.leave_out(joins, "no GPU")
        table.leave_out(kernel, "no GPU")
        return
    used = {every[way].identities[0]["uuid"] for way in ("number", "uuid")}
    table.check(joins, gpus["number"] == world.number and gpus["uuid"] == world.uuid and used == {world.uuid},
                f"gpu{gpus['number']}, {gpus['uuid']}; torch used {', '.join(sorted(used))}")
    uuids = nvml.kernel_uuids()
    if uuids:
        table.figure(kernel, uuids.get(world.gpu.minor, "none"))
    else:
        table.leave_out(kernel, "no such files")


def facts(world, table, every):
    """Facts of the processes."""
    values, two = world.pmcd.values("nixl.agent.pid", "nixl.process.agents", "nixl.process.nixl_version"), every["two"]
    pid = two.identities[0]["pid"]

    def by_process(metric):
        return {int(process.split()[0]): value for process, value in values.get(metric, {}).items()}
    shown = [values.get("nixl.agent.pid", {}).get(name) for name in two.names]
    agents = by_process("nixl.process.agents").get(pid)
    table.check("a second agent in a process: `agent.pid` of both, `process.agents`", shown == [pid] * 2 and agents == 2,
                f"{'equal' if shown == [pid] * 2 else shown}, {agents}")
    versions = by_process("nixl.process.nixl_version")
    wanted = {identity["pid"]: identity["nixl"].split()[1] for one in every.values() for identity in one.identities}
    shown = {process: version for process, version in versions.items() if process in wanted}
    table.check("`process.nixl_version`", shown == wanted,
                f"{', '.join(sorted(set(shown.values()))) or 'none'}, {len(shown)} of {len(wanted)} processes")


def bursts(world, table):
    """Bursts that are larger than a ring: of NIXL with the daemon running and stopped, and of the sample producer."""
    rings = world.start("bursts")
    pair = Pair(world, {"burst": "DRAM"}, rings).connect()

    def events(name="burst"):
        return world.value("nixl.ring.events", name) or 0

    def settle(condition):
        """Waits for the condition, and then for events that must not follow."""
        within(30, condition, 0.2)
        time.sleep(1)

    def ring_is_full():
        write, read, capacity = ring_header(os.path.join(rings, "burst"))
        return (write - read) % capacity == capacity - 1

    def all_read():
        """Returns True if the daemon has counted all that NIXL has put into the ring."""
        write, _, capacity = ring_header(os.path.join(rings, "burst"))
        return write == events() % capacity

    first, sent = 1 + 100 * EVENTS, BURST * EVENTS
    pair.run("WRITE", 4 * KIB, count=100)
    within(30, lambda: events() == first, 0.2)
    before = events()
    answer = pair.run("WRITE", 4 * KIB, count=BURST)
    settle(lambda: events() - before == sent or any(world.lost()))
    counted, (full, dropped) = events() - before, world.lost()
    table.check(f"{BURST:,} transfers of host memory at {amount(BURST / answer['seconds'])}/s: no silent loss",
                before == first and CAPACITY - 1 <= counted <= sent and (counted < sent) == (full + dropped > 0) and all_read(),
                f"{sent - counted:,} of {sent:,} events lost, `ring.full` {full}, `queue.dropped` {dropped}")
    before = events()
    with world.pmcd.paused():
        pair.run("WRITE", 4 * KIB, count=BURST)
        settle(ring_is_full)
    settle(lambda: events() - before >= CAPACITY - 1)
    counted, more = events() - before, world.lost()[0] - full
    table.check(f"{BURST:,} transfers while the daemon is stopped: the ring keeps {CAPACITY - 1:,} events",
                counted == CAPACITY - 1 and more == 1 and all_read(), f"{counted:,} of {sent:,} events counted, `ring.full` {more}")
    pair.end()
    made = producer(world, "--name", "sample", "--transfers", str(BURST), "--burst", str(BURST), "--rate", "0", "--on-full", "drop")
    written, = written_by(world, made)
    within(30, lambda: events("sample") == written["events"], 0.2)
    counted = events("sample")
    table.check("a burst of the sample producer: counted + lost = sent", counted + written["lost"] == sent,
                f"{counted:,} + {written['lost']:,} = {sent:,} events")


def producer(world, *arguments):
    """Starts the sample producer on the rings of the current daemon."""
    with open(os.path.join(world.logs, "producer.log"), "a", encoding="utf-8") as log:
        return processes.start([world.producer, "--dir", world.rings, *arguments], log, os.environ, stdout=subprocess.PIPE)


def written_by(world, made):
    """Waits for the end of the sample producer. Returns what its agents have written."""
    lines = made.communicate(timeout=30)[0].splitlines()
    processes.end(made)
    if made.returncode or not lines:
        raise Failure(f"the sample producer ended with {made.returncode}; {space(world.rings)}")
    return [json.loads(line) for line in lines]


def cost(world, table):
    """Transfers per second of an application: without telemetry, with rings that nothing reads, and with rings that the daemon reads."""
    rings = world.start("cost")
    unread = os.path.join(world.parent, "unread")
    os.mkdir(unread)
    ways = {"off": ("app-off", None), "on, no reader": ("app-unread", unread), "read by pmdanixl": ("app", rings)}
    made = {way: Pair(world, {name: world.kind}, directory) for way, (name, directory) in ways.items()}
    found = {way: [] for way in ways}
    for pair in made.values():
        pair.connect().run("WRITE", 4 * KIB, seconds=0.5, times=False)
    for _ in range(3):
        for way, pair in made.items():
            answer = pair.run("WRITE", 4 * KIB, seconds=1.5, times=False)
            found[way].append(answer["transfers"] / answer["seconds"])
    for way, rates in found.items():
        table.figure(f"transfers/s of 4 KiB, telemetry {way}; three runs in turn", ", ".join(amount(rate) for rate in rates))


def load(world, table):
    """CPU time of the daemon, which counts all events meanwhile."""
    for agents, rate, title in ((1000, "0.01", "1,000 idle agents"), (64, "156.25", "64 agents, 40,000 events/s")):
        world.start(f"load-{agents}")

        def events():
            return world.pmcd.values("nixl.ring.events").get("nixl.ring.events", {})
        made = producer(world, "--name", "load", "--agents", str(agents), "--rate", rate, "--register", "4096", "--vary", "--on-full",
                        "drop")
        start = time.monotonic()
        within(15, lambda: len(events()) == agents, 0.5)
        time.sleep(2)
        used = [world.processor(4) for _ in range(2)]
        seconds = time.monotonic() - start
        made.send_signal(signal.SIGTERM)
        ends = written_by(world, made)
        written = {end["agent"]: end["events"] for end in ends}
        within(30, lambda: events() == written)
        shown, total, lost = events(), sum(written.values()), sum(end["lost"] for end in ends)
        table.check(f"{title}: all are seen", len(written) == agents and shown == written and all(written.values()),
                    f"{len(shown):,} agents, {sum(shown.values()):,} of {total:,} events at "
                    f"{amount((total + lost) / seconds)}/s, {lost:,} lost")
        table.figure(f"{title}: CPU time of pmdanixl, two times 4 s", ", ".join(f"{one:.2f} %" for one in used))


def model(world, table):
    """A prefill-decode pair whose KV cache goes by NIXL READ."""
    title = "prefill-decode pair of transformers"
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        table.leave_out(title, f"{' and '.join(absent)} not installed")
        return
    rings, device = world.start("model"), "cuda" if world.gpu else "cpu"
    prefill, decode = [Application(world, name, "model.py", name, device, telemetry=rings) for name in ("prefill", "decode")]
    target, identity = prefill.answer(), decode.answer()
    if "missing" in identity:
        table.leave_out(title, f"it needs {identity['missing']}")
        return
    world.loaded |= {target["nixl"], identity["nixl"]}
    decode.ask(connect=target["address"])
    answers = [decode.ask(decode=seed, next=prefill.ask(prefill=seed)["next"]) for seed in range(8)]
    table.figure("torch, transformers", f"{identity['torch']}, {identity['transformers']}")
    difference, uncached = max(one["difference"] for one in answers), min(one["uncached"] for one in answers)
    table.check(f"{title}, 8 prompts of 512 tokens: tokens and logits of a run without a split",
                all(one["right"] for one in answers) and difference < 1e-3 and uncached > 0.1,
                f"logits differ by {amount(difference)}; without the KV cache by {amount(uncached)}")
    sums = prefill.ask(sums=True) | decode.ask(sums=True)
    requests = sums["decode"]["rx_requests"]
    equal(world, table, f"{title}: sums of both agents", sums, requests == 8,
          f"; {requests} READs, {sums['decode']['rx_bytes']:,} bytes")


GROUPS = (pairs, model, cost, bursts, load)
