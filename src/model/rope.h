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
  // context: the longest text that the model is loaded for. Two types (dynamic, longrope) take
  // their frequencies from it. NOTE: transformers takes them from the text of each forward pass, so
  // that the keys of a growing text are rotated by several frequencies. With one length an angle is
  // a function of its position, as a prefix that texts of different lengths share needs.
  Rope(const ModelConfig& config, int context);

  // cos and sin of the positions [first_position, first_position + count):
  // [count, head_dim / 2] each.
  void tables(int first_position, int count, float* cos, float* sin) const;

 private:
  float frequency(int pair) const;

  RopeConfig rope_;
  int head_dim_;
  int max_positions_;
  int context_;
  std::vector<float> frequencies_;  // [head_dim / 2]
};

}  // namespace quantspec
