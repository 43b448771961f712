# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of `make gpu`, in Markdown."""

import sys


class Table:
    """Rows with what was seen and a verdict."""

    def __init__(self):
        self.rows, self.passed, self.failed = [], 0, 0

    def check(self, what, right, seen, wrong="FAIL"):
        """Adds a row that has a right answer. `wrong` is the verdict for another answer."""
        self.passed += bool(right)
        self.failed += not right
        self.add(what, seen, "PASS" if right else wrong)

    def figure(self, what, seen):
        """Adds a row without a right answer."""
        self.add(what, seen, "figure only")

    def leave_out(self, what, reason):
        """Adds a row that cannot run on this host."""
        self.add(what, reason, "left out")

    def add(self, what, seen, verdict):
        """Adds a row and shows it as progress."""
        self.rows.append(f"| {what} | {seen} | {verdict} |")
        print(self.rows[-1], file=sys.stderr, flush=True)

    def text(self):
        """Returns the whole table."""
        return "\n".join(["| what | seen | verdict |", "| --- | --- | --- |", *self.rows])


def amount(number):
    """Formats a number with three significant digits, or with separators of thousands."""
    if number is None:
        return "no value"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"
