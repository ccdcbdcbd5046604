// The ops of a pass, one virtual call each. What they take is in params/pass.h and
// params/attention.h.
#pragma once

#include <cstddef>

#include "backend/params/forward.h"

namespace quantspec {

class PassOps {
 public:
  virtual ~PassOps() = default;

  virtual void embed(const EmbedParams& params) = 0;
  virtual void qkv(const QkvParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void page_bounds(const PageBoundsParams& params) = 0;
  virtual void select_pages(const SelectPagesParams& params) = 0;
  virtual void add_linear(const AddLinearParams& params) = 0;
  virtual void gate_up(const GateUpParams& params) = 0;
  virtual void head(const HeadParams& params) = 0;
  // Bytes that they take for themselves in passes that decode, beyond what they are given to write
  // to and what prefill takes (PrefillOps::scratch_bytes).
  virtual std::size_t pass_scratch_bytes(const PassSizes& sizes) const = 0;
};

}  // namespace quantspec
