// What CUDA is told and asked of a kernel before its launches, once for each kernel of a Device:
// its answers hold for one GPU. Not thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <set>
#include <tuple>

namespace quantspec::cuda {

class Kernels {
 public:
  Kernels() = default;
  // Of a GPU with so many multiprocessors, whose blocks have at most so much shared memory.
  Kernels(int num_sms, std::size_t max_shared_bytes)
      : num_sms_(num_sms), max_shared_bytes_(max_shared_bytes) {}

  // Lets a kernel's blocks have all the shared memory that there is for them. kShared: they take
  // more of a multiprocessor's than its first-level cache would leave them.
  enum class Prefers { kNothing, kShared };
  template <typename... Args>
  void allow_shared(void (*kernel)(Args...), Prefers prefers = Prefers::kNothing) {
    allow(reinterpret_cast<const void*>(kernel), prefers);
  }

  // How many clusters of so many blocks of such a launch the GPU holds at a time.
  template <typename... Args>
  int resident_clusters(void (*kernel)(Args...), const cudaLaunchConfig_t& config, int size) {
    return resident(reinterpret_cast<const void*>(kernel), config, size);
  }

 private:
  void allow(const void* kernel, Prefers prefers);
  int resident(const void* kernel, cudaLaunchConfig_t config, int size);

  int num_sms_ = 0;
  std::size_t max_shared_bytes_ = 0;
  std::set<const void*> allowed_;
  std::map<std::tuple<const void*, int, std::size_t>, int> resident_;  // by size and shared bytes
};

}  // namespace quantspec::cuda
