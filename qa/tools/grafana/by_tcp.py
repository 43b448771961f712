#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""by_tcp.py DIRECTORY PROGRAM ARGUMENT...: runs a program as a process that uses NIXL and moves bytes by TCP, for pmdanixl.

The program gets libraries with the names of NIXL's, from the new directory, and a connection. A child of this process sends on that connection, until the
program ends. pmdanixl counts an inherited connection for the process that uses NIXL. The variable TITLE is the title of the process.
"""
import ctypes
import os
import shutil
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1


def send(connection, peer):
    """Sends about 640 KB a second to the peer, until the parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while os.getppid() != 1:
        connection.sendall(bytes(1 << 16))
        left = 1 << 16
        while left:
            left -= len(peer.recv(left))
        time.sleep(0.1)


def library():
    """Returns the path of a library that any program can load."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [line.split()[-1] for line in maps]
    return next(path for path in paths if "/libm.so" in path or "/libm-" in path)


def main():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        peer = server.accept()[0]
    if os.fork() == 0:
        send(connection, peer)
        return
    connection.set_inheritable(True)
    directory, program = sys.argv[1:3]
    os.mkdir(directory)
    libraries = [os.path.join(directory, name) for name in ("libnixl.so", "libplugin_UCX.so")]
    for copy in libraries:
        shutil.copy(library(), copy)
    os.environ["LD_PRELOAD"] = ":".join(libraries)
    os.execv(program, [os.environ.get("TITLE", program), *sys.argv[3:]])


main()
