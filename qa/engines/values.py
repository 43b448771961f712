# SPDX-License-Identifier: GPL-2.0-or-later
"""A private pmcd with pmdanixl, and its values from pminfo."""

import contextlib
import json
import os
import re
import shutil
import subprocess

import processes
from wait import Failure, until

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Continues the processes of its arguments at the end of its input, which is the end of this process at the latest.
PAUSE = 'kill -STOP "$@"; cat; kill -CONT "$@"'
INSTANCE = re.compile(r'    inst \[\d+ or "(.*)"\] (value|labels) (.*)$')


class Pmcd:
    """A private pmcd in `directory`, with the PMDA `binary` that reads `rings` and `stores`."""

    def __init__(self, directory, binary, rings, stores):
        self.binary = binary
        self.directory = directory
        self.conf = directory + ".conf"
        with open(self.conf, "w", encoding="utf-8") as file:
            file.write(f'[nixl]\ntelemetry_dir = "{rings}"\nmultiproc_dir = "{stores}"\nretain = "1day"\n')
        self.log = open(directory + ".log", "w", encoding="utf-8")
        self.process = processes.start(
            [os.path.join(TOP, "qa/private-pmcd"), directory, "--pmda", binary, "--conf", self.conf], self.log, os.environ)
        env = os.path.join(directory, "env")
        until("the environment of pmcd", lambda: os.path.exists(env) or self.process.poll() is not None, 120)
        if not os.path.exists(env):
            raise Failure(f"pmcd did not start: see {self.log.name}; {space(directory)}")
        output = subprocess.check_output(["sh", "-c", '. "$0" && env -0', env], text=True)
        self.env = dict(line.split("=", 1) for line in output.split("\0") if "=" in line)
        subprocess.run([self.env["PCP_BINADM_DIR"] + "/pmcd_wait", "-t", "120"], env=self.env, check=True)

    def pminfo(self, *names):
        """Returns (values, labels): values by metric and instance ("" without instances), labels by instance."""
        output = subprocess.run(["pminfo", "-f", "-l", *names], env=self.env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, check=False).stdout
        values, labels, metric = {}, {}, None
        for line in output.splitlines():
            match = INSTANCE.match(line)
            if match and match[2] == "labels":
                labels[match[1]] = json.loads(match[3])
            elif match:
                values[metric][match[1]] = plain(match[3])
            elif line.startswith("    value "):
                values[metric][""] = plain(line[len("    value "):])
            elif re.fullmatch(r"nixl[a-z0-9_.]+", line):
                metric = line
                values[metric] = {}
        return values, labels

    def values(self, *names):
        """Returns the values of these metrics by metric and instance."""
        return self.pminfo(*names)[0]

    def value(self, name):
        """Returns the value of a metric without instances, or None."""
        return self.values(name).get(name, {}).get("")

    def silent(self):
        """Returns the processes that `pmdanixl --check` lists as without telemetry."""
        output = subprocess.run([self.binary, "--check", "-c", self.conf], env=self.env, text=True, stdout=subprocess.PIPE,
                                check=False).stdout
        _, _, listed = output.partition("without telemetry here:\n")
        listed, _, _ = listed.partition("processes that use NIXL")
        return {int(pid) for pid in re.findall(r"^  pid (\d+) ", listed, re.M)}

    def pmda(self):
        """Returns the processes of pmdanixl."""
        return [pid for pid in processes.descendants(self.process.pid) if processes.read(pid, "comm").strip() == "pmdanixl"]

    @contextlib.contextmanager
    def paused(self):
        """Stops pmdanixl meanwhile. A shell continues it, also if this process is killed."""
        pids = self.pmda()
        if not pids:
            raise Failure("pmdanixl has ended")
        shell = subprocess.Popen(["sh", "-c", PAUSE, "sh", *map(str, pids)], stdin=subprocess.PIPE, start_new_session=True)

        def stopped():
            return all(processes.read(pid, "stat").rpartition(")")[2].split()[:1] == ["T"] for pid in pids)
        try:
            until("pmdanixl is stopped", stopped, 10, 0.1)
            yield
        finally:
            shell.communicate()

    def stop(self):
        """Ends pmcd and the PMDA."""
        processes.end(self.process)


def space(path):
    """Returns what a Failure says about the file system of a path."""
    path = os.path.dirname(path)
    return f"{path} has {shutil.disk_usage(path).free >> 20:,} MiB free"


def plain(text):
    """Converts a value that pminfo prints to a number or a text."""
    if text.startswith('"'):
        return text[1:-1]
    try:
        return int(text)
    except ValueError:
        return float(text)
