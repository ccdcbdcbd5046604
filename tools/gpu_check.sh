#!/bin/bash
# Builds the CUDA backend on a machine with a GPU, tests it there, and ends with a short table.
#   tools/gpu_check.sh [OPTION...]
#     --tests       the tests that run on the GPU; what it does when nothing else is asked for
#     --memcheck, --racecheck   the tests of the ops under compute-sanitizer; --sanitize: both.
#                   memcheck takes 2 minutes on an H200, racecheck more than 28
#     --bench       PyTorch's kernels (where there is PyTorch), then ours: tools/gpu_baselines.py
#                   and gpu_bench
#     --baselines F compare with F, which gpu_baselines.py wrote, instead of timing PyTorch again
#     --like C      compile for an older compute capability, as 8.6 (PTX, which the driver
#                   translates), so that this GPU runs the kernels of that one, in its limits;
#                   in build-gpu-C. From 8.0 on, but 9.0, whose PTX no other GPU takes
#     --cli         the command line's tests, as users run it, where the server can be built: with
#                   Boost, also of --deps
#     --filter F    the tests that this filter of GoogleTest takes, instead of those that run on the
#                   GPU, as 'Backends/AttentionOps.*/cuda'
#     --deps DIR    libraries that this machine lacks (tools/pack_deps.sh makes such a folder); also
#                   QUANTSPEC_DEPS
# Builds in build-gpu (BUILD), with more of CMake's options from CMAKE_FLAGS. Logs and results go to
# its logs/ (OUT). A part of a test binary, of which several run at once, may take 900 seconds
# (LIMIT). Tests take turns on all GPUs, or on those of CUDA_VISIBLE_DEVICES, which are of one kind;
# times are of the first. Exit code 1: something failed; 2: wrong options, no GPU, or a file or
# folder of an option that is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

refuse() { echo "gpu_check: $1" >&2 && exit 2; }

deps=${QUANTSPEC_DEPS:-}
filter="" baselines="" like=""
phases=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --tests | --cli | --memcheck | --racecheck | --bench) phases+=("${1#--}") ;;
    --sanitize) phases+=(memcheck racecheck) ;;
    --filter | --baselines | --like | --deps)  # the variable of that name
      [[ ${2:---} != --* ]] || refuse "$1 needs a value; tools/gpu_check.sh --help says which"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    *) refuse "unknown option $1; tools/gpu_check.sh --help says which there are" ;;
  esac
  shift
done
[[ ${#phases[@]} -gt 0 ]] || phases=(tests)
build=${BUILD:-build-gpu${like:+-$like}}
logs=${OUT:-$build/logs}
[[ ${like:-8.0} =~ ^(8|1[0-9])\.[0-9]$ ]] ||
  refuse "--like $like: must be a compute capability from 8.0 on, as 8.6, and not 9.0"
[[ -z $baselines || -f $baselines ]] ||
  refuse "--baselines: no file $baselines; tools/gpu_baselines.py writes one"
[[ -z $deps || -d $deps/include ]] ||
  refuse "--deps: no folder $deps/include; tools/pack_deps.sh makes one"
nvidia-smi >/dev/null 2>&1 || refuse "no GPU here (nvidia-smi finds none)"
mkdir -p "$logs"
jobs=$(nproc)
gpus=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}
[[ $gpus =~ ^[^,]+(,[^,]+)*$ ]] || refuse "CUDA_VISIBLE_DEVICES=$gpus: names no GPU, or an empty one"
num_gpus=$(tr -dc , <<<"$gpus," | wc -c)

# What runs on the GPU: test binaries, and which of their tests. The engine's take the backend that
# `auto` means: that it is cuda here is a test of BackendsOnHost.
declare -A tests_of=([cuda_test]='*' [backend_test]='*cuda*:BackendsOnHost.*' [quantspec_test]='*cuda*:*/GgufModels.*'
  [engine_test]='*' [kv_cache_test]='*cuda*')
# Tests that have a GPU to themselves, one after the other, when all others have ended: ranks on one GPU
# wait for each other there, and do not all run where other processes take turns on it; after a kernel
# that faults other processes get no context for half a minute. Kernels of ranks are all there from the
# start (CUDA_MODULE_LOADING), as one that is loaded later may wait for those that wait for it.
alone=(Ranks AFaultOfAKernel)
all_tests=(cuda_test backend_test quantspec_test engine_test kv_cache_test)
op_tests=(cuda_test backend_test)

table="" failed=0
# report NAME RESULT SECONDS
report() {
  table+="$(printf '%-34s  %-22s  %5d s' "$@")"$'\n'
  [[ $2 != FAILED* ]] || failed=1
}
finish() {
  printf '\n%-34s  %-22s  %7s\n%s' "$(gpu_name)" result time "$table"
  exit $failed
}
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true; }

# The instructions of this machine's GPU alone: a quarter of the time that all take to compile.
architecture() {
  local capability
  [[ -z $like ]] || { echo "${like/./}-virtual" && return; }
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  [[ $capability != 90 ]] || capability=90a
  echo "$capability"
}

configure() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DQUANTSPEC_TESTS=ON -DQUANTSPEC_CUDA=ON
    "-DQUANTSPEC_CUDA_ARCHITECTURES=$(architecture)")
  [[ -z $deps ]] || options+=("-DCMAKE_PREFIX_PATH=$(realpath "$deps")")
  # Ubuntu has no oneDNN package that CMake finds.
  echo '#include <dnnl.h>' | g++ -E -x c++ - >/dev/null 2>&1 || options+=(-DQUANTSPEC_GEMM=OPENBLAS)
  printf '#include <boost/version.hpp>\n#if BOOST_VERSION < 108100\n#error old\n#endif\n' |
    g++ -E ${deps:+"-I$deps/include"} -x c++ - >/dev/null 2>&1 || options+=(-DQUANTSPEC_SERVER=OFF)
  # shellcheck disable=SC2086  # several options
  cmake -S . -B "$build" -G Ninja --log-level=WARNING "${options[@]}" ${CMAKE_FLAGS:-}
}

# Tests of the command line that hold on any backend, each with a GPU.
cli_tests=(serve chat session streams verify bench generate)

# The targets that this build has of those named.
targets_of() {
  local all
  all=$(ninja -C "$build" -t targets all | sed -nE 's/^([a-z_]+): .*/\1/p')
  grep -xF "$(printf '%s\n' "$@")" <<<"$all" || true
}

# make_targets TARGET...: those of them that this build has.
make_targets() {
  local start=$SECONDS log=$logs/build.log targets
  if configure >"$log" 2>&1 && targets=$(targets_of "$@") &&
    xargs cmake --build "$build" -j "$jobs" --target <<<"$targets" >>"$log" 2>&1; then
    report "build" "ok" $((SECONDS - start))
  else
    grep -E -A 4 '(error|Error)\b' "$log" | head -n 60 || tail -n 40 "$log"
    report "build" "FAILED: build.log" $((SECONDS - start))
    finish
  fi
}

# Most of the time goes to what the GPU's results are compared with, which the CPU computes: so in
# as many shards as fit.
# run_sharded NAME LOG SHARDS AT_ONCE BINARY FILTER [WRAPPER...]
run_sharded() {
  local name=$1 log=$2 shards=$3 at_once=$4 start=$SECONDS result="" parts passed
  shift 4
  parts=$(mktemp -d)
  export GTEST_TOTAL_SHARDS=$shards
  # shellcheck disable=SC2016  # the inner shell expands
  seq 0 $((shards - 1)) | xargs -P "$at_once" --process-slot-var=slot -I '{}' bash -c '
    index=$1 parts=$2 gpus=(${3//,/ }) binary=$4 filter=$5
    shift 5
    export CUDA_VISIBLE_DEVICES=${gpus[slot % ${#gpus[@]}]}
    GTEST_SHARD_INDEX=$index timeout "${LIMIT:-900}" "$@" "$binary" --gtest_filter="$filter" \
      >"$parts/$index" 2>&1' _ '{}' "$parts" "$gpus" "$@" || result="FAILED: ${log##*/}"
  unset GTEST_TOTAL_SHARDS
  passed=$(awk '/^\[  PASSED  \]/ {sum += $4} END {print sum + 0}' "$parts"/*)
  { echo "== $name" && cat "$parts"/*; } >>"$log"
  rm -r "$parts"
  if [[ -z $result && $passed -eq 0 ]]; then
    [[ -n $filter ]] && result="none taken" || result="FAILED: no test"
  fi
  report "$name" "${result:-$passed passed}" $((SECONDS - start))
}

# matching BINARY FILTER PATTERN: a filter of those of the tests whose names have the pattern.
matching() {
  "$1" --gtest_list_tests --gtest_filter="$2" |
    awk -v pattern="$3" '/^[^ ]/ {suite = $1} /^ / && suite $1 ~ pattern {print suite $1}' | paste -sd:
}

run_tests() {
  local targets target binary pattern tests alone_tests
  : >"$logs/tests.log"
  targets=$(targets_of "${all_tests[@]}")
  for pattern in "" "${alone[@]}"; do
    for target in $targets; do
      binary=$(find "$build/src" "$build/tests" -maxdepth 1 -name "$target" | head -n 1)
      tests=${filter:-${tests_of[$target]}}
      alone_tests=$(matching "$binary" "$tests" "${pattern:-$(IFS='|' && echo "${alone[*]}")}")
      if [[ -z $pattern ]]; then
        if [[ -n $alone_tests ]]; then
          [[ $tests == *-* ]] && tests+=":$alone_tests" || tests+="-$alone_tests"
        fi
        run_sharded "$target" "$logs/tests.log" $((jobs < 16 ? jobs : 16)) "$jobs" "$binary" "$tests"
      elif [[ -n $alone_tests ]]; then
        run_sharded "$target, $pattern" "$logs/tests.log" 1 1 "$binary" "$alone_tests" \
          env CUDA_MODULE_LOADING=EAGER
      fi
    done
  done
  grep -E '^== |^\[  FAILED  \] .*\(|Failure' "$logs/tests.log" | uniq | head -n 60 || true
}

# How many tests run at once on a GPU under a tool. On an H200 one of 7 s alone did not end in 380
# under racecheck beside nine; and there a launch of kernels with clusters, as those of cuda_test
# are, takes about 0.3 s.
declare -A at_once=([memcheck.cuda_test]=9 [memcheck.backend_test]=9
  [racecheck.cuda_test]=1 [racecheck.backend_test]=3)
# Tests left out: those that launch nothing, which the tools call an error, and whose suites are
# therefore called SomethingOnHost; one whose kernel faults on purpose, which does not end under
# memcheck; those of ranks on one GPU, whose kernels wait for each other, where a tool need not run
# them at once (gpu_ranks.sh has some of ranks with a GPU each); and of racecheck two with thousands
# of launches of kernels that other tests have. NOTE: of kernels of many rows it reports hazards that
# are its own, where a lane arrives at a barrier for its warp; here they count as failures
# (docs/decisions/0026).
declare -A left_out=([memcheck]='*OnHost.*:*AFaultOfAKernel*:CudaRanks*.*:*RankOps*')
left_out[racecheck]="${left_out[memcheck]}:*RoundOps.TokensAreThoseOfTheReference*:*.ManyLaunches*"

# sanitize TOOL [OPTION...]: every test in a process of its own, as one that ends with an internal
# error of the tool takes those behind it along. NOTE: tests provoke errors of API calls on purpose.
sanitize() {
  local tool=$1 log=$logs/$1.log target binary tests names count most
  shift
  : >"$log"
  for target in $(targets_of "${op_tests[@]}"); do
    binary=$build/src/$target
    tests=${filter:-${tests_of[$target]}-${left_out[$tool]}}
    if ! names=$("$binary" --gtest_list_tests --gtest_filter="$tests"); then
      report "$tool $target" "FAILED: does not start" 0
      continue
    fi
    count=$(grep -c '^  ' <<<"$names" || true)
    if [[ $count -eq 0 ]]; then
      report "$tool $target" "none taken" 0
      continue
    fi
    most=$((${at_once[$tool.$target]} * num_gpus))
    run_sharded "$tool $target" "$log" "$count" $((jobs < most ? jobs : most)) \
      "$binary" "$tests" compute-sanitizer \
      --tool "$tool" --report-api-errors no "$@"
  done
  grep -E '^=========' "$log" | grep -v 'SUMMARY: 0\|COMPUTE-SANITIZER\|nvjet_' | head -n 40 || true
}
run_memcheck() { sanitize memcheck --error-exitcode 9 --print-limit 20; }
# Of random trials of one kernel few: what races does so in any of them. Hazards in cuBLASLt's own
# kernels (nvjet_..), which prefill has, are told and no failure. NOTE: where racecheck is told to
# look at ours alone (--kernel-name), those tests end with a fault behind a kernel of cuBLASLt.
run_racecheck() {
  local start=$SECONDS log=$logs/racecheck.log hazards theirs tests ended
  QUANTSPEC_TRIALS=0.005 sanitize racecheck --print-limit 10000
  hazards=$(sed -nE 's/.*RACECHECK SUMMARY: ([0-9]+) hazard.*/\1/p' "$log" |
    awk '{sum += $1} END {print sum + 0}')
  theirs=$(grep -cE 'Race reported between .* access at nvjet_' "$log" || true)
  tests=$(grep -c '^\[==========\] Running' "$log" || true)
  ended=$(grep -c 'RACECHECK SUMMARY' "$log" || true)
  [[ $theirs -eq 0 ]] || echo "gpu_check: racecheck: $theirs hazards in cuBLASLt's kernels"
  [[ $hazards -eq $theirs && $ended -eq $tests ]] ||
    report "racecheck" "FAILED: $((hazards - theirs)) hazards, $ended of $tests ended" \
      $((SECONDS - start))
}

run_cli() {
  local start=$SECONDS program parts failed_tests
  program=$(find "$PWD/$build" -maxdepth 3 -name quantspec -type f | head -n 1)
  parts=$(mktemp -d)
  # shellcheck disable=SC2016  # the inner shell expands
  printf '%s\n' "${cli_tests[@]}" | xargs -P "$jobs" --process-slot-var=slot -I '{}' bash -c '
    name=$1 gpus=(${4//,/ })
    export CUDA_VISIBLE_DEVICES=${gpus[slot % ${#gpus[@]}]}
    file=tests/${name}_cli_test.py
    [[ $name != generate ]] || file=tests/cli_test.py
    timeout "${LIMIT:-900}" python3 "$file" "$2" >"$3/$name" 2>&1 || mv "$3/$name" "$3/$name.failed"
  ' _ '{}' "$program" "$parts" "$gpus"
  cat "$parts"/* >"$logs/cli.log"
  grep -hE '^(FAIL|ERROR): ' "$parts"/* || true
  failed_tests=$(find "$parts" -name '*.failed' -printf '%f ' | sed 's/\.failed//g')
  rm -r "$parts"
  [[ -z $failed_tests ]] || failed_tests="FAILED: $failed_tests"
  report "command line" "${failed_tests:-ok}" $((SECONDS - start))
}

run_bench() {
  local start=$SECONDS options=(--json "$logs/bench.json")
  local -x CUDA_VISIBLE_DEVICES=${gpus%%,*}
  if [[ -z $baselines ]] && ! python3 -c 'import torch' 2>/dev/null; then
    report "baselines" "left out: no PyTorch" 0
  elif [[ -z $baselines ]]; then
    baselines=$logs/baselines.json
    if python3 tools/gpu_baselines.py --out "$baselines" 2>&1 | tee "$logs/baselines.txt"; then
      report "baselines" "ok" $((SECONDS - start))
    else
      report "baselines" "FAILED: baselines.txt" $((SECONDS - start))
      baselines=""
    fi
  fi
  [[ -z $baselines ]] || options+=(--baselines "$baselines")
  start=$SECONDS
  if "$build/gpu_bench" "${options[@]}" 2>&1 | tee "$logs/bench.txt"; then
    report "gpu_bench" "ok" $((SECONDS - start))
  else
    report "gpu_bench" "FAILED: bench.txt" $((SECONDS - start))
  fi
}

wanted=()
for phase in "${phases[@]}"; do
  case $phase in
    tests) wanted+=("${all_tests[@]}") ;;
    cli) wanted+=(quantspec_cli) ;;
    memcheck | racecheck) wanted+=("${op_tests[@]}") ;;
    bench) wanted+=(gpu_bench) ;;
  esac
done
make_targets "${wanted[@]}"
for phase in "${phases[@]}"; do "run_$phase"; done
finish
