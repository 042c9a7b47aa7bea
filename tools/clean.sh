#!/usr/bin/env bash
# tools/clean.sh [all]: removes what was built; with `all`, downloads and environments too.
source "$(dirname "$0")/common.sh"
if [[ -n ${1:-} ]]; then
  rm -rf build
else
  rm -rf build/{release,debug,asan,tsan,fuzz,cuda}
fi
