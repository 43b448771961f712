#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Computes the stats of a stream of events independently of the daemon: by their definitions, over all values, in plain Python.

    qa/figures.py qa/streams/nixl-1.5.1.txt

reads lines of TYPE and VALUE, in the order of the ring (types as on the wire, # begins a comment), and prints JSON:

totals        sum of the values of each event type, by name
events        number of events; unknown: number of events of an unknown type
last          last value of each event type, by name; null without events
errors        total: sum of the 12 error types; last: name of the last one, or null
latency       xfer_time and post_time: counts per bucket in NIXL's bounds, and p50, p90, p99, max, microseconds
size          counts per bucket of bytes per transfer
bandwidth     counts per bucket of byte/s per transfer, and p10, p50, p90
paired        number of transfers with both time and bytes; unpaired: number of times and bytes without the other
vllm          figures of vLLM's line "KV Transfer metrics" that follow from a ring; MB is 2^20 bytes

A percentile is interpolated as numpy.percentile does by default. Buckets are not cumulative. Their upper bounds are inclusive, and the
last bucket has the values above all bounds.
"""

import json
import sys

NAMES = ("tx_bytes", "rx_bytes", "tx_requests", "rx_requests", "registered", "deregistered", "xfer_time", "post_time",
         "not_posted", "invalid_param", "backend", "not_found", "mismatch", "not_allowed", "repost_active", "unknown",
         "not_supported", "remote_disconnect", "canceled", "no_telemetry", "dropped")
BYTES, TIME, POST, ERRORS = (0, 1), 6, 7, range(8, 20)

LATENCY = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 5000000,
           10000000)
SIZE = [2048 * 4 ** number for number in range(12)]
BANDWIDTH = [1000000 * 2 ** number for number in range(20)]


def read(path):
    """Returns the events of a file."""
    with open(path, encoding="ascii") as file:
        lines = [line.split("#")[0].split() for line in file]
    return [(int(line[0]), int(line[1])) for line in lines if line]


def histogram(values, bounds):
    """Returns the number of values in each bucket."""
    lower = [-1, *bounds]
    upper = [*bounds, float("inf")]
    return [sum(low < value <= high for value in values) for low, high in zip(lower, upper)]


def percentile(values, percent):
    """Returns a percentile, interpolated between two values, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    index, rest = divmod((len(ordered) - 1) * percent, 100)
    lower, upper = ordered[index], ordered[min(index + 1, len(ordered) - 1)]
    return lower + (upper - lower) * rest / 100


def percentiles(values, *percents):
    return {f"p{percent}": percentile(values, percent) for percent in percents}


def latency(values):
    return dict(buckets=histogram(values, LATENCY), **percentiles(values, 50, 90, 99), max=max(values, default=None))


def pairs(events):
    """Returns bytes and microseconds of each transfer: a transfer time, and the bytes directly after it."""
    return [(second[1], first[1]) for first, second in zip(events, events[1:])
            if first[0] == TIME and second[0] in BYTES]


def vllm(values):
    """Returns vLLM's figures, without its rounding to 3 digits."""
    mega = 1 << 20

    def mean(numbers, unit):
        return sum(numbers) / len(numbers) / unit if numbers else None

    def p90(numbers):
        return percentile(numbers, 90) / 1000 if numbers else None

    moved = values[0] + values[1]
    seconds = sum(values[TIME]) / 1e6
    return {
        "Num successful transfers": sum(values[2]) + sum(values[3]),
        "Avg xfer time (ms)": mean(values[TIME], 1000),
        "P90 xfer time (ms)": p90(values[TIME]),
        "Avg post time (ms)": mean(values[POST], 1000),
        "P90 post time (ms)": p90(values[POST]),
        "Avg MB per transfer": mean(moved, mega),
        "Throughput (MB/s)": sum(moved) / mega / seconds if seconds else None,
    }


def figures(events):
    values = [[value for kind, value in events if kind == number] for number in range(len(NAMES))]
    errors = [kind for kind, _ in events if kind in ERRORS]
    transfers = pairs(events)
    # Integer byte/s. A transfer of 0 us counts as 1 us.
    bandwidths = [size * 1000000 // max(time, 1) for size, time in transfers]
    sizes = values[0] + values[1]
    halves = len(sizes) + len(values[TIME])
    return {
        "totals": {name: sum(of) for name, of in zip(NAMES, values)},
        "events": len(events),
        "unknown": sum(kind >= len(NAMES) for kind, _ in events),
        "last": {name: of[-1] if of else None for name, of in zip(NAMES, values)},
        "errors": {"total": sum(sum(values[kind]) for kind in ERRORS), "last": NAMES[errors[-1]] if errors else None},
        "latency": {"xfer_time": latency(values[TIME]), "post_time": latency(values[POST])},
        "size": {"buckets": histogram(sizes, SIZE)},
        "bandwidth": dict(buckets=histogram(bandwidths, BANDWIDTH), **percentiles(bandwidths, 10, 50, 90)),
        "paired": len(transfers),
        "unpaired": halves - 2 * len(transfers),
        "vllm": vllm(values),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: qa/figures.py FILE")
    json.dump(figures(read(sys.argv[1])), sys.stdout, indent=1)
    print()
