// The tensors of a checkpoint by the names that transformers gives them, and what a config says of
// each. Private to model/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/params/segments.h"
#include "model/config.h"
#include "model/weights.h"

namespace quantspec {

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

// The matrices of a layer, and what they are called.
inline constexpr std::array<std::pair<Linear LayerWeights::*, std::string_view>, 7> kLayerMatrices =
    {{{&LayerWeights::q, "self_attn.q_proj"},
      {&LayerWeights::k, "self_attn.k_proj"},
      {&LayerWeights::v, "self_attn.v_proj"},
      {&LayerWeights::o, "self_attn.o_proj"},
      {&LayerWeights::gate, "mlp.gate_proj"},
      {&LayerWeights::up, "mlp.up_proj"},
      {&LayerWeights::down, "mlp.down_proj"}}};

inline std::string tensor_name(int layer, std::string_view part, std::string_view kind) {
  return fmt::format("model.layers.{}.{}.{}", layer, part, kind);
}

// What a config says of each matrix of a layer, in the same order.
struct MatrixSpec {
  int outputs;
  int inputs;
  bool has_bias;
  bool in_segments = false;  // whether ranks have some of its inputs each, and so sums are cut
};

inline std::array<MatrixSpec, 7> layer_matrices(const ModelConfig& config) {
  const int hidden = config.hidden_size;
  const int intermediate = config.intermediate_size;
  const int q = config.num_heads * config.head_dim;
  const int kv = config.num_kv_heads * config.head_dim;
  return {{{q, hidden, config.qkv_bias},
           {kv, hidden, config.qkv_bias},
           {kv, hidden, config.qkv_bias},
           {hidden, q, config.output_bias, true},
           {intermediate, hidden, false},
           {intermediate, hidden, false},
           {hidden, intermediate, false, true}}};
}

// Rows of the head, of which ranks have equal parts.
inline int head_rows(const ModelConfig& config) { return config.vocab_size / config.ranks; }

// Into how many segments sums of o and down are cut: as many as ranks could share the heads, as far
// as segments are long enough that it costs little (docs/cpu.md).
inline int num_segments(const ModelConfig& config) {
  if (config.segments > 0) return config.segments;
  const int inputs = std::min(config.num_heads * config.head_dim, config.intermediate_size);
  int count = 1;
  while (count < kMostSegments && config.num_kv_heads % (2 * count) == 0 &&
         inputs >= 2 * count * kLeastSegment) {
    count *= 2;
  }
  return count;
}

struct NormSpec {
  Norm LayerWeights::*member;
  std::string_view name;
  int size;
};

inline std::vector<NormSpec> layer_norms(const ModelConfig& config) {
  std::vector<NormSpec> norms = {
      {&LayerWeights::input_norm, "input_layernorm", config.hidden_size},
      {&LayerWeights::post_norm, "post_attention_layernorm", config.hidden_size}};
  if (config.qk_norm) {
    norms.push_back({&LayerWeights::q_norm, "self_attn.q_norm", config.head_dim});
    norms.push_back({&LayerWeights::k_norm, "self_attn.k_norm", config.head_dim});
  }
  return norms;
}

}  // namespace quantspec
