# SPDX-License-Identifier: GPL-2.0-or-later
"""The option --peers: who talks to whom over TCP, one line for each pair."""
import json
from ipaddress import ip_address

from .compared import median
from .overview import Failure, failure_text, whole
from .report import SLOW_RATIO
from .source import ADDRESSES, METRICS, TEXTS, Source, UnknownHost, clock_of, day_of, rate
from .text import cut, duration, fitted, natural, printable, scaled, text_width

# Of each peer of an agent. The instance is AGENT::ADDRESS, and a name of an agent has no colon.
OF_PEERS = {
    "peer_tx": "nixl.agent.peer.tcp.tx_bytes",
    "peer_rx": "nixl.agent.peer.tcp.rx_bytes",
    "retransmits": "nixl.agent.peer.tcp.retransmits",
    "rtt": "nixl.agent.peer.tcp.rtt",
}
# Of the host: that it has pmdanixl, and for each agent, what names it.
OF_HOST = {"tx_bytes": METRICS["tx_bytes"], "server": TEXTS["server"], "rank": TEXTS["rank"]}
# Bytes of a segment. Pairs of which more than LOSSY_SHARE of the bytes is sent again are marked.
SEGMENT = 1460
LOSSY_SHARE = 0.01
# Microseconds. A round trip within a host or a rack takes less, and differs by more than SLOW_RATIO without a reason to look.
SLOW_RTT = 1000
# Part by which the bytes of the two ends of a connection differ at most. They are read one after the other.
SAME_BYTES = 0.02
NOTE = "over TCP; traffic over RDMA, NVLink and shared memory has no peers"
# Widths of the columns after FROM and TO.
WIDTHS = (("TX/s", 5), ("RX/s", 5), ("RETRANS/s", 9), ("RTT", 7))


class PeerSource(Source):
    """The peers of the agents of a host, and the addresses of the host."""

    def __init__(self, target):
        Source.__init__(self, target.context(), dict(OF_HOST, **OF_PEERS, **ADDRESSES))
        self.resolved, self.agents, self.pairs = addresses_of(target), {}, {}

    def addresses(self, sample):
        """Returns the addresses that only this host has. One of an interface may move to another host."""
        found = [value for metric in ADDRESSES for value in sample.values.get(metric, {}).values()]
        addresses = {plain(address) for address in found} | self.resolved
        # 127.0.0.1 is every host, for itself, and a link-local address another host on each link.
        return {address for address in addresses if address and not is_local(address)}

    def sample(self):
        """Returns the current values, and reads names if an agent or a peer is new."""
        sample = Source.sample(self)
        if not sample.instances() <= self.agents.keys():
            self.agents = self.names("tx_bytes")
        if not set(sample.values.get("peer_tx", {})) <= self.pairs.keys():
            self.pairs = self.names("peer_tx")
        return sample


def plain(text):
    """Returns an address without its prefix length, in its usual form, or None if it is not one."""
    try:
        return str(ip_address(text.split("/")[0].split("%")[0]))
    except ValueError:
        return None


def is_local(address):
    """Returns True for an address that many hosts have."""
    return ip_address(address).is_loopback or ip_address(address).is_link_local


def addresses_of(target):
    """Returns the addresses of the host that a specification names. A proxy may know names that this host does not."""
    try:
        return set(map(plain, target.addresses()))
    except UnknownHost:
        return set()


class PeerRow(object):
    """The peers of the agents of one host in an interval."""

    error = None

    def __init__(self, name, source, before, now):
        self.name, self.host, self.timestamp = name, source.host, now.timestamp
        self.interval = now.timestamp - before.timestamp if before else None
        self.addresses = source.addresses(now)
        self.pairs = []
        for inst in now.values.get("peer_tx", {}):
            if inst in source.pairs:
                self.pairs.append(self.pair(source, inst, before, now))

    def pair(self, source, inst, before, now):
        """Returns the figures of an agent and one of its peers."""
        agent, _, address = source.pairs[inst].partition("::")
        # An archive may have the name of an agent with other ids, too.
        ids = [number for number, name in source.agents.items() if name == agent and number in now.instances()]
        server = " ".join(printable(now.value(text, ids[0]) or "") for text in ("server", "rank")).strip() if ids else ""
        pair = {"agent": agent, "server": server or None, "address": plain(address) or address, "to_host": None, "to_agent": None}
        for key in ("peer_tx", "peer_rx", "retransmits"):
            pair[key] = rate(before and before.value(key, inst), now.value(key, inst), self.interval)
        pair["rtt"] = now.value("rtt", inst)
        pair["sent"], pair["received"] = now.value("peer_tx", inst), now.value("peer_rx", inst)
        return pair


def resolve(rows):
    """Finds the host, and if only one agent can be meant, the agent behind each address."""
    owners = {}
    for row in rows:
        for address in row.addresses:
            owners.setdefault(address, []).append(row)
    for row in rows:
        for pair in row.pairs:
            pair["to"] = row if is_loopback(pair["address"]) else one(owners.get(pair["address"], []))
    for row in rows:
        for pair in row.pairs:
            other = pair["to"]
            if other is None:
                continue
            pair["to_host"] = other.name
            # The agents of the other host that have this host among their peers.
            back = {answer["agent"]: answer for answer in other.pairs if answer["to"] is row and (
                other is not row or answer["agent"] != pair["agent"] and is_other_end(pair, answer))}
            answer = one(list(back.values()))
            if answer:
                pair["to_agent"], pair["to_server"] = answer["agent"], answer["server"]


def is_other_end(pair, answer):
    """Returns True if what one agent has sent is what the other has received. On one host, others talk to themselves, or to a service."""
    ends = [(pair["sent"], answer["received"]), (pair["received"], answer["sent"])]
    return all(None not in end and abs(end[0] - end[1]) <= SAME_BYTES * max(end) for end in ends) and max(ends[0] + ends[1]) > 0


def one(found):
    """Returns the only element of a list, or None."""
    return found[0] if len(found) == 1 else None


def is_loopback(address):
    """Returns True for an address of the host itself, for every host."""
    return plain(address) is not None and ip_address(plain(address)).is_loopback


def rank(row_and_pair):
    """Returns a sort key: pairs that stand out come first, then those with most bytes."""
    pair = row_and_pair[1]
    return not pair["slow"], not pair["lossy"], -((pair["peer_tx"] or 0) + (pair["peer_rx"] or 0))


class PeerTable(object):
    """The pairs of all hosts in one interval."""

    def __init__(self, rows, timestamp, key=None, has_date=False):
        # pylint: disable=unused-argument
        self.timestamp, self.has_date = timestamp, has_date
        self.failures = sorted((row for row in rows if row.error is not None), key=lambda row: natural(row.name))
        self.rows = sorted((row for row in rows if row.error is None), key=lambda row: natural(row.name))
        self.has_hosts = len(rows) > 1
        if not self.has_hosts:
            # One host or archive has no name of a list.
            for row in self.rows:
                row.name = row.host
        resolve(self.rows)
        self.pairs = [(row, pair) for row in self.rows for pair in row.pairs]
        usual = median(pair["rtt"] for _, pair in self.pairs)
        for _, pair in self.pairs:
            pair["slow"] = pair["rtt"] is not None and pair["rtt"] > max(SLOW_RATIO * usual, SLOW_RTT)
            again = (pair["retransmits"] or 0) * SEGMENT
            pair["lossy"] = again > 0 and again > LOSSY_SHARE * (pair["peer_tx"] or 0)
        self.pairs.sort(key=rank)

    @staticmethod
    def choices():
        """Returns nothing: no key chooses a pair."""
        return []

    def names(self, row, pair):
        """Returns the texts of FROM and TO."""
        own = pair["server"] or pair["agent"]
        target = pair["address"]
        if pair["to_host"] is not None and (self.has_hosts or pair["to_agent"]):
            agent = pair.get("to_server") or pair["to_agent"]
            target = " ".join(filter(None, (pair["to_host"] if self.has_hosts else None, agent or "({})".format(target))))
        return ("{} {}".format(row.name, own) if self.has_hosts else own), target

    def lines(self, width, height=None, chosen=None):
        """Returns the table as lines of this width, as many as the screen has."""
        # pylint: disable=unused-argument
        # Some terminals wrap after the last cell.
        width -= 1
        clock = (day_of(self.timestamp) + " " if self.has_date else "") + clock_of(self.timestamp)
        what = "{} of {} hosts".format(len(self.rows), len(self.rows) + len(self.failures)) if self.has_hosts else "peers"
        heading = "{}  {}  {} pair{}".format(what, clock, len(self.pairs), "" if len(self.pairs) == 1 else "s")
        counts = [("no answer", len(self.failures))] + [(word, sum(pair[word] for _, pair in self.pairs)) for word in ("slow", "lossy")]
        words = ["{} {}".format(word, count) for word, count in counts if count]
        lines = [cut(heading, width), whole("standing out: ", words or ["none"], ", ", width), cut(NOTE, width)]
        names = [self.names(row, pair) for row, pair in self.pairs]
        room = max(width - sum(size + 1 for _, size in WIDTHS) - 1, 2)
        longest = [max([text_width(name[side]) for name in names] + [4]) for side in (0, 1)]
        # Half of the line for each, and what one does not need for the other.
        first = min(longest[0], max(room // 2, room - longest[1]))
        second = min(longest[1], room - first)
        head = [fitted("FROM", first), fitted("TO", second)] + [word.rjust(size) for word, size in WIDTHS]
        lines.append(cut(" ".join(head), width))
        for (_, pair), texts in zip(self.pairs, names):
            cells = [fitted(texts[0], first), fitted(texts[1], second)]
            again = scaled(pair["retransmits"]) + ("!" if pair["lossy"] else "")
            time = duration(pair["rtt"]) + ("!" if pair["slow"] else "")
            values = (scaled(pair["peer_tx"]), scaled(pair["peer_rx"]), again, time)
            lines.append(cut(" ".join(cells + [text.rjust(size) for text, (_, size) in zip(values, WIDTHS)]), width))
        if self.rows and not self.pairs:
            lines.append(cut("no peers: no agent has TCP connections, or proc_facts is false (nixl.conf(5))", width))
        lines += [failure_text(row, text_width(row.name), width) for row in self.failures]
        if height and len(lines) > height:
            rest = len(lines) - height + 1
            lines[height - 1:] = [cut("... and {} more".format(rest), width)]
        return lines

    def json(self):
        """Returns one line of JSON for each host."""
        lines = []
        for row in self.failures:
            lines.append({"host": row.name, "timestamp": row.timestamp, "error": row.error, "since": row.since})
        for row in self.rows:
            peers = []
            for pair in (pair for owner, pair in self.pairs if owner is row):
                own = {key: pair[key] for key in ("agent", "server", "address", "to_host", "to_agent")}
                own["to_server"] = pair.get("to_server")
                own.update({"tx_bytes_per_second": pair["peer_tx"], "rx_bytes_per_second": pair["peer_rx"]})
                own.update({"retransmits_per_second": pair["retransmits"], "rtt_us": pair["rtt"]})
                own.update({"slow": pair["slow"], "lossy": pair["lossy"]})
                peers.append(own)
            head = {"host": row.name, "hostname": row.host, "timestamp": row.timestamp, "interval": row.interval}
            lines.append(dict(head, peers=peers))
        return "\n".join(map(json.dumps, lines))
