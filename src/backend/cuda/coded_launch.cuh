#pragma once

#include "backend/cuda/batch_codes.cuh"
#include "backend/cuda/batch_op.cuh"
#include "backend/cuda/linear_coded.cuh"
#include "backend/cuda/linear_launch.cuh"

namespace quantspec::cuda {

// The rows that batches take, whole launches of most rows and a last one where that has enough,
// come first.
template <CodedKind kKind>
void launch_coded(OpLaunches& op, LinearArgs args, int end) {
  using Format = CodedFormat<kKind, false, 1>;
  if constexpr (is_common(kKind)) {
    using Batch = BatchCodes<kKind>;
    const int rows = end - args.first_row, bands = bands_of<Format>(args.cols);
    const int beyond = rows % kMostBatchRows<Batch>;
    const bool all = batches_codes(op.device().tuning(), beyond, bands);
    const int batched = all ? rows : rows - beyond;
    if (batched > 0 && batches_rows(op.device()) && args.segments == kSegments) {
      LinearArgs batch = args;
      batch.bands = bands;
      run_batch_rows<Batch>(op, batch, args.first_row + batched);
      args.first_row += batched;
    }
  }
  if (args.first_row == end) return;
  if (run_alone<CodedFormat<kKind, true, 2>>(op, args, end)) return;
  run<Format, 1, 2, 5>(op, args, end);
}

}  // namespace quantspec::cuda
