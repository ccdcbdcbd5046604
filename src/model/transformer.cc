// The forward pass: embed, then for every layer [norm, Q/K/V, RoPE] -> attention -> [output,
// residual] -> [norm, gate and up, activation] -> [down, residual], then [norm, head]. `forward`
// runs a few rows of each sequence in decoding; `prefill` runs a whole prompt, layer by layer.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "model/model.h"

namespace quantspec {

namespace {

// Rows that prefill takes through an op at once: enough to keep a GEMM busy, few enough that the
// activations beside x stay small.
constexpr int kPrefillRows = 512;

// Rows that there is room for from the first pass on: more than a round of decoding has.
constexpr int kLeastRows = 32;

float attention_scale(const ModelConfig& config) {
  return 1.0f / std::sqrt(static_cast<float>(config.head_dim));
}

}  // namespace

// Activations of `rows` tokens, grown when more rows come.
struct Model::Workspace {
  int rows = 0;
  Buffer x;          // [rows, hidden]
  Buffer q;          // [rows, num_heads * head_dim]
  Buffer attention;  // [rows, num_heads * head_dim]
  Buffer hidden;     // [rows, intermediate]
  Buffer cos;        // [rows, head_dim / 2]
  Buffer sin;
  std::vector<TokenId> tokens;
  std::vector<SequenceRows> sequences;

  void grow(const ModelConfig& config, Backend& backend, int wanted) {
    if (wanted <= rows) return;
    const int count = std::max(wanted, kLeastRows);
    rows = 0;  // until all is there
    tokens.reserve(count);
    sequences.reserve(count);  // of one row at least
    const auto floats = [&](int columns) {
      return backend.allocate(sizeof(float) * static_cast<std::size_t>(count) * columns);
    };
    x = floats(config.hidden_size);
    q = floats(config.num_heads * config.head_dim);
    attention = floats(config.num_heads * config.head_dim);
    hidden = floats(config.intermediate_size);
    cos = floats(config.head_dim / 2);
    sin = floats(config.head_dim / 2);
    rows = count;
  }
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
};

Model::Model(ModelConfig config, Weights weights, Backend& backend)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(backend),
      rope_(config_),
      workspace_(std::make_shared<Workspace>()) {}

Model::Workspace& Model::workspace(int rows) const {
  workspace_->grow(config_, backend_, rows);
  return *workspace_;
}

void Model::forward(std::span<const SequenceInput> batch, const Plan& plan,
                    std::span<float> logits) const {
  check(!batch.empty(), "a forward has a sequence");
  check(std::ssize(plan.layers) == config_.num_layers, "a plan has every layer");
  int num_rows = 0;
  for (const SequenceInput& input : batch) num_rows += static_cast<int>(input.tokens.size());
  check(logits.size() == static_cast<std::size_t>(num_rows) * config_.vocab_size,
        "logits have the wrong size");

  Workspace& work = workspace(num_rows);
  work.tokens.clear();
  work.sequences.clear();
  for (const SequenceInput& input : batch) {
    const int rows = static_cast<int>(input.tokens.size());
    const int first_row = static_cast<int>(work.tokens.size());
    work.sequences.push_back({first_row, rows, input.cache->extend(rows), {}});
    work.tokens.insert(work.tokens.end(), input.tokens.begin(), input.tokens.end());
  }
  auto* x = work.x.as<float>();
  embed(work.tokens, x);
  rope_tables(work.sequences, work);

  Rows rows{.phase = Phase::kDecode,
            .weights = WeightRead::kFull,
            .shape = batch[0].cache->shape(),
            .x = x,
            .count = num_rows,
            .cos = work.cos.as<float>(),
            .sin = work.sin.as<float>()};
  auto* q = work.q.as<float>();
  auto* attention = work.attention.as<float>();
  const std::size_t q_row = static_cast<std::size_t>(config_.num_heads) * config_.head_dim;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerPlan& read = plan.layers[layer];
    if (!read.run) continue;
    rows.weights = read.weights;
    for (std::size_t s = 0; s < batch.size(); ++s) {
      work.sequences[s].kv = batch[s].cache->view(layer, read.kv);
    }
    attention_inputs(rows, layer, q, work.sequences);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      SequenceRows& sequence = work.sequences[s];
      batch[s].cache->choose_pages(read.kv, q + sequence.first_row * q_row, config_.num_heads,
                                   sequence.kv);
    }
    backend_.attention(
        {q, attention, config_.num_heads, rows.shape, attention_scale(config_), work.sequences});
    after_attention(rows, layer, attention, work.hidden.as<float>());
  }
  head(x, num_rows, plan.head, logits);
}

void Model::prefill(std::span<const TokenId> tokens, KvCache& cache, std::span<float> logits,
                    const Progress& progress) const {
  check(logits.size() == static_cast<std::size_t>(config_.vocab_size),
        "logits have the wrong size");
  const int count = static_cast<int>(tokens.size());
  KvCache::Prefill prefill(cache, count);
  const int first = prefill.first_position();
  const int half = config_.head_dim / 2;
  const auto floats = [&](std::size_t columns) {
    return backend_.allocate(sizeof(float) * columns * count);
  };
  Buffer x = floats(config_.hidden_size), cos = floats(half), sin = floats(half);
  embed(tokens, x.as<float>());
  rope_.tables(first, count, first + count, cos.as<float>(), sin.as<float>());

  const Rows all{.phase = Phase::kPrefill,
                 .weights = WeightRead::kFull,
                 .shape = cache.shape(),
                 .x = x.as<float>(),
                 .count = count,
                 .cos = cos.as<float>(),
                 .sin = sin.as<float>()};
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const FullKv kv = prefill.begin_layer(layer);
    // Only the last token's logits are wanted: the last layer needs K and V of all, but one row.
    const int first_row = layer + 1 < config_.num_layers ? 0 : count - 1;
    const std::vector<float> queries = last_queries(all, layer, prefill.query_rows());
    prefill_layer(all, layer, kv, first, first_row, [&](int rows_done) {
      if (progress) progress((layer + static_cast<double>(rows_done) / count) / config_.num_layers);
    });
    prefill.end_layer(layer, queries, config_.num_heads);
  }
  head(x.as<float>() + static_cast<std::size_t>(count - 1) * config_.hidden_size, 1,
       WeightRead::kFull, logits);
  if (progress) progress(1.0);
  prefill.finish();
}

// The queries of the last `count` rows, before the layer changes x.
std::vector<float> Model::last_queries(const Rows& all, int layer, int count) const {
  const int first = all.count - count;
  const std::size_t half = config_.head_dim / 2;
  std::vector<float> queries(static_cast<std::size_t>(count) * config_.num_heads *
                             config_.head_dim);
  if (count == 0) return queries;
  Rows rows = all;
  rows.count = count;
  rows.x += static_cast<std::size_t>(first) * config_.hidden_size;
  rows.cos += first * half;
  rows.sin += first * half;
  attention_inputs(rows, layer, queries.data(), {});
  return queries;
}

void Model::prefill_layer(const Rows& all, int layer, FullKv kv, int first_position, int first_row,
                          const std::function<void(int)>& rows_done) const {
  const auto chunk = [&](int begin) {
    const std::size_t half = config_.head_dim / 2;
    Rows rows = all;
    rows.count = std::min(kPrefillRows, all.count - begin);
    rows.x += static_cast<std::size_t>(begin) * config_.hidden_size;
    rows.cos += begin * half;
    rows.sin += begin * half;
    return rows;
  };
  for (int begin = 0; begin < all.count; begin += kPrefillRows) {
    const Rows rows = chunk(begin);
    const SequenceRows keys_and_values{
        0, rows.count, first_position + begin, {.full = kv, .layer = layer}};
    attention_inputs(rows, layer, nullptr, {&keys_and_values, 1});
  }
  Workspace& work = workspace(std::min(kPrefillRows, all.count));
  auto* q = work.q.as<float>();
  for (int begin = first_row; begin < all.count; begin += kPrefillRows) {
    const Rows rows = chunk(begin);
    attention_inputs(rows, layer, q, {});
    backend_.prefill_attention({q, q, config_.num_heads, rows.shape, attention_scale(config_),
                                first_position + begin, rows.count, kv});
    after_attention(rows, layer, q, work.hidden.as<float>());
    rows_done(begin + rows.count);
  }
}

void Model::attention_inputs(const Rows& rows, int layer, float* q,
                             std::span<const SequenceRows> sequences) const {
  const LayerWeights& weights = weights_.layers()[layer];
  QkvParams params{};
  params.phase = rows.phase;
  params.weights = rows.weights;
  params.num_heads = config_.num_heads;
  params.shape = rows.shape;
  params.x = rows.x;
  params.num_rows = rows.count;
  params.norm = weights.input_norm;
  params.q = &weights.q;
  params.k = &weights.k;
  params.v = &weights.v;
  params.q_norm = weights.q_norm;
  params.k_norm = weights.k_norm;
  params.cos = rows.cos;
  params.sin = rows.sin;
  params.q_out = q;
  params.sequences = sequences;
  backend_.qkv(params);
}

void Model::after_attention(const Rows& rows, int layer, const float* attention,
                            float* hidden) const {
  const LayerWeights& weights = weights_.layers()[layer];
  backend_.add_linear({rows.phase, rows.weights, attention, rows.count, &weights.o, rows.x});
  backend_.gate_up({rows.phase, rows.weights, rows.x, rows.count, weights.post_norm, &weights.gate,
                    &weights.up, hidden});
  backend_.add_linear({rows.phase, rows.weights, hidden, rows.count, &weights.down, rows.x});
}

bool Model::reads(const Plan& plan) const {
  const auto has = [](const Linear& linear, WeightRead read) {
    return read == WeightRead::kFull ||
           (linear.upper != nullptr && (read == WeightRead::kUpper || linear.lower != nullptr));
  };
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers()[i];
    if (!plan.layers[i].run) continue;
    for (const Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (!has(*linear, plan.layers[i].weights)) return false;
    }
  }
  return has(weights_.head(), plan.head);
}

void Model::require_weights(const Plan& plan) const {
  if (reads(plan)) return;
  fail(ErrorKind::kInvalidRequest, "--plan {}: it reads other weights than drafts can here: {}",
       plan.name, weights_.draft_description());
}

void Model::embed(std::span<const TokenId> tokens, float* x) const {
  for (const TokenId token : tokens) {
    check(token >= 0 && token < config_.vocab_size, "a token id is outside the vocabulary");
  }
  backend_.embed({tokens, weights_.embedding(), x});
}

void Model::rope_tables(std::span<const SequenceRows> sequences, Workspace& work) const {
  const std::size_t half = config_.head_dim / 2;
  for (const SequenceRows& rows : sequences) {
    for (int i = 0; i < rows.num_rows; ++i) {
      // A row's angles depend on its own position alone, also where RoPE depends on the length.
      const int position = rows.first_position + i;
      const std::size_t offset = (rows.first_row + i) * half;
      rope_.tables(position, 1, position + 1, work.cos.as<float>() + offset,
                   work.sin.as<float>() + offset);
    }
  }
}

void Model::head(const float* x, int rows, WeightRead weights, std::span<float> logits) const {
  backend_.head({weights, x, rows, weights_.final_norm(), &weights_.head(), logits.data()});
}

std::size_t Model::activation_bytes(const ModelConfig& config, const Backend& backend,
                                    int num_tokens) {
  constexpr std::size_t kRoundRows = 33;  // logits of 17 target rows and 16 draft rows
  const std::size_t heads = static_cast<std::size_t>(config.num_heads) * config.head_dim;
  const std::size_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::size_t per_token = hidden + config.head_dim;
  const std::size_t per_chunk_row = hidden + inner + 2 * heads + config.head_dim;
  const int inputs = static_cast<int>(std::max({hidden, inner, heads}));
  const int row_floats =
      config.hidden_size + config.intermediate_size + 2 * config.num_kv_heads * config.head_dim;
  return sizeof(float) *
             (per_token * num_tokens + per_chunk_row * std::min(num_tokens, kPrefillRows) +
              kRoundRows * config.vocab_size) +
         backend.scratch_bytes(inputs, kPrefillRows * row_floats);
}

KvShape kv_shape(const ModelConfig& config, int page_size) {
  constexpr std::array kPageSizes = {32, 64, 128, 256};
  if (page_size == 0) page_size = config.head_dim == 64 ? 64 : 128;
  if (std::find(kPageSizes.begin(), kPageSizes.end(), page_size) == kPageSizes.end()) {
    fail(ErrorKind::kInvalidRequest, "--page-size {}: supported are 32, 64, 128 and 256",
         page_size);
  }
  return {config.num_layers, config.num_kv_heads, config.head_dim, page_size};
}

}  // namespace quantspec
