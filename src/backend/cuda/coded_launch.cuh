#pragma once

#include "backend/cuda/linear_coded.cuh"
#include "backend/cuda/linear_launch.cuh"

namespace quantspec::cuda {

template <CodedKind kKind>
void launch_coded(OpLaunches& op, const LinearArgs& args, int end) {
  using Format = CodedFormat<kKind, false, 1>;
  if (run_alone<CodedFormat<kKind, true, 2>>(op, args, end)) return;
  run<Format, 1, 2, 5>(op, args, end);
}

}  // namespace quantspec::cuda
