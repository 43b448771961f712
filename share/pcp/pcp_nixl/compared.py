# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparison of hosts: on which one servers take longer than on the others, as the alert NixlSlowHost finds it."""
from .report import SLOW_RATIO, server_parts

# Fewer hosts with a server of the same engine and role are not compared.
LEAST_HOSTS = 3
# Larger transfers take longer: servers with more than this part of the bandwidth of the others are not slow.
SAME_BANDWIDTH = 0.5


def median(values):
    """Returns the median, of an even number the lower of the two in the middle, as for peer_ratio. None without values."""
    values = sorted(value for value in values if value is not None)
    return values[(len(values) - 1) // 2] if values else None


def typical(sample):
    """Returns the median time and the median bandwidth of the agents, by engine and role of their server."""
    agents = {}
    for inst, time in sample.values.get("p50", {}).items():
        server = sample.value("server", inst)
        if server:
            agents.setdefault(server_parts(server)[:2], []).append((time, sample.value("bandwidth", inst)))
    return {server: tuple(map(median, zip(*figures))) for server, figures in agents.items()}


def compare(rows):
    """Gives each row with a slow server `slow_server`, engine and role, and `host_ratio`, its time in times of the other hosts."""
    for row in rows:
        row.slow_server = row.host_ratio = None
    for server in {server for row in rows for server in row.typical}:
        some = [row for row in rows if server in row.typical]
        time, bandwidth = [median(row.typical[server][at] for row in some) for at in (0, 1)]
        for row in some if len(some) >= LEAST_HOSTS else ():
            own, own_bandwidth = row.typical[server]
            is_fast = None not in (own_bandwidth, bandwidth) and own_bandwidth > SAME_BANDWIDTH * bandwidth
            if time and own > max(SLOW_RATIO * time, (row.host_ratio or 0) * time) and not is_fast:
                row.slow_server, row.host_ratio = " ".join(filter(None, server)), own / time
