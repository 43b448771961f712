"""Processes of this run: starting, finding and ending them. Each started process leads a session of its own."""

import os
import random
import signal
import socket
import subprocess
import time

RUNNING = []


def start(command, log, env, cwd=None, stdin=subprocess.DEVNULL, stdout=None):
    """Starts a command in a new session. Its output goes to the log, or its standard output to `stdout`."""
    process = subprocess.Popen(command, stdin=stdin, stdout=log if stdout is None else stdout, stderr=log, env=env, cwd=cwd,
                               start_new_session=True)
    RUNNING.append(process)
    return process


def free_ports(count):
    """The first of so many consecutive TCP ports that are free on loopback, below the range the kernel gives out by itself."""
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
    """True if a process that runs is in this process group."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = read(entry, "stat").rpartition(")")[2].split()
            if fields and fields[0] not in "ZX" and int(fields[2]) == group:
                return True
    return False


def end(process, patience=30):
    """Ends a process and all that it started: SIGTERM, then SIGKILL to those that remain."""
    for number in signal.SIGTERM, signal.SIGKILL:
        if in_group(process.pid):
            os.killpg(process.pid, number)
        limit = time.monotonic() + patience
        while in_group(process.pid) and time.monotonic() < limit:
            process.poll()
            time.sleep(0.2)
    process.wait()
    RUNNING.remove(process)


def end_all(but=None):
    """Ends all that still runs but one, the last one first."""
    for process in list(reversed(RUNNING)):
        if process is not but:
            end(process)


def read(pid, name):
    """The text of /proc/PID/NAME; nothing if the process has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def runs(pid):
    """True if the process runs, that is, exists and is not a zombie."""
    return read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def descendants(pid):
    """The process and all that descend from it."""
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
