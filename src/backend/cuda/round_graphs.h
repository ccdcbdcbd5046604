// Rounds as CUDA graphs, kept by the shape of the batch: other lanes of the same shape are served
// by the same graph. The first rounds of a shape run as they are issued (in the very first, and in
// the first after memory has moved, kernels are loaded and scratch memory grows). The last of them
// is captured once more while it runs, so that a long round hides the time of that; from then on
// one launch repeats it. Not thread-safe; the device's GPU is current.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <list>

#include "backend/cuda/device.h"
#include "backend/params/round.h"

namespace quantspec::cuda {

class RoundGraphs {
 public:
  explicit RoundGraphs(Device& device);
  ~RoundGraphs();
  RoundGraphs(const RoundGraphs&) = delete;
  RoundGraphs& operator=(const RoundGraphs&) = delete;

  // As RoundOps::run_round, mark and seconds_between.
  bool run(const RoundKey& key, const std::function<void()>& issue);
  void mark(Mark mark);
  double seconds_between(Mark from, Mark to);
  // Rounds that were captured, and that ran as they were issued, ever.
  int captures() const { return captures_; }
  int issues() const { return issues_; }

 private:
  // Rounds kept: draft lengths of a few plans and batches.
  static constexpr std::size_t kMaxRounds = 256;
  // Rounds of a shape that are issued: many draft lengths come up a few times only, and where
  // rounds are short a capture costs what some twenty replays save. (The bundled model on an H200,
  // 4 drafts, a build with clocks: 1 to 2.5 ms; a round takes 0.85 ms replayed and 0.96 issued.)
  static constexpr int kIssues = 8;

  // What decides the launches of a round: its issuer's key, and the shape of the batch.
  struct Shape {
    RoundKey key;
    int lanes;
    int rows;               // of verification
    int most_rows;          // of a lane
    int draft_len;          // the longest
    bool by_argmax, drawn;  // whether some lanes choose so
    Device::PageRoom pages;
    bool operator==(const Shape&) const = default;
  };
  Shape shape_of(const RoundKey& key) const;
  struct Captured {
    Shape shape;
    cudaGraphExec_t graph = nullptr;  // null: not yet captured
    int generation = 0;               // of device memory
    int issues = 0;
  };
  Captured& find(const Shape& shape);
  cudaGraphExec_t capture(const std::function<void()>& issue);
  void forget(Captured& round);

  Device& device_;
  std::list<Captured> rounds_;  // the one used last is first
  std::array<cudaEvent_t, kNumMarks> marks_{};
  bool capturing_ = false;
  int captures_ = 0;
  int issues_ = 0;
};

}  // namespace quantspec::cuda
