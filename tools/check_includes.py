#!/usr/bin/env python3
"""Fails on an #include arrow that the house does not allow (docs/architecture.md).

A row says which folders the files of a folder may include besides themselves, include/attune and
src/base. A row that names a folder allows what that one allows too; a row that names one header allows
that header alone, which must itself include nothing outside the row. Third-party headers stand only in
.cc and .cu files and in the private headers named, only in the folders named; the standard library and
the system's headers are free. Tests may include whatever their folder may, test libraries, and what
TEST_EXTRA names.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder: (folders it may include, transitively; third-party libraries in .cc files)
HOUSE = {
    "include/attune": ([], []),
    "src/base": ([], ["spdlog"]),
    "src/tensor": ([], []),
    "src/formats": (["src/tensor"], ["xxhash"]),
    "src/device": (["src/tensor"], ["cuda"]),
    "src/ops": (["src/tensor", "src/device/device.h", "src/device/uploader.h", "src/device/per_device.h", "src/device/cuda/launch.cuh", "src/device/cuda/library.h", "src/device/cuda/tensor_map.h"], ["cuda", "cutlass", "cublas", "dnnl"]),
    "src/kv/layout": (["src/tensor"], []),
    "src/kv/pool": (["src/kv/layout"], []),
    "src/kv/index": (["src/kv/pool", "src/kv/policy"], ["nettle"]),
    "src/kv/policy": (["src/kv/layout"], []),
    "src/kv/tier": (["src/kv", "src/device", "src/ops"], ["hiredis", "xxhash"]),
    "src/kv/transfer": (["src/kv", "src/device", "src/ops"], ["cuda"]),
    "src/attention": (["src/ops", "src/device", "src/kv/layout"], ["cuda"]),
    "src/attention/backends/flashinfer": (["src/attention"], ["cuda", "flashinfer"]),
    "src/attention/backends/flashinfer_mla": (["src/attention"], ["cuda", "flashinfer"]),
    "src/attention/backends/cudnn": (["src/attention"], ["cuda", "cudnn"]),
    "src/resolve": (["src/attention/capabilities.h", "src/attention/order.h", "src/kv/layout"], []),
    "src/model": (["src/attention", "src/ops", "src/device", "src/kv/layout", "src/formats"], []),
    "src/sched": (["src/kv/layout", "src/kv/pool", "src/kv/index", "src/kv/policy"], []),
    "src/engine": (["src/sched", "src/model", "src/resolve", "src/kv"], []),
    "src/text": (["src/formats"], ["pcre2", "xgrammar"]),
    "src/server": (["src/text"], ["boost"]),
    "src/bench": (["src/engine", "src/text", "src/server"], ["boost"]),
    "src/cli": (["src/bench", "src/engine", "src/server", "src/text"], []),
}
# What tests may include beyond their folder's row.
TEST_EXTRA = {
    "src/ops": ["src/formats"],  # real quantised blocks
    "src/engine": ["src/formats", "src/text"],
}
# Headers that show a library's types, for the .cc files of their own folder and each other only.
PRIVATE = {"src/ops/gemm/cuda/context.h",
           "src/server/asio_loop.h", "src/server/http_connection.h", "src/server/http_exchange.h",
           "src/attention/backends/flashinfer/cuda/prefill.cuh", "src/attention/backends/flashinfer/cuda/tile_unit.cuh",
           "src/attention/backends/flashinfer/cuda/row_unit.cuh",
           "src/attention/backends/flashinfer_mla/cuda/mla_params.cuh"}
TEST_LIBRARIES = ["gtest", "gmock", "benchmark"]
LIBRARIES = {  # first path component or file -> library
    "spdlog": "spdlog", "fmt": "spdlog", "simdjson.h": "simdjson", "boost": "boost", "CLI": "cli11", "nlohmann": "nlohmann",
    "prometheus": "prometheus", "pcre2.h": "pcre2", "xgrammar": "xgrammar", "hiredis": "hiredis",
    "nettle": "nettle", "xxhash.h": "xxhash", "cutlass": "cutlass", "cute": "cutlass",
    "cuda.h": "cuda", "cuda_runtime.h": "cuda", "cuda_fp16.h": "cuda", "cuda_bf16.h": "cuda", "cudaTypedefs.h": "cuda", "cupti.h": "cuda",
    "cublasLt.h": "cublas", "cudnn.h": "cudnn", "cudnn_frontend.h": "cudnn", "flashinfer": "flashinfer",
    "dnnl.h": "dnnl", "oneapi": "dnnl", "gtest": "gtest", "gmock": "gmock",
    "benchmark": "benchmark",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def row_of(path):
    """The longest row that holds `path`, or None."""
    parts = str(path)
    rows = [row for row in HOUSE if parts.startswith(row + "/")]
    return max(rows, key=len) if rows else None


def allowed(row):
    """Folders and single headers that `row` may include, with what the folders named bring along."""
    seen, todo = {row, "include/attune", "src/base"}, list(HOUSE[row][0])
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.add(item)
        todo += [other for name in HOUSE if name == item or name.startswith(item + "/") for other in HOUSE[name][0]]
        todo += [name for name in HOUSE if name.startswith(item + "/")]
    return seen


def may_include(rights, target):
    return any(target == right or target.startswith(right + "/") for right in rights)


def project_path(name):
    for base in ("src", "include"):
        if (ROOT / base / name).exists():
            return f"{base}/{name}"
    return None


def includes_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def is_test(path):
    return bool({"test", "bench", "fuzz", "testing"} & {*path.stem.split("_"), *path.parts})


def refuse_project_header(path, row, target):
    rights = allowed(row)
    if is_test(path):
        if "/testing/" in target:
            return None
        for extra in TEST_EXTRA.get(row, []):
            rights |= allowed(extra)
    if not may_include(rights, target):
        return f"{row} may not include {target}"
    if target in PRIVATE and (row_of(target) != row or (path.suffix == ".h" and str(path) not in PRIVATE)):
        return f"{target} is private to the .cc files of its folder"
    return None


def refuse_library_header(path, row, name):
    library = LIBRARIES.get(name.split("/")[0])
    if library is None:
        return None if re.fullmatch(r"[a-z0-9_/+]+(\.h)?", name) else f"<{name}> is of no library the house knows"
    if library in TEST_LIBRARIES:
        return None if is_test(path) else f"<{name}> outside a test"
    if path.suffix in (".h", ".cuh") and library != "cuda" and str(path) not in PRIVATE and not is_test(path):
        return f"<{name}>: third-party headers stand in .cc files only"
    if library == "cuda" and path.stem.endswith("_gpu_test"):
        return None
    return None if library in HOUSE[row][1] else f"{row} may not use {library} (<{name}>)"


def refuse(path, row, quote, name):
    """The reason against this line, or None."""
    target = project_path(name)
    if target:
        return refuse_project_header(path, row, target)
    if quote == "<":
        return refuse_library_header(path, row, name)
    if (ROOT / path.parent / name).exists():
        return f'"{name}": write the path from src/'
    return f'"{name}" is not in the tree'


def check_file(path):
    row = row_of(path)
    if row is None:
        return [f"{path}: is in no folder of the house"]
    found = ((number, refuse(path, row, quote, name)) for number, quote, name in includes_of(ROOT / path))
    return [f"{path}:{number}: {reason}" for number, reason in found if reason]


def check_named_headers():
    """Single headers in rows must bring in nothing that the row does not allow by itself."""
    problems = []
    for row, (rights, _) in HOUSE.items():
        for header in (right for right in rights if right.endswith(".h") and (ROOT / right).exists()):
            for number, _, name in includes_of(ROOT / header):
                target = project_path(name)
                if target and not may_include(allowed(row), target):
                    problems.append(f"{header}:{number}: {row} names this header, so it may not include {target}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--attune", help="ignored")
    parser.parse_args()
    files = [p.relative_to(ROOT) for base in ("include", "src") for p in sorted((ROOT / base).rglob("*"))]
    files = [p for p in files if p.suffix in SOURCES]
    problems = [problem for path in files for problem in check_file(path)] + check_named_headers()
    print("\n".join(problems) or f"{len(files)} files, every #include is allowed")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
