# Sourced by the other scripts: strict mode, the root as working folder, messages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
die() {
  printf 'attune: %s\n' "$*" >&2
  exit 1
}

jobs_wanted() { echo "${JOBS:-$(nproc)}"; }
