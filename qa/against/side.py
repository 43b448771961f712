# SPDX-License-Identifier: GPL-2.0-or-later
"""A side of the comparison: a program with a pmcd, directories and producers of its own."""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(TOP, "target", "against")
# Seconds to wait until both sides are equal.
PATIENCE = 60
# Metrics that depend on the process, the time or the machine, not on the load.
UNDETERMINED = re.compile(
    r"nixl\.(latency\.\w+|operation\.bandwidth)\.(p\d\d|max)|nixl\.agent\.(pid|idle_time)|nixl\.errors\.last_time|nixl\.ring\.(pending|highwater)|nixl\.latency\..*\.peer_ratio"
    r"|nixl\.host\.processes\.silent|nixl\.control\.(version|cpu_time|memory|drain\..*|drains|drain_time|scan_time|surveys|survey_time"
    r"|cut\..*|files\..*|log\..*|events|reload|reloads)|-"
)


def renamed():
    """Returns the names of metrics now by their names in 0.2.0. Metrics that are gone have the name -."""
    with open(os.path.join(HERE, "renamed"), encoding="utf-8") as lines:
        return dict(line.split() for line in lines if not line.startswith("#"))


RENAMED = renamed()


# Labels that 0.2.0 did not have, and those that have another name since.
NEW_LABELS = {"uid", "pid"}
RENAMED_LABELS = {"source": "telemetry"}


def labels(text):
    """Returns labels as text, without the new ones, by their names now."""
    named = {RENAMED_LABELS.get(name, name): value for name, value in json.loads(text).items() if name not in NEW_LABELS}
    return json.dumps(named, sort_keys=True)


def fail(message):
    """Ends with a message."""
    sys.exit(f"against: {message}")


def build(checkout):
    """Builds the release program of a checkout, and returns its path."""
    command = ["cargo", "build", "--release", "--locked", "--bin", "pmdanixl", "--target-dir", os.path.join(CACHE, "build")]
    subprocess.run(command, cwd=checkout, stdin=subprocess.DEVNULL, check=True)
    return os.path.join(CACHE, "build", "release", "pmdanixl")


def base(commit):
    """Returns the program of a commit. Its checkout is created and built once."""
    named = subprocess.run(["git", "rev-parse", "--verify", commit + "^{commit}"], cwd=TOP, capture_output=True, text=True, check=False)
    if named.returncode:
        fail(f"{commit} is not in this repository: fetch its history (a shallow clone lacks it), or set BASE=COMMIT")
    checkout = os.path.join(CACHE, named.stdout.strip())
    if not os.path.exists(os.path.join(checkout, "program")):
        print(f"against: building {commit}, once", flush=True)
        shutil.rmtree(checkout, ignore_errors=True)
        os.makedirs(checkout)
        archive = subprocess.Popen(["git", "archive", commit], cwd=TOP, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", checkout], stdin=archive.stdout, check=True)
        shutil.copy(build(checkout), os.path.join(checkout, "program.new"))
        os.rename(os.path.join(checkout, "program.new"), os.path.join(checkout, "program"))
    return Program(checkout, os.path.join(checkout, "program"))


def is_running(pid):
    """Returns True if the process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Program:
    """A program, and its checkout with its names and help texts."""

    def __init__(self, checkout, binary):
        self.checkout, self.binary = checkout, binary


class Producer:
    """A process with a ring or a store."""

    def __init__(self, directory, name, uid):
        command = ["/usr/bin/python3", os.path.join(HERE, "agent.py"), directory, name, *([str(uid)] if uid else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, order):
        """Sends an order to the process."""
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def finish(self, order):
        """Waits until the order is done."""
        answer = self.process.stdout.readline()
        if answer != "ok\n":
            fail(f"a producer ended during {order}")

    def end(self, number=signal.SIGKILL):
        """Ends the process. Its file stays."""
        self.process.send_signal(number)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Side:
    """A pmcd with one of the programs, its directories and its producers."""

    def __init__(self, label, program, where):
        self.label, self.program = label, program
        self.directory = os.path.join(where, label)
        self.rings = os.path.join(self.directory, "rings")
        self.producers = {}
        self.pmcd = None
        for directory in [self.rings, self.rings + "-stores"]:
            os.makedirs(directory)
            os.chmod(directory, 0o1777)
        os.chmod(self.directory, 0o755)
        self.configure("")
        self.pcp = os.path.join(self.directory, "pcp")
        command = ["qa/private-pmcd", self.pcp, "--pmda", program.binary, "--conf", os.path.join(self.directory, "nixl.conf")]
        self.start(command)

    def configure(self, more):
        """Writes nixl.conf, and pmcd's copy of it if there is one."""
        text = f'[nixl]\ntelemetry_dir = "{self.rings}"\nmultiproc_dir = "{self.rings}-stores"\nidle_after = "1h"\n{more}\n'
        for path in [os.path.join(self.directory, "nixl.conf"), os.path.join(self.directory, "pcp", "etc", "nixl", "nixl.conf")]:
            if os.path.isdir(os.path.dirname(path)):
                with open(path, "w", encoding="utf-8") as conf:
                    conf.write(text)

    def start(self, command):
        """Starts pmcd and waits until the daemon answers."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NIXL_")}
        with open(os.path.join(self.directory, "out"), "ab") as out:
            self.pmcd = subprocess.Popen(
                command, cwd=self.program.checkout, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.answers()

    def answers(self):
        """Waits until the daemon answers."""
        end = time.monotonic() + 2 * PATIENCE
        while not os.path.exists(os.path.join(self.pcp, "env")) or "value" not in self.tool("pminfo -f nixl.control.version"):
            if time.monotonic() > end:
                fail(f"{self.label}: no answer; see {self.directory}")
            time.sleep(0.2)

    def tool(self, command):
        """Returns the output of a PCP tool."""
        shell = f". {shlex.quote(self.pcp)}/env && exec {command}"
        return subprocess.run(["sh", "-c", shell], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout

    def daemon(self):
        """Returns the process id of the daemon, pmcd's child."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                    name, _, rest = stat.read().partition("(")[2].rpartition(")")
            except OSError:
                continue
            if name == "pmdanixl" and int(rest.split()[1]) == self.pmcd.pid:
                return int(pid)
        return None

    def kill_daemon(self):
        """Kills the daemon, and makes pmcd start another one."""
        old = self.daemon()
        os.kill(old, signal.SIGKILL)
        end = time.monotonic() + 2 * PATIENCE
        while self.daemon() in (None, old):
            # SIGHUP makes pmcd restart a PMDA after a request has shown that it ended.
            self.tool("pminfo -f nixl.control.version")
            self.pmcd.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            if time.monotonic() > end:
                fail(f"{self.label}: pmcd starts no new daemon")
        self.answers()

    def stop(self, number):
        """Ends pmcd, and the daemon with it."""
        daemon = self.daemon()
        self.pmcd.send_signal(number)
        self.pmcd.wait()
        if number == signal.SIGKILL and daemon:
            # Without this, the daemon would end normally after the end of pmcd.
            try:
                os.kill(daemon, signal.SIGKILL)
            except ProcessLookupError:
                pass
        end = time.monotonic() + PATIENCE
        while daemon and is_running(daemon):
            if time.monotonic() > end:
                fail(f"{self.label}: the daemon does not end")
            time.sleep(0.05)

    def kill_pmcd(self):
        """Kills pmcd and the daemon, and starts them again."""
        self.stop(signal.SIGKILL)
        self.start([os.path.join(self.pcp, "start")])

    def become(self, program):
        """Kills pmcd and the daemon, and continues with another program on the existing files."""
        self.stop(signal.SIGKILL)
        self.program = program
        pmda = os.path.join(self.pcp, "var", "pmdas", "nixl")
        os.unlink(os.path.join(pmda, "pmdanixl"))
        os.symlink(program.binary, os.path.join(pmda, "pmdanixl"))
        for name in ["pmns", "help"]:
            shutil.copy(os.path.join(program.checkout, name), pmda)
        self.tool(f"sed -i '/^@ NIXL\\./s/NIXL\\./39./' {pmda}/help")
        self.tool(f"sh -c 'cd {pmda} && $PCP_BINADM_DIR/newhelp -n root -o help help'")
        names = "$(sed -n 's/^PCP_VAR_DIR=//p' /etc/pcp.conf)/pmns/root_pmcd"
        self.tool(f"sh -c \"cd {pmda} && rm -f ../../pmns/root && $PCP_BINADM_DIR/pmnsmerge -f {names} root ../../pmns/root\"")
        self.start([os.path.join(self.pcp, "start")])

    def wait_expired(self):
        """Waits until all exited agents have expired."""
        end = time.monotonic() + PATIENCE
        while "value 0" not in self.tool("pminfo -f nixl.host.agents.exited nixl.agents.exited"):
            if time.monotonic() > end:
                fail(f"{self.label}: exited agents stay")
            time.sleep(0.2)

    def begin(self, name, order):
        """Sends an order to a producer, and starts the producer if its name is new."""
        key, _, uid = name.partition("@")
        if name not in self.producers:
            self.producers[name] = Producer(self.rings, key.partition("#")[0], int(uid or 0))
        self.producers[name].begin(order)

    def state(self):
        """Returns the compared values and labels by metric and instance."""
        found, metric = {}, None
        for line in (self.tool("pminfo -f nixl") + self.tool("pminfo -l nixl")).splitlines():
            # Instance names of two agents with one name get a hash of the directory's path, or since 984715f "ring" and "store".
            line = re.sub(r"@([0-9a-f]{8}|ring|store)\b", "@DIR", line.replace(self.directory, "DIR"))
            if match := re.match(r"(nixl\.\S+)", line):
                metric = RENAMED.get(match[1], match[1])
            elif metric and not UNDETERMINED.fullmatch(metric):
                if match := re.match(r'\s+inst \[(\d+) or "(.*)"\] (value|labels) (.*)', line):
                    kind = "" if match[3] == "value" else " labels"
                    found[f"{metric}[{match[2]}]{kind}"] = f"{labels(match[4]) if kind else match[4]} (id {match[1]})"
                elif match := re.match(r"\s+(value|labels|Note:|No value|Error:)\s*(.*)", line):
                    found[f"{metric}{' labels' if match[1] == 'labels' else ''}"] = labels(match[2]) if match[1] == "labels" else match[2]
        return found

    def end(self):
        """Ends the producers and pmcd."""
        for producer in self.producers.values():
            if producer.process.poll() is None:
                producer.end()
        if self.pmcd and self.pmcd.poll() is None:
            self.stop(signal.SIGTERM)
