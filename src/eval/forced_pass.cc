#include "eval/forced_pass.h"

#include <algorithm>
#include <utility>

#include "backend/params/view.h"
#include "base/error.h"
#include "eval/memory.h"
#include "rivals/rivals.h"

namespace quantspec {

std::vector<TokenId> whole_text(const Prompt& prompt) {
  check(prompt.continuation.size() >= 2, "a prompt has a true continuation");
  std::vector<TokenId> tokens = prompt.tokens;
  tokens.insert(tokens.end(), prompt.continuation.begin(), prompt.continuation.end());
  return tokens;
}

ForcedPass::ForcedPass(const EvalModel& model, int capacity, const Variant& variant)
    : model_(model.model),
      variant_(variant),
      cache_(model.model.backend(), model.pool, capacity, kv_options(variant)) {
  check(!variant.codec || variant.store == KvStore::kFull, "a codec simulates on a full cache");
}

ForcedPass::ForcedPass(const ForcedPass& other, const Variant& variant)
    : model_(other.model_), variant_(variant), cache_(other.cache_.fork({})) {
  check(other.shares_prompt(variant), "only equal caches share a prompt");
}

bool ForcedPass::shares_prompt(const Variant& variant) const {
  return coded_ == 0 && variant.store == variant_.store && variant.chunk == variant_.chunk &&
         variant.plan.target_full_layers == variant_.plan.target_full_layers &&
         kv_options(variant).accesses.empty();
}

void ForcedPass::prefill(std::span<const TokenId> tokens, const Model::Progress& progress) {
  std::vector<float> logits(model_.config().vocab_size);
  model_.prefill(tokens, cache_, logits, progress);
}

int ForcedPass::max_rows() const {
  const int page_size = cache_.shape().page_size;
  return std::min({page_size - cache_.length() % page_size, kMaxForcedRows,
                   cache_.capacity() - cache_.length()});
}

void ForcedPass::forward(std::span<const TokenId> tokens, std::span<float> logits) {
  const int rows = static_cast<int>(tokens.size());
  cache_.reserve(rows);
  if (variant_.codec) quantize_what_left_the_ring();
  const SequenceInput input{tokens, &cache_};
  model_.forward({&input, 1}, variant_.plan, logits);
  cache_.settle(rows);
}

void ForcedPass::quantize_what_left_the_ring() {
  const KvShape& shape = cache_.shape();
  const int end = first_full_position(cache_.length(), shape.page_size);
  for (; coded_ < end; coded_ += shape.page_size) {
    for (int layer = 0; layer < shape.num_layers; ++layer) quantize_page(layer, coded_);
  }
}

void ForcedPass::quantize_page(int layer, int first_position) {
  const KvShape& shape = cache_.shape();
  const FullKv kv = cache_.view(layer, variant_.plan.layers[layer].kv).full;
  const std::size_t dim = shape.head_dim;
  std::vector<float> keys(shape.page_size * dim), values(shape.page_size * dim);
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    model_.backend().read_full_kv(shape, kv, head, first_position, shape.page_size, keys.data(),
                                  values.data());
    quantize_and_read(*variant_.codec, shape, keys.data(), values.data());
    model_.backend().write_full_kv(shape, kv, head, first_position, shape.page_size, keys.data(),
                                   values.data());
  }
}

// --- variants against the first ------------------------------------------------------------------

std::vector<std::unique_ptr<ForcedPass>> open_passes(const EvalModel& model,
                                                     const std::vector<Variant>& variants,
                                                     std::span<const TokenId> tokens, int prompt,
                                                     const Model::Progress& progress) {
  std::vector<std::unique_ptr<ForcedPass>> passes;
  for (const Variant& variant : variants) {
    check(model.model.reads(variant.plan), "the weights that a variant reads are there");
    const auto like = std::ranges::find_if(
        passes, [&](const auto& pass) { return prompt > 0 && pass->shares_prompt(variant); });
    if (like != passes.end()) {
      passes.push_back(std::make_unique<ForcedPass>(**like, variant));
      continue;
    }
    const int capacity = static_cast<int>(tokens.size());
    passes.push_back(std::make_unique<ForcedPass>(model, capacity, variant));
    if (prompt > 0) passes.back()->prefill(tokens.first(prompt), progress);
  }
  return passes;
}

std::vector<std::vector<Score>> score_variants(const EvalModel& model,
                                               const std::vector<Variant>& variants,
                                               std::span<const TokenId> tokens, int prompt,
                                               int first_scored, const Model::Progress& progress) {
  // The prompt counts for as much as a few tokens: prefill is fast.
  const auto passes = open_passes(model, variants, tokens, prompt, [&](double) {
    if (progress) progress(0);
  });
  return score_passes(passes, tokens, prompt, first_scored, progress);
}

std::vector<std::vector<Score>> score_passes(std::span<const std::unique_ptr<ForcedPass>> passes,
                                             std::span<const TokenId> tokens, int prompt,
                                             int first_scored, const Model::Progress& progress) {
  const int end = static_cast<int>(tokens.size()) - 1;
  check(prompt <= first_scored && first_scored < end, "there are tokens to score");
  const std::size_t vocab = passes[0]->model().config().vocab_size;
  std::vector<float> logits(kMaxForcedRows * vocab);
  std::vector<Distribution> reference(kMaxForcedRows);
  Distribution other;
  std::vector<std::vector<Score>> scores(passes.size());
  for (int position = prompt; position < end;) {
    const int rows = std::min(passes[0]->max_rows(), end - position);
    for (std::size_t v = 0; v < passes.size(); ++v) {
      passes[v]->forward(tokens.subspan(position, rows), std::span(logits).first(rows * vocab));
      for (int row = std::max(0, first_scored - position); row < rows; ++row) {
        Distribution& at = v == 0 ? reference[row] : other;
        at.assign(std::span(logits).subspan(row * vocab, vocab));
        scores[v].push_back(compare(reference[row], at, tokens[position + row + 1]));
      }
    }
    position += rows;
    if (progress) progress(static_cast<double>(position - prompt) / (end - prompt));
  }
  for (const auto& pass : passes) pass->model().weights().require_unchanged();
  return scores;
}

// --- drafts against the target -------------------------------------------------------------------

namespace {

Plan without_mass(Plan target) {
  for (LayerPlan& layer : target.layers) layer.kv.record_mass = false;
  return target;
}

KvOptions cache_options(const EvalModel& model, const std::vector<Plan>& plans, int chunk) {
  KvOptions options = kv_options(plans);
  options.chunk = chunk;
  return with_rivals(options, model.model.backend(), model.pool.shape());
}

// One sequence on which plans draft one token at a time.
class DraftTrial {
 public:
  DraftTrial(const EvalModel& model, const std::vector<Plan>& plans,
             std::span<const TokenId> tokens, const TrialOptions& options)
      : model_(model.model),
        plans_(plans),
        tokens_(tokens),
        cache_(model.model.backend(), model.pool, static_cast<int>(tokens.size()),
               cache_options(model, plans, options.chunk)),
        target_(Plan::target(model.model.config().num_layers, plans.front().target_full_layers)),
        silent_target_(without_mass(target_)),
        round_(options.round),
        records_mass_(std::ranges::any_of(plans, &Plan::chooses_by_mass)),
        logits_(static_cast<std::size_t>(options.round) * model.model.config().vocab_size) {
    for (const Plan& plan : plans)
      check(model_.reads(plan), "the weights that drafts read are there");
  }

  void prefill(int prompt, const Model::Progress& progress) {
    model_.prefill(tokens_.first(prompt), cache_, row(1), progress);
  }

  // The next tokens, at most a round of them and at most `limit`, each drafted after by every plan.
  int step(int limit, std::vector<std::vector<Score>>& scores) {
    const int begin = cache_.length();
    const int rows = std::min({round_, cache_.max_rows(), limit});
    for (int position = begin; position < begin + rows; ++position) {
      cache_.reserve(1);
      score(position, scores);
      cache_.settle(1);
    }
    if (records_mass_) {  // as the verification of a round would
      cache_.truncate(begin);
      cache_.reserve(rows);
      forward(begin, rows, target_);
      cache_.settle(rows);
      cache_.mass_recorded();
    }
    return rows;
  }

 private:
  std::span<float> row(int rows) {
    return std::span(logits_).first(static_cast<std::size_t>(rows) * model_.config().vocab_size);
  }

  void forward(int position, int rows, const Plan& plan) {
    const SequenceInput input{tokens_.subspan(position, rows), &cache_};
    model_.forward({&input, 1}, plan, row(rows));
  }

  void score(int position, std::vector<std::vector<Score>>& scores) {
    drafts_.resize(plans_.size());
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      forward(position, 1, plans_[i]);
      drafts_[i].assign(row(1));
    }
    forward(position, 1, silent_target_);
    reference_.assign(row(1));
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      scores[i].push_back(compare(reference_, drafts_[i], tokens_[position + 1]));
    }
  }

  const Model& model_;
  const std::vector<Plan>& plans_;
  std::span<const TokenId> tokens_;
  KvCache cache_;
  Plan target_;
  Plan silent_target_;
  int round_;
  bool records_mass_;
  std::vector<float> logits_;
  Distribution reference_;
  std::vector<Distribution> drafts_;
};

}  // namespace

std::vector<std::vector<Plan>> by_target(const std::vector<Plan>& plans) {
  std::vector<std::vector<Plan>> groups;
  for (const Plan& plan : plans) {
    const bool shared =
        !groups.empty() && groups.back().front().target_full_layers == plan.target_full_layers;
    if (!shared) groups.emplace_back();
    groups.back().push_back(plan);
  }
  return groups;
}

std::vector<std::vector<Score>> score_drafts(const EvalModel& model, const std::vector<Plan>& plans,
                                             std::span<const TokenId> tokens, int prompt,
                                             const TrialOptions& options,
                                             const Model::Progress& progress) {
  check(!plans.empty() && options.round >= 1, "there are plans and a round");
  const int end = static_cast<int>(tokens.size()) - 1;
  check(prompt >= 1 && prompt < end, "there are tokens to draft after");
  DraftTrial trial(model, plans, tokens, options);
  trial.prefill(prompt, [&](double) {
    if (progress) progress(0);
  });
  std::vector<std::vector<Score>> scores(plans.size());
  for (int position = prompt; position < end;) {
    position += trial.step(end - position, scores);
    if (progress) progress(static_cast<double>(position - prompt) / (end - prompt));
  }
  model.model.weights().require_unchanged();
  return scores;
}

}  // namespace quantspec
