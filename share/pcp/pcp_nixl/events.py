# SPDX-License-Identifier: GPL-2.0-or-later
"""The option --events: what happened, one line for each event."""
import json
import struct
from ctypes import string_at
from time import time as current_time

from pcp import pmapi
from cpmapi import PM_ERR_EOL, PM_ERR_NAME, PM_MODE_FORW, PM_TYPE_STRING, PM_TYPE_U64

from .source import MissingMetric, NoValues, clock_of, day_of, reason, report_error
from .text import printable

# The event records, and their parameters by the name in the output of --json.
EVENT_RECORDS = "nixl.events.records"
EVENT_PARAMETERS = {name: "nixl.events." + name for name in ("kind", "agent", "server", "value", "text")}
# Events of a host that are known to be printed: more than pmdanixl keeps, and sends again after it was not reached.
MAX_KNOWN = 10000
# Width of the column for the kind of an event: that of the longest but one.
KIND_WIDTH = 16


def event_records(block):
    """Yields the time, and the parameters by PMID, of each record of a pmHighResEventArray in bytes."""
    count, at = struct.unpack_from("=i", block, 4)[0], 8
    for _ in range(count):
        seconds, nanos, _, number = struct.unpack_from("=qqIi", block, at)
        at += 24
        parameters = {}
        for _ in range(number):
            pmid, head = struct.unpack_from("=II", block, at)
            # The length has 24 bits and includes its own word. Parameters begin at multiples of four.
            kind, length = head >> 24, head & 0xFFFFFF
            value = block[at + 8:at + 4 + length]
            if kind == PM_TYPE_U64:
                parameters[pmid] = struct.unpack("=Q", value)[0]
            elif kind == PM_TYPE_STRING:
                parameters[pmid] = value.rstrip(b"\0").decode("utf-8", "replace")
            at += 4 + (length + 3) // 4 * 4
        yield seconds + nanos / 1e9, parameters


class Events(object):
    """The events of a host or an archive, each once."""

    def __init__(self, source):
        self.source, self.context = source, source.context
        try:
            pmids = self.context.pmLookupName([EVENT_RECORDS] + list(EVENT_PARAMETERS.values()))
        except pmapi.pmErr as error:
            if error.args[0] != PM_ERR_NAME:
                raise
            raise MissingMetric(EVENT_RECORDS)
        self.pmids, self.parameters = (pmapi.c_uint * 1)(pmids[0]), dict(zip(EVENT_PARAMETERS, pmids[1:]))
        self.known = {}

    def read(self):
        """Returns the time of the next sample, and its events. An event that a sample before had too is left out."""
        result = self.context.pmFetch(self.pmids)
        try:
            contents, events = result.contents, []
            if contents.get_numval(0) < 0:
                raise NoValues(contents.get_numval(0))
            for number in range(contents.get_numval(0)):
                block = contents.get_vlist(0, number).value.pval
                for record in event_records(string_at(block, block.contents.vlen)):
                    event = self.event(*record)
                    # Another pmlogger has the events of before its start, too.
                    key = tuple(event.values())
                    if key not in self.known:
                        self.known[key] = None
                        events.append(event)
                        if len(self.known) > MAX_KNOWN and not self.source.is_archive:
                            del self.known[next(iter(self.known))]
            return float(contents.timestamp), events
        finally:
            self.context.pmFreeResult(result)

    def event(self, time, parameters):
        """Returns an event by the names of the output of --json."""
        event = {"host": self.source.host, "timestamp": time}
        event.update({name: parameters.get(pmid) for name, pmid in self.parameters.items()})
        return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}

    @staticmethod
    def line(event, host=None):
        """Returns an event as a line: date and time, the host if there are many, kind and text."""
        time = event["timestamp"]
        clock = "{} {}.{:03}".format(day_of(time), clock_of(time), int(time % 1 * 1000))
        parts = [clock, host, (event["kind"] or "-").ljust(KIND_WIDTH), event["text"] or ""]
        return " ".join(part for part in parts if part is not None)


def run_events(options, source):
    """Prints events until the samples or the requested number of samples end. Returns True: no event is no failure."""
    events, samples, is_waiting = Events(source), 0, False
    wanted = 1 if options.once and not source.is_archive else options.pmGetOptionSamples()
    start = float(options.pmGetOptionStart()) if options.has_start else float("-inf")
    finish = options.finish()
    # The clock of a host may differ, so that its times say nothing of the end of the command.
    last = finish if source.is_archive else float("inf")
    interval = options.pmGetOptionInterval() or pmapi.timeval(options.delta, 0)
    if source.is_archive:
        # All samples, without interpolation.
        source.context.pmSetMode(PM_MODE_FORW, options.pmGetOptionStart(), 0)
    try:
        while not wanted or samples < wanted:
            if (samples or is_waiting) and not source.is_archive:
                interval.sleep()
            try:
                time, found = events.read()
            except pmapi.pmErr as error:
                if source.is_archive or options.once:
                    raise
                # As in run().
                if not is_waiting:
                    report_error(reason(error), "; waiting until it answers")
                is_waiting = True
                source.reconnect()
                if current_time() > finish:
                    break
                continue
            is_waiting = False
            for event in found:
                if start <= event["timestamp"] <= last:
                    print(json.dumps(event) if options.json else events.line(event), flush=True)
            samples += 1
            # This sample has the last events until then.
            if (time if source.is_archive else current_time()) > finish:
                break
    except pmapi.pmErr as error:
        if error.args[0] != PM_ERR_EOL:
            raise
    return True
