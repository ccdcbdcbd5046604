// The CUDA backend: kernels for NVIDIA GPUs of compute capability 8.0 and later, tuned for 9.0. It
// is part of a build that found a CUDA toolkit (QUANTSPEC_CUDA in CMake).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace quantspec::cuda {

// The names of the GPUs that this process sees, by ordinal (CUDA_VISIBLE_DEVICES chooses and orders
// them); empty: there is none, or no driver.
std::vector<std::string> gpu_names();

// Why that GPU cannot be used; empty: it can.
std::string unavailable(int ordinal);

// On that GPU, whatever others are current where it is called. Its memory may be given back by any
// thread. num_threads: of the host, which read the rows of weights in codes; 0: one per physical
// core. ranks, groups: as in BackendOptions. Throws Error(kDevice) saying unavailable(), or which
// GPU the ranks' cannot reach.
std::unique_ptr<Backend> make_cuda_backend(int ordinal, int num_threads, Communicator* ranks,
                                           const RankGroups& groups = {});

}  // namespace quantspec::cuda
