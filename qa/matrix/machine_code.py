#!/usr/bin/env python3
"""machine_code.py PROGRAM: what an aarch64 build of pmdanixl does with the positions of a ring, down to its instructions.

Where src/ring/protocol.rs asks for acquire or release, the program's instructions must do it. Which instruction belongs to
which line is what the program's debug information says, through all that was inlined.
"""

import re
import subprocess
import sys

TOOLS = "aarch64-linux-gnu-"
SOURCE = "src/ring/protocol.rs"

# What a line of the source is, and what the program must have for it. Where the release store is a call, that routine picks
# by what the processor has; both ways are looked at.
RELEASE = re.compile(r"(casl|casal|stlxr|bl\s+\S+ <__aarch64_cas8_(rel|acq_rel)>)")
FENCE = re.compile(r"dmb\s+(ishld|ish)\b")
WANTED = [
    ("the compare-and-swap of read_pos", ".swap_from(from, upto, Release)", RELEASE),
    ("the fences between positions and slots", "W::fence(Acquire)", FENCE),
]
# All that touches memory.
ACCESS = re.compile(r"(ld|st|cas|swp|dmb|bl\s.*<__aarch64_)")


def output(*command, stdin=None):
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True, text=True).stdout


def instructions(program):
    """Address, instruction and function of all that touches memory in this crate's code, and the out-of-line atomics."""
    found, routines, function = [], {}, ""
    for line in output(TOOLS + "objdump", "-d", "--no-show-raw-insn", "--demangle", program).splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = head[1]
        elif code := re.match(r"\s*([0-9a-f]+):\s+(.*)$", line):
            if function.startswith("__aarch64_cas8_"):
                routines.setdefault(function, []).append(code[2])
            elif "pmdanixl" in function and ACCESS.match(code[2]):
                found.append((code[1], code[2]))
    return found, routines


def lines(program, addresses):
    """For each address the file and line that it belongs to, and those that it was inlined into."""
    text = output(TOOLS + "addr2line", "-a", "-i", "-e", program, stdin="\n".join(addresses) + "\n")
    places = {}
    for line in text.splitlines():
        if line.startswith("0x"):
            place = places.setdefault(int(line, 16), [])
        else:
            place.append(line.split(" (")[0])
    return places


def main():
    program = sys.argv[1]
    source = open(SOURCE, encoding="utf-8").read().splitlines()
    found, routines = instructions(program)
    places = lines(program, [address for address, _ in found])
    failed = False
    for what, text, wanted in WANTED:
        numbers = [number for number, line in enumerate(source, 1) if text in line]
        assert numbers, f"{SOURCE} has no line with {text}"
        for number in numbers:
            ends = f"{SOURCE}:{number}"
            # The access itself is inlined from std's atomics; what is left of the line is bounds checks.
            codes = [
                code
                for address, code in found
                if any(place.endswith(ends) for place in places[int(address, 16)])
                and "/sync/atomic.rs:" in places[int(address, 16)][0]
                and "[sp" not in code
            ]
            bad = [code for code in codes if not wanted.match(code)]
            shown = ", ".join(sorted({" ".join(code.split()) for code in codes})) or "nothing"
            if codes and not bad:
                print(f"ok {what}, line {number}: {len(codes)} times: {shown}")
            else:
                failed = True
                print(f"FAIL {what}, line {number}: {shown}")
    for routine, codes in routines.items():
        if routine not in ("__aarch64_cas8_rel", "__aarch64_cas8_acq_rel"):
            continue
        names = [code.split()[0] for code in codes]
        if any(name in ("casl", "casal") for name in names) and "stlxr" in names:
            print(f"ok {routine}: by casl where the processor has it, else by stlxr")
        else:
            failed = True
            print(f"FAIL {routine}: {names}")
    return failed


sys.exit(main())
