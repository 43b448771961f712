# SPDX-License-Identifier: GPL-2.0-or-later
"""The report of one host: one line for each agent, or JSON."""
import json

from .source import COUNTERS, HOST, METRICS, TEXTS, rate
from .text import cut, duration, fitted, natural, printable, scaled, text_width, total

# What distinguishes servers and ranks, in the order of the sort key. Only the pod is a label: archives of PCP before 6.3.4 lack the
# labels of agents that start after pmlogger.
PARTS = ("engine", "role", "port", "pod", "rank")
ROLES = ("prefill", "decode", "both")

# More than this share of the bytes over TCP is a fallback.
FALLBACK_SHARE = 0.5
STATES = {0: "unknown", 1: "live", 2: "idle", 3: "exited"}
STALLS = {0: "none", 1: "suspect", 2: "stalled"}
# What the column STATE has in place of the state.
STALL_MARKS = {1: "stall?", 2: "stall!"}
SLOW_MARK = "slow!"
# An agent with more than this ratio to its peers is slow.
SLOW_RATIO = 3
# Lines of a screen without an agent: two above the agents, and the number of agents that are left out.
OTHER_LINES = 3
# Minimum width of the AGENT column, without and with a SERVER column.
MIN_NAME_WIDTH = 14
MIN_NAME_WIDTH_WITH_SERVER = 8
MIN_SERVER_WIDTH = 12
# A command, in place of a server, takes at most this part of a line.
COMMAND_PART = 5


def percent(value):
    """Formats a share in percent, in at most four characters. A share that shows a fallback to TCP is marked."""
    return "-" if value is None else "{:.0f}{}".format(min(100 * value, 999), "!" if value > FALLBACK_SHARE else "")


def state(value):
    """Returns the word for a state, or the number of an unknown state."""
    short = {0: "?", 4: "unsup."}
    return "-" if value is None else short.get(value, STATES.get(value, str(value)))


class Column(object):
    """A column of the report."""

    def __init__(self, head, width, key, formatter):
        self.head, self.width, self.key, self.formatter = head, width, key, formatter

    def text(self, agent):
        """Returns the text of this column for an agent."""
        mark = None
        if self.key == "state":
            mark = STALL_MARKS.get(agent.get("stall")) or (SLOW_MARK if (agent.get("peer_ratio") or 0) > SLOW_RATIO else None)
        return (mark or self.formatter(agent.get(self.key))).rjust(self.width)


# The columns after AGENT and SERVER. TCP% is there if an agent has a share.
COLUMNS = (
    Column("STATE", 6, "state", state),
    Column("TX/s", 5, "tx_rate", scaled),
    Column("RX/s", 5, "rx_rate", scaled),
    Column("XFER/s", 6, "xfer_rate", scaled),
    Column("P50", 6, "p50", duration),
    Column("P99", 6, "p99", duration),
    Column("BW", 5, "bandwidth", scaled),
    Column("TCP%", 4, "shown_share", percent),
    Column("ERR", 5, "errors", total),
    Column("FULL", 5, "full", total),
    Column("DROP", 5, "dropped", total),
)

# A line with SERVER always has room for one more column.
WIDEST_COLUMN = max(column.width for column in COLUMNS)

# Sort keys: the column head in lower case without its unit, and "bytes", the sum of sent and received.
KEYS = {column.head.split("/")[0].rstrip("%").lower(): column.key for column in COLUMNS}
KEYS.update({"agent": "name", "bytes": "byte_rate", "server": "server"})
DEFAULT_KEY = "server"
# Columns that are left out first for the columns SERVER and TCP%, in this order.
SPARE_KEYS = ("bandwidth", "p50", "xfer_rate", "errors")
# Explanations of column heads in the usage message.
COLUMN_HELP = (
    ("SERVER", "engine, role:port and rank, else the command"),
    ("STATE", "stall!: transfers hang; stall?: they may hang; slow!: over 3 times the time of peers"),
    ("BW", "median bandwidth of single transfers in the last minute, bytes/s"),
    ("TCP%", "share of the bytes over TCP in the last minute; ! marks a fallback to TCP"),
    ("FULL", "how often the ring was full: telemetry may have been lost, how much is unknown"),
    ("DROP", "events that NIXL dropped before they reached the ring"),
)


def server_parts(server):
    """Returns engine, role and port of the value of nixl.agent.server, each None if it is not in the value."""
    words, _, port = (server or "").partition(":")
    words = words.split()
    role = words.pop() if words and words[-1] in ROLES else None
    return " ".join(words) or None, role, port or None


def by_server(agent):
    """Returns a sort key that puts the ranks of one server together, and agents without a server last."""
    if agent["server"] is None:
        return (1,)
    return (0, [natural(agent[part]) for part in PARTS], agent["name"])


def by_load(agent):
    """Returns a sort key by bytes per second, greatest first, then live agents first."""
    return (-(agent["byte_rate"] or 0), {1: 0, 2: 1}.get(agent["state"], 2))


class Report(object):
    """The figures of the interval between two samples."""

    def __init__(self, source, before, now, key):
        self.source, self.timestamp, self.key = source, now.timestamp, key
        self.interval = now.timestamp - before.timestamp
        names, labels, self.process_shares = source.names(), source.labels(now), source.process_shares(now)
        # An agent may disappear between the fetch of the values and of the names.
        agents = [
            self.agent(names[inst], labels.get(inst, {}), inst, before, now) for inst in now.instances() if inst in names
        ]
        agents.sort(key=lambda agent: agent["name"])
        if key != "name":
            # The greatest value first, agents without a value last. Agents without a server are sorted by bytes.
            value = "byte_rate" if key == "server" else key
            agents.sort(key=lambda agent: -1 if agent[value] is None else agent[value], reverse=True)
        if key == "server":
            agents.sort(key=by_server)
        self.agents = agents
        self.host_rates = [self.host_rate(before.values.get(name), now.values.get(name)) for name in HOST]

    def agent(self, name, labels, inst, before, now):
        """Returns the figures of an agent."""
        agent = {metric: now.value(metric, inst) for metric in METRICS}
        texts = {text: now.value(text, inst) for text in TEXTS}
        agent.update({text: printable(value) if value else None for text, value in texts.items()})
        agent["process_tcp_share"] = self.process_shares.get(agent["pid"]) if agent["tcp_share"] is None else None
        agent["shown_share"] = agent["tcp_share"] if agent["tcp_share"] is not None else agent["process_tcp_share"]
        agent["name"], agent["pod"] = name, labels.get("pod")
        agent["engine"], agent["role"], agent["port"] = server_parts(agent["server"])
        agent["server"] = " ".join(filter(None, (agent["server"], agent["rank"]))) or None
        rates = [rate(before.value(metric, inst), agent[metric], self.interval) for metric in COUNTERS]
        agent["tx_rate"], agent["rx_rate"] = rates[:2]
        agent["byte_rate"], agent["xfer_rate"] = both(rates[:2]), both(rates[2:])
        return agent

    def host_rate(self, before, now):
        """Returns the rate of a total of the host, from its only value."""
        return rate(*(next(iter((values or {}).values()), None) for values in (before, now)), self.interval)

    def heading(self, width):
        """Returns the first line: host, date if there is room, time, total rates, and agents by state."""
        day, time = self.source.clock(self.timestamp)
        parts = [self.source.host, day + time]
        for word, key, known in zip(("tx", "rx"), ("tx_rate", "rx_rate"), self.host_rates):
            # Archives and PMDAs without totals of the host have those of the agents.
            rates = [agent[key] for agent in self.agents if agent[key] is not None] if known is None else [known]
            parts.append("{} {}B/s".format(word, scaled(sum(rates)) if rates else "-"))
        counts = ["{} {}".format(self.count(number), word) for number, word in STATES.items() if self.count(number)]
        agents = "1 agent" if len(self.agents) == 1 else "{} agents".format(len(self.agents))
        parts.append(agents + (": " + ", ".join(counts) if counts else ""))
        if text_width("  ".join(parts)) > width:
            parts[1] = time
        while text_width("  ".join(parts)) > width and counts:
            # Only whole counts are removed: a shortened number would be wrong.
            counts.pop()
            parts[-1] = agents + (": " + ", ".join(counts + ["..."]) if counts else "")
        return cut("  ".join(parts), width)

    def count(self, number):
        """Returns the number of agents in a state."""
        return sum(1 for agent in self.agents if agent["state"] == number)

    def columns(self, room, has_server):
        """Returns the columns that fit, with the sort column. SPARE_KEYS make room for SERVER and TCP%, then the last columns."""
        has_share = self.key == "shown_share" or any(agent["shown_share"] is not None for agent in self.agents)
        columns = [column for column in COLUMNS if has_share or column.key != "shown_share"]
        spare = [key for key in SPARE_KEYS if key != self.key and (has_server or has_share)]
        while len(columns) > 1 and sum(column.width + 1 for column in columns) > room:
            key = spare.pop(0) if spare else [column.key for column in columns if column.key != self.key][-1]
            columns = [column for column in columns if column.key != key]
        return columns

    def shown(self, height):
        """Returns the agents that fit on a screen of this height, or all agents without a height."""
        if not height or len(self.agents) + OTHER_LINES <= height:
            return self.agents
        room = max(height - OTHER_LINES, 1)
        if self.key != "server":
            return self.agents[:room]
        # The order of servers would leave out busy agents of the last servers.
        kept = {id(agent) for agent in sorted(self.agents, key=by_load)[:room]}
        return [agent for agent in self.agents if id(agent) in kept]

    def lines(self, width, height):
        """Returns the report as lines of this width: as many as the screen has, or all without a height."""
        server = max([text_width(agent["server"]) for agent in self.agents if agent["server"]] + [0])
        command = max([text_width(agent["command"]) for agent in self.agents if agent["command"] and not agent["server"]] + [0])
        server = max(server, min(command, width // COMMAND_PART))
        # At least as wide as its head, at most half a line.
        server = server and min(max(server, len("SERVER")), max((width - 1) // 2, MIN_SERVER_WIDTH))
        # SERVER is left out if the terminal has no room for its minimum width.
        most = width - 1 - MIN_NAME_WIDTH_WITH_SERVER - WIDEST_COLUMN - 2
        server = min(server, most) if most >= min(server, MIN_SERVER_WIDTH) else 0
        shortest = MIN_NAME_WIDTH_WITH_SERVER if server else MIN_NAME_WIDTH
        used = server + 1 if server else 0
        columns = self.columns(width - 1 - shortest - used, bool(server))
        used += sum(column.width + 1 for column in columns)
        longest = max([text_width(agent["name"]) for agent in self.agents] + [len("AGENT")])
        # One cell less than the width: some terminals wrap after the last cell.
        room = min(longest, max(width - 1 - used, shortest))
        head = (["SERVER".ljust(server)] if server else []) + [column.head.rjust(column.width) for column in columns]
        lines = [self.heading(width - 1), " ".join(["AGENT".ljust(room)] + head)]
        shown = self.shown(height)
        for agent in shown:
            server_cell = [fitted(agent["server"] or agent["command"] or "-", server)] if server else []
            lines.append(" ".join([fitted(agent["name"], room)] + server_cell + [column.text(agent) for column in columns]))
        if len(shown) < len(self.agents):
            lines.append("... and {} more".format(len(self.agents) - len(shown)))
        if not self.agents:
            lines.append("no agents" if self.source.is_archive else "no agents: pmdanixl --check on the host says why")
        return lines

    def json(self):
        """Returns the report as one line of JSON."""
        agents = []
        for agent in self.agents:
            own = {"agent": agent["name"], "state": STATES.get(agent["state"])}
            own.update({key: agent[key] for key in PARTS + ("command",)})
            own.update({"stall": STALLS.get(agent["stall"]), "stall_age_ms": agent["stall_age"]})
            own.update({key: agent[key] for key in ("stall_peer", "stall_reason")})
            own.update({key + "_per_second": agent[name] for key, name in (
                ("tx_bytes", "tx_rate"), ("rx_bytes", "rx_rate"), ("transfers", "xfer_rate"))})
            own.update({key: agent[key] for key in COUNTERS})
            own.update({"xfer_time_p50_us": agent["p50"], "xfer_time_p99_us": agent["p99"]})
            own.update({"bandwidth_p50_bytes_per_second": agent["bandwidth"]})
            own.update({key: agent[key] for key in ("peer_ratio", "tcp_share", "process_tcp_share")})
            own.update({key: agent[key] for key in ("errors", "full", "dropped")})
            agents.append(own)
        return json.dumps(
            {"host": self.source.host, "timestamp": self.timestamp, "interval": self.interval, "agents": agents}
        )


def both(rates):
    """Returns the sum of the known rates, or None."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
