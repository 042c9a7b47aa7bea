#!/usr/bin/env bash
# tools/build.sh PRESET [TARGET ...]: configures build/PRESET when needed and builds (attune, unless told).
# release and debug have the CUDA device where nvcc is; CUDA=OFF leaves it out, CUDA_ARCHS and CUDA_KERNELS choose its kernels.
source "$(dirname "$0")/common.sh"
# Clones in other folders share what ccache knows.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
preset=$1
shift
configured=build/$preset/build.ninja
options=()
case $preset in release | debug)
  options=("-DATTUNE_CUDA:BOOL=$(cuda_wanted)")
  # Its headers come with tools/setup.sh.
  [[ $(cuda_wanted) == ON && -d build/flashinfer ]] && flashinfer=ON || flashinfer=OFF
  options+=("-DATTUNE_FLASHINFER:BOOL=$flashinfer")
  [[ $(cuda_wanted) == ON && -d build/cudnn/include ]] && cudnn=ON || cudnn=OFF
  options+=("-DATTUNE_CUDNN:BOOL=$cudnn")
  options+=("-DATTUNE_CUDA_ARCHS:STRING=${CUDA_ARCHS:-90a}" "-DATTUNE_CUDA_KERNELS:STRING=${CUDA_KERNELS:-core}")
  ;;
esac
is_set() { grep -qxF -- "${1#-D}" "build/$preset/CMakeCache.txt" 2>/dev/null; }
stale=false
for option in "${options[@]}"; do is_set "$option" || stale=true; done
if $stale || [[ ! -f $configured || CMakePresets.json -nt $configured ]]; then
  say "Configuring build/$preset${options:+ (${options[*]})}"
  cmake --preset "$preset" "${options[@]}"
fi
say "Building build/$preset: ${*:-attune}"
cmake --build "build/$preset" --parallel "$(jobs_wanted)" --target "${@:-attune}"
