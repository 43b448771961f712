# SPDX-License-Identifier: GPL-2.0-or-later
"""Asking many hosts at the same time, and their reports one after the other."""
import errno
import os
import queue
import resource
import select
import shutil
import sys
import threading
from collections import namedtuple
from math import ceil
from time import monotonic, time as current_time

from pcp import pmapi
from cpmapi import PM_ERR_EOL, PM_MODE_INTERP

from .overview import Failure, HostSource, Overview, Row
from .peers import PeerRow, PeerSource, PeerTable
from .source import MissingMetric, clock_of, day_of

# Seconds for which a round waits for a host that has not answered, unless PMCD_CONNECT_TIMEOUT says otherwise. The next
# rounds do not wait for it.
PATIENCE = 1
# What is shown: how a source is opened for a target, the class of what one host has in an interval, and of the whole.
View = namedtuple("View", "open row table")
HOSTS = View(lambda target: HostSource(target.context()), Row, Overview)
PEERS = View(PeerSource, PeerRow, PeerTable)


class Host(object):
    """A host, and what it last answered. Only its thread calls ask()."""

    def __init__(self, target, view):
        self.target, self.name, self.view = target, target.name, view
        self.source = self.before = self.shown = None
        self.since = current_time()
        self.row = Failure(self.name, "it has not answered yet", self.since, self.since)
        self.is_busy = False

    def ask(self):
        """Takes a sample, after connecting if there is no connection. Its outcome is a row."""
        begun = monotonic()
        try:
            if self.source is None:
                self.source = self.view.open(self.target)
            now = self.source.sample()
            before, self.before = self.before, now
            self.row, self.since = self.view.row(self.name, self.source, before, now), current_time()
        except (MissingMetric, pmapi.pmErr) as error:
            took = monotonic() - begun
            if self.source is None and took > PATIENCE and error.args[0] == -errno.ECONNREFUSED:
                # libpcp says that the connection was refused, also after it has waited for one.
                error = "no connection within {:.0f} s".format(took)
            # The next round connects again.
            self.source = self.before = None
            self.row = Failure(self.name, error, self.since, current_time())

    def outcome(self):
        """Returns the row of an answer that no report has had, or a failure.

        A host that takes longer for an answer than reports wait is in each report that follows an answer.
        """
        row, before, self.shown = self.row, self.shown, self.row
        if row.error is None and row is not before:
            return row
        return Failure(self.name, row.error or "it does not answer", self.since, current_time())


class ArchivedHost(object):
    """A host whose values are in archives."""

    def __init__(self, target, view):
        self.target, self.name, self.view, self.before = target, target.name, view, None
        try:
            self.source, self.error = view.open(target), None
            context = self.source.context
            self.begin, self.end = float(context.pmGetArchiveLabel().start), float(context.pmGetArchiveEnd())
        except (MissingMetric, pmapi.pmErr) as error:
            self.source, self.error = None, error

    def start(self, at, interval):
        """Sets the time of the first sample, and the interval between samples, in seconds."""
        context = self.source.context
        # PCP 7 has one function, for nanoseconds.
        set_mode = getattr(context, "pmSetModeHighRes", context.pmSetMode)
        set_mode(PM_MODE_INTERP, pmapi.timespec(*parts_of(at)), pmapi.timespec(*parts_of(interval)))
        self.before = None

    def next(self, at):
        """Returns a row for the next time of the archive. It is a failure where the archive has no values."""
        before, self.before = self.before, None
        if self.error is not None:
            return Failure(self.name, self.error, None, at)
        try:
            now = self.source.sample()
        except pmapi.pmErr as error:
            if error.args[0] != PM_ERR_EOL:
                return Failure(self.name, error, None, at)
            # So it is also before the first sample.
            text = "its archive begins at {}" if at < self.begin else "its archive ended at {}"
            time = self.begin if at < self.begin else self.end
            return Failure(self.name, text.format(day_of(time) + " " + clock_of(time)), None, at)
        self.before = now if now.is_known else None
        if not now.is_known or before is None:
            return Failure(self.name, "its archive has none for this time", None, at)
        row = self.view.row(self.name, self.source, before, now)
        row.timestamp = at
        return row


def parts_of(seconds):
    """Returns whole seconds and nanoseconds."""
    micros = int(round(float(seconds) * 1e6))
    return micros // 1000000, micros % 1000000 * 1000


class TooManyHosts(Exception):
    """The error for a limit of processes (RLIMIT_NPROC, pids of a control group) that is too low for a thread for each host."""


class ThreadPool(object):
    """A thread for each host.

    libpcp 6.0.3 holds no lock while it connects to an address or waits for an answer, and ctypes releases Python's: 20 hosts
    that do not answer took the 5 s of one, and others answered meanwhile. So there is no need for processes.
    """

    def __init__(self, hosts):
        self.hosts, self.lock, self.awaited = hosts, threading.Lock(), set()
        self.woken, self.waker = os.pipe()
        os.set_blocking(self.woken, False)
        allow_descriptors(len(hosts))
        for host in hosts:
            host.orders = queue.Queue()
            # The program can end while a thread waits for its host.
            try:
                threading.Thread(target=self.work, args=(host,), daemon=True).start()
            except RuntimeError:
                raise TooManyHosts(len(hosts))

    def work(self, host):
        """Asks a host once for each order."""
        while True:
            host.orders.get()
            host.ask()
            with self.lock:
                host.is_busy = False
                is_last = self.awaited == {host}
                self.awaited.discard(host)
            if is_last:
                os.write(self.waker, b".")

    def begin(self):
        """Begins a round: asks the hosts whose threads are idle. Hosts that are still busy are no longer waited for."""
        with self.lock:
            idle = [host for host in self.hosts if not host.is_busy]
            self.awaited = set(idle)
            for host in idle:
                host.is_busy = True
        for host in idle:
            host.orders.put(None)

    def is_done(self):
        """Returns True if all hosts of the round have answered."""
        return not self.awaited


def allow_descriptors(count):
    """Raises the limit of open files if it is too low for so many hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 100
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


class Waiter(object):
    """Waits for a time or for the end of a round. Keys that are typed meanwhile are handled."""

    def __init__(self, pool, keys=None, on_key=None):
        self.pool, self.keys, self.on_key = pool, keys, on_key

    def wait(self, until, for_round=False):
        """Returns at a time of the monotonic clock, or when all hosts of the round have answered."""
        while not (for_round and self.pool.is_done()):
            rest = until - monotonic()
            if rest <= 0:
                return
            key = None
            if self.keys:
                key = self.keys.next(rest, [self.pool.woken])
            else:
                select.select([self.pool.woken], [], [], rest)
            try:
                os.read(self.pool.woken, 4096)
            except BlockingIOError:
                pass
            if key is not None:
                self.on_key(key)


def patience():
    """Returns for how many seconds a round waits for a host."""
    try:
        return float(os.environ["PMCD_CONNECT_TIMEOUT"])
    except (KeyError, ValueError):
        return PATIENCE


def run_hosts(options, targets, view=HOSTS, screen=None):
    """Reports of live hosts until the requested number of reports ends. Returns True if a host has answered."""
    # A host without a list is open: it may have the time zone.
    options.set_window(targets[0].opened)
    wanted = 1 if options.once else options.pmGetOptionSamples()
    finish = options.finish()
    interval = float(options.interval())
    pool = ThreadPool([Host(target, view) for target in targets])
    waiter = Waiter(pool, screen and screen.keys, screen and screen.key)
    has_answer, reports = False, 0
    if screen:
        screen.begin(interval)
    # The samples from which the first rates are.
    begun = monotonic()
    pool.begin()
    waiter.wait(begun + max(patience(), interval) if not screen else begun + interval, for_round=True)
    while not wanted or reports < wanted:
        waiter.wait(begun + interval)
        begun = monotonic()
        pool.begin()
        waiter.wait(begun + patience(), for_round=True)
        rows = [host.outcome() for host in pool.hosts]
        has_answer = has_answer or any(row.error is None for row in rows)
        table = view.table(rows, current_time(), options.key)
        if screen:
            screen.draw(table)
        else:
            show(table, options, reports)
        reports += 1
        if current_time() > finish:
            break
    return has_answer


def run_archives(options, targets, view=HOSTS):
    """Reports of archived hosts, one for each interval. Returns the number of reports."""
    hosts = [ArchivedHost(target, view) for target in targets]
    open_hosts = [host for host in hosts if host.source]
    if not open_hosts:
        raise hosts[0].error
    options.set_window(open_hosts[0].source.context)
    interval = float(options.interval())
    wanted = 1 if options.once else options.pmGetOptionSamples()
    finish = float(options.pmGetOptionFinish())
    at, reports, is_gap = float(options.pmGetOptionOrigin()), 0, True
    while (not wanted or reports < wanted) and at <= finish:
        if is_gap:
            # No archive has this time. Those of a farm may be years apart.
            begins = [host.begin for host in open_hosts if host.end >= at]
            if not begins:
                break
            at += max(0, ceil((min(begins) - at) / interval)) * interval
            for host in open_hosts:
                host.start(at, interval)
        rows = [host.next(at) for host in hosts]
        if any(row.error is None for row in rows):
            show(view.table(rows, at, options.key, has_date=True), options, reports)
            reports += 1
        at += interval
        is_gap = not any(host.begin <= at <= host.end for host in open_hosts)
    return reports


def show(table, options, reports):
    """Prints one report, below the ones before."""
    if options.json:
        print(table.json())
    else:
        # Without a terminal, lines have no maximum width unless COLUMNS is set.
        width = shutil.get_terminal_size((80 if sys.stdout.isatty() else sys.maxsize, 24)).columns
        print(("\n" if reports else "") + "\n".join(table.lines(width)))
    sys.stdout.flush()
