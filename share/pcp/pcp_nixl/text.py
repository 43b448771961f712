# SPDX-License-Identifier: GPL-2.0-or-later
"""How numbers, times and names are written: within a width, and without characters that move the cursor."""
import re
from unicodedata import category, east_asian_width

# Ranges of further characters that are two cells wide on some terminals, or on terminals with newer tables than this Python's.
ALSO_WIDE = (
    (0x2630, 0x2637), (0x268A, 0x268F), (0x3248, 0x324F), (0x4DC0, 0x4DFF), (0x1D300, 0x1D356), (0x1D360, 0x1D376),
)
# Ranges of invisible characters: Unicode's Default_Ignorable_Code_Point, the Braille blank and the musical null notehead.
INVISIBLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F),
    (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D159, 0x1D159), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)


def is_one_of(char, ranges):
    """Returns True if a character is in one of the ranges."""
    return any(first <= ord(char) <= last for first, last in ranges)


def scaled(value):
    """Formats a number in at most five characters, with a suffix for powers of 1000."""
    if value is None:
        return "-"
    for suffix in ("", "K", "M", "G", "T", "P"):
        if value < 999.5:
            break
        value /= 1000
    else:
        suffix = "E"
    if value == 0:
        return "0"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return "{:.{}f}{}".format(value, digits, suffix)


def duration(micros):
    """Formats microseconds in at most six characters."""
    if micros is None:
        return "-"
    if micros < 999.5:
        return "{:.3g}us".format(round(micros, 2))
    for unit, size in (("ms", 1e3), ("s", 1e6), ("h", 3.6e9), ("d", 8.64e10)):
        value = micros / size
        if value < (999.5 if unit == "ms" else 9999.5):
            break
    else:
        return ">9999d"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return "{:.{}f}{}".format(value, digits, unit)


def total(value):
    """Formats a count: exact below 10,000, with a suffix above."""
    return "-" if value is None else str(value) if value < 10000 else scaled(value)


def char_width(char):
    """Returns the maximum width of a character on any terminal, in cells. A line that is too long would wrap."""
    # Marks of class Mc have a width.
    if category(char) in ("Mn", "Me"):
        return 0
    is_wide = east_asian_width(char) in "WF" or is_one_of(char, ALSO_WIDE)
    return 2 if is_wide else 1


def text_width(text):
    """Returns the maximum width of a text, in cells."""
    return sum(map(char_width, text))


def fitting(chars, width):
    """Returns how many of the first characters fit into a width in cells."""
    for count, char in enumerate(chars):
        width -= char_width(char)
        if width < 0:
            return count
    return len(chars)


def cut(text, width):
    """Shortens a text to a width in cells. Two dots replace the middle."""
    if text_width(text) > width:
        # A width of 1 has room for one dot only.
        dots = ".."[:width]
        room = width - len(dots)
        end = text[len(text) - fitting(text[::-1], room // 2):]
        text = text[:fitting(text, room - text_width(end))] + dots + end
    return text


def fitted(name, width):
    """Shortens or pads a name to a width in cells."""
    name = cut(name, width)
    return name + " " * (width - text_width(name))


def printable(name):
    """Escapes invisible characters and those that move the cursor: another PMDA may not escape names."""
    return "".join(
        # The same escapes as in pmdanixl.
        char if char.isprintable() and not is_one_of(char, INVISIBLE)
        else "".join("%{:02X}".format(byte) for byte in char.encode("utf-8", "replace"))
        for char in name
    )


def decoded(read):
    """Returns what a function of pmapi reads: a text, or if another host has sent no UTF-8, what can be read of it."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def natural(text):
    """Returns a sort key that compares numbers in a text by value: TP2 is before TP10."""
    # Longer numbers are split, because int() rejects more than 4300 digits.
    parts = re.split("([0-9]{1,18})", text or "")
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
