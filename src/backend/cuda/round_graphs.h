// Rounds as CUDA graphs. The first round of a key runs as it is issued (kernels are loaded, scratch
// memory grows); the second is captured; from then on one launch repeats it. Not thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <list>

#include "backend/cuda/device.h"

namespace quantspec::cuda {

class RoundGraphs {
 public:
  explicit RoundGraphs(Device& device);
  ~RoundGraphs();
  RoundGraphs(const RoundGraphs&) = delete;
  RoundGraphs& operator=(const RoundGraphs&) = delete;

  // As Backend::run_round, mark and seconds_between.
  bool run(const RoundKey& key, const std::function<void()>& issue);
  void mark(Mark mark);
  double seconds_between(Mark from, Mark to);

 private:
  // Rounds kept: draft lengths of a few plans and sequences.
  static constexpr std::size_t kMaxRounds = 64;

  struct Captured {
    RoundKey key;
    cudaGraphExec_t graph = nullptr;  // null: issued once
    int generation = 0;               // of device memory
  };
  Captured& find(const RoundKey& key);
  cudaGraphExec_t capture(const std::function<void()>& issue);
  void forget(Captured& round);

  Device& device_;
  std::list<Captured> rounds_;  // the one used last is first
  std::array<cudaEvent_t, kNumMarks> marks_{};
  bool capturing_ = false;
};

}  // namespace quantspec::cuda
