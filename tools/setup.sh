#!/usr/bin/env bash
# tools/setup.sh [build] [test] [fuzz] [format] [tidy]: installs what is missing for these purposes.
#   build   compilers and libraries (Debian), the model; FlashInfer's and cuDNN's headers where CUDA is wanted
#   test    a browser, real clients in build/venv, vocabularies of other models
#   fuzz    clang and its runtime; format, tidy: clang's tools
# What is there already is left alone; without root, what is missing is listed and nothing is done.
source "$(dirname "$0")/common.sh"
source tools/setup_debian.sh
source tools/setup_python.sh

for purpose in "$@"; do
  case $purpose in build | test | fuzz | format | tidy) ;; *) die "setup: unknown purpose '$purpose'" ;; esac
done
install_debian_packages "$@"
for purpose in "$@"; do
  case $purpose in
    build)
      fetch_model
      [[ $(cuda_wanted) == OFF ]] || { fetch_flashinfer; fetch_cudnn_headers; }
      ;;
    test)
      install_clients
      [[ $(cuda_wanted) == OFF ]] || install_sass_tools
      fetch_vocabularies
      ;;
  esac
done
