// What reading a prompt needs beside the ops of any pass.
#pragma once

#include <cstddef>

#include "backend/params/forward.h"

namespace quantspec {

class PrefillOps {
 public:
  virtual ~PrefillOps() = default;

  virtual void prefill_attention(const PrefillAttentionParams& params) = 0;
  // Bytes that prefill_attention() is given to unpack pages to, of prompts of up to so many tokens;
  // 0: it reads pages as they are.
  virtual std::size_t unpacked_bytes(const KvShape& shape, int tokens) const = 0;
  // Rows that prefill takes through an op at once: enough to keep a GEMM busy, few enough that the
  // activations beside x stay small.
  virtual int prefill_rows() const = 0;
  // Bytes that the backend takes for itself in prefill, beyond what it is given to write to.
  virtual std::size_t scratch_bytes(const PrefillSizes& sizes) const = 0;
  // Takes them now. On the host they are taken as they are needed, since that holds nothing up.
  virtual void reserve_scratch(const PrefillSizes& sizes) = 0;
};

}  // namespace quantspec
