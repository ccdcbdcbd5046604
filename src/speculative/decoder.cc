#include <algorithm>
#include <atomic>
#include <functional>
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

// A number that no other sequence gets.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{0};
  return ++next;
}

Plan make_target(const Model& model, const KvOptions& kv) {
  return Plan::target(model.config().num_layers, kv.full_layers);
}

TokenRule token_rule(const DecodingOptions& options) {
  return {options.sampling, options.spec_sampling, options.simulated_acceptance};
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
    : id_(next_id()),
      backend_(&model.backend()),
      vocab_size_(model.config().vocab_size),
      cache_(model.backend(), pool, capacity, kv),
      target_(make_target(model, kv)),
      options_(std::move(options)),
      control_(make_control(options_)) {
  options_.sampling.validate();
  reserve();
}

Sequence::Sequence(const Sequence& other, DecodingOptions options)
    : id_(next_id()),
      backend_(other.backend_),
      vocab_size_(other.vocab_size_),
      tokens_(other.tokens_),
      cache_(other.cache_.fork(kv_options(options.plans).accesses)),
      target_(other.target_),
      options_(std::move(options)),
      control_(make_control(options_)) {
  options_.sampling.validate();
  reserve();
}

// All tokens that the cache may hold, the pending one and those that the longest round adds.
void Sequence::reserve() {
  const std::size_t tokens = static_cast<std::size_t>(cache_.capacity()) + kMaxDraftLen + 2;
  tokens_.reserve(tokens);
  token_memory_ = backend_->allocate(tokens * sizeof(TokenId));
  round_memory_ = backend_->allocate(sizeof(Round));
  rule_memory_ = backend_->allocate(sizeof(TokenRule));
}

RoundTokens Sequence::on_backend() {
  return {rule_memory_.as<TokenRule>(), token_rule(options_).by_argmax(),
          token_memory_.as<TokenId>(), round_memory_.as<Round>(), vocab_size_};
}

RoundKey Sequence::round_key(DraftChoice choice) const {
  return {id_, choice.draft_len > 0 ? choice.plan : -1, choice.draft_len, cache_.list_variant()};
}

void Sequence::begin_round() {
  if (known_ < tokens_.size()) {
    backend_->upload(token_memory_.as<TokenId>() + known_, &tokens_[known_],
                     (tokens_.size() - known_) * sizeof(TokenId));
    known_ = tokens_.size();
  }
  if (!rule_known_) {
    const TokenRule rule = token_rule(options_);
    backend_->upload(rule_memory_.data(), &rule, sizeof(rule));
    rule_known_ = true;
  }
  if (round_length_ == static_cast<int>(tokens_.size())) return;
  round_length_ = static_cast<int>(tokens_.size());
  const Round round{.length = round_length_};
  backend_->upload(round_memory_.data(), &round, sizeof(round));
}

Sequence Sequence::fork(DecodingOptions options) const {
  return Sequence(*this, std::move(options));
}

void Sequence::clear() {
  tokens_.clear();
  cache_.clear();
  known_ = 0;
  round_length_ = -1;
}

void Sequence::set_options(DecodingOptions options) {
  options.sampling.validate();
  const bool same_drafts =
      options.draft_len == options_.draft_len && options.plans == options_.plans;
  const bool same_rounds = same_drafts && options.spec_sampling == options_.spec_sampling &&
                           token_rule(options).by_argmax() == token_rule(options_).by_argmax();
  options_ = std::move(options);
  rule_known_ = false;
  if (!same_rounds) id_ = next_id();
  if (!same_drafts) control_ = make_control(options_);  // else what it has measured still holds
  stats_ = {};
}

void Sequence::truncate(std::size_t count) {
  check(count >= 1 && count <= tokens_.size(), "a sequence is truncated to one token or more");
  tokens_.resize(count);
  known_ = std::min(known_, count);
  cache_.truncate(static_cast<int>(count) - 1);
}

Decoder::Decoder(const Model& model) : model_(model) {
  const std::size_t row = model.config().vocab_size * sizeof(float);
  target_rows_ = model.backend().allocate((kMaxDraftLen + 1) * row);
  draft_rows_ = model.backend().allocate(kMaxDraftLen * row);
}

TokenId Decoder::prefill(Sequence& sequence, std::span<const TokenId> prompt,
                         const Model::Progress& progress) {
  std::vector<TokenId>& tokens = sequence.tokens_;
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  check(!tokens.empty(), "a prefill needs a token");
  try {
    model_.prefill(tokens, sequence.cache_, target_rows_.as<float>(), progress);
    sequence.begin_round();
    judge(sequence, 1);
    tokens.push_back(model_.backend().end_round(sequence.round_memory_.as<Round>()).added[0]);
  } catch (...) {
    sequence.clear();
    throw;
  }
  sequence.known_ = tokens.size();
  sequence.round_length_ = static_cast<int>(tokens.size());
  return tokens.back();
}

Decoder::Step Decoder::step(Sequence& sequence, int max_tokens) {
  check(max_tokens >= 1 && max_tokens <= sequence.room(), "a step needs room for its tokens");
  RoundStats& stats = sequence.stats_;
  const int cap = std::min(max_tokens, sequence.cache_.max_rows()) - 1;
  const DraftChoice choice = sequence.control_.choose(cap);
  const Stopwatch commit_clock;
  sequence.cache_.reserve(choice.draft_len + 1);
  stats.commit_seconds += commit_clock.seconds();
  const std::size_t first_new = sequence.tokens_.size();

  Backend& backend = model_.backend();
  const Stopwatch round_clock;
  sequence.begin_round();
  model_.begin_round(sequence.cache_);
  sequence.round_length_ = -1;  // until it is known again
  const auto issue = [&] {
    backend.mark(Mark::kBegin);
    draft(sequence, choice);
    backend.mark(Mark::kDrafted);
    verify(sequence, choice.draft_len);
    backend.mark(Mark::kEnd);
  };
  // By reference: a copy of `issue` would be allocated.
  backend.run_round(sequence.round_key(choice), std::ref(issue));
  const Round result = backend.end_round(sequence.round_memory_.as<Round>());
  const double draft_seconds = backend.seconds_between(Mark::kBegin, Mark::kDrafted);
  const double verify_seconds = backend.seconds_between(Mark::kDrafted, Mark::kEnd);

  sequence.tokens_.insert(sequence.tokens_.end(), result.added, result.added + result.accepted + 1);
  sequence.known_ = sequence.tokens_.size();
  sequence.round_length_ = result.length;
  sequence.cache_.settle(result.accepted + 1);
  sequence.cache_.mass_recorded();

  // What the host adds to a round counts: it is a reason to draft more tokens in fewer rounds.
  const double other_seconds = round_clock.seconds() - draft_seconds;
  sequence.control_.observe({choice, result.accepted, draft_seconds, other_seconds});
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

// Proposes draft_len tokens.
void Decoder::draft(Sequence& sequence, DraftChoice choice) {
  const DecodingOptions& options = sequence.options_;
  if (choice.draft_len == 0) return;
  const Plan& plan = options.plans[choice.plan];
  const RoundTokens at = sequence.on_backend();
  // Rejection needs every distribution that was drawn from; the other rules only the tokens.
  const bool keep = options.spec_sampling == SpecSampling::kRejection && !at.by_argmax;
  for (int i = 0; i < choice.draft_len; ++i) {
    float* logits =
        draft_rows_.as<float>() + static_cast<std::size_t>(keep ? i : 0) * at.vocab_size;
    model_.forward(RoundInput{&at, 1, false, i, &sequence.cache_}, plan, logits);
    model_.backend().propose({at, logits});
  }
}

// Judges the drafted tokens with one target pass over them and the token before.
void Decoder::verify(Sequence& sequence, int draft_len) {
  const RoundTokens at = sequence.on_backend();
  model_.forward(RoundInput{&at, draft_len + 1, true, 0, &sequence.cache_}, sequence.target_,
                 target_rows_.as<float>());
  judge(sequence, draft_len + 1);
}

void Decoder::judge(Sequence& sequence, int rows) {
  model_.backend().judge(
      {sequence.on_backend(), draft_rows_.as<float>(), target_rows_.as<float>(), rows});
}

}  // namespace quantspec
