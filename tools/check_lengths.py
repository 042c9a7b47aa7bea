#!/usr/bin/env python3
"""Fails on a source file of more than 600 lines, tests and benches included."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 600
FOLDERS = ("include", "src", "tests", "bench", "tools", "cmake")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".js", ".html", ".cmake"}


def main():
    files = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*")) if p.suffix in SUFFIXES]
    lengths = {p.relative_to(ROOT): p.read_bytes().count(b"\n") for p in files}
    problems = [f"{path}: {lines} lines, at most {LIMIT}" for path, lines in lengths.items() if lines > LIMIT]
    print("\n".join(problems) or f"{len(files)} files, none over {LIMIT} lines")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
