#!/usr/bin/env bash
# tools/test.sh [CTEST ARGUMENT ...]: every test of build/release.
source "$(dirname "$0")/common.sh"
say "Testing"
exec ctest --test-dir build/release --parallel "$(jobs_wanted)" --output-on-failure --no-tests=error --timeout 600 "$@" </dev/null
