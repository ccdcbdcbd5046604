#!/bin/bash
# Runs the tests of an ARM build (cmake --preset aarch64) under qemu: docs/arm.md.
#   tools/test_arm.sh [BUILD_FOLDER [TEST...]]   without TEST all of them
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-aarch64}
wanted=" ${*:2} "
jobs=$(nproc)

# That each processor gets the best instruction set that it has; cpu_test's tests are named after
# what it finds, best last.
for choice in cortex-a72:neon neoverse-n1:neondot max:neoni8mm; do
  processor=${choice%:*} best=${choice#*:}
  found=$(QEMU_CPU=$processor qemu-aarch64 "$build/src/cpu_test" --gtest_list_tests |
    sed -nE 's|^ +FullPrecisionIsNearExactForEveryShape/(\w+).*|\1|p' | tail -n 1)
  if [[ $found != "$best" ]]; then
    echo "test_arm: a $processor chooses '$found', not '$best'" >&2
    exit 1
  fi
done

# run PROGRAM [FILTER]: on a processor that has every instruction set, in `jobs` shards at a time.
run() {
  local shard pids=() failed=0
  [[ $wanted =~ ^\ *$ || $wanted == *" ${1##*/} "* ]] || return 0
  for ((shard = 0; shard < jobs; ++shard)); do
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$shard QEMU_CPU=max \
      qemu-aarch64 "$build/$1" --gtest_brief=1 --gtest_filter="${2:-*}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}

# Left out: what takes minutes under qemu, and plain C++, which is the same as elsewhere. cpu_test has
# every kernel of every instruction set; backend_test compares the ops of the best one.
run src/cpu_test '-*/scalar:*AttentionDependsOnAbsolutePositionsAlone*:*ManySplits*'
run src/backend_test \
  '-*/reference:*/scalar:*/neon:*/neondot:*EveryHeadShape*:*ManyColumns*:*ALongContext*:*GrowingScores*:*PrefillOps.Attention*'
run src/kv_cache_test '-*/reference'
run src/model_test
run tests/quantspec_test \
  'Backends/Exactness.ARow*neon*:Backends/Exactness.Greedy*neondot:Families/TinyModel.*neon*'
