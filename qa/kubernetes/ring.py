"""ring.py FILE UID: a NIXL agent of an unprivileged container, as far as its ring (v4) goes. For each line of standard
input, a number, there is a completed WRITE of so many bytes; it ends with its input."""

import mmap
import os
import struct
import sys

CAPACITY = 4096
TX_BYTES, TX_REQUESTS = 0, 2

file, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(descriptor, 40 + 16 * CAPACITY)
ring = mmap.mmap(descriptor, 0)
os.close(descriptor)
struct.pack_into("<QQ", ring, 0, 0, 0)
struct.pack_into("<QQ", ring, 24, CAPACITY, CAPACITY - 1)
struct.pack_into("<ii", ring, 16, 4, 4)
for line in sys.stdin:
    for kind, value in ((TX_BYTES, int(line)), (TX_REQUESTS, 1)):
        (position,) = struct.unpack_from("<Q", ring, 0)
        struct.pack_into("<IIQ", ring, 40 + 16 * position, kind, 0, value)
        struct.pack_into("<Q", ring, 0, (position + 1) % CAPACITY)
