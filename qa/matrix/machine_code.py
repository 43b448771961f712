#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""machine_code.py [PROGRAM]: checks the instructions of an aarch64 build of pmdanixl that access the positions of a ring.

Where src/ring/protocol.rs has acquire or release, the instructions must have it too. In each inlined copy, the fence must directly
follow the load of write_pos, before all later loads. The program's debug information maps instructions to source lines, also of
inlined functions. Without PROGRAM, it only checks itself, and that the source has the lines it looks for.
"""

import re
import subprocess
import sys

TOOLS = "aarch64-linux-gnu-"
SOURCE = "src/ring/protocol.rs"

# Description and text of a source line, and the instructions that it must have. The compare-and-swap may be a call of a routine
# that selects instructions by the CPU's features. Both variants are checked.
RELEASE = re.compile(r"(casl|casal|stlxr|bl\s+\S+ <__aarch64_cas8_(rel|acq_rel)>)")
FENCE = re.compile(r"dmb\s+(ishld|ish)\b")
WANTED = [
    ("the compare-and-swap of read_pos", ".swap_from(from, end, Release)", RELEASE),
    ("the fences between positions and slots", "W::fence(Acquire)", FENCE),
]
LOAD = ("loads of write_pos, each followed by its fence", "words[header::WRITE_POS].load(Relaxed)")
# Instructions that access memory.
ACCESS = re.compile(r"(ld|st|cas|swp|dmb|bl\s.*<__aarch64_)")


def output(*command, stdin=None):
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True, text=True).stdout


def instructions(program):
    """Returns (address, instruction, function) of memory accesses in this crate, by address, and the out-of-line atomics."""
    found, routines, function = [], {}, ""
    for line in output(TOOLS + "objdump", "-d", "--no-show-raw-insn", "--demangle", program).splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = head[1]
        elif code := re.match(r"\s*([0-9a-f]+):\s+(.*)$", line):
            if function.startswith("__aarch64_cas8_"):
                routines.setdefault(function, []).append(code[2])
            elif "pmdanixl" in function and ACCESS.match(code[2]):
                found.append((code[1], code[2], function))
    return found, routines


def lines(program, addresses):
    """Returns for each address its source line, followed by the lines that it was inlined into."""
    text = output(TOOLS + "addr2line", "-a", "-i", "-e", program, stdin="\n".join(addresses) + "\n")
    found = {}
    for line in text.splitlines():
        if line.startswith("0x"):
            stack = found.setdefault(int(line, 16), [])
        else:
            stack.append(line.split(" (")[0])
    return found


def unfenced(accesses, loads):
    """Returns the number of loads of these lines, and descriptions of those that no fence follows. `accesses` are the atomic
    accesses as (function, lines, instruction), by address."""
    count, bad = 0, []
    for at, (function, lines_of, code) in enumerate(accesses):
        if not loads & lines_of or not code.startswith("ld"):
            continue
        count += 1
        following = accesses[at + 1] if at + 1 < len(accesses) else (None, set(), "nothing")
        if following[0] != function or not FENCE.match(following[2]):
            bad.append(f"{function}: {code}; {following[2]}")
    return count, bad


def self_test():
    """Asserts that this script detects wrong code."""
    load, fence, slot = ("f", {7}, "ldr x0, [x1]"), ("f", {8}, "dmb ishld"), ("f", {9}, "ldr x2, [x1, #64]")
    assert unfenced([load, fence, slot], {7}) == (1, [])
    assert unfenced([load, fence, slot, load, fence], {7}) == (2, [])
    for wrong in ([load, slot, fence], [load, slot], [load], [load, ("g", {8}, "dmb ishld")], [load, fence, load, slot, fence]):
        assert len(unfenced(wrong, {7})[1]) == 1, wrong
    for code, is_release in (("casl x0, x1, [x2]", True), ("cas x0, x1, [x2]", False), ("str x0, [x2]", False)):
        assert bool(RELEASE.match(code)) == is_release, code
    assert FENCE.match("dmb ish") and not FENCE.match("dmb ishst")


def line_numbers(text):
    """Returns the numbers of the source lines that contain a text."""
    with open(SOURCE, encoding="utf-8") as source:
        numbers = [number for number, line in enumerate(source, 1) if text in line]
    assert numbers, f"{SOURCE} has no line with {text}"
    return numbers


def main():
    self_test()
    numbers = {text: line_numbers(text) for text in [text for _, text, _ in WANTED] + [LOAD[1]]}
    if len(sys.argv) < 2:
        return False
    program = sys.argv[1]
    found, routines = instructions(program)
    stacks = lines(program, [address for address, _, _ in found])
    failed = False
    for what, text, wanted in WANTED:
        for number in numbers[text]:
            ends = f"{SOURCE}:{number}"
            # Only instructions that are inlined from std's atomics. The others of the line are bounds checks.
            codes = [
                code
                for address, code, _ in found
                if any(line.endswith(ends) for line in stacks[int(address, 16)])
                and "/sync/atomic.rs:" in stacks[int(address, 16)][0]
                and "[sp" not in code
            ]
            bad = [code for code in codes if not wanted.match(code)]
            shown = ", ".join(sorted({" ".join(code.split()) for code in codes})) or "nothing"
            if codes and not bad:
                print(f"ok {what}, line {number}: {len(codes)} times: {shown}")
            else:
                failed = True
                print(f"FAIL {what}, line {number}: {shown}")
    what, text = LOAD
    accesses = []
    for address, code, function in found:
        stack = stacks[int(address, 16)]
        own = {int(line.rsplit(":", 1)[1]) for line in stack if re.search(re.escape(SOURCE) + r":\d+$", line)}
        if own and "/sync/atomic.rs:" in stack[0] and "[sp" not in code:
            accesses.append((function, own, code))
    count, bad = unfenced(accesses, set(numbers[text]))
    print(f"{'FAIL' if bad or not count else 'ok'} {what}: {count} times{''.join(chr(10) + '    ' + one for one in bad)}")
    failed = failed or bool(bad) or not count
    for routine, codes in routines.items():
        if routine not in ("__aarch64_cas8_rel", "__aarch64_cas8_acq_rel"):
            continue
        names = [code.split()[0] for code in codes]
        if any(name in ("casl", "casal") for name in names) and "stlxr" in names:
            print(f"ok {routine}: casl if the CPU has it, otherwise stlxr")
        else:
            failed = True
            print(f"FAIL {routine}: {names}")
    return failed


sys.exit(main())
