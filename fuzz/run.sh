#!/bin/bash
# Builds every libFuzzer target and runs it for a while, two at a time, from the files of the tests and
# from those of fuzz/make_seeds.py, whose large ones show what takes more than linear time. A
# BUILD_FOLDER that is not there yet is configured as the preset `fuzz`; another one stays as it was
# configured.
#   fuzz/run.sh [SECONDS_EACH] [BUILD_FOLDER]
# What a target finds is kept in BUILD_FOLDER/found; put its fixed cases into fuzz/seeds/<target>/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-15}
build=${2:-build-fuzz}

if [[ ! -e $build/build.ninja ]]; then cmake --preset fuzz -B "$build" --log-level=WARNING; fi
cmake --build "$build" -j "$(nproc)" --target fuzzers

# The files that a target begins with.
seeds_of() {
  case "$1" in
    fuzz_safetensors) find tests/testdata -name '*.safetensors' ;;
    fuzz_gguf) find tests/testdata -name '*.gguf' ;;
    fuzz_config) find tests/testdata models -name 'config.json' ;;
    fuzz_tokenizer_json) find tests/testdata -name 'tokenizer.json' ;;
    fuzz_tokenizer_model) find tests/testdata models -name 'tokenizer.model' ;;
    fuzz_json) find tests/testdata/configs tests/testdata/datasets -name '*.json' ;;
    fuzz_trace) find tests/testdata/traces -name '*.jsonl' ;;
    fuzz_chat) find tests/testdata/chat -name '*.jinja' ;;
    fuzz_text) find tests/testdata/datasets -name '*.raw' ;;
  esac
  files_in "fuzz/seeds/$1" "$build/seeds/small/$1"
}

files_in() {
  local folder
  for folder; do
    if [[ -d $folder ]]; then find "$folder" -type f; fi
  done
}

# Runs one target; its log is shown when it found something.
run_one() {
  local target=$1 corpus=$build/corpus/$1 log=$build/$1.log seed
  mkdir -p "$corpus" "$build/found"
  while read -r seed; do
    cp "$seed" "$corpus/${seed//\//_}"
  done < <(seeds_of "$target")
  local options=(-rss_limit_mb=2048 -artifact_prefix="$build/found/$target-")
  # Of a large one more than linear time is minutes; a busy machine takes seconds.
  if ! { files_in "$build/seeds/large/$target" |
    xargs -r "$build/fuzz/$target" "${options[@]}" -timeout=60 &&
    "$build/fuzz/$target" "${options[@]}" -timeout=10 -max_total_time="$seconds" "$corpus"; } \
    >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$target: found something: see $log and $build/found"
    return 1
  fi
  echo "$target: $(grep -E '^Done|stat::number_of_executed' "$log" | tail -1)"
}

rm -rf "$build/seeds"
fuzz/make_seeds.py "$build/seeds"
targets=()
for source in fuzz/fuzz_*.cc; do
  targets+=("$(basename "$source" .cc)")
done
failed=0
for i in "${!targets[@]}"; do
  if ((i >= 2)); then wait -n || failed=1; fi
  run_one "${targets[i]}" &
done
for ((i = 0; i < 2 && i < ${#targets[@]}; ++i)); do wait -n || failed=1; done
exit "$failed"
