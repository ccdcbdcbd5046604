// Tables of rotary position embeddings (arXiv:2104.09864) and of their extensions to long context,
// with the arithmetic of transformers 5.23 (modeling_rope_utils.py): frequencies and angles are
// fp32, so that logits agree far into a context. Thread-safe. Nothing is allocated after it is
// made.
#pragma once

#include <vector>

#include "model/config.h"

namespace quantspec {

class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  // cos and sin of the positions [first_position, first_position + count):
  // [count, head_dim / 2] each. `sequence_length` is that of the sequence which these positions
  // belong to, as known to the forward pass; it matters only where depends_on_length().
  void tables(int first_position, int count, int sequence_length, float* cos, float* sin) const;

  // True for the types whose frequencies change as a sequence grows (dynamic, longrope).
  bool depends_on_length() const;

 private:
  float frequency(int pair, int sequence_length) const;

  RopeConfig rope_;
  int head_dim_;
  int max_positions_;
  std::vector<float> frequencies_;  // [head_dim / 2], of the model's original length
};

}  // namespace quantspec
