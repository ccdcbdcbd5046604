// What the passes of a model work in. Private to model/.
#pragma once

#include <vector>

#include "backend/params/pass.h"
#include "model/model.h"

namespace quantspec {

float attention_scale(const ModelConfig& config);

// Activations of `rows` tokens, grown when more rows come, and what passes read beside weights.
struct Model::Workspace {
  int rows = 0;
  Buffer x;          // [rows, hidden]
  Buffer q;          // [rows, num_heads * head_dim]
  Buffer attention;  // [rows, num_heads * head_dim]
  Buffer hidden;     // [rows, intermediate]
  Buffer cos;        // [rows, head_dim / 2]
  Buffer sin;
  Buffer tokens;  // [rows] TokenId
  Buffer logits;  // [rows, vocab], of passes whose logits the host wants
  std::vector<TokenId> host_tokens;
  std::vector<SequenceRows> sequences;
  std::vector<const KvCache*> caches;  // null: of an empty lane
  std::vector<KvView> views;

  // Of the chunk that a prefill is inside of.
  struct Chunk {
    int rows = 0;  // C
    Buffer x;      // [rows, hidden]
    Buffer cos;    // [rows, head_dim / 2]
    Buffer sin;
    Buffer tokens;    // [rows] TokenId
    Buffer kv;        // FullKv of one layer
    Buffer unpacked;  // of one layer's pages, where the backend wants it
    bool in_use = false;
  } chunk;

  // Rotation angles by position, [positions, head_dim / 2]; made in chunks where they are needed.
  int positions = 0;
  Buffer cos_table;
  Buffer sin_table;
  std::vector<char> made;       // [positions / kAnglePositions]
  std::vector<float> host_cos;  // a chunk on its way
  std::vector<float> host_sin;

  void grow(const ModelConfig& config, DeviceMemory& memory, int wanted);
  // What passes of so many rows take of it.
  static std::size_t bytes_for(const ModelConfig& config, int rows);
  float* logits_of(DeviceMemory& memory, std::size_t floats);
};

// `count` rows of activations and their rotation angles.
struct Model::Rows {
  Phase phase;
  WeightRead weights;
  KvShape shape;
  float* x;
  int count;
  const float* cos;
  const float* sin;
  LinearObserver* observer = nullptr;
  OpOrder order = OpOrder::kAfter;

  void observe(const Linear& linear, const Norm& norm, const float* in) const {
    if (observer != nullptr) observer->observe(linear, norm, in, count);
  }
};

}  // namespace quantspec
