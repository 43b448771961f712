# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts, finds and ends processes. Each started process leads a new session, and ends with this one."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import time

RUNNING = []
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1

# The caller's settings of NIXL change no run, neither those of the environment nor those of ~/.nixl.cfg and /etc/nixl.cfg.
for variable in [name for name in os.environ if name.startswith("NIXL_")]:
    del os.environ[variable]
os.environ["NIXL_CONFIG_FILE"] = "/dev/null"


def end_with_parent():
    """Makes the kernel kill this process when its parent ends, also by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, log, env, cwd=None, stdin=subprocess.DEVNULL, stdout=None):
    """Starts a command in a new session. Its output goes to the log, or its standard output to `stdout`."""
    process = subprocess.Popen(command, stdin=stdin, stdout=log if stdout is None else stdout, stderr=log, env=env, cwd=cwd,
                               start_new_session=True, preexec_fn=end_with_parent)
    RUNNING.append(process)
    return process


def free_ports(count):
    """Returns the first of `count` consecutive free TCP ports on loopback, below the kernel's range for outgoing connections."""
    while True:
        first = random.randrange(16000, 30000)
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()


def in_group(group):
    """Returns True if this process group has a running process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = read(entry, "stat").rpartition(")")[2].split()
            if fields and fields[0] not in "ZX" and int(fields[2]) == group:
                return True
    return False


def end(*ended, patience=30):
    """Ends processes and their groups, all at once: with SIGTERM, then SIGKILL."""
    for number in signal.SIGTERM, signal.SIGKILL:
        left = [process for process in ended if in_group(process.pid)]
        for process in left:
            os.killpg(process.pid, number)
        limit = time.monotonic() + patience
        while left and time.monotonic() < limit:
            time.sleep(0.2)
            left = [process for process in left if process.poll() is None or in_group(process.pid)]
    for process in ended:
        process.wait()
        if process in RUNNING:  # not if a signal has interrupted an earlier call
            RUNNING.remove(process)


def end_all(but=None, patience=30):
    """Ends all running processes except `but`."""
    end(*(process for process in RUNNING if process is not but), patience=patience)


def read(pid, name):
    """Returns the text of /proc/PID/NAME, or "" if the process has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def runs(pid):
    """Returns True if the process exists and is not a zombie."""
    return read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def descendants(pid):
    """Returns the process and all its descendants."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = read(entry, "stat").rpartition(")")[2].split()
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found
