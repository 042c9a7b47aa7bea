#!/usr/bin/env bash
# tools/tidy.sh [FILE ...]: clang-tidy over the sources given, or all that are built but the tests, whose macros
# make names of their own (.clang-tidy says which checks).
source "$(dirname "$0")/common.sh"
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || die "clang-tidy is missing"
database=${TIDY_BUILD:-build/release}
[[ -f $database/compile_commands.json ]] || cmake --preset release >/dev/null
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$database/compile_commands.json" | grep "^$PWD/src/.*\.cc$" |
    grep -v '_test\.cc$' | sort -u)
fi
say "clang-tidy over ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -P "$(jobs_wanted)" -n 1 \
  "$tidy" -p "$database" --quiet --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings\? generated\.$' >&2)
