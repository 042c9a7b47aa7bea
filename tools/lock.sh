#!/usr/bin/env bash
# tools/lock.sh: writes the last two sections of requirements.lock anew, with the newest versions of the
# clients and of what they need. The model and the vocabularies stay: tests know their bytes.
source "$(dirname "$0")/common.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip-tools

compiled() {
  printf '%s\n' "$@" >"$work/in"
  "$work/venv/bin/pip-compile" --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links --no-emit-options --output-file - "$work/in"
}

{
  sed '/^# == sdist:/,$d' requirements.lock
  echo '# == sdist: what pip needs to read the metadata of a source package'
  compiled 'setuptools<81' 'setuptools-scm<9' wheel
  printf '\n# == clients: real clients of the server, for tests\n'
  compiled openai selenium
} >"$work/lock"
cp "$work/lock" requirements.lock
