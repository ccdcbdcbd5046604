// Products with planes of codes that linear_planes.cuh does not read: which kernels there are, and
// how formats are read by them. A file has those of one number of bits (coded_linear_<bits>.cu), or
// of tables.
#pragma once

#include <algorithm>
#include <optional>

#include "backend/cuda/linear_config.h"
#include "backend/params/forward.h"

namespace quantspec::cuda {

class OpLaunches;
struct LinearArgs;

//                             lower, group, two levels, offset, table
inline constexpr CodedKind kCodedKinds[] = {
    {0, 32, false, false, false},  // Q4_0; of drafts, Q5_0 and Q8_0
    {0, 32, false, true, false},   // Q4_1; Q5_1
    {0, 32, true, true, false},    // Q4_K; Q5_K and sliced_format(kFineGroup)
    {0, 16, true, true, false},    // Q2_K
    {0, 16, true, false, false},   // Q3_K; Q6_K
    {0, 32, false, false, true},   // IQ4_NL, MXFP4
    {0, 32, true, false, true},    // IQ4_XS
    {1, 32, false, false, false},  // Q5_0
    {1, 32, false, true, false},   // Q5_1
    {1, 32, true, true, false},    // Q5_K
    {2, 16, true, false, false},   // Q6_K
    {4, 32, false, false, false},  // Q8_0
    {4, 32, true, true, false},    // sliced_format(kFineGroup)
};
// Those of targets that files mostly have: every op has kernels of its own.
inline constexpr CodedKind kCommonKinds[] = {
    {0, 32, true, true, false},    // Q4_K
    {1, 32, true, true, false},    // Q5_K
    {2, 16, true, false, false},   // Q6_K
    {4, 32, false, false, false},  // Q8_0
    {0, 32, false, false, false},  // Q4_0
};
constexpr bool is_common(const CodedKind& kind) {
  return std::ranges::find(kCommonKinds, kind) != std::end(kCommonKinds);
}
constexpr bool has_kernels(const CodedKind& kind) {
  return std::ranges::find(kCodedKinds, kind) != std::end(kCodedKinds);
}

// Whether linear_planes.cuh has kernels for a format.
constexpr bool is_wide(const WeightFormat& format) {
  return format == sliced_format(64) || format == sliced_format(128);
}
// How a pass reads a format of codes that is not is_wide().
constexpr CodedKind coded_kind(const WeightFormat& format, WeightRead read) {
  return {.lower = read == WeightRead::kUpper ? 0 : format.lower_bits(),
          .group = format.group,
          .two_levels = format.two_levels(),
          .has_offset = format.has_offset,
          .table = format.table != CodeTable::kNone};
}
// Whether products with a format can be made, as targets and drafts read it.
constexpr bool has_products(const WeightFormat& format) {
  return format.dense() || is_wide(format) ||
         (format.bits == 4 + format.lower_bits() &&
          has_kernels(coded_kind(format, WeightRead::kTarget)) &&
          has_kernels(coded_kind(format, WeightRead::kUpper)) &&
          format.block == (format.two_levels() ? kMostUnit : format.group));
}

// The op's rows [args.first_row, end), with matrices of a format that has_products(). Of args the
// caller has filled in what does not follow from the format.
void run_coded(OpLaunches& op, const LinearArgs& args, const WeightFormat& format, WeightRead read,
               int end);

// With args.stride and all that follows.
template <CodedKind kKind>
void launch_coded(OpLaunches& op, LinearArgs args, int end);

}  // namespace quantspec::cuda
