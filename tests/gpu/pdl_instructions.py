"""Counts the instructions of programmatic dependent launch in a program's compiled kernels.

A kernel that is launched with the attribute but does not wait reads what is not yet written, once in
a long while (that is how a public release of FlashAttention-3 crashed: its waits were compiled out).
So every kernel of ours, and every kernel of a library that is launched so, must have its wait
(griddepcontrol.wait, in machine code ACQBULK) and its trigger (launch_dependents, PREEXIT).

usage: pdl_instructions.py PROGRAM FOLDER-OF-CUOBJDUMP-AND-NVDISASM
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


def kernels(program, tools):
    env = dict(os.environ, PATH=tools + os.pathsep + os.environ["PATH"])
    dump = subprocess.Popen(["cuobjdump", "-sass", program], stdout=subprocess.PIPE, env=env, text=True)
    found, name = {}, None
    for line in dump.stdout:
        if match := re.match(r"\s+Function : (\S+)", line):
            name = match.group(1)
            found.setdefault(name, [0, 0])
        elif name and "ACQBULK" in line:
            found[name][0] += 1
        elif name and "PREEXIT" in line:
            found[name][1] += 1
    if dump.wait() != 0 or not found:
        sys.exit(f"cuobjdump could not read {program}, or it has no kernels")
    plain = subprocess.run(["c++filt"], input="\n".join(found), text=True, capture_output=True, check=True)
    return dict(zip(plain.stdout.splitlines(), found.values()))


def main():
    program, tools = sys.argv[1:]
    mine = library = 0
    wrong = []
    for name, (waits, triggers) in sorted(kernels(program, tools).items()):
        ours = OURS.search(name) and not LIBRARY.search(name)
        if not ours and not LIBRARY.search(name):
            continue
        mine += bool(ours)
        library += not ours
        if waits == 0 or triggers == 0:
            wrong.append(f"{waits} waits, {triggers} triggers: {name[:200]}")
    print(f"{mine} kernels of ours, {library} of libraries, all with waits and triggers" if not wrong else
          "\n".join(wrong))
    if mine < 50:
        sys.exit(f"only {mine} kernels of ours in {program}: is this the right program?")
    sys.exit(bool(wrong))


main()
