#!/usr/bin/env bash
# tools/fuzz.sh: every libFuzzer program for FUZZ_SECONDS (60) each, as many at a time as there are cores.
# Seeds lie in tests/fuzz/seeds/NAME, what the fuzzer learns in build/fuzz/corpus/NAME, findings in build/fuzz/findings.
source "$(dirname "$0")/common.sh"
seconds=${FUZZ_SECONDS:-60}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
tools/build.sh fuzz fuzzers
mkdir -p build/fuzz/findings

fuzz_one() {
  local program=$1 name corpus
  name=$(basename "$program")
  name=${name#attune_}
  name=${name%_fuzz}
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  local folders=("$corpus")
  [[ -d tests/fuzz/seeds/$name ]] && folders+=("tests/fuzz/seeds/$name")
  if "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/findings/$name-" "${folders[@]}" >"build/fuzz/$name.log" 2>&1 </dev/null; then
    note "$name: no finding in $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log") runs"
  else
    printf 'attune: fuzzer %s has a finding:\n' "$name" >&2
    tail -n 60 "build/fuzz/$name.log" >&2
    return 1
  fi
}
export -f fuzz_one note
export seconds

mapfile -t programs < <(find build/fuzz -type f -name 'attune_*_fuzz' -perm -u+x | sort)
((${#programs[@]})) || die "no fuzzer was built"
say "Fuzzing ${#programs[@]} targets, $seconds s each"
printf '%s\n' "${programs[@]}" | xargs -P "$(jobs_wanted)" -I{} bash -c 'fuzz_one {}'
