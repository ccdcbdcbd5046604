// How the sum over a product's inputs is cut, where ranks may have some of the inputs each and the
// bits must be those of one. Plain data; thread-safe.
//
// Segments are summed one by one, then added as a balanced tree, ((0 + 1) + (2 + 3)). They are
// found by halving: a matrix is cut in the middle, and so are its halves, always between whole
// units. So the inputs of one of two ranks are a half of the tree, with segments of its own that
// are those of the whole, and the sum of the ranks' sums is the sum (comm/comm.h adds as the same
// tree).
#pragma once

#include <algorithm>

#include "backend/params/linear.h"

namespace quantspec {

inline constexpr int kMostSegments = 8;
// Inputs of a segment at least, or its reduction would cost: on an EPYC (Zen 5) whose caches have
// the weights, sums in segments of 256 take up to 8% longer (docs/cpu.md).
inline constexpr int kLeastSegment = 512;

// Inputs of a unit, which lies in one segment: what a GPU takes at a time, and the longest step of
// integer activations; of codes, whole blocks.
constexpr int segment_unit(const WeightFormat& format) { return std::max(format.block, 128); }

// The input with which a segment of so many begins; of segment `count`: inputs.
// REQUIRES: count is a power of two.
constexpr int segment_begin(int inputs, int unit, int count, int segment) {
  if (segment == count) return inputs;
  int begin = 0, end = (inputs + unit - 1) / unit;
  for (int half = kMostSegments / 2; half > 0; half /= 2) {
    if (half >= count) continue;
    const int middle = begin + (end - begin) / 2;
    ((segment & half) != 0 ? begin : end) = middle;
  }
  return begin * unit;
}

// Segment i is the inputs up to ends[i], from the one before on; none where they are equal.
struct Segments {
  int count = 1;
  int ends[kMostSegments] = {};
};
constexpr Segments segments_of(const Linear& linear, WeightRead read) {
  const Matrix& w = matrix_of(linear, read);
  Segments segments{.count = linear.segments};
  for (int i = 0; i < segments.count; ++i) {
    segments.ends[i] = segment_begin(w.cols, segment_unit(w.format), segments.count, i + 1);
  }
  return segments;
}

}  // namespace quantspec
