#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make gpu`: real NIXL on a GPU, seen by pmdanixl. Prints a table in Markdown; fails if a row is not what it must be.

    qa/gpu/run.py [--host-memory] [--dir DIR] PMDANIXL PRODUCER

PMDANIXL and PRODUCER are binaries of a build. --host-memory runs the rows that need no GPU. The interpreter needs NIXL, and torch for
a GPU. docs/testing.md describes the rows. Rings are in a new directory of /dev/shm, logs and pmcd in one of TMPDIR; --dir DIR makes
both in DIR.
"""

import argparse
import faulthandler
import importlib.util
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import nvml  # noqa: E402
from rows import GROUPS  # noqa: E402
from table import Table  # noqa: E402
from world import Failure, World  # noqa: E402

LIMIT = 200  # seconds until no further group starts
END = 35  # seconds for the end of all processes; less than four minutes together
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Prints the CUDA of torch and the GPU that the caller was given.
TORCH = "import torch; print(torch.version.cuda); print(torch.cuda.get_device_properties(0).uuid)"


def select(gpus, host_memory):
    """Returns what this host lacks, each with a remedy, the wheel of NIXL and the GPU to use."""
    lacks, gpu = [], None
    # Those of a pack come first, by PYTHONPATH.
    installed = [name for path in sys.path for name in ("nixl_cu12", "nixl_cu13") if os.path.isdir(os.path.join(path, name))]
    package = installed[0] if installed else None
    if importlib.util.find_spec("numpy") is None:
        lacks.append(f"numpy for {sys.executable}: pip install numpy")
    if host_memory:
        if not installed:
            lacks.append(f"NIXL for {sys.executable}: pip install nixl")
        return lacks, package, gpu
    if not gpus:
        lacks.append("an NVIDIA GPU: NVML (libnvidia-ml.so.1) is not there or shows none; install NVIDIA's driver, or run the rows "
                     "that need no GPU: make gpu HOST_MEMORY=1")
    ran = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=False)
    cuda, uuid, *_ = ran.stdout.split() + ["", ""]
    error = f" ({ran.stderr.strip().splitlines()[-1]})" if ran.returncode and ran.stderr.strip() else ""
    gpu = next((one for one in gpus if one.uuid == f"GPU-{uuid}"), None)
    package = f"nixl_cu{cuda.split('.')[0]}"
    if cuda in ("", "None"):
        lacks.append(f"torch with CUDA for {sys.executable}{error}: pip install torch, or PYTHON=... for another interpreter")
    else:
        if gpu is None:
            lacks.append(f"a GPU for torch: its CUDA {cuda} finds {uuid or 'none'}{error}; install a torch for the CUDA of this driver, or "
                         "name one whole GPU in CUDA_VISIBLE_DEVICES (not MIG)")
        if package not in installed:
            lacks.append(f"NIXL for CUDA {cuda}, which torch has: pip install {package.replace('_', '-')}, or PACK=DIR (qa/gpu/pack)")
    return lacks, package, gpu


def about(driver, world):
    """Returns lines about this host and the versions."""
    version = subprocess.check_output([world.pmdanixl, "--version"], text=True).strip()
    return [
        f"{time.strftime('%Y-%m-%d')}, {f'{world.gpu.name}, driver {driver}' if world.gpu else 'host memory, no GPU'}, "
        f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}",
        f"{', '.join(sorted(world.loaded)) or 'NIXL was not loaded'}, {version}, Python {platform.python_version()}",
    ]


def interrupted(number, _frame):
    """Ends the run after a signal like after an error, so that all processes are ended."""
    if number == signal.SIGALRM:
        raise Failure(f"not in {LIMIT} s: a process hangs, or this host is too slow")
    print("gpu: ending...", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


def show_logs(directory):
    """Prints the end of each log of a group that has failed."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.endswith(".log") and entry.stat().st_size:
            with open(entry.path, encoding="utf-8", errors="replace") as log:
                print(f"gpu: {entry.name}:\n{log.read()[-1500:]}", file=sys.stderr)


def run(world, table):
    """Runs all groups. A group that breaks counts as a failed row, and the others run."""
    limit = time.monotonic() + LIMIT
    for group in GROUPS:
        start = time.monotonic()
        if start > limit - 1:
            table.check(f"group `{group.__name__}`", False, f"not started: {LIMIT} s are over")
            continue
        signal.alarm(round(limit - start))
        try:
            group(world, table)
        except Exception as err:  # a bug in a group must not end the others
            table.check(f"group `{group.__name__}`", False, f"{type(err).__name__}: {err}".replace("\n", " "))
            show_logs(world.logs)
        finally:
            signal.alarm(0)
            world.end()
        print(f"gpu: {group.__name__}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def own_pcp(pack, directory):
    """Writes PCP's settings of a pack into a directory, where qa/private-pmcd finds them."""
    settings = pathlib.Path(pack, "pcp/pcp.conf").read_text(encoding="utf-8")
    etc = pathlib.Path(directory, "etc")
    etc.mkdir()
    etc.joinpath("pcp.conf").write_text(settings.replace("@HERE@", pack), encoding="utf-8")
    os.environ["PCP_DIR"] = directory


def main():
    parser = argparse.ArgumentParser(usage="qa/gpu/run.py [--host-memory] [--needs] [--dir DIR] [--pack DIR] PMDANIXL PRODUCER")
    parser.add_argument("--host-memory", action="store_true")
    parser.add_argument("--needs", action="store_true", help="only say what is missing")
    parser.add_argument("--dir", help="an existing directory")
    parser.add_argument("--pack", help="a directory of qa/gpu/pack, whose PCP is used")
    parser.add_argument("binaries", nargs="*")
    args = parser.parse_args()
    driver, gpus = nvml.gpus()
    lacks, package, gpu = select(gpus, args.host_memory)
    for one in lacks:
        print(f"gpu: missing: {one}", file=sys.stderr)
    if lacks or args.needs:
        sys.exit(1 if lacks else 0)
    pmdanixl, producer = map(os.path.abspath, args.binaries)
    for number in *SIGNALS, signal.SIGALRM:
        signal.signal(number, interrupted)
    # A second limit, should the run itself hang.
    faulthandler.dump_traceback_later(LIMIT + END, exit=True)
    logs = tempfile.mkdtemp(prefix="nixl-gpu.", dir=args.dir)
    rings = tempfile.mkdtemp(prefix="nixl-gpu.", dir=args.dir or "/dev/shm")
    shared = len(gpus) > bool(gpu) and (gpu is None or "CUDA_VISIBLE_DEVICES" in os.environ)
    world, table = World(logs, rings, pmdanixl, producer, package, gpu, shared), Table()
    try:
        if args.pack:
            own_pcp(args.pack, logs)
        run(world, table)
    finally:
        signal.alarm(0)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # Python reports an earlier signal as an error if SIG_IGN is set now
        world.end()
        shutil.rmtree(rings)
        if not table.failed:
            shutil.rmtree(logs)
    print("", *about(driver, world), f"{table.rows} rows, {table.passed} passed, {table.failed} failed", sep="\n")
    if table.failed:
        print(f"logs: {logs}")
    sys.exit(1 if table.failed or not table.passed else 0)


if __name__ == "__main__":
    main()
