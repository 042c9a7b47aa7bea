#!/usr/bin/env python3
"""The preference table of rules S4 and S6, out of what `attune bench attention --json` measured.

usage: measured_table.py [--check]

Reads bench/attention-*.jsonl and writes src/resolve/measured_table.cc: for each case the backends, best
first. With --check it writes nothing and fails when the file is not what it would write. Who is within
3 % of the best counts as equal, since a decode time is the difference of two, and stands in the order of
the names.
"""

import glob
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "src/resolve/measured_table.cc"
EQUAL = 1.03
ARCHS = {"sm80": "kSm80", "sm89": "kSm89", "sm90": "kSm90", "sm100": "kSm100"}
DTYPES = {"float32": "kF32", "bfloat16": "kBF16", "float16": "kF16", "fp8_e4m3": "kF8E4M3", "fp8_e5m2": "kF8E5M2"}
# Never preferred for their speed: the oracle; and cuDNN, whose graphs take 30 to 500 ms each to build when
# the first batch of a shape is planned, in the middle of serving, for at most 1 % of a step.
LEFT_OUT = {"reference", "cudnn"}


def measured():
    """{cell: {timing: {backend: us}}}"""
    cells = {}
    for path in sorted(glob.glob(str(ROOT / "bench/attention-*.jsonl"))):
        for line in open(path, encoding="utf-8"):
            row = json.loads(line)
            if row["ragged"] or row["arch"] not in ARCHS or row["backend"] in LEFT_OUT:
                continue
            # Verify is not asked of the table. Latent prompts, dense rows among them, go by paths of which each
            # has a backend of its own: there is nothing to compare.
            if row["phase"] not in ("decode", "prefill") or (row["kind"], row["phase"]) == ("mla", "prefill"):
                continue
            if row["page_size"] == 0:
                continue
            cell = (row["arch"], row["kind"], row["phase"], row["q_heads"], row["kv_heads"], row["qk_dim"],
                    row["kv_dtype"], row["page_size"], row["seqs"], row["kv_len"])
            timing = row.get("timing", "step" if row["phase"] == "decode" else "alone")
            cells.setdefault(cell, {}).setdefault(timing, {})[row["backend"]] = row["us"]
    return cells


def cells():
    known = {}  # of a device, phase and type of cache: who was measured at all
    group = lambda cell: cell[:3] + cell[6:7]
    best_of = {}
    for cell, timings in measured().items():
        # As a step pays for it, unless more backends were measured alone.
        times = max((timings[name] for name in ("step", "alone") if name in timings), key=len)
        best_of[cell] = times
        known.setdefault(group(cell), set()).update(times)
    for cell in sorted(best_of):
        times = best_of[cell]
        # Where one of them was not measured nothing is known of it: the next cell speaks.
        if set(times) != known[group(cell)]:
            continue
        best = min(times.values())
        # Equals keep the order of their names.
        yield cell, sorted(times, key=lambda name: (times[name] > best * EQUAL and times[name], name))


def text():
    out = ["// Made by tools/measured_table.py from bench/attention-*.jsonl: do not edit.",
           '#include "resolve/preferences.h"', "", "namespace attune::resolve {", "",
           "using attention::Arch;", "using attention::AttentionKind;", "using attention::Phase;",
           "using tensor::DType;", "", "// clang-format off", "std::vector<MeasuredCell> measured_table() {",
           "  return {"]
    for key, order in cells():
        arch, kind, phase, q, kv, dim, dtype, page, seqs, tokens = key
        names = ", ".join(f'"{name}"' for name in order)
        out.append(f"    {{Arch::{ARCHS[arch]}, AttentionKind::{'kMla' if kind == 'mla' else 'kMha'}, "
                   f"Phase::k{phase.capitalize()}, {q}, {kv}, {dim}, DType::{DTYPES[dtype]}, {page}, "
                   f"{seqs}, {tokens}, {{{names}}}}},")
    out += ["  };", "}", "// clang-format on", "", "}  // namespace attune::resolve", ""]
    return "\n".join(out)


if sys.argv[1:] == ["--check"]:
    if TARGET.read_text(encoding="utf-8") != text():
        sys.exit(f"{TARGET.relative_to(ROOT)} is not what the measurements say: run tools/measured_table.py")
else:
    TARGET.write_text(text(), encoding="utf-8")
