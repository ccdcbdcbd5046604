#include "backend/cuda/kernels.h"

#include "backend/cuda/gpu.h"

namespace quantspec::cuda {

void Kernels::allow(const void* kernel, Prefers prefers) {
  if (allowed_.contains(kernel)) return;
  cudaFuncAttributes attributes;
  QUANTSPEC_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const std::size_t bytes =
      max_shared_bytes_ - attributes.sharedSizeBytes;  // less what is declared
  QUANTSPEC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
  if (prefers == Prefers::kShared) {
    QUANTSPEC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared));
  }
  allowed_.insert(kernel);
}

// NOTE: asking takes as long as a launch.
int Kernels::resident(const void* kernel, cudaLaunchConfig_t config, int size) {
  int& clusters = resident_[{kernel, size, config.dynamicSmemBytes}];
  if (clusters > 0) return clusters;
  config.gridDim = size;
  if (size > 1) {
    QUANTSPEC_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  } else {
    QUANTSPEC_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &clusters, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes));
    clusters *= num_sms_;
  }
  return clusters;
}

}  // namespace quantspec::cuda
