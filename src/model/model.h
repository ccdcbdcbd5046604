// A decoder-only transformer: one set of weights and one forward, read as a Plan says. Draft and
// target are the same Model and the same KvCache.
//
// Thread-safety: const methods may not run at the same time, since they share the backend and the
// workspace.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "kv_cache/kv_cache.h"
#include "model/config.h"
#include "model/pass_bytes.h"
#include "model/plan.h"
#include "model/rope.h"
#include "model/weights.h"

namespace quantspec {

// Rows that one sequence adds to a forward pass.
struct SequenceInput {
  std::span<const TokenId> tokens;
  KvCache* cache;
};

// Rows of a sequence's round, whose tokens only the backend may know: the last token that is chosen
// or drafted, or, where `verifies`, the pending one and all drafted ones.
struct RoundInput {
  const RoundTokens* at;
  int num_rows;
  bool verifies;
  KvCache* cache;
};

class Model {
 public:
  // Takes what was loaded; `backend` outlives the model.
  Model(ModelConfig config, Weights weights, Backend& backend);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  Backend& backend() const { return backend_; }

  // Whether there are the planes that the plan reads.
  bool reads(const Plan& plan) const;
  // Throws kInvalidRequest, saying what there is, where there are not.
  void require_weights(const Plan& plan) const;

  // Runs every sequence's tokens through all layers, appending K and V to its cache (extend). Rows
  // are the sequences' tokens in order; logits: [rows, vocab_size], row i predicts what follows
  // token i. A row's logits have the same bits whatever the rows beside it. Throws kCorruptFile
  // where the checkpoint's file became shorter meanwhile (MappedFile::survive_losses); so does
  // prefill.
  // REQUIRES: as KvCache::extend for each sequence; the caches support the plan (kv_options), the
  // weights have what it reads; one token each where it chooses pages by bounds.
  void forward(std::span<const SequenceInput> batch, const Plan& plan,
               std::span<float> logits) const;
  // The same for a round; it may return before it is done. logits: [num_rows, vocab_size] in the
  // backend's memory.
  void forward(const RoundInput& input, const Plan& plan, float* logits) const;

  // Makes sure that rounds of the cache's next tokens, up to a multiple of its page size, find what
  // they read beside weights and KV.
  void begin_round(const KvCache& cache) const;

  // Appends all tokens to the cache, layer by layer (exact prefill, section 4 of docs/design.md),
  // with the target's weights. logits: [vocab_size], of the last token. `progress` gets the share
  // done in [0, 1] and may throw to cancel, which leaves the cache empty.
  using Progress = std::function<void(double)>;
  void prefill(std::span<const TokenId> tokens, KvCache& cache, std::span<float> logits,
               const Progress& progress = {}) const;
  // The same, with the logits in the backend's memory.
  void prefill(std::span<const TokenId> tokens, KvCache& cache, float* logits,
               const Progress& progress = {}) const;

  // Bytes of the rotation angles that decoding reads, of caches of this capacity.
  static std::size_t angle_bytes(const ModelConfig& config, int capacity);
  // Bytes of activations in prefill of this many tokens, the backend's scratch and the logits of a
  // round included (the rest of a pass is small).
  static std::size_t activation_bytes(const ModelConfig& config, const Backend& backend,
                                      int num_tokens);

 private:
  struct Workspace;  // activations of a bounded number of rows
  struct Rows;       // the rows of one op
  Workspace& workspace(int rows) const;
  void require_tokens(std::span<const TokenId> tokens) const;
  void make_angles(int first_position, int end, int capacity) const;
  void run(std::span<SequenceRows> sequences, std::span<KvCache* const> caches, int num_rows,
           const Plan& plan, float* logits) const;
  std::vector<float> last_queries(const Rows& all, int layer, int count) const;
  void attention_inputs(const Rows& rows, int layer, float* q,
                        std::span<const SequenceRows> sequences) const;
  void after_attention(const Rows& rows, int layer, const float* attention, float* hidden) const;
  void head(const float* x, int rows, WeightRead weights, float* logits) const;
  void prefill_layer(const Rows& all, int layer, FullKv kv, int first_position, int first_row,
                     const std::function<void(int)>& rows_done) const;

  ModelConfig config_;
  Weights weights_;
  Backend& backend_;
  Rope rope_;
  std::shared_ptr<Workspace> workspace_;
};

// The shape of this model's KV cache. page_size 0: the default, 128 (64 when head_dim is 64).
// Throws kInvalidRequest naming the page sizes that exist.
KvShape kv_shape(const ModelConfig& config, int page_size);

}  // namespace quantspec
