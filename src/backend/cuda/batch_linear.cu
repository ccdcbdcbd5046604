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

std::size_t batch_scratch_bytes(const Device& device, int inputs, int tiles, bool in_memory) {
  std::size_t most = 0;
  const auto add = [&]<typename Format>() {
    most = std::max(most, scratch_bytes<Format>(device, inputs, tiles, in_memory));
  };
  add.operator()<BatchHalf<__nv_bfloat16>>();
  add.operator()<BatchHalf<__half>>();
  add.operator()<BatchPlanes<true>>();
  add.operator()<BatchPlanes<false>>();
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (add.operator()<BatchCodes<kCommonKinds[kIndices]>>(), ...);
  }
  (std::make_index_sequence<std::size(kCommonKinds)>());
  return most;
}

bool batches_rows(const Device& device) { return device.capability() == 90; }

void run_batch(OpLaunches& op, const LinearArgs& args, DType dtype, int end) {
  dtype == DType::kF16 ? run_batch_rows<BatchHalf<__half>>(op, args, end)
                       : run_batch_rows<BatchHalf<__nv_bfloat16>>(op, args, end);
}
void run_batch_of_planes(OpLaunches& op, const LinearArgs& args, bool both, int end) {
  both ? run_batch_rows<BatchPlanes<true>>(op, args, end)
       : run_batch_rows<BatchPlanes<false>>(op, args, end);
}

}  // namespace quantspec::cuda
