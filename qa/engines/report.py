# SPDX-License-Identifier: GPL-2.0-or-later
"""Results of a step as a table, and checks of them."""


class Report:
    """The rows and checks of one step."""

    def __init__(self, name, about):
        self.name, self.about = name, about
        self.failed, self.checks = [], 0
        print(f"\n== {name}: {about}", flush=True)

    def say(self, text):
        """Prints a remark."""
        print(f"   {text}", flush=True)

    def heads(self, *heads):
        """Prints the head of a table that compares two programs."""
        self.say("{:<30}{:>16}{:>16}   {}".format(*heads))

    def row(self, name, value, reference, percent=0):
        """Prints two numbers, and checks that they are equal, or differ by at most `percent`."""
        if value is None or reference is None:
            verdict, right = "no value", False
        elif percent:
            apart = abs(value - reference) / reference * 100 if reference else 0 if value == reference else 100
            verdict, right = f"{apart:.1f} % apart, {percent} % allowed", apart <= percent
        else:
            right = value == reference
            verdict = "equal" if right else "DIFFERENT"
        self.say(f"{name:<30}{number(value):>16}{number(reference):>16}   {verdict}{'' if right else '  FAILED'}")
        self.count(name, right)

    def check(self, what, right, found=None):
        """Prints a check that passed or failed, with the found value."""
        self.say(f"{'ok' if right else 'FAILED'}: {what}{'' if found is None else f': {found}'}")
        self.count(what, right)

    def count(self, what, right):
        """Counts a check."""
        self.checks += 1
        if not right:
            self.failed.append(what)

    def result(self):
        """Returns the line of this step in the summary."""
        if self.failed:
            return f"FAILED: {'; '.join(self.failed)}"
        return f"passed, {self.checks} checks"


def number(value):
    """Formats a number with separators of thousands."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
