# SPDX-License-Identifier: GPL-2.0-or-later
"""page.py WORK SCHEMAS [SECTION...]

Runs the commands of docs/recipes.md, in the namespaces of qa/recipes/run, and compares their output with the page. WORK is a directory
for files, SCHEMAS a python with the schemas of Kubernetes, SECTION a part of a heading.

A command is a line of a block `console` that begins with "$ ", with the lines that a backslash continues. The commands of a section run
in one shell. Values differ from run to run, so numbers, ids and the width of columns are not compared, except where a command reads the
archive of the host node2. A note of --check about these namespaces is left out. BLESS=1 writes the output into the page.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

import hosts

PAGE = pathlib.Path("docs/recipes.md")
# Headings, in the order in which they run, each with the function that makes its host.
SECTIONS = {
    "From PCP's Python PMDA": hosts.python_pmda,
    "vLLM in Docker": hosts.plain,
    "p99 of each rank over a week": hosts.prometheus,
    "What happened last night at 03:00": hosts.last_night,
    "Which rank is on TCP": hosts.last_night,
    "SGLang in Kubernetes": hosts.kubernetes,
}
# Begin of what --check says in a PID namespace.
NAMESPACES = "note: not all processes can be examined for NIXL: those outside of this container are not visible"
# In commands whose output is compared as it is.
ARCHIVE = "/var/log/pcp/pmlogger/node2"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{64}\b")
NUMBER = re.compile(r"\d[\d.,:]*(?:e[+-]\d+)?")
UNIT = re.compile(r"(#) ?(?:[KMGTk]i?B?|[num]?s|us)(?=[\s/,!)]|$)")


def sections(text):
    """Returns the parts of the page by heading; "" is what comes before the first."""
    parts = re.split(r"(?m)^## (.*)\n", text)
    return dict(zip(["", *parts[1::2]], parts[::2]))


def pieces(section):
    """Returns texts and commands: lists with one element are text, those with two a command and its output."""
    found, in_console, lines = [], False, iter(section.splitlines(keepends=True))
    for line in lines:
        if line.startswith("```"):
            in_console = line == "```console\n"
            found.append([line])
        elif not in_console:
            found.append([line])
        elif line.startswith("$ "):
            while line.endswith("\\\n"):
                line += next(lines)
            found.append([line, ""])
        else:
            found[-1][1] += line
    return found


def masked(output):
    """Returns the output without what differs from run to run."""
    text = UNIT.sub(r"\1", NUMBER.sub("#", UUID.sub("@", output)))
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    # Equal lines, such as of agents with unlike numbers, come in any order.
    return sorted(re.sub(r"-{2,}", "--", line) for line in lines)


class Shell:
    """A shell that keeps its directory and variables from one command to the next."""

    def __init__(self, work, directory):
        path = f"{os.path.abspath('qa/recipes')}:{work}/bin:{os.environ['PATH']}"
        self.process = subprocess.Popen(["/bin/bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, cwd=directory, env={**os.environ, "PATH": path})

    def run(self, command):
        """Returns what a command prints, and its exit status."""
        print(f"{command}\necho; echo end-of-output $?", file=self.process.stdin, flush=True)
        output = ""
        while True:
            line = self.process.stdout.readline()
            if line.startswith("end-of-output "):
                return output[:-1], int(line.split()[1])
            if not line:
                raise SystemExit(f"recipes: the shell has ended: {command}")
            output += line


def shown(output):
    """Returns output as the page has it: without spaces at the ends of lines, and without what --check says of these namespaces."""
    lines = (line.rstrip() for line in output.splitlines())
    return "".join(line + "\n" for line in lines if not line.startswith(NAMESPACES))


def run_section(work, heading, section):
    """Runs the commands of a section. Returns the section with their output, and a list of differences."""
    SECTIONS[heading](work, section)
    home = work / "home"
    home.mkdir(exist_ok=True)
    shell, text, differences = Shell(work, "." if "$ sudo make " in section else home), "", []
    for piece in pieces(section):
        text += piece[0]
        if len(piece) == 1:
            continue
        command = piece[0][2:].rstrip("\n")
        hosts.before(command)
        print(f"$ {command}", flush=True)
        output, status = shell.run(command)
        output = shown(output)
        print(output, end="", flush=True)
        is_equal = output == piece[1] or ARCHIVE not in command and masked(output) == masked(piece[1])
        # What is equal but for numbers stays, so that a run changes the page only where it has to.
        text += piece[1] if is_equal else output
        if status != 0:
            differences.append(f"{heading}: exit status {status}: {command}")
        if not is_equal:
            differences.append(f"{heading}: {command}\n--- page\n{piece[1]}--- now\n{output}")
    return text, differences


def main():
    work, schemas, *wanted = sys.argv[1:]
    os.environ["RECIPES_SCHEMAS"] = schemas
    found = sections(PAGE.read_text())
    missing = [heading for heading in SECTIONS if heading not in found]
    others = [heading for heading in found if heading not in SECTIONS and "\n$ " in found[heading]]
    if missing or others:
        raise SystemExit(f"recipes: headings: {missing} {others}")
    began, differences, commands = time.monotonic(), [], 0
    for heading in SECTIONS:
        if not wanted or any(part in heading for part in wanted):
            print(f"\n== {heading}", flush=True)
            commands += sum(len(piece) == 2 for piece in pieces(found[heading]))
            found[heading], new = run_section(pathlib.Path(work), heading, found[heading])
            differences += new
    print(f"\nrecipes: {commands} commands in {time.monotonic() - began:.0f} s")
    if os.environ.get("BLESS") and not any("exit status" in one for one in differences):
        text = "".join((f"## {heading}\n" if heading else "") + section for heading, section in found.items())
        PAGE.write_text(text)
        return
    if differences:
        raise SystemExit("recipes: not as docs/recipes.md says; BLESS=1 accepts the output\n" + "\n".join(differences))


if __name__ == "__main__":
    main()
