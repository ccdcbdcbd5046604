// The GPUs that this process sees, by ordinal, and what there is of each once in a process: CUDA's
// context, and the counts of its memory. All of this is thread-safe. Errors: kDevice, naming the
// call that failed.
//
// CUDA's calls go to the GPU that the calling thread has made current. Here that is made so by a
// CurrentGpu, around every op, and undone: threads of the host keep what they had, and no GPU but
// the one that was asked for gets a context, which takes half a gigabyte of its memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>

#include "base/buffer.h"

namespace quantspec::cuda {

// Throws where `status` is not success; `call` is the text of what returned it.
void require(cudaError_t status, const char* call);
#define QUANTSPEC_CUDA(call) ::quantspec::cuda::require((call), #call)

// A function of the driver, which is not linked, so that a program starts where there is none.
// Throws kDevice where the driver does not have it.
void* driver_function(const char* name);

class Gpu {
 public:
  // REQUIRES: there is one. It stays until the process ends.
  static Gpu& at(int ordinal);
  explicit Gpu(int ordinal);  // for at()
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  CUcontext context() const { return context_; }

  // Zeroed memory of it, 256-byte aligned. Any thread may give it back.
  Buffer allocate(std::size_t bytes);
  // Zeroed memory of the host that it copies from and to by itself (pinned). Giving it back waits
  // for what may still copy.
  Buffer allocate_on_host(std::size_t bytes);
  // How often these were called, and how often memory of it was given back.
  int allocations() const { return allocations_; }
  int frees() const { return frees_; }

 private:
  void free(std::byte* data) noexcept;
  void free_on_host(std::byte* data) noexcept;

  int ordinal_;
  CUcontext context_ = nullptr;
  std::atomic<int> allocations_{0}, frees_{0};
};

// Makes a GPU the calling thread's current one, for as long as it lives.
class CurrentGpu {
 public:
  explicit CurrentGpu(const Gpu& gpu);
  // What fails is left to the calls that follow: for what may not throw.
  enum class Failing { kIsLeft };
  CurrentGpu(const Gpu& gpu, Failing) noexcept;
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  CUresult enter(const Gpu& gpu) noexcept;

  CUcontext before_ = nullptr;
  bool changed_ = false;
};

}  // namespace quantspec::cuda
