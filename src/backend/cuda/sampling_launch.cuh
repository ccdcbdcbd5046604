// Launches kernels that work with RowBlocks.
#pragma once

#include "backend/cuda/device.h"
#include "backend/cuda/sampling_row.cuh"

namespace quantspec::cuda {

// The blocks that work on one row.
inline int row_blocks(const Device& device) {
  return device.capability() >= 90 ? kMostRowBlocks : 1;
}

template <typename... Parameters, typename... Args>
void launch_rows(Device& device, void (*kernel)(Parameters...), int rows, std::size_t shared_bytes,
                 Args... args) {
  // 48 KiB are there unasked, and kernels declare less than 32.
  if (shared_bytes > 16 * 1024) device.kernels().allow_shared(kernel);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(row_blocks(device)), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(rows * row_blocks(device));
  config.blockDim = kRowThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = device.stream();
  config.attrs = &cluster;
  config.numAttrs = device.capability() >= 90 ? 1 : 0;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...));
}

}  // namespace quantspec::cuda
