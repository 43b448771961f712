#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""One end of LMCache's own NIXL channel, with its own allocator, in host memory.

    VENV/bin/python channel.py receiver PORT
    VENV/bin/python channel.py sender PORT WRITES

The sender writes 1 to 4 chunks WRITES times, and prints the totals as JSON. Both print "ready" first, and end at the end of their
standard input.
"""

import json
import sys

import torch
from lmcache.v1.memory_allocators.paged_cpu_gpu_memory_allocator import PagedCpuGpuMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.transfer_channel import CreateTransferChannel

# The KV cache of 256 tokens in four layers of the model that vLLM runs (model.py): 2 MiB.
SHAPES, DTYPES = [torch.Size((4, 2, 256, 256))], [torch.float32]
CHUNK = 4 * 2 * 256 * 256 * 4
CHUNKS = 32


def main():
    role, url = sys.argv[1], f"127.0.0.1:{sys.argv[2]}"
    allocator = PagedCpuGpuMemoryAllocator()
    allocator.init_cpu_memory_allocator(CHUNKS * CHUNK, SHAPES, DTYPES, MemoryFormat.KV_2LTD)
    pages = allocator.cpu_allocator
    channel = CreateTransferChannel(
        channel_type="nixl", async_mode=False, role=role, buffer_ptr=pages.buffer_ptr, buffer_size=pages.buffer_size,
        align_bytes=pages.align_bytes, tp_rank=0, peer_init_url=url if role == "receiver" else None, backends=["UCX"], device="cpu")
    print("ready", flush=True)
    if role == "sender":
        channel.lazy_init_peer_connection(local_id="sender", peer_id="receiver", peer_init_url=url)
        written = 0
        for number in range(int(sys.argv[3])):
            count = 1 + number % 4
            chunks = allocator.batched_allocate(SHAPES, DTYPES, count, MemoryFormat.KV_2LTD, allocator_type="cpu")
            channel.batched_write(chunks, {"receiver_id": "receiver", "remote_indexes": list(range(count))})
            written += count
            for chunk in chunks:
                chunk.ref_count_down()
        print(json.dumps({"transfers": int(sys.argv[3]), "bytes": written * CHUNK}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
