#include "backend/cuda/round_graphs.h"

#include <algorithm>

#include "backend/cuda/ranks.h"

namespace quantspec::cuda {

RoundGraphs::RoundGraphs(Device& device) : device_(device) {
  const CurrentGpu current(device.gpu());
  for (cudaEvent_t& mark : marks_) QUANTSPEC_CUDA(cudaEventCreate(&mark));
}

RoundGraphs::~RoundGraphs() {
  const CurrentGpu current(device_.gpu(), CurrentGpu::Failing::kIsLeft);
  for (Captured& round : rounds_) forget(round);
  for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
}

void RoundGraphs::forget(Captured& round) {
  if (round.graph != nullptr) cudaGraphExecDestroy(round.graph);
  round.graph = nullptr;
}

RoundGraphs::Shape RoundGraphs::shape_of(const RoundKey& key) const {
  const std::span<const RoundLane> lanes = device_.lanes();
  Shape shape{.key = key,
              .lanes = static_cast<int>(lanes.size()),
              .rows = padded_rows_of(static_cast<int>(lanes.size()),
                                     lanes.back().first_row + lanes.back().rows()),
              .pages = device_.page_room()};
  for (const RoundLane& lane : lanes) {
    if (lane.rows() == 0) continue;
    shape.most_rows = std::max(shape.most_rows, lane.rows());
    shape.draft_len = std::max(shape.draft_len, lane.drafts());
    (lane.at.by_argmax ? shape.by_argmax : shape.drawn) = true;
  }
  return shape;
}

RoundGraphs::Captured& RoundGraphs::find(const Shape& shape) {
  const auto found = std::ranges::find(rounds_, shape, &Captured::shape);
  if (found != rounds_.end()) {
    rounds_.splice(rounds_.begin(), rounds_, found);
  } else {
    rounds_.push_front({shape});
  }
  if (rounds_.size() > kMaxRounds) {
    forget(rounds_.back());
    rounds_.pop_back();
  }
  return rounds_.front();
}

bool RoundGraphs::run(const RoundKey& key, const std::function<void()>& issue) {
  Captured& round = find(shape_of(key));
  if (round.generation != device_.generation()) {  // memory has moved since
    forget(round);
    round.issues = std::min(round.issues, kIssues - 1);
  }
  Ranks* const ranks = device_.ranks();
  // Ranks issue a round together, or repeat it together: what waits for others is under way at all
  // of them before a host goes on (ranks.h).
  if (round.graph != nullptr && ranks == nullptr) {
    QUANTSPEC_CUDA(cudaGraphLaunch(round.graph, device_.stream()));
    return false;
  }
  if (ranks != nullptr && ranks->at_all(round.graph != nullptr)) {
    QUANTSPEC_CUDA(cudaGraphLaunch(round.graph, device_.stream()));
    ranks->meet();
    return false;
  }
  issue();
  // Nobody captures while another takes memory: that waits for the GPU, which a capture forbids.
  if (ranks != nullptr) ranks->meet();
  ++issues_;
  const bool moved = round.generation != device_.generation();
  round.generation = device_.generation();
  ++round.issues;
  const bool repeats = ranks == nullptr || ranks->may_repeat();
  if (repeats && round.issues >= kIssues && !moved && round.graph == nullptr) {
    round.graph = capture(issue);
  }
  if (ranks != nullptr) ranks->meet();
  return true;
}

cudaGraphExec_t RoundGraphs::capture(const std::function<void()>& issue) {
  ++captures_;
  QUANTSPEC_CUDA(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
  cudaGraph_t graph = nullptr;
  try {
    issue();
  } catch (...) {
    capturing_ = false;
    cudaStreamEndCapture(device_.stream(), &graph);
    cudaGetLastError();  // it is not the next call's
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  capturing_ = false;
  QUANTSPEC_CUDA(cudaStreamEndCapture(device_.stream(), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  require(status, "cudaGraphInstantiate");
  if (device_.ranks() != nullptr) {  // its first launch takes no memory then, which others wait for
    QUANTSPEC_CUDA(cudaGraphUpload(executable, device_.stream()));
    QUANTSPEC_CUDA(cudaStreamSynchronize(device_.stream()));
  }
  return executable;
}

void RoundGraphs::mark(Mark mark) {
  const unsigned flags = capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault;
  QUANTSPEC_CUDA(cudaEventRecordWithFlags(marks_[static_cast<int>(mark)], device_.stream(), flags));
}

double RoundGraphs::seconds_between(Mark from, Mark to) {
  float milliseconds = 0;
  QUANTSPEC_CUDA(cudaEventElapsedTime(&milliseconds, marks_[static_cast<int>(from)],
                                      marks_[static_cast<int>(to)]));
  return 1e-3 * milliseconds;
}

}  // namespace quantspec::cuda
