#!/bin/bash
# Ranks that share a model on this machine's GPUs: builds, tests their sums and that they say what
# one says, to the bit, as threads and as processes, and times what they share. With several GPUs each
# rank has one; with one all are on it, which shows the bits, not the speed.
#   tools/gpu_ranks.sh [--sanitize] [--deps DIR]
#     --sanitize    with several GPUs, some of their tests under compute-sanitizer, too: memcheck, racecheck
#                   and initcheck, 2 minutes on two H200. With one GPU it is refused: kernels of ranks wait for
#                   each other, and these tools need not run those of one GPU at once
#     --deps DIR    as tools/gpu_check.sh has it, whose BUILD, CMAKE_FLAGS and OUT hold here, too
# The last lines are a table of microseconds and the results of the tests. Exit code 1: something
# failed; 2: wrong options, or no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit
fi
sanitize=0 options=()
for option; do
  [[ $option == --sanitize ]] && sanitize=1 || options+=("$option")
done
export BUILD=${BUILD:-build-gpu} CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
logs=${OUT:-$BUILD/logs}
filter='CudaRanks*.*:*Ranks*cuda*'
failed=0
# On each GPU by itself, all ranks on one.
tools/gpu_check.sh --tests --filter "$filter" "${options[@]}" || failed=$?
[[ $failed -ne 2 ]] || exit 2
# With all GPUs that there are.
num_gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
if [[ $num_gpus -gt 1 ]]; then
  for test in src/cuda_test src/engine_test tests/quantspec_test; do
    "$BUILD/$test" --gtest_filter="$filter" >"$logs/ranks_${test##*/}.log" 2>&1 || failed=1
    grep -E '^\[  (PASSED|FAILED)' "$logs/ranks_${test##*/}.log" || true
  done
fi
# sanitized TOOL BINARY FILTER
sanitized() {
  local log=$logs/ranks_$1_${2##*/}.log
  if compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no \
    "$BUILD/$2" --gtest_filter="$3" >"$log" 2>&1 &&
    grep -q '^\[  PASSED  \] [1-9]' "$log" && grep -q 'SUMMARY: 0 ' "$log"; then
    echo "$1 of ${2##*/}: clean"
  else
    echo "$1 of ${2##*/}: FAILED" && failed=1
  fi
}
if [[ $sanitize -eq 1 && $num_gpus -gt 1 ]]; then
  sanitized memcheck src/cuda_test CudaRanks.SumsAreATreeAcrossGpus
  sanitized memcheck tests/quantspec_test 'Models/Ranks*cuda_bf16:Models/Ranks*cuda_contexts_4*'
  sanitized racecheck src/cuda_test 'CudaRanks.SumsAreATreeAcrossGpus:CudaRanks.Logits*'
  sanitized initcheck tests/quantspec_test 'Models/Ranks*cuda_contexts_of_2'
elif [[ $sanitize -eq 1 ]]; then
  echo "gpu_ranks: --sanitize: left out: needs two GPUs" && failed=1
fi
cmake --build "$BUILD" -j "$(nproc)" --target gpu_ranks quantspec_cli >"$logs/build_ranks.log" 2>&1 || failed=1
# Processes, as users start them.
program=$(find "$BUILD" -maxdepth 3 -name quantspec -type f | head -n 1)
python3 tests/ranks_gpu_cli_test.py "$program" >"$logs/ranks_cli.log" 2>&1 || failed=1
tail -n 1 "$logs/ranks_cli.log"
for weights in bf16 4-bit; do
  "$BUILD/gpu_ranks" --weights "$weights" 2>&1 | tee "$logs/ranks_$weights.txt" || failed=1
done
[[ $failed -eq 0 ]] && echo "ranks: all well" || echo "ranks: FAILED, see $logs"
exit "$failed"
