// The CUDA backend: kernels for NVIDIA GPUs of compute capability 8.0 and later, tuned for 9.0. It
// is part of a build that found a CUDA toolkit (QUANTSPEC_CUDA in CMake).
#pragma once

#include <memory>

#include "backend/backend.h"

namespace quantspec::cuda {

// Why there is no GPU to use; empty: there is one.
std::string unavailable();

// On GPU 0 (CUDA_VISIBLE_DEVICES chooses). Throws Error(kDevice) saying unavailable().
std::unique_ptr<Backend> make_cuda_backend();

}  // namespace quantspec::cuda
