# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of `make gpu`, in Markdown."""


class Table:
    """Rows with what was seen and a verdict. Each one is printed at once, so that a run that is killed has shown the rows before."""

    def __init__(self):
        self.rows, self.passed, self.failed = 0, 0, 0

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
        """Adds a row."""
        if not self.rows:
            print("| what | seen | verdict |\n| --- | --- | --- |")
        self.rows += 1
        print(f"| {what} | {seen} | {verdict} |", flush=True)


def amount(number):
    """Formats a number with three significant digits, or with separators of thousands."""
    if number is None:
        return "no value"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"
