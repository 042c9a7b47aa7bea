#!/usr/bin/env python3
"""Writes src/text/unicode_classes.inc and src/text/unicode_nfc.inc.

The version of Unicode is the one that the `tokenizers` package's regular expressions use (16.0), so that
text is split alike: pip install unicodedata2==16.0.0, then run this from the root.
"""
import sys

import unicodedata2 as ud

L, M, N, P, S, SPACE, NFC = 1, 2, 4, 8, 16, 32, 64
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}
HANGUL = range(0xAC00, 0xAC00 + 11172)
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def canonical(cp):
    """The one-step canonical decomposition, as one or two code points, or None."""
    text = ud.decomposition(chr(cp))
    if not text or text.startswith("<"):
        return None
    return [int(x, 16) for x in text.split()]


def tables():
    compose, decompose, second = [], [], set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for cp in CODE_POINTS:
        parts = canonical(cp)
        if not parts:
            continue
        a, b = parts[0], parts[1] if len(parts) > 1 else 0
        if b and ud.normalize("NFC", chr(a) + chr(b)) == chr(cp):
            compose.append((cp, a, b))
            second.add(b)
        else:
            decompose.append((cp, a, b))
    return compose, decompose, second


def classes(second):
    for cp in CODE_POINTS:
        c = chr(cp)
        bits = {"L": L, "M": M, "N": N, "P": P, "S": S}.get(ud.category(c)[0], 0)
        if cp in WHITE_SPACE:
            bits |= SPACE
        if ud.combining(c) or cp in second or (cp not in HANGUL and ud.normalize("NFC", c) != c):
            bits |= NFC
        yield cp, bits


def runs(pairs):
    """(first code point, value) wherever the value changes."""
    out, last = [], None
    for cp, value in pairs:
        if value != last:
            out.append((cp, value))
            last = value
    return out


def write(path, comment, arrays):
    with open(path, "w") as f:
        f.write(f"// {comment}\n// Unicode {ud.unidata_version}. Written by tools/unicode_tables.py; do not edit.\n")
        for declaration, rows in arrays:
            f.write(declaration + " = {\n")
            line = ""
            for row in rows:
                cell = "{" + ",".join(f"0x{value:X}" for value in row) + "},"
                if len(line) + len(cell) > 138:
                    f.write(line + "\n")
                    line = ""
                line += cell
            f.write(line + "\n};\n")


def main():
    if not ud.unidata_version.startswith("16."):
        sys.exit("needs unicodedata2==16.0.0")
    compose, decompose, second = tables()
    write("src/text/unicode_classes.inc", "Class bits of every code point, as runs (unicode.h).",
          [("constexpr Run kClassRuns[]", runs(classes(second)))])
    write("src/text/unicode_nfc.inc", "Canonical composition: {whole, first, second}, and combining classes.",
          [("constexpr Decomposition kPrimaryComposites[]", compose),
           ("constexpr Decomposition kOtherDecompositions[]", decompose),
           ("constexpr Run kCombiningRuns[]", runs((c, ud.combining(chr(c))) for c in CODE_POINTS))])


main()
