// What a model is: the part of a folder's config.json (and generation_config.json) that this
// project reads, checked. The meaning of every key, its default included, is that of transformers
// 5.23. A configuration that loads is one that can be computed exactly; anything else is refused by
// name. Plain data; thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json_fwd.h"
#include "base/token.h"

namespace quantspec {

// Rotary position embeddings. A field that a type does not use keeps its default.
struct RopeConfig {
  enum class Type : std::uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongrope };

  Type type = Type::kDefault;
  double theta = 10000;
  double factor = 1;             // linear, dynamic, llama3, yarn
  double attention_factor = 1;   // yarn, longrope: multiplies cos and sin; mscale is in it
  int original_max_positions{};  // llama3, yarn, longrope
  double low_freq_factor = 1;    // llama3
  double high_freq_factor = 4;
  double beta_fast = 32;  // yarn
  double beta_slow = 1;
  bool truncate = true;
  std::vector<float> short_factor;  // longrope: [head_dim / 2]
  std::vector<float> long_factor;
};

// How the model's authors sample from it, where they say so.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// In what a target reads matrices that are elements in the files: in these, or in codes of 8 bits.
enum class TargetWeights : std::uint8_t { kCheckpoint, k8Bits };

struct ModelConfig {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3"
  int num_layers;
  int hidden_size;
  int intermediate_size;
  int num_heads;
  int num_kv_heads;  // divides num_heads
  int head_dim;      // a multiple of 16, at most 256
  int vocab_size;
  int max_positions;
  float norm_epsilon;
  RopeConfig rope;
  bool tied_head;    // the head is the embedding
  bool qkv_bias;     // of the q, k and v projections
  bool output_bias;  // of the o projection
  bool qk_norm;      // queries and keys are normalized per head, before RoPE
  // Attention of every layer reaches back this many positions, itself included; set only where that
  // is less than max_positions. A longer context needs what is not there.
  std::optional<int> sliding_window;
  std::optional<TokenId> bos_token;
  // generation_config.json's before config.json's; where neither has one, Engine takes the
  // tokenizer's.
  std::vector<TokenId> eos_tokens;
  DType dtype;  // as config.json says, else kF32; the checkpoint's tensors carry their own
  GenerationDefaults generation;

  // Of a rank's share (share.h), whose heads, KV heads and intermediate_size are the rank's own:
  // how many shares there are, how many of a sum's segments are its, and how many ranks share its
  // contexts, of which it is one. No file says so.
  int ranks = 1;
  int segments = 0;  // 0: those of the whole, num_segments()
  int context_ranks = 1;
  int context_rank = 0;
};

// Reads model_dir/config.json and, where it exists, model_dir/generation_config.json. Throws
// kInvalidRequest (cannot be read), kCorruptFile (contradicts itself or its format) or
// kUnsupportedModel; the message names the file and the key.
ModelConfig load_config(const std::filesystem::path& model_dir);

// The same from parsed files. `generation` is null where there is none; `where` is the folder, for
// messages.
ModelConfig parse_config(const Json& config, const Json& generation, std::string_view where);

}  // namespace quantspec
