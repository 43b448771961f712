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

# A key: an escape sequence of a function key, which on Linux's console may have two brackets, or one byte.
KEY = re.compile(rb"\033(?:\[\[?|O)[0-9;]*[A-Za-z~]|.", re.DOTALL)
UP, DOWN = (b"\033[A", b"\033OA", b"k"), (b"\033[B", b"\033OB", b"j")
PAGE_UP, PAGE_DOWN = (b"\033[5~",), (b"\033[6~", b" ")
ENTER, LEAVE = (b"\r", b"\n"), (b"q", b"Q", b"\033")
# In place of a key: the terminal has another size, or the program continues after a stop.
REDRAW = b""
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
        # A signal makes the first one readable.
        self.woken = self.waker = None

    def __enter__(self):
        handlers = dict.fromkeys(ENDS, self.end)
        handlers.update({signal.SIGTSTP: self.stop, signal.SIGCONT: self.go_on, signal.SIGWINCH: self.redraw})
        self.woken, self.waker = os.pipe()
        for end in (self.woken, self.waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.waker)
        for number, handler in handlers.items():
            self.handlers[number] = signal.signal(number, handler)
        self.take()
        return self

    def __exit__(self, *_error):
        self.give_back()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)

    def redraw(self, *_signal):
        """Has the screen drawn again, as if by a key."""
        self.typed.append(REDRAW)

    def go_on(self, *_signal):
        """Continues after a stop."""
        self.take()
        self.redraw()

    def take(self):
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
        if not self.typed:
            readable = select.select([self.fd, self.woken, *others], [], [], seconds)[0]
            if self.woken in readable:
                os.read(self.woken, 4096)
            if self.fd in readable:
                self.typed += self.read()
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

    def __enter__(self):
        if self.keys:
            self.keys.__enter__()
        return self

    def __exit__(self, *error):
        if self.keys:
            self.keys.__exit__(*error)
        # The prompt of the shell follows below the last screen.
        print(flush=True)

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
            self.chosen = next(iter(self.overview.choices()), None)
        width, height = shutil.get_terminal_size((80, 24))
        print(CLEAR + "\n".join(self.overview.lines(width, height, self.chosen)), end="", flush=True)

    def key(self, key):
        """Handles a key."""
        if key in LEAVE:
            raise Leave()
        if self.overview is None:
            return
        names = self.overview.choices()
        if key in ENTER and names:
            self.open(self.chosen)
        elif names:
            step = {UP: -1, DOWN: 1, PAGE_UP: -PAGE, PAGE_DOWN: PAGE}
            moved = names.index(self.chosen) + sum(by for keys, by in step.items() if key in keys)
            self.chosen = names[max(0, min(moved, len(names) - 1))]
        self.draw()

    def open(self, name):
        """Shows the report of a host until a key leaves it."""
        self.say(name, "connecting")
        try:
            try:
                self.show_host(self.wait_for(lambda: Source(self.targets[name].context())), self)
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

    def wait_for(self, ask):
        """Returns what a function returns that asks a host. A key leaves earlier: libpcp may wait for seconds."""
        found = []

        def work():
            """Asks in a thread of its own."""
            try:
                found.append((ask(), None))
            except Exception as error:  # pylint: disable=broad-except
                # It is raised below.
                found.append((None, error))

        threading.Thread(target=work, daemon=True).start()
        while not found:
            self.pause(KEY_SECONDS)
        answer, error = found[0]
        if error:
            raise error
        return answer

    def pause(self, seconds):
        """Waits, and raises Leave if a key asks for that."""
        until = monotonic() + seconds
        while True:
            rest = until - monotonic()
            if rest <= 0:
                return
            if self.keys.next(min(rest, 3600)) in LEAVE:
                raise Leave()
