# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for conditions."""

import time


class Failure(Exception):
    """A step cannot go on. The text is the reason."""


def within(seconds, condition, pause=0.5):
    """Waits until `condition()` is true, for `seconds` at most. Returns its last result."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > end:
            return result
        time.sleep(pause)


def until(what, condition, seconds, pause=0.5):
    """Waits until `condition()` is true, and returns its result. Raises Failure after `seconds`."""
    result = within(seconds, condition, pause)
    if not result:
        raise Failure(f"not in {seconds} s: {what}")
    return result
