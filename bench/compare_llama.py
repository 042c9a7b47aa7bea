#!/usr/bin/env python3
"""Compares attune with llama.cpp on one GGUF, one machine and the same threads, in one run.

Both programs take turns, every measurement several rounds; the table has the medians and their ratios
(above 1: attune is faster, or smaller for memory). Figures of two runs are not to be compared: machines
change between them. On a machine that others use, give both a real-time priority:

    bench/compare_llama.py --llama-bin ~/llama.cpp/build/bin --prefix 'chrt -f 10'

needs llama-bench and llama-batched-bench in that folder; only the Python standard library.

prompt:   512 tokens, batch 1              llama-bench -p 512        attune bench latency
generate: 128 tokens, batch 1              llama-bench -n 128        attune bench latency, prompt of 1
batch B:  128 + 64 tokens each, B at once  llama-batched-bench       attune bench latency
start:    process start to exit with a 5-token prompt read and one token made, file in the page cache
          (llama-bench -p 5 --no-warmup: its time after loading too; it makes no token)
memory:   highest resident set of the generate measurement, mapped file included
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, prefix):
    """(standard output, seconds, highest resident MB) of a command that must succeed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(prefix + command, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            err.seek(0)
            sys.exit(f"{shlex.join(prefix + command)}: exit code {child.returncode}\n{err.read().decode(errors='replace')}")
        out.seek(0)
        return out.read().decode(), seconds, usage.ru_maxrss / 1024


class Llama:
    name = "llama.cpp"

    def __init__(self, args, prefix):
        self.bench = [f"{args.llama_bin}/llama-bench", "-m", args.model, "-t", str(args.threads), "-r", "1", "-o", "json"]
        self.batched = [f"{args.llama_bin}/llama-batched-bench", "-m", args.model, "-t", str(args.threads), "-tb",
                        str(args.threads), "-npp", "128", "-ntg", "64", "--output-format", "jsonl"]
        self.prefix = prefix

    def rate(self, *arguments):
        text, _, megabytes = run(self.bench + list(arguments), self.prefix)
        return json.loads(text)[0]["avg_ts"], megabytes

    def prompt(self):
        return {"prompt 512": self.rate("-p", "512", "-n", "0")[0]}

    def generate(self):
        rate, megabytes = self.rate("-p", "0", "-n", "128")
        return {"generate 128": rate, "memory": megabytes}

    def batch(self, size):
        text, _, _ = run(self.batched + ["-npl", str(size), "-c", str(size * 192)], self.prefix)
        row = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))
        return {f"batch {size}: prompts": row["speed_pp"], f"batch {size}: generation": row["speed_tg"],
                f"batch {size}: all": row["speed"]}

    def start(self):
        return {"start": run(self.bench + ["-p", "5", "-n", "0", "--no-warmup"], self.prefix)[1]}


class Attune:
    def __init__(self, name, args, prefix, more):
        self.name = name
        self.common = ["--model", args.model, "--threads", str(args.threads), "--log-level", "error"] + more
        self.program, self.prefix = args.attune, prefix

    def latency(self, batch, prompt, output):
        command = [self.program, "bench", "latency", "--json", "--repeats", "1", "--batch-sizes", str(batch),
                   "--input-len", str(prompt), "--output-len", str(output)]
        text, _, megabytes = run(command + self.common, self.prefix)
        return json.loads(text.splitlines()[-1]), megabytes

    def prompt(self):
        return {"prompt 512": self.latency(1, 512, 1)[0]["prefill_throughput"]}

    def generate(self):
        row, megabytes = self.latency(1, 1, 129)
        return {"generate 128": row["decode_throughput"], "memory": megabytes}

    def batch(self, size):
        row = self.latency(size, 128, 64)[0]
        return {f"batch {size}: prompts": row["prefill_throughput"], f"batch {size}: generation": row["decode_throughput"],
                f"batch {size}: all": row["overall_throughput"]}

    def start(self):
        command = [self.program, "generate", "--prompt", "The capital of France is", "--max-new-tokens", "1"]
        return {"start": run(command + self.common, self.prefix)[1]}


def measure(programs, args):
    """{program: {what: [value of each round]}}; the programs take turns within each measurement."""
    steps = [lambda p: p.prompt(), lambda p: p.generate(), lambda p: p.start()]
    steps += [lambda p, size=size: p.batch(size) for size in args.batches]
    values = {program.name: {} for program in programs}
    for round_number in range(args.rounds):
        for step in steps:
            for program in programs if round_number % 2 == 0 else programs[::-1]:
                for what, value in step(program).items():
                    values[program.name].setdefault(what, []).append(value)
        print(f"round {round_number + 1} of {args.rounds} done", file=sys.stderr)
    return values


SMALLER_IS_BETTER = {"start": "s", "memory": "MB"}


def summarise(values, peer):
    """One row for each figure: medians, spreads, and each program's ratio to `peer`."""
    rows = []
    for what, peer_values in values[peer].items():
        smaller = what in SMALLER_IS_BETTER
        row = {"what": what, "unit": SMALLER_IS_BETTER.get(what, "tokens/s"), "median": {}, "low": {}, "high": {}, "ratio": {}}
        base = statistics.median(peer_values)
        for name, figures in values.items():
            median = statistics.median(figures[what])
            row["median"][name], row["low"][name], row["high"][name] = median, min(figures[what]), max(figures[what])
            row["ratio"][name] = base / median if smaller else median / base
        rows.append(row)
    return rows


def table(rows, names, peer):
    head = ["", "unit"] + [f"{name} (low-high)" for name in names] + [f"ratio, {name}" for name in names if name != peer]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        digits = 2 if row["unit"] == "s" else 0
        cells = [f"{row['median'][n]:.{digits}f} ({row['low'][n]:.{digits}f}-{row['high'][n]:.{digits}f})" for n in names]
        lines.append([row["what"], row["unit"]] + cells + [f"**{row['ratio'][n]:.2f}**" for n in names if n != peer])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(threads):
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    flags = set(next((line for line in info.splitlines() if line.startswith("flags")), "").split())
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if flag in flags]
    return {"cpu": model, "features": wanted, "cores": os.cpu_count(), "threads": threads, "load": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attune", default=str(ROOT / "build/release/attune"))
    parser.add_argument("--llama-bin", required=True, help="folder with llama-bench and llama-batched-bench")
    parser.add_argument("--model", default=str(ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[8, 32])
    parser.add_argument("--isa", action="append", default=[], help="measure attune at this --cpu-isa level too")
    parser.add_argument("--prefix", default="", help="put before every command, e.g. 'chrt -f 10'")
    parser.add_argument("--json", help="write everything measured to this file")
    args = parser.parse_args()

    prefix = shlex.split(args.prefix)
    programs = [Llama(args, prefix), Attune("attune", args, prefix, [])]
    programs += [Attune(f"attune {isa}", args, prefix, ["--cpu-isa", isa]) for isa in args.isa]
    where = machine(args.threads)
    values = measure(programs, args)
    rows = summarise(values, Llama.name)
    print(f"{where['cpu']}, {' '.join(where['features'])}, {where['cores']} cores, {args.threads} threads, {args.rounds} rounds\n")
    print(table(rows, [program.name for program in programs], Llama.name))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": where, "rows": rows, "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
