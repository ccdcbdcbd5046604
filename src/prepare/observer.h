// What goes into chosen matrices, summed up over passes: so calibration runs the model's own
// forward, and not a second one.
#pragma once

#include <map>
#include <set>

#include "model/model.h"
#include "prepare/linear_algebra.h"

namespace quantspec {

// Of a model whose backend works on the host.
class InputSums final : public LinearObserver {
 public:
  // The pool outlives this.
  explicit InputSums(ThreadPool& pool) : pool_(pool) {}

  // From now on, sums up the inputs of these matrices.
  void watch(const std::set<const Linear*>& linears);
  // What was summed up; ends the watch.
  std::map<const Linear*, Gram> take();

  void observe(const Linear& linear, const Norm& norm, const float* in, int rows) override;

 private:
  ThreadPool& pool_;
  std::map<const Linear*, Gram> sums_;
};

}  // namespace quantspec
