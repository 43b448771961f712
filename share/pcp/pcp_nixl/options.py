# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line."""
import os
import sys

import cpmapi
from pcp import pmapi
from cpmapi import PM_CONTEXT_ARCHIVE, PM_ERR_NOCONTEXT, PM_OPTFLAG_MULTI

from . import overview
from .host_list import BadList, Target, read_targets
from .report import COLUMN_HELP, DEFAULT_KEY, KEYS

# Default interval of --peers: pmdanixl reads sockets every 10 s.
PEERS_SECONDS = 10


class Options(pmapi.pmOptions):
    """The command line."""

    def __init__(self):
        pmapi.pmOptions.__init__(self, "1A:a:eh:H:jk:O:ps:S:t:T:VzZ:?")
        self.once, self.json, self.events, self.peers = False, False, False, False
        # The word of --sort, the key of its column, and the targets of --hosts.
        self.word = self.key = self.targets = None
        # Those of the targets that are archives and can be opened.
        self.archives = []
        # pcp(1) passes its own options in the environment.
        self.error, self.has_start = None, "PCP_START_TIME" in os.environ
        self.pmSetOverrideCallback(self.override)
        self.pmSetOptionCallback(self.option)
        self.pmSetLongOptionHeader("General options")
        self.pmSetLongOptionAlign()
        self.pmSetLongOptionArchive()
        self.pmSetLongOptionHost()
        self.pmSetLongOptionOrigin()
        self.pmSetLongOptionStart()
        self.pmSetLongOptionSamples()
        self.pmSetLongOptionFinish()
        self.pmSetLongOptionInterval()
        self.pmSetLongOptionTimeZone()
        self.pmSetLongOptionHostZone()
        self.pmSetLongOptionVersion()
        self.pmSetLongOptionHelp()
        self.pmSetLongOptionHeader("Reporting options")
        self.pmSetLongOption("once", 0, "1", "", "report once, after one interval, and exit")
        self.pmSetLongOption("events", 0, "e", "", "print what happened, one line for each event, instead of reports")
        self.pmSetLongOption(
            "hosts", 1, "H", "HOSTS", "report many hosts, one line each: a file of hosts, -, or a directory of archives")
        self.pmSetLongOption("json", 0, "j", "", "report in JSON, one line for each interval")
        self.pmSetLongOption("peers", 0, "p", "", "report who talks to whom over TCP")
        self.pmSetLongOption("sort", 1, "k", "COLUMN", "sort by " + ", ".join(sorted(KEYS)) + " (default: server)")
        self.pmSetLongOptionHeader("Columns (all of them are in pcp-nixl(1))")
        for head, text in COLUMN_HELP:
            self.pmSetLongOptionText("  {:8}{}".format(head, text))

    def override(self, opt):
        """Notes that the start was chosen. The standard options stay as they are, except for -H and -p."""
        self.has_start = self.has_start or opt == "S"
        # Other clients have another -H and -p.
        return opt in ("H", "p")

    def option(self, opt, optarg, index):
        """Handles an option that only this client has."""
        # pylint: disable=unused-argument
        if opt == "1":
            self.once = True
        elif opt == "e":
            self.events = True
        elif opt == "j":
            self.json = True
        elif opt == "p":
            self.peers = True
        elif opt == "k":
            self.word = optarg
        elif opt == "H":
            if self.targets is not None:
                self.error = "--hosts: give one list: a file can have all hosts"
                return
            # An error in this method is printed, and libpcp goes on: without a list, that would be a report of this host.
            self.targets = []
            try:
                self.targets = read_targets(optarg)
            except BadList as error:
                self.error = "--hosts " + error.args[0]
                return
            # Each archive is a context of its own, and the time window is that of all of them.
            self.pmSetOptionFlags(PM_OPTFLAG_MULTI)
            # One that cannot be opened has a line that says so, and must not end libpcp's search for the window.
            self.archives = [target for target in self.targets if target.is_archive and target.can_open()]
            for target in self.archives:
                self.pmSetOptionArchive(target.address)

    def parse(self):
        """Reads the command line. The text of a mistake is in `error`, or libpcp has it."""
        if cpmapi.pmGetOptionsFromList(sys.argv) and not self.error:
            raise pmapi.pmUsageErr
        keys = KEYS if self.targets is None else overview.KEYS
        if self.word:
            self.key = keys.get(self.word.lower())
            if self.key is None:
                known = ", ".join(sorted(keys))
                self.error = self.error or "--sort {}: there is no such column; use one of {}".format(self.word, known)
        elif self.targets is None:
            self.key = DEFAULT_KEY
        if self.peers and (self.events or self.word):
            self.error = self.error or "--peers: leave out --events and --sort: pairs are sorted by their bytes"
        unused = self.pmGetOperands()
        if unused:
            self.error = self.error or "{}: there is no such argument; options begin with a hyphen".format(unused[0])
        if self.targets and (self.pmGetOptionHosts() or len(self.pmGetOptionArchives() or []) != len(self.archives)):
            # For -O, libpcp takes the archives of this host.
            self.error = self.error or "--hosts: it has all hosts; leave out -h and -a, and -O for live hosts"

    def interval(self):
        """Returns the interval between samples."""
        return self.pmGetOptionInterval() or pmapi.timeval(PEERS_SECONDS if self.peers else self.delta, 0)

    def target(self):
        """Returns the one host or archive."""
        archives, hosts = self.pmGetOptionArchives(), self.pmGetOptionHosts()
        if archives:
            return Target(archives[0], archives[0], PM_CONTEXT_ARCHIVE)
        host = hosts[0] if hosts else "local:"
        return Target(host, host)

    def context(self):
        """Connects to the one host, or opens the archive, and completes the time window."""
        context = self.target().context()
        self.set_window(context)
        return context

    def set_window(self, context=None):
        """Completes the time window and the time zone. They may depend on the archive. Many live hosts have no context in common."""
        # With several archives, libpcp computes the window, and is then without a context to set to its begin.
        if cpmapi.pmSetContextOptions(context.ctx if context else -1, self.mode, self.delta) not in (0, PM_ERR_NOCONTEXT):
            raise pmapi.pmUsageErr

    def finish(self):
        """Returns the time at which live values and events end. set_window() completes it."""
        return float(self.pmGetOptionFinish()) if self.pmGetOptionFinishOptarg() else float("inf")
