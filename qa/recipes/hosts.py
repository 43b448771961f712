# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts of the recipes: what docs/recipes.md takes for granted before the first command of each section."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

PMDA = pathlib.Path(os.environ["PCP_PMDAS_DIR"]) / "nixl"
CONF = pathlib.Path(os.environ["PCP_SYSCONF_DIR"]) / "nixl/nixl.conf"
RC = pathlib.Path(os.environ["PCP_RC_DIR"])
POD = "2a1b7c5e-0f4d-4c1e-9a53-6f2f1f0c9d11"
VOLUMES = "/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir"
# Fifths of a second that a wait takes at most.
WAIT = 600
# Live agents that the next commands show.
agents = 0


def run(*command, **how):
    """Runs a command, and returns its output. Its failure ends the run, with its output."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, **how)
    if done.returncode != 0:
        raise SystemExit(f"recipes: {command}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def wait_for(what, condition):
    """Waits until a condition is true, for two minutes at most."""
    for _ in range(WAIT):
        if condition():
            return
        time.sleep(0.2)
    for command in [[PMDA / "pmdanixl", "--check"], ["qa/recipes/docker", "logs", "-l"],
                    ["tail", "-n", "20", f"{os.environ['PCP_LOG_DIR']}/pmcd/nixl.log"]]:
        subprocess.run(command, check=False)
    raise SystemExit(f"recipes: waited two minutes: {what}")


def values(metric):
    """Returns the numbers that a metric has."""
    done = subprocess.run(["pminfo", "-f", metric], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return [float(number) for number in re.findall(r" value ([\d.]+)$", done.stdout, re.MULTILINE)]


def is_busy():
    """True if all agents are there, with their processes, and one side has percentiles of their transfers."""
    moving = [p99 for p99 in values("nixl.latency.xfer_time.p99") if p99 > 0]
    shares = values("nixl.agent.tcp_share")
    pids = values("nixl.agent.pid")
    return values("nixl.host.agents.live") == [agents] and len(pids) >= agents and min(len(moving), len(shares)) >= agents // 2


def series():
    """Returns the number of time series of p99 that Prometheus has."""
    asked = ["promtool", "query", "instant", "http://localhost:9090", "rate(nixl_latency_xfer_time_bucket[5m]) > 0"]
    done = subprocess.run(asked, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return len(set(re.findall(r'nixl_agent="([^"]*)"', done.stdout)))


def before(command):
    """Waits until a command can show what it is to show."""
    if agents and "/pmlogger/node2" not in command:
        if command.startswith("promtool"):
            wait_for("Prometheus has the agents", lambda: series() >= agents // 2)
        elif not command.startswith(("docker", "sudo install", "grep -q", "echo", "(cd")):
            wait_for("all agents move bytes", is_busy)


def start_pmcd(work):
    """Makes the commands that the page takes for granted, and starts pmcd, as PCP's package does."""
    if (work / "bin").exists():
        return
    (work / "bin").mkdir()
    sudo = work / "bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    # As the packages install it.
    shutil.copy("share/pcp/pcp-nixl", f"{os.environ['PCP_BINADM_DIR']}/pcp-nixl")
    shutil.copytree("share/pcp/pcp_nixl", f"{os.environ['PCP_BINADM_DIR']}/pcp_nixl", dirs_exist_ok=True)
    run(RC / "pmcd", "start")
    wait_for("pmcd answers", lambda: values("pmcd.numclients"))


def python_pmda(work, _section):
    """Has a PMDA in Python for NIXL, with its configuration."""
    start_pmcd(work)
    # PCP's package has the files in the one directory, and links in the other.
    package = pathlib.Path(os.environ["PCP_PMDASADM_DIR"]) / "nixl"
    for directory in [PMDA, package]:
        directory.mkdir(exist_ok=True)
    for file in ["Install", "Remove", "pmdanixl.python"]:
        shutil.copy(f"qa/python_pmda/{file}", package)
        (package / file).chmod(0o755)
        (PMDA / file).symlink_to(package / file)
    pathlib.Path("/dev/shm/nixl").mkdir(mode=0o777, exist_ok=True)
    CONF.parent.mkdir(exist_ok=True)
    CONF.write_text("[nixl]\nuser = root\ntelemetry_dir = /dev/shm/nixl\n")
    run("./Install", cwd=PMDA)


def plain(work, _section):
    """Has pmdanixl, with the configuration that it brings, and no directory."""
    global agents
    start_pmcd(work)
    shutil.rmtree("/dev/shm/nixl", ignore_errors=True)
    run("scripts/install-files")
    shutil.copy("nixl.conf", CONF)
    run("./Install", cwd=PMDA)
    agents = 4


def prometheus(work, _section):
    """Has pmproxy, and Prometheus that scrapes it; and the archive of last night."""
    if agents != 4:
        raise SystemExit("recipes: the agents are those of `vLLM in Docker`: name that section too")
    run(RC / "pmproxy", "start")
    config = work / "prometheus.yml"
    config.write_text("global: {scrape_interval: 2s}\nscrape_configs:\n- job_name: pcp-nixl\n  params: {names: [nixl]}\n"
                      "  static_configs:\n  - targets: ['localhost:44322']\n")
    with open(work / "prometheus.log", "w", encoding="utf-8") as log:
        subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={work}/prometheus",
                          "--web.listen-address=127.0.0.1:9090"], stdout=log, stderr=log)
    last_night(work, "")


def last_night(_work, _section):
    """Has the recording node2 of the tutorial among the archives."""
    archives = pathlib.Path(os.environ["PCP_LOG_DIR"]) / "pmlogger/node2"
    if not archives.exists():
        archives.mkdir(parents=True)
        for file in pathlib.Path("docs/tutorial").glob("node2.*"):
            shutil.copy(file, archives / file.name.replace("node2", "20261130.03.42"))


def kubernetes(work, _section):
    """Has the pods of workloads/sglang.yaml on one node, with their volumes as a kubelet makes them, and the configuration of the
    DaemonSet."""
    global agents
    start_pmcd(work)
    workload = "share/kubernetes/workloads/sglang.yaml"
    documents = json.loads(run(os.environ["RECIPES_SCHEMAS"], "qa/kubernetes/manifest.py", workload))
    run("scripts/install-files")
    shutil.copy("share/kubernetes/base/nixl.conf", CONF)
    run("qa/recipes/docker", "rm", "-f", "-t", "0", "-a")
    with open("/etc/hosts", "a", encoding="ascii") as names:
        names.write("127.0.0.1 NODE\n")
    # The first process of the DaemonSet does both.
    pathlib.Path("/run/nixl").mkdir()
    pathlib.Path("/run/nixl").chmod(0o1777)
    os.environ["PREFILL_PORT"] = "30000"
    module = work / "module/sglang"
    module.mkdir(parents=True)
    (module / "launch_server.py").symlink_to(pathlib.Path("qa/recipes/engine.py").absolute())
    (module / "__init__.py").touch()
    deployments = [one for one in documents if one["kind"] == "Deployment"][:2]
    # The parts of the names that a cluster chooses.
    for deployment, uid, end in zip(deployments, [POD, POD.replace("2a", "2b", 1)], ["7d9c6b8f5-x4k2p", "5f6b9d7c4-m8w7q"]):
        name = deployment["metadata"]["name"]
        spec = deployment["spec"]["template"]["spec"]
        volume = next(one for one in spec["volumes"] if one["name"].startswith("nixl-"))
        directory = pathlib.Path(VOLUMES.format(uid)) / volume["name"]
        directory.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"mode=777,size={volume['emptyDir']['sizeLimit'].rstrip('i')}", "emptyDir", directory)
        # The kubelet's log directory, which has the name of the pod.
        pathlib.Path(f"/var/log/pods/default_{name}-{end}_{uid}").mkdir(parents=True)
        (container,) = spec["containers"]
        mount = next(one for one in container["volumeMounts"] if one["name"] == volume["name"])
        variables = [word for one in container["env"] for word in ("-e", f"{one['name']}={one['value']}")]
        run("qa/recipes/docker", "run", "-d", "--name", name, "--network", "host", "-v", f"{directory}:{mount['mountPath']}",
            "-v", f"{module.parent}:/module", "-e", "PYTHONPATH=/module", *variables, container["image"], *container["command"][1:])
    run("./Install", cwd=PMDA)
    agents = 4
