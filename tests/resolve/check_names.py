#!/usr/bin/env python3
"""Fails on a backend's name outside its folder and the preference table (src/ and include/; docs and tests may name all).

`cpu` and `reference` are words of other meanings too: of these, only quoted names that are compared count. A folder nvidia/NAME is a PyPI package's.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BACKENDS = ROOT / "src/attention/backends"
TABLE = ROOT / "src/resolve/preferences.cc"
MEASURED = ROOT / "src/resolve/measured_table.cc"  # is made from what a benchmark wrote
# Compare ours with named others, whose speeds they hold: nothing is chosen there.
COMPARED = {ROOT / "src/bench" / name for name in ("attention_peers.cc", "attention_peers.h", "attention_report.cc", "attention_report.h")}
WORDS = {"cpu", "reference"}


def main():
    names = sorted(p.parent.name for p in BACKENDS.glob("*/entry.cc"))
    problems = []
    for path in sorted(p for folder in ("src", "include") for p in (ROOT / folder).rglob("*") if p.suffix in {".h", ".cc"}):
        if path in (TABLE, MEASURED) or path in COMPARED or path.stem.endswith("_test") or "testing" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name in names:
                # Also a backend beside it that shares its library: flashinfer_mla.
                if any(folder.parent == BACKENDS and folder.name.startswith(name) for folder in path.parents):
                    continue
                if name in WORDS:
                    found = path.parent.name in ("resolve", "attention") and f'== "{name}"' in line
                else:
                    # One backend may be built of another's kernels: its headers and its namespace are no names.
                    line = re.sub(rf'#include "attention/backends/{name}/|\b{name}::', "", line) if BACKENDS in path.parents else line
                    found = re.search(rf"(?<![\w-])(?<!nvidia/){name}(?![\w-])", line)
                if found:
                    problems.append(f"{path.relative_to(ROOT)}:{number}: names the backend {name}")
    print("\n".join(problems) or f"{len(names)} backends, named in their folders and {TABLE.relative_to(ROOT)} alone")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
