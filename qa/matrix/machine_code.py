#!/usr/bin/env python3
"""machine_code.py PROGRAM: what an aarch64 build of pmdanixl does with the positions of a ring, down to its instructions.

Where src/ring/protocol.rs asks for acquire or release, the program's instructions must do it, and in each copy that was inlined
the fence must come right behind the load of write_pos, before all that is loaded after that. Which instruction belongs to which
line is what the program's debug information says, through all that was inlined.
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
LOAD = ("loads of write_pos, each with its fence behind it", "words[WRITE_POS].load(Relaxed)")
# Instructions that access memory.
ACCESS = re.compile(r"(ld|st|cas|swp|dmb|bl\s.*<__aarch64_)")


def output(*command, stdin=None):
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True, text=True).stdout


def instructions(program):
    """Address, instruction and function, in the order of addresses, of all that touches memory in this crate's code, and the out-of-line atomics."""
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
    """For each address the file and line that it belongs to, and those that it was inlined into."""
    text = output(TOOLS + "addr2line", "-a", "-i", "-e", program, stdin="\n".join(addresses) + "\n")
    places = {}
    for line in text.splitlines():
        if line.startswith("0x"):
            place = places.setdefault(int(line, 16), [])
        else:
            place.append(line.split(" (")[0])
    return places


def unfenced(accesses, loads):
    """How many loads of these lines there are among atomic accesses, which are (function, lines, instruction) in the order of
    addresses, and those that something else than a fence comes behind."""
    count, bad = 0, []
    for at, (function, lines_of, code) in enumerate(accesses):
        if not loads & lines_of or not code.startswith("ld"):
            continue
        count += 1
        behind = accesses[at + 1] if at + 1 < len(accesses) else (None, set(), "nothing")
        if behind[0] != function or not FENCE.match(behind[2]):
            bad.append(f"{function}: {code}; {behind[2]}")
    return count, bad


def self_test():
    """Asserts that wrong code is found."""
    load, fence, slot = ("f", {7}, "ldr x0, [x1]"), ("f", {8}, "dmb ishld"), ("f", {9}, "ldr x2, [x1, #64]")
    assert unfenced([load, fence, slot], {7}) == (1, [])
    assert unfenced([load, fence, slot, load, fence], {7}) == (2, [])
    for wrong in ([load, slot, fence], [load, slot], [load], [load, ("g", {8}, "dmb ishld")], [load, fence, load, slot, fence]):
        assert len(unfenced(wrong, {7})[1]) == 1, wrong
    for code, is_release in (("casl x0, x1, [x2]", True), ("cas x0, x1, [x2]", False), ("str x0, [x2]", False)):
        assert bool(RELEASE.match(code)) == is_release, code
    assert FENCE.match("dmb ish") and not FENCE.match("dmb ishst")


def main():
    self_test()
    program = sys.argv[1]
    source = open(SOURCE, encoding="utf-8").read().splitlines()
    found, routines = instructions(program)
    places = lines(program, [address for address, _, _ in found])
    failed = False
    for what, text, wanted in WANTED:
        numbers = [number for number, line in enumerate(source, 1) if text in line]
        assert numbers, f"{SOURCE} has no line with {text}"
        for number in numbers:
            ends = f"{SOURCE}:{number}"
            # The access itself is inlined from std's atomics; what is left of the line is bounds checks.
            codes = [
                code
                for address, code, _ in found
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
    what, text = LOAD
    numbers = {number for number, line in enumerate(source, 1) if text in line}
    assert numbers, f"{SOURCE} has no line with {text}"
    accesses = []
    for address, code, function in found:
        stack = places[int(address, 16)]
        ours = {int(place.rsplit(":", 1)[1]) for place in stack if re.search(re.escape(SOURCE) + r":\d+$", place)}
        if ours and "/sync/atomic.rs:" in stack[0] and "[sp" not in code:
            accesses.append((function, ours, code))
    count, bad = unfenced(accesses, numbers)
    print(f"{'FAIL' if bad or not count else 'ok'} {what}: {count} times{''.join(chr(10) + '    ' + one for one in bad)}")
    failed = failed or bool(bad) or not count
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
