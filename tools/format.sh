#!/usr/bin/env bash
# tools/format.sh [fix|check]: clang-format over every source.
source "$(dirname "$0")/common.sh"
formatter=$(command -v clang-format-14 || command -v clang-format) || die "clang-format is missing"
mode=(--dry-run --Werror)
[[ ${1:-check} == fix ]] && mode=(-i)
git ls-files -co --exclude-standard -z -- '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 -P "$(jobs_wanted)" -n 20 "$formatter" "${mode[@]}"
