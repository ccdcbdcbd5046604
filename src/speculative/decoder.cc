#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

double ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0.0;
}

DraftControl make_control(const DecodingOptions& options) {
  std::vector<std::string> names;
  for (const Plan& plan : options.plans) names.push_back(plan.name);
  return DraftControl(std::move(names), options.draft_len);
}

Plan make_target(const Model& model, const KvOptions& kv) {
  return Plan::target(model.config().num_layers, kv.full_layers);
}

// Greedy without a penalty needs no distribution, only the largest logit.
bool by_argmax(const DecodingOptions& options) {
  return options.sampling.greedy() && !options.sampling.penalizes();
}

}  // namespace

double RoundStats::acceptance_rate() const { return ratio(accepted, drafted); }
double RoundStats::acceptance_per_token() const { return ratio(accepted, accepted + rejections); }
double RoundStats::tokens_per_round() const { return ratio(accepted + rounds, rounds); }
double RoundStats::draft_len_mean() const { return ratio(drafted, rounds); }

std::vector<double> RoundStats::accepted_per_position() const {
  std::vector<double> rates;
  for (std::size_t i = 0; i < drafted_at.size() && drafted_at[i] > 0; ++i) {
    rates.push_back(ratio(accepted_at[i], drafted_at[i]));
  }
  return rates;
}

RoundStats& RoundStats::operator+=(const RoundStats& other) {
  rounds += other.rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  rejections += other.rejections;
  for (std::size_t i = 0; i < drafted_at.size(); ++i) {
    drafted_at[i] += other.drafted_at[i];
    accepted_at[i] += other.accepted_at[i];
  }
  draft_seconds += other.draft_seconds;
  verify_seconds += other.verify_seconds;
  commit_seconds += other.commit_seconds;
  return *this;
}

Sequence::Sequence(const Model& model, PagePool& pool, int capacity, DecodingOptions options,
                   KvOptions kv)
    : cache_(model.backend(), pool, capacity, kv),
      target_(make_target(model, kv)),
      options_(std::move(options)),
      control_(make_control(options_)) {
  options_.sampling.validate();
  reserve();
}

Sequence::Sequence(const Sequence& other, DecodingOptions options)
    : tokens_(other.tokens_),
      cache_(other.cache_.fork(kv_options(options.plans).accesses)),
      target_(other.target_),
      options_(std::move(options)),
      control_(make_control(options_)) {
  options_.sampling.validate();
  reserve();
}

// All tokens that the cache may hold and the pending one.
void Sequence::reserve() { tokens_.reserve(static_cast<std::size_t>(cache_.capacity()) + 1); }

Sequence Sequence::fork(DecodingOptions options) const {
  return Sequence(*this, std::move(options));
}

void Sequence::clear() {
  tokens_.clear();
  cache_.clear();
}

void Sequence::set_options(DecodingOptions options) {
  options.sampling.validate();
  const bool same_drafts =
      options.draft_len == options_.draft_len && options.plans == options_.plans;
  options_ = std::move(options);
  if (!same_drafts) control_ = make_control(options_);  // else what it has measured still holds
  stats_ = {};
}

void Sequence::truncate(std::size_t count) {
  check(count >= 1 && count <= tokens_.size(), "a sequence is truncated to one token or more");
  tokens_.resize(count);
  cache_.truncate(static_cast<int>(count) - 1);
}

Decoder::Decoder(const Model& model) : model_(model) {
  const std::size_t vocab = model.config().vocab_size;
  target_rows_.resize((DraftControl::kMaxDraftLen + 1) * vocab);
  draft_rows_.resize(DraftControl::kMaxDraftLen * vocab);
}

std::span<float> Decoder::row(std::vector<float>& rows, int index) const {
  const std::size_t vocab = model_.config().vocab_size;
  return std::span(rows).subspan(index * vocab, vocab);
}

ProbsView Decoder::view(const std::vector<float>& rows, int count) const {
  return {rows.data(), count, model_.config().vocab_size};
}

TokenId Decoder::prefill(Sequence& sequence, std::span<const TokenId> prompt,
                         const Model::Progress& progress) {
  std::vector<TokenId>& tokens = sequence.tokens_;
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  const auto added = std::span<const TokenId>(tokens).subspan(sequence.cache_.length());
  check(!added.empty(), "a prefill needs a token");
  const std::span<float> logits = row(target_rows_, 0);
  try {
    model_.prefill(added, sequence.cache_, logits, progress);
    tokens.push_back(choose(sequence, logits));
  } catch (...) {
    sequence.clear();
    throw;
  }
  return tokens.back();
}

TokenId Decoder::choose(const Sequence& sequence, std::span<float> logits) {
  const DecodingOptions& options = sequence.options_;
  if (by_argmax(options)) return argmax(logits);
  to_probabilities(options.sampling, sequence.tokens_, logits, scratch_);
  return accept(options.spec_sampling, {nullptr, 0, 0},
                {logits.data(), 1, model_.config().vocab_size}, {},
                CounterRng(options.sampling.seed),
                static_cast<std::int64_t>(sequence.tokens_.size()))
      .next;
}

Decoder::Step Decoder::step(Sequence& sequence, int max_tokens) {
  check(max_tokens >= 1 && max_tokens <= sequence.room(), "a step needs room for its tokens");
  RoundStats& stats = sequence.stats_;
  const Stopwatch commit_clock;
  sequence.cache_.commit();
  stats.commit_seconds += commit_clock.seconds();

  const int cap = std::min(max_tokens, sequence.cache_.max_extend()) - 1;
  const DraftChoice choice = sequence.control_.choose(cap);
  const std::size_t first_new = sequence.tokens_.size();

  const Stopwatch draft_clock;
  draft(sequence, choice);
  const double draft_seconds = draft_clock.seconds();
  const Stopwatch verify_clock;
  const Acceptance result = verify(sequence, choice.draft_len);
  const double verify_seconds = verify_clock.seconds();

  sequence.tokens_.resize(first_new + result.accepted);
  sequence.tokens_.push_back(result.next);
  sequence.cache_.truncate(static_cast<int>(sequence.tokens_.size()) - 1);

  sequence.control_.observe({choice, result.accepted, draft_seconds, verify_seconds});
  ++stats.rounds;
  stats.drafted += choice.draft_len;
  stats.accepted += result.accepted;
  stats.rejections += result.accepted < choice.draft_len;
  for (int i = 0; i < choice.draft_len; ++i) ++stats.drafted_at[i];
  for (int i = 0; i < result.accepted; ++i) ++stats.accepted_at[i];
  stats.draft_seconds += draft_seconds;
  stats.verify_seconds += verify_seconds;
  return {std::span<const TokenId>(sequence.tokens_).subspan(first_new), result.accepted, choice};
}

// Appends draft_len proposed tokens; the cache is rewound to where it was.
void Decoder::draft(Sequence& sequence, DraftChoice choice) {
  const DecodingOptions& options = sequence.options_;
  const int length = sequence.cache_.length();
  if (choice.draft_len == 0) return;
  const Plan& plan = options.plans[choice.plan];
  for (int i = 0; i < choice.draft_len; ++i) {
    const TokenId last = sequence.tokens_.back();
    const SequenceInput input{{&last, 1}, &sequence.cache_};
    // Rejection needs every distribution that was drawn from; the other rules only the tokens.
    const bool keep = options.spec_sampling == SpecSampling::kRejection && !by_argmax(options);
    const std::span<float> probs = row(draft_rows_, keep ? i : 0);
    model_.forward({&input, 1}, plan, probs);
    const auto position = static_cast<std::int64_t>(sequence.tokens_.size());
    if (by_argmax(options)) {
      sequence.tokens_.push_back(argmax(probs));
      continue;
    }
    to_probabilities(options.sampling, sequence.tokens_, probs, scratch_);
    sequence.tokens_.push_back(
        draft_token(options.spec_sampling, probs, CounterRng(options.sampling.seed), position));
  }
  sequence.cache_.truncate(length);
}

// Judges the last draft_len tokens with one target pass over them and the token before.
Acceptance Decoder::verify(Sequence& sequence, int draft_len) {
  const DecodingOptions& options = sequence.options_;
  const std::span<const TokenId> tokens = sequence.tokens_;
  const std::size_t pending = tokens.size() - draft_len - 1;
  const auto drafted = tokens.subspan(pending + 1);
  const std::size_t vocab = model_.config().vocab_size;
  const auto rows = std::span(target_rows_).first((draft_len + 1) * vocab);
  const SequenceInput input{tokens.subspan(pending), &sequence.cache_};
  model_.forward({&input, 1}, sequence.target_, rows);

  if (by_argmax(options)) {
    for (int i = 0; i <= draft_len; ++i) choices_[i] = argmax(row(target_rows_, i));
    return accept_matching(drafted, std::span<const TokenId>(choices_).first(draft_len + 1));
  }
  for (int i = 0; i <= draft_len; ++i) {
    to_probabilities(options.sampling, tokens.first(pending + 1 + i), row(target_rows_, i),
                     scratch_);
  }
  return accept(options.spec_sampling, view(draft_rows_, draft_len),
                view(target_rows_, draft_len + 1), drafted, CounterRng(options.sampling.seed),
                static_cast<std::int64_t>(pending) + 1);
}

}  // namespace quantspec
