# SPDX-License-Identifier: GPL-2.0-or-later
"""Cost of telemetry for an application: requests per second with telemetry drained, not drained, and off."""

import contextlib
import os
import statistics

from pair import Pair

ROUNDS = 5
REQUESTS = 30


def cost(world, report):
    """Measures two pairs, one with rings and one without telemetry, in alternating runs."""
    with_rings = world.pair()
    without = Pair(world, writes=None)
    rates = {"drained": [], "not drained": [], "telemetry off": []}
    try:
        for number in range(ROUNDS):
            for kind in rates if number % 2 == 0 else reversed(list(rates)):
                pair = without if kind == "telemetry off" else with_rings
                load = pair.load(seed=10 + number)
                with world.pmcd.paused() if kind == "not drained" else contextlib.nullcontext():
                    rates[kind].append(load.run(REQUESTS))
                report.say(f"run {number + 1}, {kind}: {rates[kind][-1]:.2f} requests/s ({load.text()}), load average "
                           f"{os.getloadavg()[0]:.1f}")
    finally:
        without.stop()
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    for kind, found in rates.items():
        report.say(f"{kind:<14} median {medians[kind]:.2f} requests/s, {min(found):.2f} to {max(found):.2f}")
    spread = max((max(found) - min(found)) / medians[kind] for kind, found in rates.items())
    apart = (max(medians.values()) - min(medians.values())) / medians["telemetry off"]
    report.say(f"medians differ by {apart:.1%}, runs of one kind by up to {spread:.1%}: " +
               ("a cost is at most that" if apart < spread else "more than the runs differ"))
    report.check("all runs have requests that ended well", all(rate > 0 for found in rates.values() for rate in found))
