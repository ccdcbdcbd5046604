// A sequence that rounds decode: what of it the backend has, and what it has measured.
#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "backend/params/round.h"
#include "base/error.h"
#include "speculative/lookup_drafts.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

double ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0.0;
}

// A number that no other sequence gets.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{0};
  return ++next;
}

Plan make_target(const Model& model, const KvOptions& kv) {
  return Plan::target(model.config().num_layers, kv.full_layers);
}

// What of it does not depend on a sequence's memory.
TokenRule token_rule(const DecodingOptions& options) {
  TokenRule rule{options.sampling, options.spec_sampling, options.simulated_acceptance};
  rule.num_biases = static_cast<int>(options.biases.always.size());
  rule.min_tokens = options.biases.min_tokens;
  if (rule.min_tokens > 0) rule.num_ends = static_cast<int>(options.biases.ends.size());
  return rule;
}

void validate(const DecodingOptions& options, const Model& model) {
  options.sampling.validate();
  options.biases.validate(model.config().vocab_size);
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
  looked_up += other.looked_up;
  looked_up_accepted += other.looked_up_accepted;
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
      model_(&model),
      cache_(model.backend(), pool, capacity, kv),
      target_(make_target(model, kv)),
      options_(std::move(options)),
      drafts_(make_drafts()) {
  validate(options_, *model_);
  reserve();
}

Sequence::Sequence(const Sequence& other, DecodingOptions options)
    : id_(next_id()),
      model_(other.model_),
      tokens_(other.tokens_),
      cache_(other.cache_.fork(kv_options(options.plans).accesses)),
      prompt_length_(other.prompt_length_),
      target_(other.target_),
      options_(std::move(options)),
      drafts_(make_drafts()) {
  validate(options_, *model_);
  reserve();
  while (!note_read()) {
  }
}

Sequence::~Sequence() = default;
Sequence::Sequence(Sequence&& other) noexcept = default;
Sequence& Sequence::operator=(Sequence&& other) noexcept = default;

SoloDrafts Sequence::make_drafts() const {
  return {*model_, cache_, target_, options_.plans, options_.draft_len};
}

namespace {

// All that the cache may hold, the pending one and those that the longest round adds.
std::size_t most_tokens(int capacity) {
  return static_cast<std::size_t>(capacity) + kMaxDraftLen + 2;
}

}  // namespace

std::size_t Sequence::lookup_bytes(int capacity, std::size_t reference) {
  return LookupDrafts::bytes_for(most_tokens(capacity), reference);
}

std::size_t Sequence::bytes_for(int capacity) {
  return most_tokens(capacity) * sizeof(TokenId) + sizeof(Round) + sizeof(TokenRule) +
         kMostLogitBiases * sizeof(LogitBias);
}

void Sequence::reserve() {
  const std::size_t tokens = most_tokens(cache_.capacity());
  tokens_.reserve(tokens);
  Backend& backend = model_->backend();
  token_memory_ = backend.allocate(tokens * sizeof(TokenId));
  round_memory_ = backend.allocate(sizeof(Round));
  make_lookup();
  rule_memory_ = backend.allocate(sizeof(TokenRule));
  bias_memory_ = backend.allocate(kMostLogitBiases * sizeof(LogitBias));
}

void Sequence::upload_biases() {
  if (options_.biases.empty()) return;
  std::vector<LogitBias> biases = options_.biases.always;
  for (const TokenId end : options_.biases.ends) {
    biases.push_back({end, -std::numeric_limits<float>::infinity()});
  }
  model_->backend().upload(bias_memory_.data(), biases.data(), biases.size() * sizeof(LogitBias));
}

TokenRule Sequence::rule() {
  TokenRule rule = token_rule(options_);
  rule.prompt_length = prompt_length_;
  rule.biases = bias_memory_.as<LogitBias>();
  return rule;
}

RoundTokens Sequence::on_backend() {
  return {rule_memory_.as<TokenRule>(), token_rule(options_).by_argmax(),
          token_memory_.as<TokenId>(), round_memory_.as<Round>(), model_->config().vocab_size};
}

LaneKey Sequence::lane_key() const { return {id_, plan_, cache_.list_variant()}; }

void Sequence::begin_round() {
  Backend& backend = model_->backend();
  if (known_ < tokens_.size()) {
    backend.upload(token_memory_.as<TokenId>() + known_, &tokens_[known_],
                   (tokens_.size() - known_) * sizeof(TokenId));
    known_ = tokens_.size();
  }
  if (!rule_known_) {
    const TokenRule rule = this->rule();
    backend.upload(rule_memory_.data(), &rule, sizeof(rule));
    upload_biases();
    rule_known_ = true;
  }
  // Until the round has ended it is not known.
  if (std::exchange(round_length_, -1) == static_cast<int>(tokens_.size())) return;
  const Round round{.length = static_cast<int>(tokens_.size())};
  backend.upload(round_memory_.data(), &round, sizeof(round));
}

void Sequence::begin_round(const Lane& lane) {
  if (lane.choice.draft_len > 0 && lane.proposed.empty()) plan_ = lane.choice.plan;
  cache_.record_mass(lane.records_masses);
  begin_round();
  if (!lane.proposed.empty()) propose(lane.proposed);
}

// As if drafts had been drawn, but that nobody knows by what.
void Sequence::propose(std::span<const TokenId> tokens) {
  Backend& backend = model_->backend();
  backend.upload(token_memory_.as<TokenId>() + tokens_.size(), tokens.data(), tokens.size_bytes());
  const Round round{.length = static_cast<int>(tokens_.size()),
                    .drafted = static_cast<int>(tokens.size())};
  backend.upload(round_memory_.data(), &round, sizeof(round));
}

Step Sequence::end_round(DraftChoice choice, const Round& result) {
  const std::size_t first_new = tokens_.size();
  tokens_.insert(tokens_.end(), result.added, result.added + result.accepted + 1);
  known_ = tokens_.size();
  round_length_ = result.length;
  cache_.settle(result.accepted + 1);
  cache_.mass_recorded();
  ++stats_.rounds;
  stats_.drafted += choice.draft_len;
  stats_.accepted += result.accepted;
  const bool looked_up = looks_up(choice);
  stats_.looked_up += looked_up ? choice.draft_len : 0;
  stats_.looked_up_accepted += looked_up ? result.accepted : 0;
  stats_.rejections += result.accepted < choice.draft_len;
  for (int i = 0; i < choice.draft_len; ++i) ++stats_.drafted_at[i];
  for (int i = 0; i < result.accepted; ++i) ++stats_.accepted_at[i];
  return {.tokens = std::span<const TokenId>(tokens_).subspan(first_new),
          .accepted = result.accepted,
          .choice = choice,
          .looked_up = looked_up};
}

Sequence Sequence::fork(DecodingOptions options) const {
  return Sequence(*this, std::move(options));
}

void Sequence::make_lookup() {
  const bool wanted = std::ranges::any_of(options_.plans, &Plan::looks_up);
  if (!wanted) {
    lookup_ = nullptr;
    return;
  }
  if (lookup_ && lookup_->reference() == options_.reference) return;
  if (!lookup_) lookup_ = std::make_unique<LookupDrafts>();
  lookup_->refer_to(options_.reference);
  lookup_->reserve(tokens_.capacity());
}

FoundTokens Sequence::look_up(int most) {
  if (most <= 0 || !lookup_ || options_.simulated_acceptance >= 0) return {};
  if (!lookup_->follow(tokens_, prompt_length_)) return {};
  return lookup_->find(std::min(most, kMaxDraftLen));
}

bool Sequence::note_read() {
  if (!lookup_) return true;
  const auto read = static_cast<std::size_t>(cache_.length());
  return lookup_->follow(std::span<const TokenId>(tokens_).first(std::min(read, tokens_.size())),
                         read);
}

void Sequence::clear() {
  tokens_.clear();
  if (lookup_) lookup_->clear();
  cache_.clear();
  known_ = 0;
  round_length_ = -1;
  begin_answer();
}

void Sequence::begin_answer() {
  prompt_length_ = static_cast<int>(tokens_.size());
  rule_known_ = false;
}

void Sequence::set_options(DecodingOptions options) {
  validate(options, *model_);
  const bool same_drafts =
      options.draft_len == options_.draft_len && options.plans == options_.plans;
  const bool same_rounds = same_drafts && options.spec_sampling == options_.spec_sampling &&
                           options.log_probs == options_.log_probs &&
                           token_rule(options).by_argmax() == token_rule(options_).by_argmax();
  options_ = std::move(options);
  rule_known_ = false;
  if (!same_rounds) id_ = next_id();
  if (!same_drafts) plan_ = -1;
  if (!same_drafts) drafts_ = make_drafts();  // else what it has measured still holds
  make_lookup();
  stats_ = {};
}

void Sequence::truncate(std::size_t count) {
  check(count >= 1 && count <= tokens_.size(), "a sequence is truncated to one token or more");
  tokens_.resize(count);
  known_ = std::min(known_, count);
  if (lookup_) lookup_->truncate(count);
  cache_.truncate(static_cast<int>(count) - 1);
}

}  // namespace quantspec
