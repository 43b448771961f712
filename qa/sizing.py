#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""qa/sizing.py [--check]

Computes tables of docs from measured ones: in docs/fleet.md from its first table, which is the output of qa/fleet-cost, and in
docs/recipes.md from docs/fleet.md, docs/grafana.md (qa/scrape-cost) and docs/speed.md (make bench). A table is found by its first line.
--check compares them instead of writing, and exits with 1 if one differs.
"""

import pathlib
import sys

DAY = 86400
DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
MEASURED = "| agents | groups | a sample | xz | once | xz | an agent comes | series | Redis, once | Redis, a sample | pmlogger | its time a sample |"
AGENTS = [8, 64, 512, 1000]


def table(text, first):
    """Returns begin and end of the table with this first line, and its rows as lists of cells."""
    begin = text.index(first)
    end = text.index("\n\n", begin)
    rows = [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in text[begin:end].splitlines()]
    return begin, end, rows[2:]


def with_table(text, first, rows):
    """Returns the text with other rows in the table with this first line."""
    begin, end, _ = table(text, first)
    rule = text[begin:end].splitlines()[1]
    return text[:begin] + "\n".join([first, rule, *(f"| {' | '.join(row)} |" for row in rows)]) + text[end:]


def number(cell):
    """Returns the number at the begin of a cell."""
    return float(cell.split()[0].strip("*").replace(",", ""))


def size(count, unit="MB"):
    """Returns bytes as text. A unit that is not given is MB, or GB from a thousand on."""
    if unit == "MB" and count >= 1e9:
        return size(count, "GB")
    value = count / {"MB": 1e6, "GB": 1e9}[unit]
    return f"{value:,.{0 if value >= 100 else 1 if value >= 1 else 2}f} {unit}"


def small(value):
    """Returns a number with at most one decimal."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def sum_for(interval, sample, once, seconds=DAY):
    """Returns the bytes of an archive or a series of a day, or of fewer seconds."""
    return sample * seconds / interval + once * seconds / DAY


def of_fleet(text):
    """Returns docs/fleet.md with the tables that are computed from the measured one."""
    rows = table(text, MEASURED)[2]
    measured = {(row[0], row[1]): [number(cell) for cell in row[2:]] for row in rows}
    rates, redis = [], []
    for (agents, groups), (sample, sample_xz, once, once_xz, _, _, keys, key, _, _) in measured.items():
        each = [sum_for(interval, *cost, 1) for interval in (60, 10) for cost in ((sample, once), (sample_xz, once_xz))]
        rates.append([agents, groups, *map(small, each)])
        redis.append([agents, groups, *(size(sum_for(interval, key, keys)) for interval in (60, 10))])
    text = with_table(text, "| agents | groups | every 60 s | xz | every 10 s | xz |", rates)
    text = with_table(text, "| agents | groups | a day at 60 s | a day at 10 s |", redis)
    hosts = 10000
    columns = [measured["any", "central"], measured["64", "summary"]]
    fleet = [
        ["archives of the farm, a day", *(f"{size(hosts * sum_for(60, one[0], one[2]), 'GB')}, xz {size(hosts * sum_for(60, one[1], one[3]), 'GB')}" for one in columns)],
        ["pmlogger processes, their memory", *(f"{hosts:,}, {size(hosts * one[8] * 1024, 'GB')}" for one in columns)],
        ["values into Redis, per second (XADD)", *(f"{hosts * one[5] / 60:,.0f}" for one in columns)],
        ["memory of Redis, one day", *(size(hosts * sum_for(60, one[7], one[6]), "GB") for one in columns)],
        ["the same in ten farm hosts, each", *(size(hosts / 10 * sum_for(60, one[7], one[6]), "GB") for one in columns)],
    ]
    return with_table(text, "| | central every 60 s | summary every 60 s |", fleet)


def of_recipes(text, fleet):
    """Returns docs/recipes.md with its table of sizes."""
    speed, grafana = ((DOCS / page).read_text() for page in ("speed.md", "grafana.md"))

    def cells(page, first, key, missing="–"):
        """Returns the row of a table that begins with these cells, or one cell that says that there is none."""
        found = [row for row in table(page, first)[2] if row[: len(key)] == key]
        return found[0] if found else [missing] * 12

    def value(cell, how):
        return cell if cell == "–" else how(number(cell))

    rows = []
    for count in AGENTS:
        agents = str(count)
        memory = cells(speed, "| agents | of 6 MB + 32 KiB per agent |", [agents])[2]
        idle = cells(speed, "| agents | % of a CPU | at most |", [agents])[1]
        busy = cells(speed, "| agents | events/s each, wanted |", [agents, "40000"])[3]
        scrape = cells(grafana, "| agents | names | samples | MB |", [agents, "the list"])
        archive = cells(fleet, MEASURED, [f"{count:,}", "summary"])
        days = ["–"] * 2
        if archive[0] != "–":
            costs = [number(cell) for cell in archive[2:]]
            plain, xz = (sum_for(60, costs[at], costs[at + 2]) for at in (0, 1))
            days = [f"{size(plain)}, xz {size(xz)}", size(sum_for(60, costs[7], costs[6]))]
        rows.append([
            f"{count:,}", value(idle, "{:.1f} %".format), value(busy, "{:.1f} %".format),
            value(memory, lambda kib: f"{kib / 1024:.1f} MiB") if memory != "–" else scrape[9], days[0],
            "–" if scrape[0] == "–" else f"{scrape[3]} MB, {scrape[4]} s, {scrape[8]}", days[1],
        ])
    return with_table(text, SIZES, rows)


SIZES = ("| agents | CPU, no events | 40,000 events/s each | memory of pmdanixl | archive, a day | a scrape: size, CPU time, memory of pmproxy "
         "| Redis, a day |")


def main():
    fleet_path, recipes_path = DOCS / "fleet.md", DOCS / "recipes.md"
    fleet = of_fleet(fleet_path.read_text())
    recipes = of_recipes(recipes_path.read_text(), fleet)
    stale = []
    for path, text in [(fleet_path, fleet), (recipes_path, recipes)]:
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif path.read_text() != text:
            stale.append(path.name)
    if stale:
        raise SystemExit(f"sizing: tables differ from what they are computed from: {', '.join(stale)}: run qa/sizing.py")


if __name__ == "__main__":
    main()
