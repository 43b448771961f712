# SPDX-License-Identifier: GPL-2.0-or-later
"""The option --events with many hosts: what happened on all of them, in the order of time."""
import json
from time import monotonic, time as current_time

from pcp import pmapi
from cpmapi import PM_ERR_EOL, PM_MODE_FORW

from .events import Events
from .fleet import ThreadPool, Waiter, patience
from .overview import Failure
from .source import MissingMetric, Source, report_error


class EventHost(object):
    """A host whose events are read. Only its thread calls ask()."""

    def __init__(self, target):
        self.target, self.events, self.found = target, None, []
        self.error, self.is_known_error, self.is_busy = None, False, False

    def open(self):
        """Connects, or opens the archives."""
        source = Source(self.target.context(), {})
        # Events have the host as the list names it.
        source.host = self.target.name
        self.events = Events(source)

    def ask(self):
        """Reads the events that are new."""
        try:
            if self.events is None:
                self.open()
            self.found += self.events.read()[1]
            self.error, self.is_known_error = None, False
        except (MissingMetric, pmapi.pmErr) as error:
            self.error = error
            try:
                if self.events:
                    # The events that are known to be printed must not be lost.
                    self.events.context.pmReconnectContext()
            except pmapi.pmErr:
                pass

    def complain(self, rest):
        """Reports an error once."""
        if self.error is not None and not self.is_known_error:
            self.is_known_error = True
            report_error("{}: {}".format(self.target.name, Failure(self.target.name, self.error, None, None).error), rest)


def print_events(options, hosts, start, finish):
    """Prints the events that were found, oldest first."""
    width = max(len(host.target.name) for host in hosts)
    found = []
    for host in hosts:
        events, host.found = host.found, []
        found += [(event["timestamp"], number, host, event) for number, event in enumerate(events)]
    found.sort(key=lambda one: one[:2])
    for timestamp, _, host, event in found:
        if start <= timestamp <= finish:
            print(json.dumps(event) if options.json else host.events.line(event, host.target.name.ljust(width)), flush=True)


def run_host_events(options, targets):
    """Prints events of live hosts until the requested number of readings ends. Returns True if a host has answered."""
    hosts = [EventHost(target) for target in targets]
    options.set_window()
    wanted = 1 if options.once else options.pmGetOptionSamples()
    finish = options.finish()
    interval = float(options.interval())
    pool, readings, has_answer = ThreadPool(hosts), 0, False
    waiter = Waiter(pool)
    while not wanted or readings < wanted:
        begun = monotonic()
        pool.begin()
        waiter.wait(begun + patience(), for_round=True)
        answered = [host for host in hosts if not host.is_busy]
        has_answer = has_answer or any(host.error is None for host in answered)
        for host in answered:
            host.complain("" if options.once else "; waiting until it answers")
        # The clocks of hosts may differ.
        print_events(options, answered, float("-inf"), float("inf"))
        readings += 1
        if current_time() > finish:
            break
        if not wanted or readings < wanted:
            waiter.wait(begun + interval)
    return has_answer


def run_archive_events(options, targets):
    """Prints the events in the archives of all hosts. Returns True if an archive logs events, even if it has none."""
    hosts = [EventHost(target) for target in targets]
    for host in hosts:
        try:
            host.open()
        except (MissingMetric, pmapi.pmErr) as error:
            host.error = error
            host.complain("; its events are left out")
    hosts = [host for host in hosts if host.error is None]
    if not hosts:
        return False
    options.set_window(hosts[0].events.context)
    start = float(options.pmGetOptionStart()) if options.has_start else float("-inf")
    finish = options.finish()
    for host in hosts:
        # All samples, without interpolation.
        host.events.context.pmSetMode(PM_MODE_FORW, options.pmGetOptionStart(), 0)
        try:
            time = float("-inf")
            while time <= finish:
                time, found = host.events.read()
                host.found += found
        except pmapi.pmErr as error:
            if error.args[0] != PM_ERR_EOL:
                host.error = error
                host.complain("; its later events are left out")
    print_events(options, hosts, start, finish)
    return True
