// A decoder-only transformer: one set of weights and one forward, read as a Plan says. Draft and
// target are the same Model and the same KvCache.
//
// Thread-safety: const methods may not run at the same time, since they share the backend and the
// workspace.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/params/forward.h"
#include "kv_cache/kv_cache.h"
#include "model/config.h"
#include "model/pass_bytes.h"
#include "model/plan.h"
#include "model/rope.h"
#include "model/weights.h"

namespace quantspec {

// Rows that one sequence adds to a forward pass, from cache->length() on.
struct SequenceInput {
  std::span<const TokenId> tokens;
  const KvCache* cache;
};

// A lane of a round's pass (Backend::begin_batch), whose tokens only the backend may know. A draft
// pass has one row of those that draft so deep, of the last token that is chosen or drafted,
// `drafted` positions after the cache's; verification has the pending token and all drafted ones.
struct RoundInput {
  const RoundTokens* at;
  int num_rows;          // 0: it has none in this pass
  const KvCache* cache;  // null: the lane is empty
};
struct RoundPass {
  int first_lane;  // of the inputs, which are lanes that follow each other; the first is not empty
  bool verifies;
  int drafted;   // before this pass; 0 where it verifies
  int num_rows;  // of the ops: those of the inputs, and others that are nobody's
};

// Sees what goes into the matrices of a pass. Of matrices that share their input, only the first:
// q, gate.
class LinearObserver {
 public:
  virtual ~LinearObserver() = default;
  // linear's input is norm(in), [rows, linear.inputs()]; `in` is in the backend's memory, and the
  // op that multiplies is yet to be called.
  virtual void observe(const Linear& linear, const Norm& norm, const float* in, int rows) = 0;
};

class Model {
 public:
  // Takes what was loaded; `backend` outlives the model. context: of Rope; 0: what the model was
  // made for.
  Model(ModelConfig config, Weights weights, Backend& backend, int context = 0);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  Backend& backend() const { return backend_; }

  // Whether there are the planes that the plan reads.
  bool reads(const Plan& plan) const;
  // Throws kInvalidRequest, saying what there is, where there are not.
  void require_weights(const Plan& plan) const;

  // Runs every sequence's tokens through all layers, writing K and V to the rows that its cache has
  // reserved; the cache is not changed otherwise. Rows are the sequences' tokens in order; logits:
  // [rows, vocab_size], row i predicts what follows token i. A row's logits have the same bits
  // whatever the rows beside it. Throws kCorruptFile where the checkpoint's file became shorter
  // meanwhile (MappedFile::survive_losses); so does a prefill.
  // REQUIRES: the rows are reserved; the caches support the plan (kv_options), the weights have
  // what it reads; one token each where it chooses pages by bounds.
  void forward(std::span<const SequenceInput> batch, const Plan& plan, std::span<float> logits,
               LinearObserver* observer = nullptr) const;
  // The same for rounds; it may return before it is done. logits: [pass.num_rows, vocab_size] in
  // the backend's memory.
  void forward(std::span<const RoundInput> batch, const RoundPass& pass, const Plan& plan,
               float* logits) const;
  // What such a pass reads of a cache, by layer; valid until the next call.
  std::span<const KvView> views(const KvCache& cache, const Plan& plan) const;

  // Makes sure that passes of so many rows have room, and that rounds of a cache's next tokens, up
  // to a multiple of its page size, find what they read beside weights and KV.
  void reserve(int rows) const { workspace(rows); }
  void begin_round(const KvCache& cache) const;
  // Takes the memory in which prompts of caches of such a chunk and capacity are read; else they
  // take it as they come.
  void reserve_prefill(const KvShape& shape, int chunk, int capacity) const;

  // A prompt on its way into a cache with the target's weights, chunk by chunk, layer by layer
  // within a chunk (section 4 of docs/design.md), in slices between which others may use the model.
  // Of all that live, one at a time may be inside a chunk. Abandoned inside one, it leaves the
  // cache empty.
  class Prefill {
   public:
    // tokens: the whole text from position 0 on, which outlives this; what the cache keeps of it
    // (KvCache::begin_prompt) is not read again. logits: [vocab_size] in the backend's memory, of
    // the last token, when done().
    Prefill(const Model& model, std::span<const TokenId> tokens, KvCache& cache, float* logits);
    ~Prefill();
    Prefill(const Prefill&) = delete;
    Prefill& operator=(const Prefill&) = delete;

    // Who wants the logits of every token that is read, some rows at a time.
    struct EachLogits {
      // Where they go, in the backend's memory: [kMaxDraftLen + 1, vocab_size].
      std::function<float*()> room;
      // There are those of the token at `position` and of `count` - 1 behind it.
      std::function<void(int position, int count, const float* logits)> take;
    };
    void tell_logits(EachLogits each);  // before the first step()
    // Before the first step(): what the tail has of the chunk that begins at its start, up to
    // `end`, is not computed again. REQUIRES: the tokens up to there are the tail's; nobody is told
    // logits.
    void take(std::shared_ptr<const PromptTail> tail, int end);
    // Before the last chunk: where its end goes to.
    void save(std::shared_ptr<PromptTail> tail) { saved_ = std::move(tail); }

    bool done() const { return !chunk_ && cache_.length() == std::ssize(tokens_); }
    bool inside_chunk() const { return chunk_.has_value(); }
    // The share of the tokens that are read, in [0, 1].
    double share() const;
    // Computes a slice: some rows of one layer, of the output layer too where all logits are
    // wanted, at most so many. A backend may compute it later (Memory::synchronize). REQUIRES:
    // !done(), most_rows >= 1.
    void step(int most_rows = std::numeric_limits<int>::max());
    // How much the slice computes that the next step() of at most so many rows makes: products of
    // two numbers, those of attention too, which grow with the position. REQUIRES: !done().
    double products(int most_rows) const;

   private:
    int next_count() const;
    void begin_chunk();
    void end_layer();
    void tell_rows(int most_rows);
    int num_stages() const;  // layers, and the output layer where all logits are wanted
    void end_chunk();
    bool is_last_chunk() const { return first_ + count_ == std::ssize(tokens_); }

    const Model& model_;
    std::span<const TokenId> tokens_;
    KvCache& cache_;
    float* logits_;
    std::optional<EachLogits> each_logits_;
    int start_ = 0;  // of what is read
    std::optional<KvCache::Chunk> chunk_;
    int first_ = 0;  // of the chunk
    int count_ = 0;
    int layer_ = 0;
    int row_ = 0;              // of the chunk: those before it went through the layer
    int kept_ = 0;             // rows of the chunk that are in the tail
    int unpacked_layer_ = -1;  // of the chunk, whose pages are unpacked
    std::shared_ptr<const PromptTail> tail_;
    int tail_end_ = 0;
    std::shared_ptr<PromptTail> saved_;
    std::vector<float> queries_;
  };

  // All of a prefill. `progress` gets share() and may throw to cancel; the cache is good for
  // clear() only then. logits: [vocab_size], of the last token.
  using Progress = std::function<void(double)>;
  void prefill(std::span<const TokenId> tokens, KvCache& cache, std::span<float> logits,
               const Progress& progress = {}) const;
  // The same, with the logits in the backend's memory.
  void prefill(std::span<const TokenId> tokens, KvCache& cache, float* logits,
               const Progress& progress = {}) const;

  // Bytes of the rotation angles that decoding reads, of caches of this capacity.
  static std::size_t angle_bytes(const ModelConfig& config, int capacity);
  // What passes of rounds of so many sequences take beyond prefill_bytes(): more rows, logits that
  // the host wants, and what the backend takes for itself (PassOps::pass_scratch_bytes).
  // mass_pages: those that a sequence may have, where drafts choose some by mass; else 0.
  static std::size_t pass_bytes(const ModelConfig& config, const Backend& backend,
                                const KvShape& shape, int sequences, int mass_pages);
  // Bytes of a prefill beside the cache: a chunk's activations, its K and V of one layer, the
  // backend's scratch, what pages of a prompt of `context` tokens are unpacked to. chunk: the
  // cache's, as in KvOptions.
  static std::size_t prefill_bytes(const ModelConfig& config, const Backend& backend,
                                   const KvShape& shape, int context, int chunk = 0);
  // What a backend takes for itself in prefill of so many rows at a time follows from these.
  static PrefillSizes prefill_sizes(const ModelConfig& config, int rows);

 private:
  struct Workspace;  // activations of a bounded number of rows
  struct Rows;       // the rows of one op
  Workspace& workspace(int rows) const;
  void require_tokens(std::span<const TokenId> tokens) const;
  void make_angles(int first_position, int end, int capacity) const;
  // choose: lists of pages by mass are chosen anew.
  void run(std::span<SequenceRows> sequences, std::span<const KvCache* const> caches, int num_rows,
           const Plan& plan, bool choose, float* logits, LinearObserver* observer = nullptr) const;
  void attention_inputs(const Rows& rows, int layer, float* q,
                        std::span<const SequenceRows> sequences) const;
  void after_attention(const Rows& rows, int layer, const float* attention, float* hidden) const;
  void head(const float* x, int rows, WeightRead weights, float* logits, OpOrder order) const;
  Rows chunk_rows(const KvShape& shape, int first, int count) const;

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
