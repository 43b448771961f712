# SPDX-License-Identifier: GPL-2.0-or-later
"""The rows of `make gpu`. Each function adds some rows to the table."""

import importlib.util
import json
import os
import signal
import subprocess
import time

import card
from table import amount
from world import Pair, Program, processes, within

KIB, MIB = 1 << 10, 1 << 20
ROUND, ROUNDS = 5, 12  # seconds of steady load between two looks for tcp_share, and the most rounds
CAPACITY = 4096  # slots of a ring by default; one of them stays empty
BURST = 2000
EVENTS = 4  # of a transfer: its request, its bytes, its time and its time to post


def pairs(world, table):
    """Five pairs of processes, and one with two agents in each process: sums, shares, labels."""
    rings, uuid = world.start("pairs"), world.card.uuid if world.card else "GPU-00000000-0000-0000-0000-000000000000"
    number = str(world.card.index if world.card else 0)
    tcp = "tcp,cuda_copy" if world.card else "tcp"

    def pair(agents, **environment):
        return Pair(world, agents, rings, **environment)
    every = {
        "number": pair({"by-number": world.kind}, CUDA_VISIBLE_DEVICES=number),
        "uuid": pair({"by-uuid": world.kind}, CUDA_VISIBLE_DEVICES=uuid),
        "late": pair({"set-late": world.kind}, LATE_DEVICES=number),
        "tcp": pair({"by-tcp": world.kind}, UCX_TLS=tcp),
        "host": pair({"host-memory": "DRAM"}, CUDA_VISIBLE_DEVICES=""),
        "two": pair({"first": world.kind, "second": "DRAM"}),
    }
    try:
        for one in every.values():
            one.connect()
        done = steady(world, table, every)
        done += sizes(world, table, every)
        sums = {}
        for one in every.values():
            sums |= one.sums()
        wrong = world.differences(sums)
        count = sum(map(len, sums.values()))
        table.check(f"sums of {len(sums)} agents after {done:,} transfers: requests, bytes, both times, registered", not wrong,
                    f"{count - len(wrong)} of {count} equal" + "".join(f"; {one}" for one in wrong))
        labels(world, table, every)
        table.figure("telemetry lost meanwhile", f"`ring.full` {lost(world)[0]}, `ring.dropped` {lost(world)[1]}")
    finally:
        for one in every.values():
            one.end()


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
    high = shares.get("by-tcp")
    # NIXL counts the bytes of a transfer at its end, TCP at once.
    table.check("`tcp_share` with UCX_TLS=tcp", high is not None and 0.9 <= high <= 1.5, amount(high))
    others = [shares.get(name) for name in names if name != "by-tcp"]
    table.check("`tcp_share` of the others", None not in others and max(others) < 0.05, ", ".join(map(amount, others)))
    seen = [name for name in every["two"].names if name in shares]
    table.check("`tcp_share` of two agents in a process: none, the bytes of a process are not divided", not seen,
                ", ".join(seen) or "none")
    found = world.pmcd.values("nixl.latency.xfer_time.p50", "nixl.bandwidth.p50")
    for name in ("by-number", "by-tcp", "host-memory"):
        times, speeds = (found.get(f"nixl.{name}.p50", {}) for name in ("latency.xfer_time", "bandwidth"))
        table.figure(f"p50 and bandwidth.p50 of 16 MiB, `{name}`",
                     f"{amount(times.get(name, 0) / 1e3)} ms, {amount(speeds.get(name, 0) / 1e6)} MB/s")
    return done


def sizes(world, table, every):
    """Transfers of other sizes, and a large READ. Returns their number. The counts of small ones fit into a ring."""
    done = 0
    for size, count, few in ((4 * KIB, 900, 6), (MIB, 500, 6), (64 * MIB, 20, 1)):
        for one in every.values():
            one.start("WRITE", size, few if one is every["tcp"] else count // len(one.names))
        done += sum(one.initiator.answer()["transfers"] for one in every.values())
        time.sleep(0.3)
    for one in every.values():
        one.start("READ", 4 * KIB, 3 if one is every["tcp"] else 450 // len(one.names))
    done += sum(one.initiator.answer()["transfers"] for one in every.values())
    for op in ("WRITE", "READ"):
        answer = every["number"].run(op, 64 * MIB, count=1)
        table.figure(f"one {op} of 64 MiB, `by-number`", f"{amount(1e3 * answer['seconds'])} ms")
    return done + 2


def labels(world, table, every):
    """The label `gpu` for each way to choose a GPU, what it joins, and facts of the processes."""
    values, found = world.pmcd.pminfo("nixl.agent.pid", "nixl.process.agents", "nixl.process.nixl_version")
    minor = str(world.card.minor) if world.card else None
    ways = {
        "number": ("a number", str(world.card.index if world.card else 0)),
        "uuid": ("a UUID", world.card.uuid if world.card else "GPU-00000000-0000-0000-0000-000000000000"),
        "tcp": ("not set", minor), "late": ("set after the start", minor), "host": ("empty", None),
    }
    gpus = {}
    for way, (title, wanted) in ways.items():
        gpus[way] = found.get(every[way].names[0], {}).get("gpu")
        # A process has the device files of all GPUs that it looks at, not only of the one that it uses.
        right = gpus[way] == wanted or bool(wanted and gpus[way]) and way in ("tcp", "late") and wanted in gpus[way].split(",")
        table.check(f"label `gpu`, CUDA_VISIBLE_DEVICES {title}", right, gpus[way] or "none")
    if world.card:
        uuids = card.kernel_uuids()
        right = gpus["number"] == str(world.card.index) and gpus["uuid"] == world.card.uuid == every["uuid"].hello["uuid"]
        table.check("label `gpu` joins PCP's PMDA nvidia: number and UUID in NVML", right,
                    f"gpu{world.card.index}, {world.card.uuid}")
        if uuids:
            table.check("UUID in /proc/driver/nvidia/gpus", uuids.get(world.card.minor) == world.card.uuid,
                        uuids.get(world.card.minor, "none"))
    two, pids = every["two"], values["nixl.agent.pid"]
    shown = [pids.get(name) for name in two.names]
    pid = str(two.hello["pid"])
    agents = [count for process, count in values["nixl.process.agents"].items() if process.split()[0] == pid]
    table.check("a second agent in a process: `agent.pid` of both, `process.agents`",
                shown == [two.hello["pid"]] * 2 and agents == [2], f"{'equal' if len(set(shown)) == 1 else shown}, {agents}")
    versions = {version for process, version in values["nixl.process.nixl_version"].items()
                if process.split()[0] in {str(one.hello["pid"]) for one in every.values()}}
    table.check("`process.nixl_version`", versions == {two.hello["nixl"]}, ", ".join(sorted(versions)) or "none")


def lost(world):
    """Returns the sums of nixl.ring.full and nixl.ring.dropped."""
    found = world.pmcd.values("nixl.ring.full", "nixl.ring.dropped")
    return [sum(found.get(f"nixl.ring.{name}", {}).values()) for name in ("full", "dropped")]


def bursts(world, table):
    """Bursts that are larger than a ring: of NIXL with the daemon running and stopped, and of the sample producer."""
    pair = Pair(world, {"burst": "DRAM"}, world.start("bursts")).connect()
    try:
        def events():
            return world.value("nixl.ring.events", "burst") or 0
        pair.run("WRITE", 4 * KIB, count=100)
        within(5, lambda: events() == 1 + 100 * EVENTS, 0.2)
        before = events()
        answer = pair.run("WRITE", 4 * KIB, count=BURST)
        time.sleep(1)
        counted, (full, dropped) = events() - before, lost(world)
        missing = BURST * EVENTS - counted
        table.check(f"{BURST:,} transfers of host memory at {amount(BURST / answer['seconds'])}/s: no silent loss",
                    before == 1 + 100 * EVENTS and missing >= 0 and (missing > 0) == (full + dropped > 0),
                    f"{missing:,} of {BURST * EVENTS:,} events lost, `ring.full` {full}, `ring.dropped` {dropped}")
        before = events()
        world.pmcd.signal_pmda(signal.SIGSTOP)
        pair.run("WRITE", 4 * KIB, count=BURST)
        time.sleep(1)
        world.pmcd.signal_pmda(signal.SIGCONT)
        time.sleep(1)
        counted, more = events() - before, lost(world)[0] - full
        table.check(f"{BURST:,} transfers while the daemon is stopped: the ring keeps {CAPACITY - 1:,} events",
                    counted == CAPACITY - 1 and more == 1, f"{counted:,} of {BURST * EVENTS:,} events counted, `ring.full` {more}")
    finally:
        pair.end()
    made = producer(world, "--name", "sample", "--transfers", str(BURST), "--burst", str(BURST), "--rate", "0", "--on-full", "drop")
    written = json.loads(made.communicate(timeout=30)[0].splitlines()[-1])
    end(made)
    within(5, lambda: world.value("nixl.ring.events", "sample") == written["events"], 0.2)
    counted = world.value("nixl.ring.events", "sample")
    table.check("a burst of the sample producer: counted + lost = sent", counted + written["lost"] == BURST * EVENTS,
                f"{counted:,} + {written['lost']:,} = {BURST * EVENTS:,} events")


def producer(world, *arguments):
    """Starts the sample producer on the rings of the current daemon."""
    log = open(os.path.join(world.directory, "producer.log"), "a", encoding="utf-8")
    with log:
        return processes.start([world.producer, "--dir", world.read, *arguments], log, os.environ, stdout=subprocess.PIPE)


def end(process):
    """Ends a process."""
    process.kill()
    processes.end(process)
    process.stdout.close()


def cost(world, table):
    """Transfers per second of an application: without telemetry, with rings that nothing reads, and with rings that the daemon reads."""
    rings = world.start("cost")
    unread = os.path.join(world.rings, "unread")
    os.mkdir(unread)
    ways = {"off": ("app-off", None), "on, no reader": ("app-unread", unread), "read by pmdanixl": ("app", rings)}
    made = {way: Pair(world, {name: world.kind}, directory) for way, (name, directory) in ways.items()}
    found = {way: [] for way in ways}
    try:
        for pair in made.values():
            pair.connect().run("WRITE", 4 * KIB, seconds=0.5, times=False)
        for _ in range(3):
            for way, pair in made.items():
                answer = pair.run("WRITE", 4 * KIB, seconds=1.5, times=False)
                found[way].append(answer["transfers"] / answer["seconds"])
    finally:
        for pair in made.values():
            pair.end()
    for way, rates in found.items():
        table.figure(f"transfers/s of 4 KiB, telemetry {way}; three runs in turn", ", ".join(amount(rate) for rate in rates))


def load(world, table):
    """Processor time of the daemon."""
    for agents, rate, title in ((1000, "0.01", "1,000 idle agents"), (64, "156.25", "64 agents, 40,000 events/s")):
        world.start(f"load-{agents}")
        made = producer(world, "--name", "load", "--agents", str(agents), "--rate", rate, "--vary", "--on-full", "drop")
        try:
            within(15, lambda: len(world.pmcd.values("nixl.ring.events").get("nixl.ring.events", {})) == agents, 0.5)
            time.sleep(2)
            used = [world.processor(4) for _ in range(2)]
            seen = len(world.pmcd.values("nixl.ring.events")["nixl.ring.events"])
            table.check(f"{title}: all are seen", seen == agents, f"{seen:,}")
            table.figure(f"{title}: processor time of pmdanixl, two times 4 s", ", ".join(f"{one:.2f} %" for one in used))
        finally:
            end(made)


def model(world, table):
    """A prefill-decode pair whose KV cache goes by NIXL READ."""
    title = "prefill-decode pair of transformers"
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        table.leave_out(title, f"{' and '.join(absent)} not installed")
        return
    rings, device = world.start("model"), "cuda" if world.card else "cpu"
    sides = [Program(world, name, "model.py", name, device, telemetry=rings) for name in ("prefill", "decode")]
    try:
        prefill, decode = sides
        addresses, hello = prefill.answer()["addresses"], decode.answer()
        decode.ask(connect=addresses)
        answers = [decode.ask(decode=seed, next=prefill.ask(prefill=seed)["next"]) for seed in range(8)]
        table.figure("torch, transformers", f"{hello['torch']}, {hello['transformers']}")
        apart, without = max(one["difference"] for one in answers), min(one["without"] for one in answers)
        table.check(f"{title}, 8 prompts of 512 tokens: tokens and logits of a run without a split",
                    all(one["right"] for one in answers) and apart < 1e-3 and without > 0.1,
                    f"logits apart {amount(apart)}; without the KV cache {amount(without)}")
        sums = prefill.ask(sums=True) | decode.ask(sums=True)
        wrong = world.differences(sums)
        requests, count = sums["decode"]["rx_requests"], sum(map(len, sums.values()))
        table.check(f"{title}: sums of both agents", not wrong and requests == 8,
                    f"{count - len(wrong)} of {count} equal; {requests} READs, {sums['decode']['rx_bytes']:,} bytes")
    finally:
        for side in sides:
            side.end()
