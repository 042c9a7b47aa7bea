#!/usr/bin/env bash
# run_gpu_tests [--no-sanitizer] [GTEST ARGUMENT ...]: every GPU test beside this script, then small shapes under
# compute-sanitizer where that is. Fails unless tests ran and all passed. Its last line counts them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ! -d data ]] || export ATTUNE_TEST_DATA=${ATTUNE_TEST_DATA:-$PWD/data}
sanitize=true
[[ ${1:-} == --no-sanitizer ]] && sanitize=false && shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
log=$logs/all
passed=0 failed=0 skipped=0 undeclared=0 broken=0

# count NAME STATUS: adds up what a run's log says and prints one row. A test of what a backend does not declare is told
# apart from those that were left out.
count() {
  local p f s u
  p=$(grep -c '^\[       OK \]' "$log")
  f=$(grep -c '^\[  FAILED  \] .*[0-9]* ms)$' "$log")
  read -r s u < <(awk '/^\[ RUN /{mine = 0} /^does not declare /{mine = 1}
    /^\[  SKIPPED \] .* ms\)$/{mine ? ++u : ++s} END {print s + 0, u + 0}' "$log")
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) undeclared=$((undeclared + u))
  if (($2 != 0)); then
    broken=$((broken + 1))
    cat "$log"
  fi
  printf 'row  %-44s %3d passed, %d failed, %d skipped%s%s\n' "$1" "$p" "$f" "$s" "$( ((u == 0)) || echo ", $u not declared")" \
    "$( (($2 == 0)) || echo ", exit status $2")"
}

echo "gpu  $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1)"
# Tests of the real model need its file, which is larger than this folder.
model=()
if [[ ! -f ${ATTUNE_TEST_MODEL:-} ]]; then
  model=(--gtest_filter='-*Golden*')
  echo "note the real model is not tested: ATTUNE_TEST_MODEL names no file of SmolLM2"
fi
timeout 600 ./attune_gpu_test "${model[@]}" "$@" >"$log" 2>&1
count attune_gpu_test $?
grep '^device: ' "$log"
# What the program itself says of the device.
echo "says $(timeout 60 env -u ATTUNE_TEST_DATA -u ATTUNE_TEST_MODEL ./attune explain --device cuda --model-preset llama3-8b 2>&1 | head -n 1)"

# Its tools slow kernels down a hundredfold, make launches wait and tell of calls that fail: for small shapes alone.
# Every kernel of ours and every backend is in one of these; SanitizedFamily has whole models of a few tokens.
small='*Sanitized*:CudaDeviceTest*:CudaActivation*:CudaEmbed.EveryType*:CudaLatent*:CudaRmsNorm*:MergeState*'
small+=':CudaRope.Rotates*:CudaRope.Cast*:CudaRopeAppend.BugA23*:CudaMoe.RouteGroups:CudaMoe.CopyRows:CudaMoe.Combine*'
small+=':CudaSampler.InAGraph:CudaSampler.Penalties*:LinearGpuTest.Chains*'
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
if $sanitize && [[ -n $sanitizer ]]; then
  tools=(memcheck racecheck initcheck synccheck)
  for tool in "${tools[@]}"; do # side by side: their time is the host's
    options=() left_out=''
    case $tool in
      memcheck) options=(--report-api-errors no) ;; # that an update in place is refused is no fault
      racecheck)
        # Our kernels, but for those it does not follow: neither barrier arrivals from another block of a cluster, nor one
        # lane's arrival for its whole warp. cuBLASLt's are broken by it even when it is told to check no kernel at all.
        options=(--kernel-name kernel_substring=attune)
        for name in batch_kernel decode_kernel prefill_kernel; do options+=(--kernel-name-exclude "kernel_substring=$name"); done
        left_out='Linear*:HicacheSoak*:*SanitizedFamily*'
        ;;
      synccheck)
        options=(--num-cuda-barriers 512) # of a block; what it detects by itself is too few for our copies
        # FlashInfer's latent kernel ends without the last wait of one of its barriers, which this tool tells of.
        left_out='*flashinfer_mla*:HicacheSoak*'
        ;;
    esac
    {
      timeout 600 "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 97 ./attune_gpu_test \
        --gtest_filter="$small${left_out:+:-$left_out}" "$@" >"$logs/$tool" 2>&1
      echo $? >"$logs/$tool.status"
    } &
  done
  wait
  for tool in "${tools[@]}"; do
    log=$logs/$tool
    count "$tool" "$(<"$logs/$tool.status")"
    grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$log"
  done
elif $sanitize; then
  echo "note compute-sanitizer is not here: its part is left out"
fi
((skipped == 0)) || echo "note $skipped tests were skipped: is there a GPU?"
echo "$passed passed, $((failed > broken ? failed : broken)) failed, $skipped skipped"
((passed > 0 && failed == 0 && broken == 0 && skipped == 0))
