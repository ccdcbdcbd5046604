#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/cuda/batch_codes.cuh"
#include "backend/cuda/batch_half.cuh"
#include "backend/cuda/batch_linear.h"
#include "backend/cuda/batch_op.cuh"
#include "backend/cuda/batch_planes.cuh"
#include "backend/cuda/coded_linear.h"

namespace quantspec::cuda {

std::size_t batch_scratch_bytes(int inputs, std::size_t columns, int nodes) {
  std::size_t most = std::max({scratch_bytes<BatchHalf>(inputs, columns, nodes),
                               scratch_bytes<BatchPlanes<true>>(inputs, columns, nodes),
                               scratch_bytes<BatchPlanes<false>>(inputs, columns, nodes)});
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    const auto add = [&](std::size_t bytes) { most = std::max(most, bytes); };
    (add(scratch_bytes<BatchCodes<kCommonKinds[kIndices]>>(inputs, columns, nodes)), ...);
  }
  (std::make_index_sequence<std::size(kCommonKinds)>());
  return most;
}

bool batches_rows(const Device& device) { return device.capability() == 90; }

void run_batch(OpLaunches& op, const LinearArgs& args, int end) {
  run_batch_rows<BatchHalf>(op, args, end);
}
void run_batch_of_planes(OpLaunches& op, const LinearArgs& args, bool both, int end) {
  both ? run_batch_rows<BatchPlanes<true>>(op, args, end)
       : run_batch_rows<BatchPlanes<false>>(op, args, end);
}

}  // namespace quantspec::cuda
