#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""many_hosts.py SOCKET ANSWERING REFUSING SILENT: pretends many hosts, which all have the pmcd with this Unix socket.

Prints the host specification of each, one a line, and runs until its standard input ends. Silent hosts drop the packets that open a
connection, since their queue of connections is full. Real hosts have a pmcd each, whose queue has five places: here, one
program with a long queue passes their connections on, five at a time.
"""
import asyncio
import socket
import sys

PLACES = 5


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

    server = await asyncio.start_server(serve, "0.0.0.0", 0, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    closed, fillers = [socket.socket(), socket.socket()], []
    # A port that is bound and does not listen refuses.
    closed[0].bind(("0.0.0.0", 0))
    closed[1].bind(("0.0.0.0", 0))
    closed[1].listen(0)
    dropping = closed[1].getsockname()[1]
    for _ in range(4):
        fillers.append(socket.socket())
        fillers[-1].setblocking(False)
        fillers[-1].connect_ex(("127.0.0.1", dropping))
    for net, count, number in ((1, answering, port), (2, refusing, closed[0].getsockname()[1]), (3, silent, dropping)):
        for host in range(1, count + 1):
            print(f"127.0.{net}.{host}:{number}")
    sys.stdout.flush()
    sys.stdout.close()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
