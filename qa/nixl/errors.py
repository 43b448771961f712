#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Causes errors of real NIXL, one kind per agent, and prints how NIXL reports each to the application.

    UCX_TLS=tcp NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_DIR=DIR $(qa/nixl/venv 1.5.1) qa/nixl/errors.py

It prints one line of JSON per case. "agent" is the name of the case and its agent. "outcomes" are the results of the calls: a state or
the name of an exception. "registered" is the sum of registered bytes. The last registration follows all calls, so all events
of the case are in the ring if its event is. Then the program waits until standard input is closed. docs/errors.md has the results.
"""

import argparse
import base64
import ctypes
import faulthandler
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import workload  # noqa: E402

SMALL = 4096


def tcp_buffers():
    """Returns the maximum number of bytes that a TCP connection buffers while the peer does not read."""
    files = ("tcp_rmem", "tcp_wmem")
    return sum(int(pathlib.Path("/proc/sys/net/ipv4", name).read_text().split()[2]) for name in files)


LARGE = 2 * tcp_buffers()


class Case:
    """An agent with a block of memory, and the results of its calls."""

    def __init__(self, api, name, backend="UCX", size=SMALL):
        import numpy

        self.outcomes = []
        conf = api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=[backend])
        self.agent = api.nixl_agent(name, conf)
        self.block = numpy.ones(size, dtype=numpy.uint8)
        self.at = self.block.ctypes.data
        self.registered = 0
        self.register(self.at, size, 0, "DRAM")

    def register(self, at, size, device, kind):
        self.agent.register_memory([(at, size, device, "block")], kind)
        self.registered += size

    def descs(self, *blocks):
        """Descriptors of blocks of memory, each an address and a length."""
        return self.agent.get_xfer_descs([(at, size, 0) for at, size in blocks], "DRAM")

    def call(self, function, *args):
        """Calls a function and records the outcome. Returns the result, or None after an exception."""
        try:
            result = function(*args)
        except Exception as err:
            self.outcomes.append(type(err).__name__)
            return None
        self.outcomes.append(result if isinstance(result, str) else "OK")
        return result

    def connect(self, metadata):
        """Loads the metadata of a remote agent. Returns its name."""
        remote = self.agent.add_remote_agent(metadata)
        return remote.decode() if isinstance(remote, bytes) else remote

    def request(self, local, remote, name, notif=b""):
        """Makes a request for a WRITE without posting it. Returns None if NIXL rejects it."""
        return self.call(self.agent.initialize_xfer, "WRITE", local, remote, name, notif)

    def end(self, handle):
        """Polls the state of a transfer until it has ended."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                state = self.agent.check_xfer_state(handle)
            except Exception as err:
                state = type(err).__name__
            if state != "PROC":
                self.outcomes.append(state)
                return
            time.sleep(0.001)
        self.outcomes.append("never ended")


class Peer:
    """An agent in another process."""

    def __init__(self, name, size):
        self.process = subprocess.Popen([sys.executable, __file__, "--peer", name, "--size", str(size)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                break
        else:
            sys.exit("errors: the peer ended before it was ready")
        self.metadata, self.block = base64.b64decode(said["metadata"]), (said["at"], size)

    def stop(self):
        """Stops all threads of the process."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """Kills the process with SIGKILL, like the OOM killer."""
        self.process.kill()
        self.process.wait()


def peer(api, name, size):
    """Runs the agent of a Peer until standard input is closed."""
    case = Case(api, name, size=size)
    metadata = base64.b64encode(case.agent.get_agent_metadata()).decode()
    print(json.dumps(dict(metadata=metadata, at=case.at)), flush=True)
    sys.stdin.read()


def unknown_agent(api, name):
    case = Case(api, name)
    case.request(case.descs((case.at, 64)), case.descs((case.at, 64)), "no-such-agent")
    return case


def with_itself(api, name):
    """Two connected agents in this process."""
    case = Case(api, name)
    other = Case(api, name + "-peer")
    case.other = other
    case.remote = case.connect(other.agent.get_agent_metadata())
    return case


def unregistered_memory(api, name):
    case = with_itself(api, name)
    case.request(case.descs((16, 64)), case.descs((case.other.at, 64)), case.remote)
    return case


def other_length(api, name):
    case = with_itself(api, name)
    case.request(case.descs((case.at, 64)), case.descs((case.other.at, 65)), case.remote)
    return case


def other_count(api, name):
    case = with_itself(api, name)
    case.request(case.descs((case.at, 64)), case.descs((case.other.at, 32), (case.other.at + 32, 32)), case.remote)
    return case


def swapped_sides(api, name):
    case = with_itself(api, name)
    local = case.agent.prep_xfer_dlist("NIXL_INIT_AGENT", case.descs((case.at, 64)))
    remote = case.agent.prep_xfer_dlist(case.remote, case.descs((case.other.at, 64)))
    case.call(case.agent.make_prepped_xfer, "WRITE", remote, [0], local, [0])
    return case


def index_out_of_range(api, name):
    case = with_itself(api, name)
    local = case.agent.prep_xfer_dlist("NIXL_INIT_AGENT", case.descs((case.at, 64)))
    remote = case.agent.prep_xfer_dlist(case.remote, case.descs((case.other.at, 64)))
    case.call(case.agent.make_prepped_xfer, "WRITE", local, [7], remote, [0])
    return case


def not_posted(api, name):
    case = with_itself(api, name)
    handle = case.request(case.descs((case.at, 64)), case.descs((case.other.at, 64)), case.remote)
    case.call(case.agent.check_xfer_state, handle)
    case.call(case.agent.get_xfer_telemetry, handle)
    return case


def removed_agent(api, name):
    case = with_itself(api, name)
    handle = case.request(case.descs((case.at, 64)), case.descs((case.other.at, 64)), case.remote)
    case.call(case.agent.remove_remote_agent, case.remote)
    case.call(case.agent.transfer, handle)
    return case


def broken_metadata(api, name):
    case = Case(api, name)
    case.call(case.agent.add_remote_agent, b"this is not metadata")
    return case


def notif_to_unknown_agent(api, name):
    case = Case(api, name)
    case.call(case.agent.send_notif, "no-such-agent", b"hello")
    return case


def with_peer(api, name):
    """An agent, a peer in another process, and a request for a transfer that was posted once and has completed."""
    other = Peer(name + "-peer", LARGE)
    case = Case(api, name, size=LARGE)
    case.other, case.remote = other, case.connect(other.metadata)
    case.handle = case.request(case.descs((case.at, LARGE)), case.descs(other.block), case.remote)
    case.call(case.agent.transfer, case.handle)
    case.end(case.handle)
    return case


def reposted(api, name):
    case = with_peer(api, name)
    case.other.stop()
    case.call(case.agent.transfer, case.handle)
    case.call(case.agent.transfer, case.handle)
    case.other.go_on()
    case.end(case.handle)
    return case


def released_active(api, name):
    case = with_peer(api, name)
    case.other.stop()
    case.call(case.agent.transfer, case.handle)
    case.call(case.agent.release_xfer_handle, case.handle)
    case.other.go_on()
    return case


def peer_killed_before(api, name):
    case = with_peer(api, name)
    case.other.kill()
    if case.call(case.agent.transfer, case.handle) == "PROC":
        case.end(case.handle)
    case.call(case.agent.send_notif, case.remote, b"hello")
    case.call(case.agent.transfer, case.handle)
    case.request(case.descs((case.at, 64)), case.descs((case.other.block[0], 64)), case.remote)
    return case


def peer_killed_during(api, name):
    case = with_peer(api, name)
    case.other.stop()
    case.call(case.agent.transfer, case.handle)
    case.other.kill()
    case.end(case.handle)
    return case


def with_file(api, name, mode):
    """An agent that writes to files, and a file."""
    case = Case(api, name, backend="POSIX")
    case.file = tempfile.TemporaryFile()
    case.file.write(b"x" * SMALL)
    case.file.flush()
    case.reopened = open(f"/proc/self/fd/{case.file.fileno()}", mode)
    case.register(0, SMALL, case.reopened.fileno(), "FILE")
    case.target = case.agent.get_xfer_descs([(0, 64, case.reopened.fileno())], "FILE")
    return case


def notif_without_support(api, name):
    case = with_file(api, name, "r+b")
    case.request(case.descs((case.at, 64)), case.target, name, b"done")
    return case


def file_not_writable(api, name):
    case = with_file(api, name, "rb")
    handle = case.request(case.descs((case.at, 64)), case.target, name)
    if case.call(case.agent.transfer, handle) == "PROC":
        case.end(handle)
    return case


CASES = (unknown_agent, unregistered_memory, other_length, other_count, swapped_sides, index_out_of_range,
         not_posted, removed_agent, broken_metadata, notif_to_unknown_agent, notif_without_support, file_not_writable, reposted,
         peer_killed_before, peer_killed_during, released_active)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="of: " + ", ".join(case.__name__ for case in CASES))
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.INFO)  # the wheels log to standard output
    faulthandler.dump_traceback_later(110)  # shows a call of NIXL that does not return
    api, version = workload.load_api()
    if args.peer:
        faulthandler.cancel_dump_traceback_later()
        peer(api, args.peer, args.size)
        return
    kept = []  # keeps their rings
    for function in CASES:
        if not args.cases or function.__name__ in args.cases:
            case = function(api, function.__name__)
            kept.append(case)
            case.last = bytearray(SMALL)
            at = ctypes.addressof(ctypes.c_char.from_buffer(case.last))
            case.register(at, SMALL, 0, "DRAM")
            print(json.dumps(dict(agent=function.__name__, nixl=version, outcomes=case.outcomes,
                                  registered=case.registered)), flush=True)
    faulthandler.cancel_dump_traceback_later()
    sys.stdin.read()
    # Peers end with their standard input, and requests of killed ones need not be released.
    os._exit(0)


if __name__ == "__main__":
    main()
