#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""pixels.py PICTURE: converts a PNG picture to PPM, a header and the pixels, on standard output.

It reads PNG files of pngquant and pmchart: 8 bits, with a palette or in true colour, not interlaced. It ignores transparency.
"""

import struct
import sys
import zlib


def chunks(data):
    """Yields (kind, data) of each chunk of a PNG file."""
    at = 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + length]
        at += 12 + length


def nearest(left, above, corner):
    """Returns the one of the three values that is nearest to left + above - corner (Paeth)."""
    guess = left + above - corner
    return min((abs(guess - left), 0, left), (abs(guess - above), 1, above), (abs(guess - corner), 2, corner))[2]


def lines(data, width, height, size):
    """Yields the bytes of each line with the filters undone. `size` is the number of bytes per pixel."""
    length = width * size
    before = bytes(length)
    for number in range(height):
        start = number * (length + 1)
        kind, line = data[start], bytearray(data[start + 1 : start + 1 + length])
        for at in range(length if kind else 0):
            left, corner = (line[at - size], before[at - size]) if at >= size else (0, 0)
            above = before[at]
            guesses = (0, left, above, (left + above) // 2, nearest(left, above, corner))
            line[at] = (line[at] + guesses[kind]) & 0xFF
        yield line
        before = line


def main():
    with open(sys.argv[1], "rb") as file:
        parts = list(chunks(file.read()))
    width, height, bits, colours, _, _, interlaced = struct.unpack(">IIBBBBB", dict(parts)[b"IHDR"])
    if bits != 8 or interlaced or colours not in (2, 3, 6):
        sys.exit(f"pixels.py: {sys.argv[1]}: {bits} bits, colour type {colours}, interlace {interlaced} are not supported")
    data = zlib.decompress(b"".join(part for kind, part in parts if kind == b"IDAT"))
    palette = dict(parts).get(b"PLTE")
    out = bytearray(b"P6\n%d %d\n255\n" % (width, height))
    size = {2: 3, 3: 1, 6: 4}[colours]
    for line in lines(data, width, height, size):
        for at in range(0, len(line), size):
            out += palette[3 * line[at] : 3 * line[at] + 3] if palette and size == 1 else line[at : at + 3]
    sys.stdout.buffer.write(out)


main()
