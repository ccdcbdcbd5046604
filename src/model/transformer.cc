// The forward pass: embed, then for every layer [norm, Q/K/V, RoPE] -> attention -> [output,
// residual] -> [norm, gate and up, activation] -> [down, residual], then [norm, head]. `forward`
// runs a few rows of each sequence in decoding; a prefill (prefill.cc) runs the chunks of a prompt.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backend/params/attention.h"
#include "backend/params/limits.h"
#include "backend/params/round.h"
#include "base/error.h"
#include "base/fields.h"
#include "model/tensor_names.h"
#include "model/workspace.h"

namespace quantspec {

namespace {

// Rows that there is room for from the first pass on: more than a round of decoding has.
constexpr int kLeastRows = 32;

// Positions whose angles are made at a time.
constexpr int kAnglePositions = 256;

constexpr Norm kNoNorm = {nullptr, 0.0f};

// What a pass reads of a cache; nothing of none, or of a layer that it leaves out.
KvView view_of(const KvCache* cache, int layer, const LayerPlan& plan) {
  if (cache != nullptr && plan.run) return cache->view(layer, plan.kv);
  return {.layer = layer, .read = plan.kv.read == KvRead::kFull ? KvRead::kBoth : plan.kv.read};
}

int angle_chunks(int positions) { return (positions + kAnglePositions - 1) / kAnglePositions; }

}  // namespace

float attention_scale(const ModelConfig& config) {
  return 1.0f / std::sqrt(static_cast<float>(config.head_dim));
}

void Model::Workspace::grow(const ModelConfig& config, DeviceMemory& memory, int wanted) {
  if (wanted <= rows) return;
  const int count = std::max(wanted, kLeastRows);
  rows = 0;  // until all is there
  for (Buffer* buffer : {&x, &q, &attention, &hidden, &cos, &sin, &tokens})
    *buffer = {};  // never both
  host_tokens.reserve(count);
  sequences.reserve(count);  // of one row at least
  caches.reserve(count);
  const auto floats = [&](int columns) {
    return memory.allocate(sizeof(float) * static_cast<std::size_t>(count) * columns);
  };
  x = floats(config.hidden_size);
  q = floats(config.num_heads * config.head_dim);
  attention = floats(config.num_heads * config.head_dim);
  hidden = floats(config.intermediate_size);
  cos = floats(config.head_dim / 2);
  sin = floats(config.head_dim / 2);
  tokens = memory.allocate(sizeof(TokenId) * count);
  rows = count;
}

std::size_t Model::Workspace::bytes_for(const ModelConfig& config, int rows) {
  const std::size_t queries = static_cast<std::size_t>(config.num_heads) * config.head_dim;
  const std::size_t floats =
      config.hidden_size + 2 * queries + config.intermediate_size + 2 * (config.head_dim / 2);
  return std::max(rows, kLeastRows) * (sizeof(float) * floats + sizeof(TokenId));
}

float* Model::Workspace::logits_of(DeviceMemory& memory, std::size_t floats) {
  if (logits.size() < floats * sizeof(float)) {
    logits = {};  // never both
    logits = memory.allocate(floats * sizeof(float));
  }
  return logits.as<float>();
}

Model::Model(ModelConfig config, Weights weights, Backend& backend, int context)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(backend),
      rope_(config_, context > 0 ? context : config_.max_positions),
      workspace_(std::make_shared<Workspace>()) {}

Model::Workspace& Model::workspace(int rows) const {
  workspace_->grow(config_, backend_, rows);
  return *workspace_;
}

void Model::forward(std::span<const SequenceInput> batch, const Plan& plan, std::span<float> logits,
                    LinearObserver* observer) const {
  check(!batch.empty(), "a forward has a sequence");
  int num_rows = 0;
  for (const SequenceInput& input : batch) num_rows += static_cast<int>(input.tokens.size());
  check(logits.size() == static_cast<std::size_t>(num_rows) * config_.vocab_size,
        "logits have the wrong size");

  Workspace& work = workspace(num_rows);
  work.host_tokens.clear();
  work.sequences.clear();
  work.caches.clear();
  for (const SequenceInput& input : batch) {
    require_tokens(input.tokens);
    const int rows = static_cast<int>(input.tokens.size());
    const int first_row = static_cast<int>(work.host_tokens.size());
    check(rows <= input.cache->reserved(), "a forward runs over reserved rows");
    const int position = input.cache->length();
    work.sequences.push_back({first_row, rows, position, {}});
    work.sequences.back().tokens = work.tokens.as<TokenId>();
    work.sequences.back().first_token = position - first_row;
    work.caches.push_back(input.cache);
    work.host_tokens.insert(work.host_tokens.end(), input.tokens.begin(), input.tokens.end());
  }
  backend_.upload(work.tokens.data(), work.host_tokens.data(), num_rows * sizeof(TokenId));
  float* out = work.logits_of(backend_, logits.size());
  run(work.sequences, work.caches, num_rows, plan, /*choose=*/true, out, observer);
  backend_.download(logits.data(), out, logits.size_bytes());
}

void Model::forward(std::span<const RoundInput> batch, const RoundPass& pass, const Plan& plan,
                    float* logits) const {
  check(!batch.empty() && batch[0].cache != nullptr, "a pass has a sequence");
  Workspace& work = workspace(std::max(pass.num_rows, static_cast<int>(batch.size())));
  work.sequences.clear();
  work.caches.clear();
  int first_row = 0;
  for (const RoundInput& input : batch) {
    work.sequences.push_back({.first_row = first_row, .num_rows = input.num_rows, .kv = {}});
    work.caches.push_back(input.cache);
    SequenceRows& rows = work.sequences.back();
    rows.lane = pass.first_lane + static_cast<int>(work.sequences.size()) - 1;
    rows.verifies = pass.verifies;
    rows.drafted = pass.drafted;
    first_row += input.num_rows;
    if (input.cache == nullptr) continue;
    rows.first_position = input.cache->length() + pass.drafted;
    rows.tokens = input.at->tokens;
  }
  check(first_row <= pass.num_rows, "a pass has the rows of its lanes");
  run(work.sequences, work.caches, pass.num_rows, plan, pass.drafted == 0, logits);
}

std::span<const KvView> Model::views(const KvCache& cache, const Plan& plan) const {
  std::vector<KvView>& views = workspace_->views;
  views.resize(config_.num_layers);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    views[layer] = view_of(&cache, layer, plan.layers[layer]);
  }
  return views;
}

void Model::begin_round(const KvCache& cache) const {
  make_angles(cache.length(), cache.length() + std::min(cache.max_rows(), cache.shape().page_size),
              cache.capacity());
}

// All layers over rows that the caches have reserved.
void Model::run(std::span<SequenceRows> sequences, std::span<const KvCache* const> caches,
                int num_rows, const Plan& plan, bool choose, float* logits,
                LinearObserver* observer) const {
  check(std::ssize(plan.layers) == config_.num_layers, "a plan has every layer");
  Workspace& work = *workspace_;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].num_rows == 0) continue;
    const int first = sequences[s].first_position;
    make_angles(first, first + sequences[s].num_rows, caches[s]->capacity());
  }
  auto* x = work.x.as<float>();
  backend_.embed({.sequences = sequences,
                  .table = weights_.embedding(),
                  .out = x,
                  .page_size = caches[0]->shape().page_size,
                  .num_rows = num_rows,
                  .cos_table = work.cos_table.as<float>(),
                  .sin_table = work.sin_table.as<float>(),
                  .half = config_.head_dim / 2,
                  .cos = work.cos.as<float>(),
                  .sin = work.sin.as<float>()});
  Rows rows{.phase = Phase::kDecode,
            .weights = WeightRead::kTarget,
            .shape = caches[0]->shape(),
            .x = x,
            .count = num_rows,
            .cos = work.cos.as<float>(),
            .sin = work.sin.as<float>(),
            .observer = observer};
  auto* q = work.q.as<float>();
  auto* attention = work.attention.as<float>();
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerPlan& read = plan.layers[layer];
    if (!read.run) continue;
    rows.weights = read.weights;
    bool lists = false;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      sequences[s].kv = view_of(caches[s], layer, read);
      lists |= !sequences[s].kv.page_lists.empty();
    }
    // In a pass nothing writes what its ops may read early, but for lists of pages.
    const bool by_mass = lists && choose && read.kv.tokens == KvTokens::kByMass;
    const bool by_bound = lists && read.kv.tokens == KvTokens::kByBound;
    if (by_mass) backend_.select_pages({rows.shape, sequences});
    rows.observe(weights_.layers()[layer].q, weights_.layers()[layer].input_norm, x);
    rows.order = by_mass ? OpOrder::kAfter : OpOrder::kOverlaps;
    attention_inputs(rows, layer, q, sequences);
    rows.order = OpOrder::kOverlaps;
    if (by_bound) {
      backend_.page_bounds({q, config_.num_heads, rows.shape, sequences});
      backend_.select_pages({rows.shape, sequences});
    }
    backend_.attention({q, attention, config_.num_heads, rows.shape, attention_scale(config_),
                        sequences, by_bound ? OpOrder::kAfter : OpOrder::kOverlaps, num_rows});
    after_attention(rows, layer, attention, work.hidden.as<float>());
  }
  rows.observe(weights_.head(), weights_.final_norm(), x);
  head(x, num_rows, plan.head, logits, OpOrder::kOverlaps);
  weights_.require_whole();
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
  params.order = rows.order;
  backend_.qkv(params);
}

void Model::after_attention(const Rows& rows, int layer, const float* attention,
                            float* hidden) const {
  const LayerWeights& weights = weights_.layers()[layer];
  rows.observe(weights.o, kNoNorm, attention);
  backend_.add_linear(
      {rows.phase, rows.weights, attention, rows.count, &weights.o, rows.x, rows.order});
  rows.observe(weights.gate, weights.post_norm, rows.x);
  backend_.gate_up({rows.phase, rows.weights, rows.x, rows.count, weights.post_norm, &weights.gate,
                    &weights.up, hidden, rows.order});
  rows.observe(weights.down, kNoNorm, hidden);
  backend_.add_linear(
      {rows.phase, rows.weights, hidden, rows.count, &weights.down, rows.x, rows.order});
}

bool Model::reads(const Plan& plan) const {
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers()[i];
    if (!plan.layers[i].run) continue;
    for (const Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (!readable(*linear, plan.layers[i].weights)) return false;
    }
  }
  return readable(weights_.head(), plan.head);
}

void Model::require_weights(const Plan& plan) const {
  if (reads(plan)) return;
  fail(ErrorKind::kInvalidRequest, "{} {}: it reads other weights than drafts can here: {}",
       field::kPlan, plan.name, weights_.draft_description());
}

void Model::require_tokens(std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    check(token >= 0 && token < config_.vocab_size, "a token id is outside the vocabulary");
  }
}

// Makes sure that the tables have the angles of the positions [first_position, end).
void Model::make_angles(int first_position, int end, int capacity) const {
  Workspace& work = *workspace_;
  const std::size_t half = config_.head_dim / 2;
  if (work.positions < capacity) {
    const int chunks = angle_chunks(capacity);
    const std::size_t floats = static_cast<std::size_t>(chunks) * kAnglePositions * half;
    work.positions = 0;  // until all is there
    work.cos_table = backend_.allocate(floats * sizeof(float));
    work.sin_table = backend_.allocate(floats * sizeof(float));
    work.made.assign(chunks, 0);
    work.host_cos.resize(kAnglePositions * half);
    work.host_sin.resize(kAnglePositions * half);
    work.positions = chunks * kAnglePositions;
  }
  for (int chunk = first_position / kAnglePositions; chunk * kAnglePositions < end; ++chunk) {
    if (work.made[chunk]) continue;
    const int begin = chunk * kAnglePositions;
    rope_.tables(begin, kAnglePositions, work.host_cos.data(), work.host_sin.data());
    const std::size_t bytes = work.host_cos.size() * sizeof(float);
    backend_.upload(work.cos_table.as<float>() + begin * half, work.host_cos.data(), bytes);
    backend_.upload(work.sin_table.as<float>() + begin * half, work.host_sin.data(), bytes);
    work.made[chunk] = 1;
  }
}

void Model::head(const float* x, int rows, WeightRead weights, float* logits, OpOrder order) const {
  backend_.head({weights, x, rows, weights_.final_norm(), &weights_.head(), logits, order});
}

std::size_t Model::angle_bytes(const ModelConfig& config, int capacity) {
  const std::size_t positions = static_cast<std::size_t>(angle_chunks(capacity)) * kAnglePositions;
  return sizeof(float) * positions * config.head_dim;
}

PrefillSizes Model::prefill_sizes(const ModelConfig& config, int rows) {
  const std::size_t row_floats =
      static_cast<std::size_t>(config.hidden_size) + config.intermediate_size +
      2 * static_cast<std::size_t>(config.num_kv_heads) * config.head_dim;
  return {.inputs = std::max(
              {config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim}),
          .row_floats = rows * row_floats,
          .ranks = config.ranks};
}

std::size_t Model::prefill_bytes(const ModelConfig& config, const Backend& backend,
                                 const KvShape& shape, int context, int chunk) {
  if (chunk == 0) chunk = backend.prefill_chunk();
  const std::size_t per_token =
      sizeof(float) * (static_cast<std::size_t>(config.hidden_size) + config.head_dim) +
      sizeof(TokenId);
  return per_token * chunk + Workspace::bytes_for(config, backend.prefill_rows()) +
         KvCache::chunk_scratch_bytes(shape, backend, chunk) +
         (context > chunk ? backend.unpacked_bytes(shape, context) : 0) +
         backend.scratch_bytes(prefill_sizes(config, backend.prefill_rows()));
}

std::size_t Model::pass_bytes(const ModelConfig& config, const Backend& backend,
                              const KvShape& shape, int sequences, int mass_pages) {
  constexpr int kRows = kMaxDraftLen + 1;
  const std::size_t rows = Workspace::bytes_for(config, backend.padded(sequences * kRows));
  const std::size_t of_prefill = Workspace::bytes_for(config, backend.prefill_rows());
  const std::size_t logits = sizeof(float) * kRows * static_cast<std::size_t>(config.vocab_size);
  return rows - std::min(rows, of_prefill) + logits +
         backend.pass_scratch_bytes({.sequences = sequences,
                                     .rows = kRows,
                                     .hidden = config.hidden_size,
                                     .queries = config.num_heads * config.head_dim,
                                     .keys = config.num_kv_heads * config.head_dim,
                                     .intermediate = config.intermediate_size,
                                     .head = head_rows(config),
                                     .ranks = config.ranks,
                                     .shape = shape,
                                     .mass_pages = mass_pages});
}

KvShape kv_shape(const ModelConfig& config, int page_size) {
  constexpr std::array kPageSizes = {32, 64, 128, 256};
  if (page_size == 0) page_size = config.head_dim == 64 ? 64 : 128;
  if (std::find(kPageSizes.begin(), kPageSizes.end(), page_size) == kPageSizes.end()) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are 32, 64, 128 and 256", field::kPageSize,
         page_size);
  }
  return {config.num_layers, config.num_kv_heads,  config.head_dim,
          page_size,         config.context_ranks, config.context_rank};
}

}  // namespace quantspec
