#include "engine/slice_time.h"

#include <algorithm>
#include <cmath>

namespace quantspec {
namespace {

constexpr double kKeep = 0.9;        // of a slice's weight, by the next one
constexpr double kNoOverhead = 0.1;  // how firmly none is expected, in slices

}  // namespace

void SliceTime::observe(double products, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  for (double* sum : {&count_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
  count_ += 1;
  x_ += products;
  y_ += seconds;
  xx_ += products * products;
  xy_ += products * seconds;
  const double count = count_ + kNoOverhead;
  rate_ = std::max(0.0, (count * xy_ - x_ * y_) / (count * xx_ - x_ * x_));
  overhead_ = std::max(0.0, (y_ - rate_ * x_) / count);
  if (overhead_ == 0) rate_ = xy_ / xx_;
}

}  // namespace quantspec
