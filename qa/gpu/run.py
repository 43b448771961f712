#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make gpu`: real NIXL on a GPU, seen by pmdanixl. Prints a table in Markdown; fails if a row is not what it must be.

    qa/gpu/run.py [--host-memory] PMDANIXL PRODUCER

PMDANIXL and PRODUCER are programs of a build. --host-memory runs the same rows in host memory, without a GPU. The interpreter needs
NIXL, and torch for a GPU. docs/testing.md describes the rows. It writes only below target/gpu and /dev/shm/nixl-gpu.
"""

import argparse
import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import card  # noqa: E402
import rows  # noqa: E402
from table import Table  # noqa: E402
from world import Failure, World, processes  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RINGS = "/dev/shm/nixl-gpu"
LIMIT = 225  # seconds; less than four minutes with the end of all processes
ROWS = (rows.pairs, rows.model, rows.cost, rows.bursts, rows.load)


def missing(cards, host_memory):
    """Returns what this host lacks, each with a remedy."""
    found = []
    if not host_memory and not cards:
        found.append("an NVIDIA GPU: NVML (libnvidia-ml.so.1) is not there or shows none; install NVIDIA's driver, or run the rows in "
                     "host memory: make gpu HOST_MEMORY=1")
    packages = [name for name in ("nixl_cu13", "nixl_cu12") if importlib.util.find_spec(name)]
    if not packages:
        found.append(f"NIXL for {sys.executable}: pip install nixl-cu13 (CUDA 13) or nixl-cu12, or PACK=DIR (qa/gpu/pack)")
    if importlib.util.find_spec("numpy") is None:
        found.append(f"numpy for {sys.executable}: pip install numpy")
    if not host_memory:
        cuda = subprocess.run([sys.executable, "-c", "import torch; print(torch.version.cuda, torch.cuda.is_available())"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.split()
        if not cuda:
            found.append(f"torch for {sys.executable}: pip install torch, or PYTHON=... for another interpreter")
        elif cuda[1] != "True":
            found.append(f"a GPU for torch: its CUDA {cuda[0]} finds none; install a torch for the CUDA of this driver")
        elif packages and packages[0] != f"nixl_cu{cuda[0].split('.')[0]}":
            found.append(f"NIXL for CUDA {cuda[0]}, which torch has, in place of {packages[0]}: pip install nixl-cu{cuda[0].split('.')[0]}")
    conf = os.environ.get("PCP_DIR", "") + "/etc/pcp.conf"
    if not os.path.exists(conf):
        found.append(f"PCP ({conf}): install pcp, or PACK=DIR (qa/gpu/pack)")
    return found


def about(driver, card, binary):
    """Returns lines about this host and the versions."""
    package = "nixl_cu13" if importlib.util.find_spec("nixl_cu13") else "nixl_cu12"
    version = subprocess.check_output([binary, "--version"], text=True).strip()
    return [
        f"{time.strftime('%Y-%m-%d')}, {f'{card.name}, driver {driver}' if card else 'host memory, no GPU'}, {os.cpu_count()} processors, "
        f"Linux {platform.release().split('-')[0]}",
        f"{package} {importlib.metadata.version(package)}, {version}, Python {platform.python_version()}",
    ]


def interrupted(number, _frame):
    """Ends the run after a signal like after an error, so that all processes are ended."""
    if number == signal.SIGALRM:
        raise Failure(f"not in {LIMIT} s: a program hangs, or this host is too slow")
    raise SystemExit(128 + number)


def show_logs(directory):
    """Prints the end of each log of a row that has failed."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.endswith(".log") and entry.stat().st_size:
            with open(entry.path, encoding="utf-8", errors="replace") as log:
                print(f"gpu: {entry.name}:\n{log.read()[-1500:]}", file=sys.stderr)


def run(world, table):
    """Runs all rows. A row that breaks counts as failed, and the others run."""
    limit = time.monotonic() + LIMIT
    for row in ROWS:
        start = time.monotonic()
        signal.alarm(max(1, round(limit - start)))
        try:
            row(world, table)
        except (Failure, OSError, LookupError, subprocess.SubprocessError, ValueError) as err:
            table.check(f"rows `{row.__name__}`", False, f"{type(err).__name__}: {err}".replace("\n", " "))
            show_logs(world.directory)
        finally:
            signal.alarm(0)
            world.stop()
            processes.end_all()
        print(f"gpu: {row.__name__}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(usage="qa/gpu/run.py [--host-memory] [--needs] PMDANIXL PRODUCER")
    parser.add_argument("--host-memory", action="store_true")
    parser.add_argument("--needs", action="store_true", help="only say what is missing")
    parser.add_argument("programs", nargs="*")
    args = parser.parse_args()
    driver, cards = card.cards()
    lacks = missing(cards, args.host_memory)
    for one in lacks:
        print(f"gpu: missing: {one}", file=sys.stderr)
    if lacks or args.needs:
        sys.exit(1 if lacks else 0)
    pmdanixl, producer = map(os.path.abspath, args.programs)
    for number in signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM:
        signal.signal(number, interrupted)
    os.makedirs(RINGS, exist_ok=True)
    lock = os.open(RINGS, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"gpu: another run uses {RINGS}; wait for its end")
    directory = os.path.join(TOP, "target/gpu")
    for entry in os.scandir(RINGS):
        shutil.rmtree(entry)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    used = None if args.host_memory else cards[0]
    world, table = World(directory, RINGS, pmdanixl, producer, used), Table()
    try:
        run(world, table)
    finally:
        world.stop()
        processes.end_all()
        shutil.rmtree(RINGS)
    if not table.failed:
        shutil.rmtree(directory)
    print("", *about(driver, used, pmdanixl), "", table.text(), sep="\n")
    print(f"\n{len(table.rows)} rows, {table.failed} failed")
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
