#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""qa/matrix/page.py [--bless | --scrape] PAGE

Runs the commands of a page and compares their output with what the page shows. In a block of the language `console`, a line that
begins with `$ ` is a command. The lines behind it are its output. --bless writes the output into the page. --scrape prints the
scrape configuration of the page's Collector as a configuration of Prometheus.
"""
import json
import re
import subprocess
import sys
import textwrap

# What is different in each run: times in JSON and of promtool(1), and the time of day of pmproxy's wrong times.
NORMALISED = [
    (r'"timeUnixNano":"\d+"', '"timeUnixNano":"TIME"'),
    (r"@\[\d{10}(\.\d+)?\]", "@[TIME]"),
    (r"\b1970-01-\d\dT[\d:]+Z", "1970-01"),
]
# A sample in Prometheus' text format, and its labels. pmproxy writes labels and attributes in the order of a hash table.
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (.*)$")
LABEL = re.compile(r'\w+="(?:[^"\\]|\\.)*"')


def parts(page):
    """Splits the page into (line, None) for text, and (command, shown output)."""
    found, runs = [], False
    for line in page.splitlines():
        if line.startswith("```"):
            runs = line == "```console"
            found.append((line, None))
        elif runs and line.startswith("$ "):
            found.append((line, []))
        elif runs:
            found[-1][1].append(line)
        else:
            found.append((line, None))
    return found


def in_order(value):
    """Returns a JSON value with its attributes in the order of their names."""
    if isinstance(value, dict):
        return {key: in_order(inner) for key, inner in value.items()}
    if isinstance(value, list):
        inner = [in_order(element) for element in value]
        return sorted(inner, key=lambda element: element.get("key", ""))
    return value


def normalised(line):
    """Replaces what is different in each run, and sorts labels and attributes."""
    for pattern, word in NORMALISED:
        line = re.sub(pattern, word, line)
    if line.startswith("{"):
        return json.dumps(in_order(json.loads(line)))
    sample = SAMPLE.match(line)
    if sample:
        labels = ",".join(sorted(LABEL.findall(sample[2])))
        line = f"{sample[1]}{{{labels}}} {sample[3]}"
    return line


def output(command):
    """Runs a command, and returns the lines that it prints on both channels."""
    ran = subprocess.run(
        ["timeout", "120", "sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return [line.rstrip() for line in ran.stdout.splitlines()]


def compared(page):
    """Runs all commands. Returns the page with their output, and a message for each difference."""
    lines, wrong, commands = [], [], 0
    for line, shown in parts(page):
        lines.append(line)
        if shown is None:
            continue
        commands += 1
        printed = output(line.removeprefix("$ "))
        lines += printed
        if [normalised(text) for text in printed] != [normalised(text) for text in shown]:
            wrong.append("\n".join([line, "the page shows:", *shown, "the command prints:", *printed]))
    if commands < 5:
        wrong.append(f"the page has {commands} commands")
    return "\n".join(lines) + "\n", wrong


def scrape(page):
    """Returns the lines below `config:` of the Collector's receiver."""
    below = page.split("    config:\n", 1)[1]
    lines = []
    for line in below.splitlines():
        if not line.startswith("      "):
            break
        lines.append(line)
    return textwrap.dedent("\n".join(lines)) + "\n"


def main():
    """Does what the command line says."""
    option, path = ([""] + sys.argv[1:])[-2:]
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if option == "--scrape":
        print(scrape(page), end="")
        return
    printed, wrong = compared(page)
    if option == "--bless":
        with open(path, "w", encoding="utf-8") as file:
            file.write(printed)
        return
    if wrong:
        sys.exit("\n\n".join(wrong))


main()
