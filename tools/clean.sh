#!/usr/bin/env bash
# tools/clean.sh [1]: removes what was built; with 1, downloads and environments too.
source "$(dirname "$0")/common.sh"
case ${1:-0} in
  1) rm -rf build ;;
  0) rm -rf build/{release,debug,asan,tsan,fuzz,cuda} ;;
  *) die "clean: '$1' is neither 1 (downloads too) nor 0" ;;
esac
