#!/bin/bash
# bench/attention_mla.sh [BUILD_FOLDER] [ISA] [PREFIX...]
# MLA's attention on the CPU against MHA's on the same machine, one thread, all shapes taking turns
# (docs/performance.md, "Attention on the CPU"): rates a second of processor time, and of each MLA
# shape the part it reaches of MHA's best. Fails if one is below 0.8. On a machine that others use:
#   bench/attention_mla.sh build/release auto chrt -f 10
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release} isa=${2:-auto}
shift $(($# < 2 ? $# : 2))
ninja -C "$build" attention_bench >&2
"$@" "$build/src/attention/attention_bench" cpu "$isa" 1 mla | tee /dev/stderr |
  awk '/lowest ratio/ { if ($NF < 0.8) bad = 1 } END { exit bad }'
