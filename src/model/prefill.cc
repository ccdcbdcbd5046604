// Prompts, chunk by chunk. A slice is some rows of one layer: Q, K and V, attention, and the rest
// of the layer, before the next rows begin. The rows that a slice reads are those before it in the
// chunk, whose K and V are there, and the chunks before, in pages.
#include <algorithm>

#include "backend/params/attention.h"
#include "backend/params/limits.h"
#include "base/error.h"
#include "kv_cache/prompt_tails.h"
#include "model/workspace.h"

namespace quantspec {

Model::Prefill::Prefill(const Model& model, std::span<const TokenId> tokens, KvCache& cache,
                        float* logits)
    : model_(model), tokens_(tokens), cache_(cache), logits_(logits) {
  model.require_tokens(tokens);
  start_ = cache.begin_prompt(static_cast<int>(tokens.size()));
}

void Model::Prefill::tell_logits(EachLogits each) {
  check(!chunk_ && cache_.length() == start_, "nothing is read yet");
  each_logits_ = std::move(each);
}

void Model::Prefill::take(std::shared_ptr<const PromptTail> tail, int end) {
  check(!chunk_ && !each_logits_ && end < std::ssize(tokens_),
        "a tail is for what is not read yet");
  tail_ = std::move(tail);
  tail_end_ = end;
}

Model::Prefill::~Prefill() {
  if (chunk_) model_.workspace_->chunk.in_use = false;
}

double Model::Prefill::share() const {
  const double rows = chunk_ ? (layer_ * 1.0 * count_ + row_) / num_stages() : 0;
  return (cache_.length() - start_ + rows) / (static_cast<double>(tokens_.size()) - start_);
}

void Model::reserve_prefill(const KvShape& shape, int chunk, int capacity) const {
  Workspace::Chunk& space = workspace_->chunk;
  const int rows = std::min(chunk, backend_.prefill_rows());
  workspace(rows);
  backend_.reserve_scratch(prefill_sizes(config_, rows));
  if (space.rows < chunk) {
    space.rows = 0;  // until all is there
    const auto floats = [&](std::size_t columns) {
      return backend_.allocate(sizeof(float) * columns * chunk);
    };
    space.x = floats(config_.hidden_size);
    space.cos = floats(config_.head_dim / 2);
    space.sin = floats(config_.head_dim / 2);
    space.tokens = backend_.allocate(sizeof(TokenId) * chunk);
    space.kv = backend_.allocate(KvCache::chunk_scratch_bytes(shape, backend_, chunk));
    space.rows = chunk;
  }
  const std::size_t unpacked = capacity > chunk ? backend_.unpacked_bytes(shape, capacity) : 0;
  if (space.unpacked.size() < unpacked) {
    space.unpacked = {};  // never both
    space.unpacked = backend_.allocate(unpacked);
  }
}

// Tokens of the chunk to come.
int Model::Prefill::next_count() const {
  return std::min<int>(cache_.chunk(), static_cast<int>(tokens_.size()) - cache_.length());
}

// The tokens' rows of the embedding and their angles.
void Model::Prefill::begin_chunk() {
  Workspace::Chunk& space = model_.workspace_->chunk;
  check(!space.in_use, "one prompt at a time is inside a chunk");
  Backend& backend = model_.backend_;
  const ModelConfig& config = model_.config_;
  first_ = cache_.length();
  const bool unpacks = first_ > 0 && cache_.store() != KvStore::kFull;
  model_.reserve_prefill(cache_.shape(), cache_.chunk(), unpacks ? cache_.capacity() : 0);
  count_ = next_count();
  chunk_.emplace(cache_, count_, space.kv.data());
  space.in_use = true;
  kept_ = tail_ && tail_->start() == first_ ? tail_end_ - first_ : 0;
  layer_ = 0;
  row_ = kept_;
  unpacked_layer_ = -1;
  model_.make_angles(first_, first_ + count_, cache_.capacity());
  backend.upload(space.tokens.data(), &tokens_[first_], count_ * sizeof(TokenId));
  SequenceRows rows{0, count_, first_, {}};
  rows.tokens = space.tokens.as<TokenId>();
  rows.first_token = first_;
  backend.embed({.sequences = {&rows, 1},
                 .table = model_.weights_.embedding(),
                 .out = space.x.as<float>(),
                 .cos_table = model_.workspace_->cos_table.as<float>(),
                 .sin_table = model_.workspace_->sin_table.as<float>(),
                 .half = config.head_dim / 2,
                 .cos = space.cos.as<float>(),
                 .sin = space.sin.as<float>()});
}

// Rows [first, first + count) of the chunk.
Model::Rows Model::chunk_rows(const KvShape& shape, int first, int count) const {
  Workspace::Chunk& space = workspace_->chunk;
  const std::size_t half = config_.head_dim / 2;
  return {.phase = Phase::kPrefill,
          .weights = WeightRead::kTarget,
          .shape = shape,
          .x = space.x.as<float>() + static_cast<std::size_t>(first) * config_.hidden_size,
          .count = count,
          .cos = space.cos.as<float>() + first * half,
          .sin = space.sin.as<float>() + first * half};
}

void Model::Prefill::step(int most_rows) {
  check(!done(), "a prefill ends");
  if (!chunk_) begin_chunk();
  const ModelConfig& config = model_.config_;
  if (layer_ == config.num_layers) return tell_rows(most_rows);
  Backend& backend = model_.backend_;
  const KvShape& shape = cache_.shape();
  if (row_ == kept_) {  // before the layer changes x
    if (kept_ > 0) chunk_->take(layer_, *tail_, kept_);
    const int wanted = chunk_->query_rows();
    queries_.resize(static_cast<std::size_t>(wanted) * config.num_heads * config.head_dim);
    if (wanted > 0) {
      Buffer q = backend.allocate(queries_.size() * sizeof(float));
      model_.attention_inputs(model_.chunk_rows(shape, count_ - wanted, wanted), layer_,
                              q.as<float>(), {});
      backend.download(queries_.data(), q.data(), q.size());
    }
  }
  const int rows = std::min({backend.prefill_rows(), count_ - row_, most_rows});
  Workspace& work = model_.workspace(rows);
  auto* q = work.q.as<float>();
  const KvView view = chunk_->view(layer_);
  const SequenceRows keys_and_values{0, rows, first_ + row_, view};
  // After the last layer most often only the last token's row is wanted: of the others K and V, no
  // more.
  const bool all = layer_ + 1 < config.num_layers || each_logits_;
  model_.attention_inputs(model_.chunk_rows(shape, row_, rows), layer_, all ? q : nullptr,
                          {&keys_and_values, 1});
  const bool last = is_last_chunk() && row_ + rows == count_;
  if (all || last) {
    const int first = all ? row_ : count_ - 1, count = all ? rows : 1;
    const Rows wanted = model_.chunk_rows(shape, first, count);
    if (!all) model_.attention_inputs(wanted, layer_, q, {});
    backend.prefill_attention(
        {q, q, config.num_heads, shape, attention_scale(config), first_ + first, count, view,
         model_.workspace_->chunk.unpacked.data(), unpacked_layer_ != layer_});
    unpacked_layer_ = layer_;
    model_.after_attention(wanted, layer_, q, work.hidden.as<float>());
  }
  row_ += rows;
  if (row_ == count_) end_layer();
}

double Model::Prefill::products(int most_rows) const {
  constexpr double kSoftmax = 1.5;  // what a product of attention counts, with its softmax
  const ModelConfig& config = model_.config_;
  const int first = chunk_ ? first_ : cache_.length();
  const int left = (chunk_ ? count_ : next_count()) - row_;
  const double rows = std::min({model_.backend_.prefill_rows(), left, most_rows});
  const double hidden = config.hidden_size, head = config.head_dim;
  const double keys_and_values = 2 * hidden * config.num_kv_heads * head;
  if (chunk_ && layer_ == config.num_layers) return rows * hidden * config.vocab_size;
  if (chunk_ && layer_ + 1 == config.num_layers && !each_logits_) return rows * keys_and_values;
  const double queries = 2 * hidden * config.num_heads * head;  // and what attention puts out
  const double position = first + row_ + rows / 2;
  const double attention = 2 * kSoftmax * position * config.num_heads * head;
  return rows * (keys_and_values + queries + attention + 3 * hidden * config.intermediate_size);
}

void Model::Prefill::end_layer() {
  if (saved_ && is_last_chunk()) chunk_->save(layer_, *saved_);
  chunk_->end_layer(layer_, queries_, model_.config_.num_heads);
  row_ = kept_;
  if (++layer_ == num_stages()) end_chunk();
}

int Model::Prefill::num_stages() const {
  return model_.config_.num_layers + (each_logits_ ? 1 : 0);
}

// By as many rows as a verification has, so that they have its bits.
void Model::Prefill::tell_rows(int most_rows) {
  for (const int end = std::min(count_, row_ + most_rows); row_ < end;) {
    const Rows rows =
        model_.chunk_rows(cache_.shape(), row_, std::min(kMaxDraftLen + 1, end - row_));
    float* const logits = each_logits_->room();
    model_.head(rows.x, rows.count, WeightRead::kTarget, logits, OpOrder::kAfter);
    each_logits_->take(first_ + row_, rows.count, logits);
    row_ += rows.count;
  }
  if (row_ == count_) end_chunk();
}

void Model::Prefill::end_chunk() {
  const bool last = is_last_chunk();
  if (last) {
    const Rows row = model_.chunk_rows(cache_.shape(), count_ - 1, 1);
    model_.head(row.x, 1, WeightRead::kTarget, logits_, OpOrder::kAfter);
  }
  model_.weights_.require_whole();
  chunk_->finish();
  chunk_.reset();
  model_.workspace_->chunk.in_use = false;
  if (last) cache_.end_prompt();
}

void Model::prefill(std::span<const TokenId> tokens, KvCache& cache, std::span<float> logits,
                    const Progress& progress) const {
  check(logits.size() == static_cast<std::size_t>(config_.vocab_size),
        "logits have the wrong size");
  float* out = workspace_->logits_of(backend_, logits.size());
  prefill(tokens, cache, out, progress);
  backend_.download(logits.data(), out, logits.size_bytes());
}

void Model::prefill(std::span<const TokenId> tokens, KvCache& cache, float* logits,
                    const Progress& progress) const {
  for (Prefill prefill(*this, tokens, cache, logits); !prefill.done();) {
    prefill.step();
    if (progress) progress(prefill.share());
  }
}

}  // namespace quantspec
