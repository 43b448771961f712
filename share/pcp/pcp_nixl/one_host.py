# SPDX-License-Identifier: GPL-2.0-or-later
"""The reports of one host or archive, one after the other."""
import shutil
import sys
from time import time as current_time

from pcp import pmapi
from cpmapi import PM_ERR_EOL

from .report import DEFAULT_KEY, Report
from .source import reason, report_error
from .terminal import CLEAR


def show(report, options, is_screen):
    """Prints one report."""
    if options.json:
        print(report.json())
    else:
        # Without a terminal, lines have no maximum width unless COLUMNS is set.
        columns, rows = shutil.get_terminal_size((80 if sys.stdout.isatty() else sys.maxsize, 24))
        text = "\n".join(report.lines(columns, rows if is_screen else None))
        print(CLEAR + text if is_screen else text)
    sys.stdout.flush()


def run(options, source, screen=None):
    """Reports until the samples or the requested number of reports end. Returns the number of reports.

    With the screen of many hosts, this is the report of one of them, which a key ends.
    """
    wanted = 0 if screen else 1 if options.once else options.pmGetOptionSamples()
    key = DEFAULT_KEY if screen else options.key
    finish = options.finish()
    interval = options.pmGetOptionInterval() or pmapi.timeval(options.delta, 0)
    is_screen = not (options.once or options.json or source.is_archive) and sys.stdout.isatty()
    # On the screen of many hosts, a key works while the host does not answer.
    ask = screen.wait_for if screen else lambda work: work()
    reports, is_waiting = 0, False
    try:
        before = ask(source.sample)
        answered = before.timestamp
        while not wanted or reports < wanted:
            if screen:
                screen.pause(float(interval))
            elif not source.is_archive:
                interval.sleep()
            try:
                now = ask(source.sample)
                report = ask(lambda: Report(source, before or now, now, key))
            except pmapi.pmErr as error:
                if source.is_archive or options.once:
                    raise
                # pmcd or pmdanixl may be up again at the next sample: pmcd ends a PMDA that stood still for 5 s, and starts it again.
                text = reason(error, source.clock(answered)[1])
                if is_screen:
                    print(CLEAR + "{}  no values: {}".format(source.host, text), flush=True)
                elif not is_waiting:
                    report_error(text, "; waiting until it answers")
                ask(source.reconnect)
                before, is_waiting = None, True
                if current_time() > finish:
                    break
                continue
            answered, is_waiting = now.timestamp, False
            # The clock of a host may differ.
            if (now.timestamp if source.is_archive else current_time()) > finish:
                break
            if before is None or not (before.is_known and now.is_known):
                before = now
                continue
            if reports and not is_screen and not options.json:
                print()
            show(report, options, is_screen)
            before, reports = now, reports + 1
    except pmapi.pmErr as error:
        if error.args[0] != PM_ERR_EOL:
            raise
    return reports
