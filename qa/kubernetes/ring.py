# SPDX-License-Identifier: GPL-2.0-or-later
"""ring.py FILE UID [2]: writes a ring (v4, or v2) like a NIXL agent in an unprivileged container. Each line of standard input is
the number of bytes of a completed WRITE. The program ends at the end of its input."""

import mmap
import os
import struct
import sys

CAPACITY = 4096
TX_BYTES, TX_REQUESTS = 0, 2
TRANSFER = 1

file, uid, version = sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["4"])[0])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(descriptor, 40 + 16 * CAPACITY)
ring = mmap.mmap(descriptor, 0)
os.close(descriptor)
struct.pack_into("<QQ", ring, 0, 0, 0)
struct.pack_into("<QQ", ring, 24, CAPACITY, CAPACITY - 1)
struct.pack_into("<ii", ring, 16, version, version)
for line in sys.stdin:
    for kind, value in ((TX_BYTES, int(line)), (TX_REQUESTS, 1)):
        (position,) = struct.unpack_from("<Q", ring, 0)
        # v2 has the category before the kind.
        first, second = (TRANSFER, kind) if version == 2 else (kind, 0)
        struct.pack_into("<IIQ", ring, 40 + 16 * position, first, second, value)
        struct.pack_into("<Q", ring, 0, (position + 1) % CAPACITY)
