# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys of a terminal, whose state is restored in every case, and the screen with many hosts."""
import os
import re
import select
import shutil
import signal
import sys
import termios
import threading
from time import monotonic

from pcp import pmapi

from .overview import Failure
from .source import MissingMetric, Source
from .text import cut

# A key: an escape sequence of a function key, or one byte.
KEY = re.compile(rb"\033[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
UP, DOWN = (b"\033[A", b"\033OA", b"k"), (b"\033[B", b"\033OB", b"j")
PAGE_UP, PAGE_DOWN = (b"\033[5~",), (b"\033[6~", b" ")
ENTER, LEAVE = (b"\r", b"\n"), (b"q", b"Q", b"\033")
# Seconds within which the bytes of one function key follow each other, also over a slow connection.
KEY_SECONDS = 0.05
# Cursor to the top left corner, erase the rest of the screen.
CLEAR = "\033[H\033[J"
# Hosts by which a page moves.
PAGE = 10
# Signals that end the program, after the terminal is restored.
ENDS = (signal.SIGTERM, signal.SIGHUP)


class Leave(Exception):
    """The wish to leave what is shown."""


class Keys(object):
    """The keys of a terminal, without echo, each as soon as it is typed."""

    def __init__(self, fd):
        self.fd, self.saved, self.handlers, self.typed = fd, termios.tcgetattr(fd), {}, []

    def __enter__(self):
        handlers = dict.fromkeys(ENDS, self.end)
        handlers.update({signal.SIGTSTP: self.stop, signal.SIGCONT: self.take})
        for number, handler in handlers.items():
            self.handlers[number] = signal.signal(number, handler)
        self.take()
        return self

    def __exit__(self, *_error):
        self.give_back()
        # The prompt of the shell follows below the last screen.
        print(flush=True)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def take(self, *_signal):
        """Switches line editing and echo off. Ctrl-C and Ctrl-Z stay."""
        mode = termios.tcgetattr(self.fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)

    def give_back(self):
        """Restores the state of the terminal."""
        try:
            termios.tcsetattr(self.fd, termios.TCSANOW, self.saved)
        except termios.error:
            # The terminal is gone.
            pass

    @staticmethod
    def end(number, _frame):
        """Ends the program on a signal, with the status that a shell gives it."""
        raise SystemExit(128 + number)

    def stop(self, number, _frame):
        """Restores the terminal for the shell, and stops."""
        self.give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self.stop)

    def next(self, seconds, others=()):
        """Returns the next key, or None: after a time, or if another descriptor can be read."""
        if not self.typed and self.fd in select.select([self.fd, *others], [], [], seconds)[0]:
            self.typed = self.read()
        return self.typed.pop(0) if self.typed else None

    def read(self):
        """Returns the keys that were typed. The end of the terminal is the wish to leave."""
        data = os.read(self.fd, 1024)
        while data.endswith((b"\033", b"\033[", b"\033O")) and select.select([self.fd], [], [], KEY_SECONDS)[0]:
            more = os.read(self.fd, 1024)
            if not more:
                break
            data += more
        return KEY.findall(data) or [LEAVE[0]]


def terminal_keys():
    """Returns the keys of the terminal that standard output is on, or None: for a pipe, or in the background."""
    if not sys.stdout.isatty():
        return None
    try:
        # Standard input may have the list of hosts.
        fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else os.open("/dev/tty", os.O_RDWR)
        return Keys(fd) if os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, termios.error):
        return None


class Screen(object):
    """The overview on a terminal. A host is chosen by keys, and Enter shows its report."""

    def __init__(self, keys, targets, show_host):
        self.keys, self.targets, self.show_host = keys, {target.name: target for target in targets}, show_host
        self.overview = self.chosen = None

    @staticmethod
    def begin(interval):
        """Says when the first report comes, if that is not soon."""
        if interval > 2:
            print("{}the first report comes after {:g} s".format(CLEAR, interval), flush=True)

    def draw(self, overview=None):
        """Draws the overview, or the last one again."""
        self.overview = overview or self.overview
        if self.overview is None:
            return
        if self.keys and self.chosen is None:
            self.chosen = self.overview.rows[0].name
        width, height = shutil.get_terminal_size((80, 24))
        print(CLEAR + "\n".join(self.overview.lines(width, height, self.chosen)), end="", flush=True)

    def key(self, key):
        """Handles a key."""
        if key in LEAVE:
            raise Leave()
        if self.overview is None:
            return
        if key in ENTER and self.chosen:
            self.open(self.chosen)
        else:
            step = {UP: -1, DOWN: 1, PAGE_UP: -PAGE, PAGE_DOWN: PAGE}
            names = [row.name for row in self.overview.rows]
            moved = names.index(self.chosen) + sum(by for keys, by in step.items() if key in keys)
            self.chosen = names[max(0, min(moved, len(names) - 1))]
        self.draw()

    def open(self, name):
        """Shows the report of a host until a key leaves it."""
        self.say(name, "connecting")
        try:
            try:
                self.show_host(self.connect(self.targets[name]), self)
            except (MissingMetric, pmapi.pmErr) as error:
                self.say(name, Failure(name, error, None, None).error)
                self.pause(float("inf"))
        except Leave:
            pass

    @staticmethod
    def say(name, text):
        """Shows a text in place of the report of a host."""
        width = shutil.get_terminal_size((80, 24)).columns
        print(CLEAR + cut("{}  {}".format(name, text), width - 1) + "\nq: back to all hosts", flush=True)

    def connect(self, target):
        """Returns the source of a host. A key leaves earlier: libpcp may wait for seconds."""
        found = []

        def work():
            """Connects in a thread of its own."""
            try:
                found.append(Source(target.context()))
            except (MissingMetric, pmapi.pmErr) as error:
                found.append(error)

        threading.Thread(target=work, daemon=True).start()
        while not found:
            self.pause(KEY_SECONDS)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def pause(self, seconds):
        """Waits, and raises Leave if a key asks for that."""
        until = monotonic() + seconds
        while True:
            rest = until - monotonic()
            if rest <= 0:
                return
            if self.keys.next(min(rest, 3600)) in LEAVE:
                raise Leave()
