#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""many_hosts.py SOCKET ANSWERING REFUSING SILENT: pretends many hosts, which all have the pmcd with this Unix socket.

Prints the host specification of each, one a line, and runs until its standard input ends. Silent hosts drop the packets
that open a connection, since their queue of connections is full. Real hosts have a pmcd each, whose queue has five places:
here, one program with a long queue passes their connections on, five at a time.
"""
import asyncio
import socket
import sys

PLACES = 5


def local_socket():
    """Returns a socket that is bound to all addresses of this host that begin with 127, and to no others."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    bound.bind(("0.0.0.0", 0))
    return bound


async def copy(reader, writer):
    """Passes bytes on until one side ends."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main(path, answering, refusing, silent):
    """Serves the hosts until standard input ends."""
    free = asyncio.Semaphore(PLACES)

    async def serve(reader, writer):
        """Connects to pmcd for a client. The place is free when pmcd has sent its first bytes."""
        async with free:
            own_reader, own_writer = await asyncio.open_unix_connection(path)
            first = await own_reader.read(65536)
        writer.write(first)
        await asyncio.gather(copy(reader, own_writer), copy(own_reader, writer))

    # A port that is bound and does not listen refuses. One that listens without places soon drops packets.
    open_port, closed, full = local_socket(), local_socket(), local_socket()
    await asyncio.start_server(serve, sock=open_port, backlog=1000)
    full.listen(0)
    fillers = []
    for _ in range(4):
        fillers.append(socket.socket())
        fillers[-1].setblocking(False)
        fillers[-1].connect_ex(("127.0.0.1", full.getsockname()[1]))
    for net, count, bound in ((1, answering, open_port), (2, refusing, closed), (3, silent, full)):
        for host in range(1, count + 1):
            print(f"127.0.{net}.{host}:{bound.getsockname()[1]}")
    sys.stdout.flush()
    sys.stdout.close()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
