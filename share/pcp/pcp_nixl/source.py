# SPDX-License-Identifier: GPL-2.0-or-later
"""The samples of a host or an archive: values of metrics, names and labels of agents, and the errors of PCP."""
import sys
from math import isfinite
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_long, c_uint, c_void_p, cast

from pcp import pmapi
from cpmapi import (
    PM_CONTEXT_ARCHIVE, PM_ERR_AGAIN, PM_ERR_EOL, PM_ERR_IPC, PM_ERR_NAME, PM_ERR_NOAGENT, PM_ID_NULL, PM_MODE_BACK,
    PM_MODE_FORW, PM_TYPE_DOUBLE, PM_TYPE_STRING, PM_TYPE_U64,
)

from .text import decoded, printable

# Fetched metrics by their name in this program. Each has one number for each agent, TEXTS one string.
METRICS = {
    "tx_bytes": "nixl.transfer.tx_bytes",
    "rx_bytes": "nixl.transfer.rx_bytes",
    "tx_requests": "nixl.transfer.tx_requests",
    "rx_requests": "nixl.transfer.rx_requests",
    "state": "nixl.agent.state",
    "stall": "nixl.agent.stall.state",
    "stall_age": "nixl.agent.stall.age",
    "p50": "nixl.latency.xfer_time.p50",
    "p99": "nixl.latency.xfer_time.p99",
    "bandwidth": "nixl.operation.bandwidth.p50",
    "peer_ratio": "nixl.latency.xfer_time.peer_ratio",
    "tcp_share": "nixl.agent.tcp_share",
    "pid": "nixl.agent.pid",
    "errors": "nixl.errors.total",
    "dropped": "nixl.queue.dropped",
    "full": "nixl.ring.full",
}
TEXTS = {
    "server": "nixl.agent.server", "rank": "nixl.agent.rank", "command": "nixl.agent.command",
    "stall_peer": "nixl.agent.stall.peer", "stall_reason": "nixl.agent.stall.reason",
}
# Strings for each interface of the host, of PCP's PMDA for Linux. IPv6 addresses have a prefix length.
ADDRESSES = {"inet": "network.interface.inet_addr", "inet6": "network.interface.ipv6_addr"}
STRINGS = frozenset(TEXTS) | frozenset(ADDRESSES)
# A number for each process, for agents without a tcp_share: it is of all agents of their process.
PROCESS_SHARE = {"process_share": "nixl.process.tcp_share"}
# Totals of the host. They have what agents moved that came or went in the interval.
HOST = {"host_tx": "nixl.host.transfer.tx_bytes", "host_rx": "nixl.host.transfer.rx_bytes"}
# All metrics of a report.
REPORT = dict(METRICS, **TEXTS, **PROCESS_SHARE, **HOST)
# Seconds until labels are read again, because a label may appear later than its instance.
LABELS_SECONDS = 30
# Without this metric there is no report.
REQUIRED = "tx_bytes"
COUNTERS = ("tx_bytes", "rx_bytes", "tx_requests", "rx_requests")
# Not pmapi's method, which changes the function that all threads call.
LOOKUP_NAMES = CFUNCTYPE(c_int, c_int, POINTER(c_char_p), POINTER(c_uint))(("pmLookupName", pmapi.LIBPCP))


def lookup_names(context, names):
    """Returns the PMIDs of metrics by name, in one request. A metric that is not there is left out."""
    pmapi.LIBPCP.pmUseContext(context.ctx)
    pmids = (c_uint * len(names))()
    status = LOOKUP_NAMES(len(names), (c_char_p * len(names))(*[name.encode() for name in names]), pmids)
    if status < 0 and status != PM_ERR_NAME:
        raise pmapi.pmErr(status)
    return {name: pmid for name, pmid in zip(names, pmids) if status >= 0 and pmid != PM_ID_NULL}


def local_time(timestamp):
    """Returns the parts of a time, in the time zone of the options -z and -Z."""
    parts = pmapi.tm()
    pmapi.LIBPCP.pmLocaltime(byref(c_long(int(timestamp))), byref(parts))
    return parts


def rate(before, now, interval):
    """Returns the rate of a counter per second, or None if it is new or was reset, or if the host's clock was set back."""
    if before is None or now is None or now < before or not interval or interval < 0:
        return None
    return (now - before) / interval


def day_of(timestamp):
    """Returns the date of a time."""
    parts = local_time(timestamp)
    return "{}-{:02}-{:02}".format(1900 + parts.tm_year, parts.tm_mon + 1, parts.tm_mday)


def clock_of(timestamp):
    """Returns the time of day of a time."""
    parts = local_time(timestamp)
    return "{:02}:{:02}:{:02}".format(parts.tm_hour, parts.tm_min, parts.tm_sec)


class Sample(object):
    """All values at one time. is_known: False if the archive has no values for this time."""

    def __init__(self, timestamp, values, is_known=True):
        self.timestamp, self.values, self.is_known = timestamp, values, is_known

    def value(self, name, inst):
        """Returns the value of an agent, or None."""
        return self.values.get(name, {}).get(inst)

    def instances(self):
        """Returns the instances with a state or with sent bytes, even 0."""
        return set(self.values.get(REQUIRED, {})) | set(self.values.get("state", {}))


class MissingMetric(Exception):
    """The error for a metric that a host or an archive does not have."""


class UnknownHost(pmapi.pmErr):
    """The error for a host whose name the resolver does not know. It has the text of the resolver, and a list with the name."""


class NoValues(pmapi.pmErr):
    """The error that pmcd returns instead of values while pmdanixl has ended, does not answer or rejects its configuration."""


def reason(error, since=None):
    """Returns the text of an error. `since` is the time of the last answer, if there was one."""
    if isinstance(error, UnknownHost):
        return "the name is not resolved: " + " ".join(map(str, error.args))
    text = pmapi.pmErr.message(error)
    # pmdanixl answers "try again" after a start with an invalid configuration, or without the state file, which another
    # one has; pmcd while it starts pmdanixl.
    if error.args[0] == PM_ERR_AGAIN:
        return "pmdanixl has no values yet, or reads nothing: pminfo -f nixl.control.config_error, or its log, says why"
    if isinstance(error, NoValues) or error.args[0] == PM_ERR_NOAGENT:
        return ("pmdanixl has not answered since {}: ".format(since) if since else "pmdanixl does not answer: ") + text
    # libpcp reports a closed connection as a protocol error, and pmcd the end of pmdanixl during a request.
    return "pmcd does not answer, or pmdanixl has just ended" if error.args[0] == PM_ERR_IPC else text


def report_error(text, rest=""):
    """Prints the text of an error, and a rest of the line, to standard error."""
    print("pcp-nixl: " + text + rest, file=sys.stderr, flush=True)


class ArchiveSamples(object):
    """The samples of a metric in an archive, without interpolation. Times of successive calls rise."""

    def __init__(self, context, pmid):
        self.context, self.pmids = context, (pmapi.c_uint * 1)(pmid)
        self.until, self.before, self.after = float("-inf"), None, None

    def read(self, time):
        """Reads the instances of the samples before and after a time. They are None where there is no sample."""
        if self.until <= float(time):
            # The result is valid until the next sample.
            self.until, self.after = self.nearest(PM_MODE_FORW, time)
            _, self.before = self.nearest(PM_MODE_BACK, time)
        return self

    def nearest(self, mode, time):
        """Returns the time and the instances of the nearest sample in a direction."""
        self.context.pmSetMode(mode, time, 0)
        try:
            result = self.context.pmFetch(self.pmids)
        except pmapi.pmErr as error:
            if error.args[0] != PM_ERR_EOL:
                raise
            return float("inf"), None
        try:
            contents = result.contents
            # The mark of a pause of pmlogger has no metrics.
            count = contents.get_numval(0) if contents.numpmid else -1
            instances = {contents.get_inst(0, number) for number in range(count)} if count >= 0 else None
            return float(contents.timestamp), instances
        finally:
            self.context.pmFreeResult(result)


def is_usable(name, desc):
    """Returns True if a metric has the kind of values that this program takes it for. Another program may have the name."""
    return (desc.contents.type == PM_TYPE_STRING) == (name in STRINGS)


class Source(object):
    """A host or an archive with samples of these metrics. Without the required one there is no report."""

    def __init__(self, context, metrics=None, required=REQUIRED):
        metrics = REPORT if metrics is None else metrics
        self.context, self.required = context, required
        self.is_archive = context.type == PM_CONTEXT_ARCHIVE
        self.host = printable(decoded(context.pmGetContextHostName))
        self.metrics = []
        self.labelled, self.known_labels, self.labels_until = None, {}, float("-inf")
        found = lookup_names(context, list(metrics.values())) if metrics else {}
        if metrics and metrics[required] not in found:
            raise MissingMetric(metrics[required])
        # One request for all: each takes a round trip to the host.
        descs = context.pmLookupDescs(list(found.values())) if found else ()
        descs = dict(zip(found, descs))
        for name, metric in metrics.items():
            # The null id: the metric exists, but the PMDA does not answer, or the archive has no descriptor.
            if name == required and descs[metric].contents.pmid == PM_ID_NULL:
                raise pmapi.pmErr(PM_ERR_NOAGENT)
            if metric in descs and descs[metric].contents.pmid != PM_ID_NULL and is_usable(name, descs[metric]):
                self.metrics.append((name, found[metric], descs[metric]))
            elif name == required:
                raise MissingMetric(metric)
        self.archive_samples = {}
        if self.is_archive:
            samples = pmapi.pmContext(PM_CONTEXT_ARCHIVE, context.target)
            self.archive_samples = {name: ArchiveSamples(samples, pmid) for name, pmid, _ in self.metrics}
        self.pmids = (pmapi.c_uint * len(self.metrics))(*[pmid for _, pmid, _ in self.metrics])

    def reconnect(self):
        """Connects to pmcd again, if pmcd is up."""
        try:
            self.context.pmReconnectContext()
        except pmapi.pmErr:
            pass

    def sample(self):
        """Returns the current values, or those at the next time of the archive."""
        result = self.context.pmFetch(self.pmids)
        try:
            contents = result.contents
            values = {}
            for index, (name, _, desc) in enumerate(self.metrics):
                vset = contents.get_vset(index).contents
                if name == self.required and not self.is_archive and vset.numval < 0:
                    # A negative number is an error, not an empty instance domain.
                    raise NoValues(vset.numval)
                found = values.setdefault(name, {})
                kind = desc.contents.type if desc.contents.type in (PM_TYPE_DOUBLE, PM_TYPE_STRING) else PM_TYPE_U64
                # pmapi's methods for one value cast anew each time, which takes most of the time with many values.
                vlist, valfmt = cast(vset.vlist, POINTER(pmapi.pmValue)), vset.valfmt
                for number in range(max(vset.numval, 0)):
                    value = vlist[number]
                    atom = self.context.pmExtractValue(valfmt, value, desc.contents.type, kind)
                    number_or_text = atom.dref(kind)
                    # JSON has no other numbers, and they have no place in an order.
                    if kind != PM_TYPE_DOUBLE or isfinite(number_or_text):
                        found[value.inst] = number_or_text
                    if kind == PM_TYPE_STRING:
                        pmapi.LIBC.free(c_void_p(atom.vp))
            for name, samples in self.archive_samples.items():
                # libpcp interpolates over samples without a value, such as of percentiles while nothing is transferred.
                before = samples.read(contents.timestamp).before
                values[name] = {inst: value for inst, value in values[name].items() if before is None or inst in before}
            sample = Sample(float(contents.timestamp), values)
            if self.is_archive and not sample.values[self.required] and not sample.instances():
                # Without samples to interpolate, the archive does not say that the host had no agents.
                required = self.archive_samples[self.required]
                sample.is_known = required.before == required.after == set()
            return sample
        finally:
            self.context.pmFreeResult(result)

    def names(self, metric=REQUIRED):
        """Returns the names of the agents, or of the instances of another metric: the current ones, or all of the archive."""
        desc = next(desc for name, _, desc in self.metrics if name == metric)
        # pmapi's own function drops characters that are not ASCII.
        libpcp, insts, names = pmapi.LIBPCP, POINTER(c_int)(), POINTER(c_char_p)()
        lookup = libpcp.pmGetInDomArchive if self.is_archive else libpcp.pmGetInDom
        count = libpcp.pmUseContext(self.context.ctx)
        if count >= 0:
            count = lookup(pmapi.get_indom(desc), byref(insts), byref(names))
        if count < 0 and not self.is_archive:
            raise pmapi.pmErr(count)
        # In an archive, a negative count means that it has no instances at all.
        known = {insts[index]: printable(names[index].decode("utf-8", "replace")) for index in range(count)}
        if count > 0:
            pmapi.LIBC.free(insts)
            pmapi.LIBC.free(names)
        return known

    def process_shares(self, sample):
        """Returns the share of the bytes over TCP by pid."""
        shares = sample.values.get("process_share")
        # The name of a process is its pid and command.
        names = self.names("process_share") if shares else {}
        return {int(names[inst].split()[0]): share for inst, share in (shares or {}).items() if inst in names}

    def labels(self, sample):
        """Returns the agents' labels by instance. They are read if the instances change, and every LABELS_SECONDS."""
        instances = sample.instances()
        if instances != self.labelled or sample.timestamp >= self.labels_until:
            try:
                found = self.context.pmGetInstancesLabels(pmapi.get_indom(self.metrics[0][2]))
                self.labelled, self.labels_until = instances, sample.timestamp + LABELS_SECONDS
            except (pmapi.pmErr, ValueError):
                # An archive may lack labels. Labels that are not JSON are skipped.
                found = {}
            for inst, labels in found.items():
                self.known_labels[inst] = {name: printable(str(value)) for name, value in labels.items()}
            # Ids are not reused, so labels of old agents would fill the memory.
            self.known_labels = {inst: labels for inst, labels in self.known_labels.items() if inst in instances}
        return self.known_labels

    def clock(self, timestamp):
        """Returns a date (only of an archive) and a time, in the time zone of the options -z and -Z."""
        return day_of(timestamp) + " " if self.is_archive else "", clock_of(timestamp)
