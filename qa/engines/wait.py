"""Waiting for conditions."""

import time


class Failure(Exception):
    """A step cannot go on. The text says why."""


def within(seconds, condition, pause=0.5):
    """Waits until `condition()` is true, for so many seconds at most, and returns what it returned last."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > end:
            return result
        time.sleep(pause)


def until(what, condition, seconds, pause=0.5):
    """Waits until `condition()` is true, and returns what it returned; raises Failure after so many seconds."""
    result = within(seconds, condition, pause)
    if not result:
        raise Failure(f"not in {seconds} s: {what}")
    return result
