# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of `make compare`: a column for each way, medians of all runs, and in brackets the least and the greatest."""

import statistics


def spread(values, digits=0, sign=""):
    """Returns the median and the range of these numbers."""
    shown = [f"{value:{sign},.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else "{} ({} to {})".format(*shown)


def lost(results, phase):
    """Returns how many events of the application were not shown in a phase, of all ranks and of those seen."""
    total = sum(sum(found[phase]["events"].values()) for found in results)
    unseen = sum(events for found in results for rank, events in found[phase]["events"].items()
                 if rank not in found[phase]["lost"])
    missing = sum(sum(found[phase]["lost"].values()) for found in results)
    text = f"{missing:,.0f} of {total - unseen:,.0f}"
    return text if not unseen else f"{100 * (unseen + missing) / total:.1f} %: {text} of the ranks seen, all of the others"


def shown(results, phase):
    """Returns what the exporter shows of lost events in a phase, in all runs."""
    names = dict.fromkeys(name for found in results for name in found[phase]["losses"])
    return ", ".join(f"{name} {sum(found[phase]['losses'].get(name, 0) for found in results):,.0f}" for name in names) or "nothing"


def text(results, ranks, rate):
    """Returns the table. `results` has the results of each run, by way; the first way is the reference."""
    reference = next(iter(results.values()))

    def more(found, get, digits=1):
        """Returns how much more than without telemetry, in the same run."""
        return spread([get(one) - get(off) for one, off in zip(found, reference)], digits, "+")

    def all_more(found, application, outside):
        return spread([application(one) - application(off) + sum(outside(one).values())
                       for one, off in zip(found, reference)], 1, "+")

    def outside(found, get):
        names = list(get(found[0]))
        return "; ".join(f"{name} {spread([get(one).get(name, 0) for one in found], 1)}" for name in names) or "none"

    def has(found, kind):
        """Returns yes if each rank that is seen has such figures, in each run."""
        pairs = {(one["figures"][kind], one["seen"]) for one in found}
        if all(with_it == 0 for with_it, _ in pairs):
            return "no"
        return "yes" if all(with_it == seen for with_it, seen in pairs) else f"{min(pairs)[0]} ranks of {min(pairs)[1]}"

    # Rows of the application alone, which the reference has too, and rows about telemetry.
    both = {
        "transfers/s, as fast as possible": lambda found: spread([one["fast"]["transfers"] for one in found]),
        f"events/s, {rate:,} wanted": lambda found: spread([4 * one["paced"]["transfers"] for one in found]),
        "CPU of the application at 40,000 events/s, %": lambda found: spread([one["paced"]["application"] for one in found]),
        "memory of the application, MiB": lambda found: spread([one["memory"] for one in found]),
    }
    own = {
        "transfers/s, in % of those with telemetry off": lambda found: spread(
            [100 * one["fast"]["transfers"] / off["fast"]["transfers"] for one, off in zip(found, reference)]),
        "CPU of the application, % more than off": lambda found: more(found, lambda one: one["paced"]["application"]),
        "CPU of other processes, %": lambda found: outside(found, lambda one: one["paced"]["outside"]),
        "CPU in all, % more than off": lambda found: all_more(
            found, lambda one: one["paced"]["application"], lambda one: one["paced"]["outside"]),
        "memory of the application, MiB more than off": lambda found: more(found, lambda one: one["memory"]),
        "memory of other processes, MiB": lambda found: outside(found, lambda one: one["outside"]),
        "memory in all, MiB more than off": lambda found: all_more(found, lambda one: one["memory"], lambda one: one["outside"]),
        f"ranks seen, of {ranks}": lambda found: spread([one["seen"] for one in found]),
        f"events lost at {rate:,}/s": lambda found: lost(found, "paced"),
        "what shows this": lambda found: shown(found, "paced"),
        "events lost as fast as possible": lambda found: lost(found, "fast"),
        "what shows that": lambda found: shown(found, "fast"),
    }
    for kind in reference[0]["figures"]:
        own[kind] = lambda found, kind=kind: has(found, kind)
    lines = ["| | " + " | ".join(results) + " |", "| --- |" + " --- |" * len(results)]
    for name, cell in (both | own).items():
        cells = [cell(found) if name in both or found is not reference else "-" for found in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
