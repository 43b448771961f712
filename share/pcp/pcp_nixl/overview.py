# SPDX-License-Identifier: GPL-2.0-or-later
"""The report of many hosts: one line for each host, or JSON."""
import json

from cpmapi import PM_ERR_AGAIN

from .compared import compare, typical
from .report import FALLBACK_SHARE, SLOW_RATIO, Column, both, percent
from .source import METRICS, PROCESS_SHARE, TEXTS, MissingMetric, NoValues, Source, clock_of, day_of, rate, reason
from .text import cut, duration, fitted, fitting, natural, printable, scaled, text_width, total

# Totals of the host, also of agents that came or went in the interval. Archives of a farm may have no other metrics.
TOTALS = {
    "host_tx": "nixl.host.transfer.tx_bytes",
    "host_rx": "nixl.host.transfer.rx_bytes",
    "host_dropped": "nixl.host.queue.dropped",
    "host_full": "nixl.host.ring.full",
    "host_errors": "nixl.host.errors.total",
    "live": "nixl.host.agents.live",
    "idle": "nixl.host.agents.idle",
    "exited": "nixl.host.agents.exited",
    "unknown": "nixl.host.agents.unknown",
}
# What else is fetched of each host, for each agent.
OF_AGENTS = ("p50", "p99", "bandwidth", "peer_ratio", "stall", "tcp_share", "server", "rank")
OVERVIEW = dict({name: metric for name, metric in dict(METRICS, **TEXTS).items() if name in OF_AGENTS}, **PROCESS_SHARE, **TOTALS)
# What makes a host stand out, the worst first, with the word in the heading.
MARKS = ("no answer", "stalled", "suspect", "lost", "over TCP", "slow")
# Minimum widths of the columns HOST and SLOWEST.
MIN_HOST_WIDTH = 12
MIN_SLOWEST_WIDTH = 10
# Lines of a screen without a host: three above the hosts, and the number of hosts that are left out.
OTHER_LINES = 4


class HostSource(Source):
    """The values of a host that the overview needs. Names of agents are read when one is needed that is not known."""

    def __init__(self, context):
        Source.__init__(self, context, OVERVIEW, "host_tx")
        self.known_names = {}

    def name(self, inst):
        """Returns the name of an agent, or None if it is gone."""
        if inst not in self.known_names:
            self.known_names = self.names("p99")
        return self.known_names.get(inst)


class Row(object):
    """The figures of a host in the interval between two samples. Rates need both."""

    error = None

    def __init__(self, name, source, before, now):
        self.name, self.host, self.timestamp = name, source.host, now.timestamp
        self.interval = now.timestamp - before.timestamp if before else None
        of_host = {key: next(iter(now.values.get(key, {}).values()), None) for key in TOTALS}
        counts = [of_host[key] or 0 for key in ("live", "idle", "exited", "unknown")]
        self.live, self.agents = (sum(counts[:2]), sum(counts)) if of_host["live"] is not None else (None, None)

        def growth(key):
            """Returns by how much a counter has grown, or None if that is not known."""
            earlier = next(iter(before.values.get(key, {}).values()), None) if before else None
            return None if earlier is None or of_host[key] is None or of_host[key] < earlier else of_host[key] - earlier

        self.tx_rate, self.rx_rate = [rate(0, growth(key), self.interval) for key in ("host_tx", "host_rx")]
        self.dropped, self.full, self.errors = [growth(key) for key in ("host_dropped", "host_full", "host_errors")]
        stalls = now.values.get("stall")
        self.stalled, self.suspect = [list(stalls.values()).count(kind) if stalls is not None else None for kind in (2, 1)]
        shares = list(now.values.get("tcp_share", {}).values()) + list(now.values.get("process_share", {}).values())
        self.tcp_share = max(shares) if shares else None
        self.find_slowest(source, now)
        self.typical, self.slow_server, self.host_ratio = typical(now), None, None

    def find_slowest(self, source, now):
        """Finds the agent with the greatest ratio to its peers if one is slow, else that with the longest times."""
        times, ratios = now.values.get("p99", {}), now.values.get("peer_ratio", {})
        self.p99 = self.slowest = self.agent = self.peer_ratio = None
        if not times:
            return
        slow = {inst: ratio for inst, ratio in ratios.items() if ratio > SLOW_RATIO and inst in times}
        inst = max(slow or times, key=(slow or times).get)
        self.p99, self.peer_ratio = times[inst], ratios.get(inst)
        parts = [printable(now.value(text, inst) or "") for text in ("server", "rank")]
        self.agent = source.name(inst)
        self.slowest = " ".join(filter(None, parts)) or self.agent

    def is_slow(self):
        """Returns True if an agent is slow against its peers, or a server against those of other hosts."""
        return (self.peer_ratio or 0) > SLOW_RATIO or self.host_ratio is not None

    def marks(self):
        """Returns for each of MARKS whether the host has it."""
        has_lost = self.dropped or self.full
        return False, self.stalled, self.suspect, has_lost, (self.tcp_share or 0) > FALLBACK_SHARE, self.is_slow()

    def value(self, key):
        """Returns what a column sorts by, or None."""
        if key in ("lost", "stall"):
            return (self.dropped, self.full) if key == "lost" else (self.stalled, self.suspect)
        if key == "peer_ratio":
            return max(filter(None, (self.peer_ratio, self.host_ratio)), default=None)
        if key == "byte_rate":
            return both((self.tx_rate, self.rx_rate))
        return getattr(self, key)

    def lost(self):
        """Returns the lost events as text: their number, `full` if it is unknown, and a plus if more may be lost."""
        if self.dropped is None and self.full is None:
            return "-"
        return (total(self.dropped) + ("+" if self.full else "")) if self.dropped else "full" if self.full else "0"

    def json(self):
        """Returns the members of the line of JSON."""
        own = {"agents": self.agents, "live": self.live}
        own.update({key + "_bytes_per_second": getattr(self, key + "_rate") for key in ("tx", "rx")})
        own.update({"dropped": self.dropped, "full": self.full, "errors": self.errors})
        own.update({"stalled": self.stalled, "suspect": self.suspect, "tcp_share": self.tcp_share})
        own.update({"xfer_time_p99_us": self.p99, "slowest": self.slowest, "slowest_agent": self.agent})
        own["slowest_peer_ratio"] = self.peer_ratio
        own.update({"slow_server": self.slow_server, "slow_server_ratio": self.host_ratio})
        return own


class Failure(object):
    """A host without values, in place of its row."""

    agents = live = tx_rate = rx_rate = host = interval = None

    def __init__(self, name, error, since, timestamp):
        self.name, self.since, self.timestamp = name, since, timestamp
        if isinstance(error, MissingMetric):
            self.error = "pmdanixl is not installed, or older than 0.3.0: there is no {}".format(error.args[0])
        else:
            # Without the address, which the line has.
            self.error = error if isinstance(error, str) else reason(type(error)(error.args[0]))
            if not isinstance(error, str) and error.args[0] == PM_ERR_AGAIN:
                # The text of one host is too long for a line.
                self.error = "pmdanixl reads nothing yet: see its log"
            # What pmcd says in place of pmdanixl is clear only to who knows that.
            if isinstance(error, NoValues) and not self.error.startswith("pmdanixl"):
                self.error = "pmdanixl does not answer: " + self.error

    def marks(self):
        """Returns for each of MARKS whether the host has it."""
        return (True,) + (False,) * (len(MARKS) - 1)

    def value(self, _key):
        """Returns None: no column has a value."""
        return None

    def json(self):
        """Returns the members of the line of JSON."""
        return {"error": self.error, "since": self.since}


def stalls(row):
    """Returns the stalled agents with an exclamation mark, else the suspect ones with a question mark."""
    if row.stalled is None:
        return "-"
    return "{}!".format(row.stalled) if row.stalled else "{}?".format(row.suspect) if row.suspect else "0"


class HostColumn(Column):
    """A column of the overview. Its formatter gets the row."""

    def text(self, row):
        """Returns the text of this column for a host."""
        return self.formatter(row).rjust(self.width)


# The columns between HOST and SLOWEST.
COLUMNS = (
    HostColumn("AGENTS", 7, "agents", lambda row: "-" if row.agents is None else "{}/{}".format(row.live, row.agents)),
    HostColumn("TX/s", 5, "tx_rate", lambda row: scaled(row.tx_rate)),
    HostColumn("RX/s", 5, "rx_rate", lambda row: scaled(row.rx_rate)),
    HostColumn("LOST", 5, "lost", Row.lost),
    HostColumn("ERR", 5, "errors", lambda row: total(row.errors)),
    HostColumn("STALL", 5, "stall", stalls),
    HostColumn("TCP%", 4, "tcp_share", lambda row: percent(row.tcp_share)),
    HostColumn("P99", 6, "p99", lambda row: duration(row.p99)),
)
KEYS = {column.head.split("/")[0].rstrip("%").lower(): column.key for column in COLUMNS}
KEYS.update({"host": "name", "bytes": "byte_rate", "slowest": "peer_ratio"})
# Columns that are left out first where a line is too short, in this order.
SPARE_KEYS = ("errors", "rx_rate", "tx_rate", "agents", "tcp_share", "stall", "lost")


class Overview(object):
    """All hosts in one interval."""

    def __init__(self, rows, timestamp, key=None, has_date=False):
        self.timestamp, self.key, self.has_date = timestamp, key, has_date
        self.rows = sorted(rows, key=lambda row: natural(row.name))
        compare([row for row in rows if row.error is None])
        if key is None:
            # Hosts with a worse mark first, then those with longer times.
            self.rows.sort(key=lambda row: ([not mark for mark in row.marks()], -(row.value("p99") or 0)))
        elif key != "name":
            # The greatest value first, hosts without a value last.
            self.rows.sort(key=lambda row: rising(row.value(key)), reverse=True)

    def choices(self):
        """Returns the names of the hosts that a key can choose."""
        return [row.name for row in self.rows]

    def headings(self, width):
        """Returns the line with the sums, and one that counts the hosts that stand out."""
        answering = [row for row in self.rows if row.error is None]
        parts = ["{} of {} host{}".format(len(answering), len(self.rows), "" if len(self.rows) == 1 else "s")]
        parts.append(clock_of(self.timestamp))
        for word, key in (("tx", "tx_rate"), ("rx", "rx_rate")):
            rates = [getattr(row, key) for row in answering if getattr(row, key) is not None]
            parts.append("{} {}".format(word, scaled(sum(rates)) + "B/s" if rates else "-"))
        known = [row for row in answering if row.agents is not None]
        counts = [sum(getattr(row, key) for row in known) if known else "-" for key in ("live", "agents")]
        parts.append("{} of {} agents live".format(*counts))
        counts = [sum(map(bool, marks)) for marks in zip(*[row.marks() for row in self.rows])]
        words = ["{} {}".format(word, count) for word, count in zip(MARKS, counts) if count]
        if self.has_date and text_width("  ".join(parts)) + len("2000-01-01 ") <= width:
            parts[1] = "{} {}".format(day_of(self.timestamp), parts[1])
        # Only whole parts are left out: a shortened number would be wrong.
        return [whole("", parts, "  ", width), whole("standing out: ", words or ["none"], ", ", width)]

    def shown(self, height, chosen):
        """Returns the rows that fit on a screen of this height, with the chosen one, or all rows without a height."""
        if not height or len(self.rows) + OTHER_LINES - 1 <= height:
            return self.rows
        room = max(height - OTHER_LINES, 1)
        at = next((number for number, row in enumerate(self.rows) if row.name == chosen), 0)
        first = max(0, min(at - room // 2, len(self.rows) - room))
        return self.rows[first:first + room]

    def lines(self, width, height=None, chosen=None):
        """Returns the overview as lines of this width. The chosen host is in reverse video."""
        # Some terminals wrap after the last cell.
        width -= 1
        slowest = max([text_width(slow_text(row)) for row in self.rows if row.error is None] + [len("SLOWEST")])
        host = max([text_width(row.name) for row in self.rows] + [len("HOST")])
        # The column that sorts stays.
        columns, spare = list(COLUMNS), [key for key in SPARE_KEYS if key != self.key]
        least = min(host, MIN_HOST_WIDTH) + 1 + min(slowest, MIN_SLOWEST_WIDTH)
        while spare and least + sum(column.width + 1 for column in columns) > width:
            key = spare.pop(0)
            columns = [column for column in columns if column.key != key]
        room = max(width - 1 - sum(column.width + 1 for column in columns), 0)
        host = max(min(host, room - min(slowest, room // 2)), min(host, MIN_HOST_WIDTH))
        slowest = max(min(slowest, room - host), 0)
        head = [fitted("HOST", host)] + [column.head.rjust(column.width) for column in columns] + [fitted("SLOWEST", slowest)]
        lines = self.headings(width) + [cut(" ".join(head).rstrip(), width)]
        shown = self.shown(height, chosen)
        for row in shown:
            if row.error is None:
                cells = [fitted(row.name, host)] + [column.text(row) for column in columns] + [slow_text(row, slowest)]
                text = cut(" ".join(cells).rstrip(), width)
            else:
                text = failure_text(row, host, width)
            lines.append("\033[7m{}\033[m".format(fitted(text, width)) if row.name == chosen else text)
        if len(shown) < len(self.rows):
            lines.append(cut("... and {} more".format(len(self.rows) - len(shown)), width))
        return lines[:height]

    def json(self):
        """Returns one line of JSON for each host."""
        lines = []
        for row in self.rows:
            head = {"host": row.name, "hostname": row.host, "timestamp": row.timestamp, "interval": row.interval}
            lines.append(json.dumps(dict(head, **row.json())))
        return "\n".join(lines)


def whole(head, parts, between, width):
    """Returns as many of the parts as a line has room for, or what it has of the first."""
    left = list(parts)
    while len(left) > 1 and text_width(head + between.join(left)) > width:
        left.pop()
    return cut(head + between.join(left), width)


def rising(value):
    """Returns a key that sorts missing values, and missing parts of a value, before others."""
    parts = value if isinstance(value, tuple) else (value,)
    return tuple(-1 if part is None else part for part in parts)


def slow_text(row, width=None):
    """Returns server and rank of the slowest agent, or engine and role that are slower here than on other hosts. How many times comes
    last, uncut."""
    name, ratio = row.slowest or "-", row.peer_ratio
    if row.host_ratio is not None and not (ratio or 0) > SLOW_RATIO:
        name, ratio = "all " + row.slow_server, row.host_ratio
    ratio = " {:.1f}x".format(ratio) if row.is_slow() else ""
    return (name if width is None else cut(name, max(width - len(ratio), 0))) + ratio


def failure_text(row, host, width):
    """Returns the line of a host without values."""
    since = "no values: "
    if row.since:
        day = "" if day_of(row.since) == day_of(row.timestamp) else day_of(row.since) + " "
        since = "no values since {}{}: ".format(day, clock_of(row.since))
    # The end of the reason is left out, not its middle.
    text = since + row.error
    return cut(fitted(row.name, host) + " " + text[:fitting(text, max(width - host - 1, 0))], width)
