# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests through prefill, then decode, like those of a proxy in front of vLLM."""

import collections
import http.client
import json
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

# Parameters for prefill with a decode server that pulls.
PULL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None}


def each(function, items, at_once):
    """Returns the results of a function for all items, with `at_once` threads."""
    pool = ThreadPoolExecutor(at_once)
    try:
        return list(pool.map(function, items))
    finally:
        # Does not wait, because an interrupted run ends the servers, and so the requests.
        pool.shutdown(wait=False, cancel_futures=True)


class Load:
    """Requests to a pair of servers, and their results."""

    def __init__(self, prefill, decode, seed=1, tokens=(100, 400), answer=4, patience=600):
        self.prefill, self.decode = prefill.port, decode.port
        self.random, self.tokens, self.answer = random.Random(seed), tokens, answer
        self.patience = patience
        self.ends = collections.Counter()
        self.done = 0
        self.stopped = threading.Event()

    def prompts(self, count):
        """Returns `count` prompts of random tokens."""
        return [[self.random.randrange(1, 2000) for _ in range(self.random.randint(*self.tokens))] for _ in range(count)]

    def post(self, port, body, request):
        """Returns the answer of the server at a port, or raises an exception."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self.patience)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json", "X-Request-Id": request})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def prefilled(self, prompt):
        """Prefills a prompt. Returns (request, prompt, transfer parameters for decode), or None if prefill failed."""
        request = str(uuid.uuid4())
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "ignore_eos": True,
                "kv_transfer_params": PULL}
        try:
            return request, prompt, self.post(self.prefill, body, request)["kv_transfer_params"]
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            self.ends["prefill failed"] += 1
            return None

    def decoded(self, held):
        """Sends a prefilled request to decode."""
        if held is None:
            return
        request, prompt, transfer = held
        body = {"model": "tiny", "prompt": prompt, "max_tokens": self.answer, "ignore_eos": True,
                "kv_transfer_params": transfer}
        try:
            ok = "usage" in self.post(self.decode, body, request)
        except (OSError, http.client.HTTPException, ValueError):
            ok = False
        self.ends["ok" if ok else "decode failed"] += 1

    def one(self, prompt):
        """Sends one request through prefill and decode."""
        if not self.stopped.is_set():
            self.decoded(self.prefilled(prompt))
            self.done += 1

    def run(self, count, at_once=4):
        """Sends `count` requests. Returns the successful requests per second."""
        before, start = self.ends["ok"], time.monotonic()
        each(self.one, self.prompts(count), at_once)
        return (self.ends["ok"] - before) / (time.monotonic() - start)

    def hold(self, count, at_once=4):
        """Sends `count` requests through prefill only."""
        return each(self.prefilled, self.prompts(count), at_once)

    def finish(self, held, at_once=8):
        """Sends prefilled requests through decode."""
        each(self.decoded, held, at_once)

    def text(self):
        """Returns the number of requests by result, as text."""
        return ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items())) or "none"
