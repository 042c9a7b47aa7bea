#!/usr/bin/env bash
# tools/build.sh PRESET [TARGET ...]: configures build/PRESET when needed and builds (attune, unless told).
source "$(dirname "$0")/common.sh"
# Clones in other folders share what ccache knows.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
preset=$1
shift
configured=build/$preset/build.ninja
if [[ ! -f $configured || CMakePresets.json -nt $configured ]]; then
  say "Configuring build/$preset"
  cmake --preset "$preset"
fi
say "Building build/$preset: ${*:-attune}"
cmake --build "build/$preset" --parallel "$(jobs_wanted)" --target "${@:-attune}"
