# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps without failures: figures, labels, sides."""

import os
import random
import threading
import time

import processes
from pair import Interval, next_line
from server import LOG_INTERVAL
from wait import until, within

REQUESTS = 60
ERRORS = "nixl.host.errors.total"


def sent(pair, report, active, requests=REQUESTS):
    """Sends requests through a pair and compares the figures of the server that transfers. Returns its interval."""
    other = pair.decode if active is pair.prefill else pair.prefill
    interval, idle = Interval(pair, active), Interval(pair, other)
    load = pair.load()
    rate = load.run(requests)
    report.say(f"{requests} requests: {load.text()}; {rate:.2f} requests/s")
    report.check("all requests succeeded", load.ends["ok"] == requests)
    interval.compare(report, requests * pair.ranks)
    pmda, vllm = idle.differences()
    report.check(f"{other.side} has no transfers in pmdanixl and in vLLM", not any(pmda.values()) and not vllm["transfers"])
    return interval


def sides(pair, report, active, kind):
    """Checks that only the active side has transfers, of this kind only, and that both sides have registered memory."""
    names = ("nixl.transfer.rx_requests", "nixl.transfer.tx_requests", "nixl.memory.registered")
    values = pair.world.pmcd.values(*names)
    for server in pair.prefill, pair.decode:
        got = {name.rpartition(".")[2]: sum(values[name].get(instance, 0) for instance in pair.agents(server)) for name in names}
        wanted = {f"{one}_requests": server is active and one == kind for one in ("rx", "tx")}
        right = all((got[name] > 0) == busy for name, busy in wanted.items()) and got["registered"] > 0
        report.check(f"{server.side} has {kind + ' and ' if server is active else ''}registered memory, nothing else", right,
                     ", ".join(f"{name} {value:,}" for name, value in got.items()))


def labels(pair, report):
    """Checks the labels of all agents of a pair against its command lines and its processes, and prints them."""
    values, found = pair.world.pmcd.pminfo("nixl.agent.pid", "nixl.agent.command")
    for server in pair.prefill, pair.decode:
        for instance, (pid, rank) in pair.agents(server).items():
            label = found.get(instance, {})
            wanted = {"engine": "vllm", "role": {"kv_producer": "prefill", "kv_consumer": "decode"}.get(server.role, "both"),
                      "port": str(server.port), "rank": rank, "telemetry": "store" if pair.writes == "stores" else "ring"}
            got = {name: label.get(name) for name in wanted}
            report.say(f"{server.side}, pid {pid}: {instance}: " + " ".join(f"{name}={label[name]}" for name in sorted(label)))
            report.check(f"labels of {server.side} pid {pid}", got == wanted, "as expected" if got == wanted else
                         f"{got}, not {wanted}")
            title = "VLLM::Worker" + (f"_{rank}" if rank else "")
            shown = [values.get(f"nixl.agent.{name}", {}).get(instance) for name in ("pid", "command")]
            report.check("nixl.agent.pid and .command are those of the worker", shown == [pid, title], shown)
        report.check(f"{server.side} has {server.ranks} agents", len(pair.agents(server)) == server.ranks)


def silent(pair, report):
    """Checks that no process of a pair counts as one without telemetry."""
    own = {pid for server in (pair.prefill, pair.decode) for pid in processes.descendants(server.process.pid)}
    listed = pair.world.pmcd.silent()
    report.check("pmdanixl --check lists no process of the servers as one without telemetry", not own & listed,
                 f"{len(own & listed)} of {len(own)}")
    if listed - own:
        report.say(f"nixl.host.processes.silent is not checked: {len(listed - own)} other processes of this host use NIXL")
    else:
        # Processes are scanned once a minute.
        right = within(150, lambda: pair.world.pmcd.value("nixl.host.processes.silent") == 0, 5)
        report.check("nixl.host.processes.silent is 0", right, pair.world.pmcd.value("nixl.host.processes.silent"))


def percentile(pair, report):
    """Compares the 90th percentile of transfer times with that of vLLM's log, over the same transfers."""
    server, name = pair.decode, "nixl.latency.xfer_time.p90"
    instance, = pair.agents(server)
    for _ in range(3):
        load = pair.load(seed=2)
        # vLLM logs a line only for an interval with transfers.
        lines = len(server.lines())
        load.run(1)
        next_line(server, lines)
        beat = time.monotonic()
        held = load.hold(REQUESTS)
        # The window of pmdanixl and the interval of vLLM's log must have only the transfers of these requests.
        until("the window of the percentiles is empty", lambda: instance not in pair.world.pmcd.values(name).get(name, {}), 120)
        time.sleep(LOG_INTERVAL - (time.monotonic() - beat) % LOG_INTERVAL + 1)
        lines = len(server.lines())
        load.finish(held)
        line = next_line(server, lines)
        if line["Num successful transfers"] == REQUESTS:
            pmda = pair.world.pmcd.values(name, "nixl.latency.post_time.p90")
            report.heads(f"of {REQUESTS} transfers", "pmdanixl", "vLLM", "")
            for metric, title in ((name, "xfer"), ("nixl.latency.post_time.p90", "post")):
                report.row(f"P90 of {title} times, us", pmda.get(metric, {}).get(instance), line[f"P90 {title} time (ms)"] * 1e3, 5)
            return
        report.say(f"vLLM's log has these transfers in more than one line, the first with {line['Num successful transfers']:.0f}:"
                   " trying again")
    report.check("the transfers fit into one interval of vLLM's log", False)


def pull(world, report):
    """Tests two servers with role kv_both; decode reads."""
    pair = world.pair()
    sent(pair, report, pair.decode)
    sides(pair, report, pair.decode, "rx")
    labels(pair, report)
    silent(pair, report)
    percentile(pair, report)
    report.check("no errors are counted", world.pmcd.value(ERRORS) == 0)


def roles(world, report):
    """Tests a producer and a consumer; decode reads."""
    pair = world.pair(roles=("kv_producer", "kv_consumer"))
    sent(pair, report, pair.decode)
    sides(pair, report, pair.decode, "rx")
    labels(pair, report)


def ranks(world, report):
    """Tests two ranks on each side."""
    pair = world.pair(ranks=2)
    interval = sent(pair, report, pair.decode)
    shown = world.pmcd.values("nixl.transfer.rx_requests")["nixl.transfer.rx_requests"]
    report.say("transfers by rank: " + ", ".join(f"{rank} {shown.get(instance, 0)}"
                                                 for instance, (_, rank) in pair.agents(pair.decode).items()))
    report.check("each rank has the same number of transfers", len({shown.get(one) for one in interval.instances}) == 1)
    sides(pair, report, pair.decode, "rx")
    labels(pair, report)
    silent(pair, report)


def tcp(world, report):
    """Tests what is counted on the sockets of the servers' workers, with all transfers over TCP."""
    pair, pmcd = world.pair(transports="tcp,self"), world.pmcd
    (instance, (pid, _)), = pair.agents(pair.decode).items()
    load = pair.load(seed=3)
    name, shares = "nixl.agent.tcp_share", []
    # A share is of the last minute, and is updated every 10 s.
    for _ in range(8):
        load.run(REQUESTS // 2)
        share = pmcd.values(name).get(name, {}).get(instance)
        shares += [] if share is None else [share]
    report.check("in the end the share of the bytes over TCP is 0.95 to 1.2", shares and 0.95 <= shares[-1] <= 1.2,
                 ", ".join(f"{share:.3f}" for share in shares) or "no value")
    for server in pair.prefill, pair.decode:
        values = pmcd.values(*(f"nixl.process.tcp.{name}" for name in ("tx_bytes", "rx_bytes", "retransmits")))
        for _, (worker, _) in pair.agents(server).items():
            row = {name.rpartition(".")[2]: one for name in values for process, one in values[name].items()
                   if process.split()[0] == str(worker)}
            report.say(f"{server.side}, pid {worker}: " + ", ".join(f"{name} {value:,}" for name, value in row.items()))
    moved = pair.now([instance])["bytes"]
    report.say(f"NIXL: {moved:,} bytes by pid {pid}")


def pauses(world, report):
    """Checks that no agent is suspected of a stalled transfer while requests come in bursts with pauses."""
    # NIXL's progress threads spin over TCP. Where they have all CPUs, no other process runs for up to a minute at a time, and what is
    # to be tested has no chance: a CPU is left to others.
    cpus = os.sched_getaffinity(0)
    world.no_pair()
    os.sched_setaffinity(0, sorted(cpus)[1:] or cpus)
    try:
        pair, pmcd, minutes = world.pair(transports="tcp,self"), world.pmcd, float(os.environ.get("MINUTES", "5"))
    finally:
        os.sched_setaffinity(0, cpus)
    names = [f"nixl.agent.stall.{part}" for part in ("state", "age", "peer", "reason")]
    waits, ended = random.Random(4), threading.Event()
    samples, suspected = [], []

    def sample():
        while not ended.wait(1):
            values = pmcd.values(*names)
            states = values.get(names[0], {})
            samples.append((time.monotonic(), len(states)))
            for instance, state in states.items():
                if state:
                    shown = [instance, state, *(values[name].get(instance) for name in names[1:])]
                    suspected.append(f"{shown}, load {os.getloadavg()[0]:.0f}, {time.strftime('%H:%M:%S')}")

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    load, bursts, silences, end = pair.load(seed=4), 0, [], time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        load.run(waits.randint(1, REQUESTS))
        pause = waits.choice((1, 10, 40, 100)) * waits.uniform(0.5, 1)
        bursts, begin = bursts + 1, time.monotonic()
        time.sleep(pause)
        silences.append((begin, time.monotonic()))
    ended.set()
    sampler.join()
    # An agent is suspected after 30 s at the earliest, and has a state then if its process could be read.
    longest = max(end - begin for begin, end in silences)
    known = [any(begin + 35 < at < end and count == 2 for at, count in samples) for begin, end in silences if end - begin > 45]
    report.say(f"{minutes:g} minutes: {bursts} bursts, {load.text()} requests; longest pause {longest:.0f} s")
    report.check("both agents have a state in each pause of more than 45 s", all(known),
                 f"{sum(known)} of {len(known)}; in {sum(count == 2 for _, count in samples)} of {len(samples)} samples")
    report.check("no agent is suspected", not suspected, "\n".join(suspected) or None)


def stores(world, report):
    """Tests stores in place of rings."""
    pair = world.pair(writes="stores")
    sent(pair, report, pair.decode)
    sides(pair, report, pair.decode, "rx")
    labels(pair, report)
    silent(pair, report)


def push(world, report):
    """Tests the push connector; prefill writes."""
    pair = world.pair(roles=("kv_producer", "kv_consumer"), connector="NixlPushConnector")
    # Few requests, because vLLM stops for a minute at times.
    sent(pair, report, pair.prefill, REQUESTS // 3)
    sides(pair, report, pair.prefill, "tx")
    labels(pair, report)
