# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line."""
from pcp import pmapi

from .report import COLUMN_HELP, KEYS


class Options(pmapi.pmOptions):
    """The command line."""

    def __init__(self):
        pmapi.pmOptions.__init__(self, "1A:a:eh:jk:O:s:S:t:T:VzZ:?")
        self.once, self.json, self.events, self.key = False, False, False, "server"
        self.error, self.has_start = None, False
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
        self.pmSetLongOption("json", 0, "j", "", "report in JSON, one line for each interval")
        self.pmSetLongOption("sort", 1, "k", "COLUMN", "sort by " + ", ".join(sorted(KEYS)) + " (default: server)")
        self.pmSetLongOptionHeader("Columns (all of them are in pcp-nixl(1))")
        for head, text in COLUMN_HELP:
            self.pmSetLongOptionText("  {:8}{}".format(head, text))

    def override(self, opt):
        """Notes that the start was chosen. The standard options stay as they are."""
        self.has_start = self.has_start or opt == "S"
        return 0

    def option(self, opt, optarg, index):
        """Handles an option that only this client has."""
        # pylint: disable=unused-argument
        if opt == "1":
            self.once = True
        elif opt == "e":
            self.events = True
        elif opt == "j":
            self.json = True
        elif opt == "k":
            if optarg.lower() not in KEYS:
                self.error = "--sort {}: there is no such column; use one of {}".format(optarg, ", ".join(sorted(KEYS)))
            self.key = KEYS.get(optarg.lower(), self.key)
