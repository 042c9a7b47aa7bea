"""Counts the instructions of programmatic dependent launch in a program's compiled kernels.

A kernel that is launched with the attribute but does not wait reads what is not yet written, once in
a long while (that is how a public release of FlashAttention-3 crashed: its waits were compiled out).
So every kernel of ours, and every kernel of a library that is launched so, must have its wait
(griddepcontrol.wait, in machine code ACQBULK) and its trigger (launch_dependents, PREEXIT).

fa3's kernels must also trigger only where they have waited, since later launches read ahead of their
wait what was written before these (src/attention/backends/fa3/cuda/decode_load.cuh), and have as many
waits as they have kinds of warps that read.

usage: pdl_instructions.py PROGRAM FOLDER-OF-CUOBJDUMP-AND-NVDISASM
       pdl_instructions.py --without-waits LIBRARY FOLDER...   its kernels must have triggers alone
"""

import os
import re
import subprocess
import sys

# Kernels of libraries that are launched with the attribute.
LIBRARY = re.compile(
    r"flashinfer::(BatchDecodeWithPagedKVCacheKernel|BatchPrefillWithPagedKVCacheKernel|"
    r"PersistentVariableLengthMergeStatesKernel|PersistentVariableLengthAttentionSumKernel|"
    r"MergeStatesKernel)")
OURS = re.compile(r"attune::")
# Of fa3: how many kinds of warps wait by themselves.
FA3 = re.compile(r"attune::attention::fa3::(\w+)")
FA3_WAITS = {"plan_kernel": 1, "decode_kernel": 3, "prefill_plan_kernel": 1, "prefill_kernel": 1}


# By name, waits and triggers in the order of the machine code: "AP" is a wait and a trigger.
def kernels(program, tools):
    env = dict(os.environ, PATH=tools + os.pathsep + os.environ["PATH"])
    dump = subprocess.Popen(["cuobjdump", "-sass", program], stdout=subprocess.PIPE, env=env, text=True)
    found, name = {}, None
    for line in dump.stdout:
        if match := re.match(r"\s+Function : (\S+)", line):
            name = match.group(1)
            found.setdefault(name, "")
        elif name and "ACQBULK" in line:
            found[name] += "A"
        elif name and "PREEXIT" in line:
            found[name] += "P"
    if dump.wait() != 0 or not found:
        sys.exit(f"cuobjdump could not read {program}, or it has no kernels")
    plain = subprocess.run(["c++filt"], input="\n".join(found), text=True, capture_output=True, check=True)
    return dict(zip(plain.stdout.splitlines(), found.values()))


def what_is_wrong(name, found):
    waits, triggers = found.count("A"), found.count("P")
    if waits == 0 or triggers == 0:
        return f"{waits} waits, {triggers} triggers"
    fa3 = FA3.search(name)
    if not fa3:
        return ""
    if fa3[1] not in FA3_WAITS:
        return "not in FA3_WAITS: how many kinds of its warps wait?"
    if waits < FA3_WAITS[fa3[1]]:
        return f"{waits} waits, {FA3_WAITS[fa3[1]]} are needed"
    return "" if re.fullmatch("(AP)+", found) else f"a trigger without a wait just before it: {found}"


def check(program, tools):
    mine = library = fa3 = 0
    wrong = []
    for name, found in sorted(kernels(program, tools).items()):
        ours = OURS.search(name) and not LIBRARY.search(name)
        if not ours and not LIBRARY.search(name):
            continue
        mine += bool(ours)
        library += not ours
        fa3 += bool(FA3.search(name))
        if what := what_is_wrong(name, found):
            wrong.append(f"{what}: {name[:200]}")
    if mine < 50 or fa3 == 0:
        wrong.append(f"only {mine} kernels of ours in {program}, {fa3} of fa3: is this the right program?")
    print(f"{mine} kernels of ours ({fa3} of fa3), {library} of libraries, all with waits and triggers"
          if not wrong else "\n".join(wrong))
    return not wrong


# The planted fault is what it says: nothing but the waits is gone.
def check_without_waits(library, tools):
    all_of_it = kernels(library, tools)
    wrong = [f"{found or 'nothing'}: {name[:200]}"
             for name, found in sorted(all_of_it.items()) if "A" in found or "P" not in found]
    print(f"{len(all_of_it)} kernels, all without waits and with triggers" if not wrong else "\n".join(wrong))
    return not wrong


if sys.argv[1] == "--without-waits":
    sys.exit(not check_without_waits(*sys.argv[2:]))
sys.exit(not check(*sys.argv[1:]))
