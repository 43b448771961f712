#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""qa/matrix/ways.py METRIC...: prints the rows of the table of docs/opentelemetry.md: as what each metric arrives, on each way.

It asks pmproxy at its own port, and pmcd by pcp2opentelemetry.
"""
import json
import subprocess
import sys


def printed(*command):
    """Returns what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def asked(metric, kind):
    """Returns pmproxy's answer of a media type for a metric."""
    return printed("curl", "-sS", "-H", f"Accept: {kind}", f"http://localhost:44322/metrics?names={metric}")


def scraped(metric):
    """Returns name and type in Prometheus' text format."""
    for line in asked(metric, "text/plain").splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            return f"`{name}`, {kind}"
    return "nothing"


def otlp(text):
    """Returns kind and unit in OTLP's JSON."""
    if not text.strip():
        return "nothing"
    [metric] = json.loads(text)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    kind = "sum" if "sum" in metric else "gauge"
    value = [key for key in metric[kind]["dataPoints"][0] if key.startswith("as")]
    return f"{kind}, `{metric['unit']}`, `{value[0]}`"


def main():
    """Prints a row for each argument."""
    for metric in sys.argv[1:]:
        pushed = printed("pcp2opentelemetry", "-s", "1", metric)
        cells = [f"`{metric}`", scraped(metric), otlp(pushed), otlp(asked(metric, "application/json"))]
        print("| " + " | ".join(cells) + " |")


main()
