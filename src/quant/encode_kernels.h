// What most of encode_row()'s time goes to, compiled for an instruction set: functions of
// fit-inl.h, which has what they do. The bits are the same. No std template may be included here.
#pragma once

#include <cstdint>

namespace quantspec {

struct EncodeKernels {
  void (*fit_groups)(const float* weights, int groups, int count, float* scales, float* offsets);
  void (*encode_codes)(const float* weights, int count, float scale, float offset,
                       std::uint8_t* codes);
};

}  // namespace quantspec
