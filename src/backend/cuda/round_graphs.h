// Rounds as CUDA graphs. The first rounds of a key run as they are issued (in the very first, and
// in the first after memory has moved, kernels are loaded and scratch memory grows); the next one
// is captured; from then on one launch repeats it. Not thread-safe.
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
  // Rounds of a key that are issued: many draft lengths come up a few times only, and a capture
  // costs what some twenty replays save. (The bundled model on an H200, 4 drafts, a build with
  // clocks: 1 to 2.5 ms; a round takes 0.85 ms replayed and 0.96 issued.)
  static constexpr int kIssues = 8;

  struct Captured {
    RoundKey key;
    cudaGraphExec_t graph = nullptr;  // null: not yet captured
    int generation = 0;               // of device memory
    int issues = 0;
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
