# Sourced by the other scripts: strict mode, the root as working folder, messages.
set -Eeuo pipefail
trap 'printf "attune: %s stopped at line %s: %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$BASH_COMMAND" >&2' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
die() {
  printf 'attune: %s\n' "$*" >&2
  exit 1
}

jobs_wanted() { echo "${JOBS:-$(nproc)}"; }

# ON where nvcc is, unless CUDA says otherwise.
cuda_wanted() {
  if [[ -n ${CUDA:-} ]]; then
    echo "$CUDA"
  elif command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    echo ON
  else
    echo OFF
  fi
}
