#!/usr/bin/env bash
# tools/sanitize.sh [asan|tsan ...]: unit tests of the folders that take what strangers send or share
# state between threads, under AddressSanitizer with UBSan, then under ThreadSanitizer.
source "$(dirname "$0")/common.sh"
# By themselves, since ops, model and attention are compiled for them, 14 minutes of a core: FOLDERS="kv_transfer engine" (without
# the goldens, which take ten minutes each).
read -ra folders <<<"${FOLDERS:-kv kv_tier sched text formats server}"
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
labels="^($(IFS='|' && echo "${folders[*]}"))\$"
(($#)) || set -- asan tsan
for preset in "$@"; do
  tools/build.sh "$preset" $(printf 'attune_%s_test ' "${folders[@]}")
  say "Testing under $preset"
  # Without address randomisation: GCC 12's ThreadSanitizer cannot map its shadow on kernels that use 32 random bits.
  setarch -R ctest --test-dir "build/$preset" --parallel "$(jobs_wanted)" --output-on-failure \
    --no-tests=error --timeout 900 --label-regex "$labels" --exclude-regex "^engine\.Golden" </dev/null
done
