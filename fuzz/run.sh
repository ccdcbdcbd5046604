#!/bin/bash
# Runs every libFuzzer target for a while, two at a time, from the files of the tests as seeds.
#   fuzz/run.sh [SECONDS_EACH] [BUILD_FOLDER]     after: cmake --preset fuzz && cmake --build --preset fuzz
# What a target finds is kept in BUILD_FOLDER/found; put its fixed cases into fuzz/seeds/<target>/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-15}
build=${2:-build-fuzz}

# The files of the tests that a target reads.
seeds_of() {
  case "$1" in
    fuzz_safetensors) find tests/testdata -name '*.safetensors' ;;
    fuzz_config) find tests/testdata models -name 'config.json' ;;
    fuzz_tokenizer_json) find tests/testdata -name 'tokenizer.json' ;;
    fuzz_tokenizer_model) find tests/testdata models -name 'tokenizer.model' ;;
  esac
  if [[ -d fuzz/seeds/$1 ]]; then find "fuzz/seeds/$1" -type f; fi
}

# Runs one target; its log is shown when it found something.
run_one() {
  local target=$1 corpus=$build/corpus/$1 log=$build/$1.log seed
  mkdir -p "$corpus" "$build/found"
  while read -r seed; do
    cp "$seed" "$corpus/${seed//\//_}"
  done < <(seeds_of "$target")
  if ! "$build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$build/found/$target-" "$corpus" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$target: found something: see $log and $build/found"
    return 1
  fi
  echo "$target: $(grep -E '^Done|stat::number_of_executed' "$log" | tail -1)"
}

targets=()
for source in fuzz/fuzz_*.cc; do
  targets+=("$(basename "$source" .cc)")
done
failed=0
for ((i = 0; i < ${#targets[@]}; i += 2)); do
  run_one "${targets[i]}" & first=$!
  if ((i + 1 < ${#targets[@]})); then run_one "${targets[i + 1]}" || failed=1; fi
  wait "$first" || failed=1
done
exit "$failed"
