# SPDX-License-Identifier: GPL-2.0-or-later
"""What an exporter shows: its output, the number of events in it, and which kinds of figures it has.

A value is a tuple of the name of the metric, the name of the agent ("" for other values), and a number.
"""

import re

SIZE = 4096  # bytes per transfer
RANK = re.compile(r"rank-\d+$")

INSTANCE = re.compile(r'    inst \[\d+ or "(.*)"\] value (\S+)$')
SERIES = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)$")
AGENT = re.compile(r'agent_name="([^"]*)"')

# A transfer makes four events: its request, its bytes, its time and its time to post. These metrics show their number, if each value
# is divided by the number here.
EVENTS = {
    "nixl.transfer.tx_requests": 1, "nixl.transfer.rx_requests": 1,
    "nixl.transfer.tx_bytes": SIZE, "nixl.transfer.rx_bytes": SIZE,
    "nixl.latency.xfer_time.histogram": 1, "nixl.latency.post_time.histogram": 1,
    "agent_tx_requests_num_total": 1, "agent_rx_requests_num_total": 1,
    "agent_tx_bytes_total": SIZE, "agent_rx_bytes_total": SIZE,
    "agent_xfer_time_us_count": 1, "agent_xfer_post_time_us_count": 1,
}
# Metrics that show losses: NIXL's own EVENTS_DROPPED, and how often pmdanixl has found a ring full.
LOSSES = {"nixl.queue.dropped": "dropped", "agent_telemetry_events_dropped_total": "dropped", "nixl.ring.full": "full rings"}

# Kinds of figures, by the names of metrics of any exporter. NAME{quantile} is a quantile of a summary of Prometheus.
FIGURES = {
    "histograms": re.compile(r"(\.histogram|_bucket)$"),
    "percentiles": re.compile(r"(\.p\d+|\{quantile\})$"),
    "drops": re.compile(r"dropped"),
    "TCP share": re.compile(r"tcp_?(share|ratio|fraction)"),
}


def of_pminfo(text):
    """Returns the values in the output of `pminfo -f`. Those that are texts are left out."""
    values, metric = [], ""
    for line in text.splitlines():
        match = INSTANCE.match(line)
        if match:
            add(values, metric, match[1].partition("::")[0], match[2])
        elif line.startswith("    value "):
            add(values, metric, "", line[len("    value "):])
        elif line and not line.startswith(" "):
            metric = line.split()[0]
    return values


def of_prometheus(text):
    """Returns the values in an answer to a scrape."""
    values = []
    for line in text.splitlines():
        match = SERIES.match(line)
        if match:
            labels = match[2] or ""
            agent = AGENT.search(labels)
            add(values, match[1] + ("{quantile}" if "quantile=" in labels else ""), agent[1] if agent else "", match[3])
    return values


def add(values, metric, agent, text):
    """Adds a value if it is a number."""
    try:
        values.append((metric, agent, float(text)))
    except ValueError:
        pass


def ranks(values):
    """Returns the ranks that have a value."""
    return {agent for _, agent, _ in values if RANK.match(agent)}


def events(values):
    """Returns the number of transfers' events that are shown, by rank."""
    shown = dict.fromkeys(ranks(values), 0)
    for metric, agent, value in values:
        if metric in EVENTS and agent in shown:
            shown[agent] += value / EVENTS[metric]
    return shown


def losses(values):
    """Returns the sums of the metrics that show losses."""
    found = {}
    for metric, agent, value in values:
        if metric in LOSSES and RANK.match(agent):
            found[LOSSES[metric]] = found.get(LOSSES[metric], 0) + value
    return found


def figures(values):
    """Returns the number of ranks that have each kind of figures."""
    return {kind: len({agent for metric, agent, _ in values if RANK.match(agent) and pattern.search(metric)})
            for kind, pattern in FIGURES.items()}
