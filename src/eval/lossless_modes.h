// The ways of sampling by which drafts change nothing. Private to eval/.
#pragma once

#include <vector>

#include "eval/eval.h"
#include "speculative/speculative.h"

namespace quantspec {

struct LosslessMode {
  const char* name;
  DecodingOptions options;  // of plain decoding
};
std::vector<LosslessMode> lossless_modes(const LosslessOptions& options);

}  // namespace quantspec
