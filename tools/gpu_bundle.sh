#!/usr/bin/env bash
# tools/gpu_bundle.sh: build/gpu-bundle, a folder that a bare Linux machine with an NVIDIA driver can run:
# the GPU tests in one program with their data (data/), attune, the libraries that both link (in lib/, found by their own run
# path) and run_gpu_tests.
# BUNDLE_BUILD names a build folder that is configured already, with ATTUNE_CUDA=ON.
source "$(dirname "$0")/common.sh"
build=${BUNDLE_BUILD:-build/release}
if [[ $build == build/release ]]; then
  [[ $(cuda_wanted) == ON ]] || die "gpu-bundle needs nvcc, on the PATH or in /usr/local/cuda/bin"
  tools/build.sh release gpu_bundle
else
  say "Building $build: gpu_bundle"
  cmake --build "$build" --parallel "$(jobs_wanted)" --target gpu_bundle
fi

say "Filling build/gpu-bundle"
bundle=build/gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle/lib"
programs=("$build/attune_gpu_test" "$build/attune")
[[ -x ${programs[0]} ]] || die "no attune_gpu_test in $build: was it configured with ATTUNE_CUDA=ON and ATTUNE_TESTS=ON?"
for program in "${programs[@]}"; do
  strip -o "$bundle/$(basename "$program")" "$program"
done
# Every library but the C library's own, which must be the system's.
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' |
  xargs -I{} cp -L {} "$bundle/lib/"
cp tools/run_gpu_tests.sh "$bundle/run_gpu_tests"
mkdir "$bundle/data"
cp -r tests/golden/families tests/golden/*.json "$bundle/data/"

size=$(du -sm "$bundle" | cut -f1)
((size < 60)) || die "$bundle has $size MB, the limit is 60"
say "$bundle has $size MB: run ./run_gpu_tests in it on a machine with a GPU"
