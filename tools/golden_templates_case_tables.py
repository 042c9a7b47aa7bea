#!/usr/bin/env python3
"""Writes src/text/jinja/case_tables.cc: Python's str.upper/str.lower beyond ASCII as ranges."""
import pathlib
import sys

CODE_POINTS = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def ranges(convert):
    moves = [(c, ord(convert(chr(c))) - c) for c in CODE_POINTS
             if len(convert(chr(c))) == 1 and convert(chr(c)) != chr(c)]
    out, i = [], 0
    while i < len(moves):
        first, delta = moves[i]
        best = (i, 1)
        for stride in (1, 2):
            j = i
            while j + 1 < len(moves) and moves[j + 1] == (moves[j][0] + stride, delta):
                j += 1
            best = max(best, (j, stride), key=lambda b: b[0])
        out.append(f"{{{first:#x}, {moves[best[0]][0]:#x}, {delta}, {best[1]}}},")
        i = best[0] + 1
    return out


def lines(items, indent="    "):
    text, line = [], indent
    for item in items:
        if len(line) + len(item) > 99:
            text.append(line.rstrip())
            line = indent
        line += item + " "
    return "\n".join(text + [line.rstrip()])


def escaped(text):
    return "".join(f"\\x{b:02x}" for b in text.encode())


upper, lower = ranges(str.upper), ranges(str.lower)
long_upper = [f'{{{c:#x}, "{escaped(chr(c).upper())}"}},' for c in CODE_POINTS if len(chr(c).upper()) > 1]
page = f"""// Written by tools/golden_templates_case_tables.py from Python {sys.version.split()[0]}; do not edit.
#include "text/jinja/case_tables.h"

namespace attune::text::jinja {{

// clang-format off
const CaseRange kUpperRanges[] = {{
{lines(upper)}
}};
const size_t kUpperRangeCount = {len(upper)};

const CaseRange kLowerRanges[] = {{
{lines(lower)}
}};
const size_t kLowerRangeCount = {len(lower)};

const LongCase kLongUpper[] = {{
{lines(long_upper)}
}};
const size_t kLongUpperCount = {len(long_upper)};
// clang-format on

}}  // namespace attune::text::jinja
"""
(pathlib.Path(__file__).resolve().parent.parent / "src/text/jinja/case_tables.cc").write_text(page)
