#include <algorithm>
#include <atomic>
#include <cmath>
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
      model_(&model),
      cache_(model.backend(), pool, capacity, kv),
      target_(make_target(model, kv)),
      options_(std::move(options)),
      drafts_(make_drafts()) {
  options_.sampling.validate();
  reserve();
}

Sequence::Sequence(const Sequence& other, DecodingOptions options)
    : id_(next_id()),
      model_(other.model_),
      tokens_(other.tokens_),
      cache_(other.cache_.fork(kv_options(options.plans).accesses)),
      target_(other.target_),
      options_(std::move(options)),
      drafts_(make_drafts()) {
  options_.sampling.validate();
  reserve();
}

SoloDrafts Sequence::make_drafts() const {
  return {*model_, cache_, target_, options_.plans, options_.draft_len};
}

// All tokens that the cache may hold, the pending one and those that the longest round adds.
void Sequence::reserve() {
  const std::size_t tokens = static_cast<std::size_t>(cache_.capacity()) + kMaxDraftLen + 2;
  tokens_.reserve(tokens);
  Backend& backend = model_->backend();
  token_memory_ = backend.allocate(tokens * sizeof(TokenId));
  round_memory_ = backend.allocate(sizeof(Round));
  rule_memory_ = backend.allocate(sizeof(TokenRule));
}

RoundTokens Sequence::on_backend() {
  return {rule_memory_.as<TokenRule>(), token_rule(options_).by_argmax(),
          token_memory_.as<TokenId>(), round_memory_.as<Round>(), model_->config().vocab_size};
}

RoundKey Sequence::round_key(DraftChoice choice) const {
  return {id_, choice.draft_len > 0 ? choice.plan : -1, choice.draft_len, cache_.list_variant()};
}

void Sequence::begin_round() {
  Backend& backend = model_->backend();
  if (known_ < tokens_.size()) {
    backend.upload(token_memory_.as<TokenId>() + known_, &tokens_[known_],
                   (tokens_.size() - known_) * sizeof(TokenId));
    known_ = tokens_.size();
  }
  if (!rule_known_) {
    const TokenRule rule = token_rule(options_);
    backend.upload(rule_memory_.data(), &rule, sizeof(rule));
    rule_known_ = true;
  }
  // Until the round has ended it is not known.
  if (std::exchange(round_length_, -1) == static_cast<int>(tokens_.size())) return;
  const Round round{.length = static_cast<int>(tokens_.size())};
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
  stats_.rejections += result.accepted < choice.draft_len;
  for (int i = 0; i < choice.draft_len; ++i) ++stats_.drafted_at[i];
  for (int i = 0; i < result.accepted; ++i) ++stats_.accepted_at[i];
  return {std::span<const TokenId>(tokens_).subspan(first_new), result.accepted, choice};
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
                           options.log_probs == options_.log_probs &&
                           token_rule(options).by_argmax() == token_rule(options_).by_argmax();
  options_ = std::move(options);
  rule_known_ = false;
  if (!same_rounds) id_ = next_id();
  if (!same_drafts) drafts_ = make_drafts();  // else what it has measured still holds
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
  prompt_row_ = model.backend().allocate(row);
}

TokenId Decoder::prefill(Sequence& sequence, std::span<const TokenId> prompt,
                         const Model::Progress& progress) {
  try {
    const auto reader = begin_prompt(sequence, prompt);
    while (!reader->done()) {
      reader->step();
      if (progress) progress(reader->share());
    }
    return end_prompt(sequence).tokens[0];
  } catch (...) {
    sequence.clear();
    throw;
  }
}

std::unique_ptr<Model::Prefill> Decoder::begin_prompt(Sequence& sequence,
                                                      std::span<const TokenId> prompt) {
  std::vector<TokenId>& tokens = sequence.tokens_;
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  check(!tokens.empty(), "a prefill needs a token");
  return std::make_unique<Model::Prefill>(model_, tokens, sequence.cache_, prompt_row_.as<float>());
}

Step Decoder::end_prompt(Sequence& sequence) {
  const bool wants = sequence.options_.log_probs;
  if (wants) reserve_log_probs(1);
  sequence.begin_round();
  float* kept = wants ? kept_rows(1) : nullptr;
  if (wants) keep_logits(prompt_row_.as<float>(), 1, kept);
  model_.backend().judge({sequence.on_backend(), nullptr, prompt_row_.as<float>(), 1});
  const Round round = model_.backend().end_round(sequence.round_memory_.as<Round>());
  sequence.tokens_.push_back(round.added[0]);
  sequence.known_ = sequence.tokens_.size();
  sequence.round_length_ = round.length;
  const auto tokens = std::span<const TokenId>(sequence.tokens_).last(1);
  return {tokens, 0, {}, log_probs(kept, tokens)};
}

void Decoder::reserve_log_probs(std::size_t rows) {
  kept_ = 0;
  log_probs_.clear();
  log_probs_.reserve(rows);  // spans of it are given out
  host_row_.resize(model_.config().vocab_size);
  const std::size_t bytes = rows * model_.config().vocab_size * sizeof(float);
  if (kept_rows_.size() < bytes) kept_rows_ = model_.backend().allocate(bytes);
}

float* Decoder::kept_rows(int count) {
  return kept_rows_.as<float>() +
         static_cast<std::size_t>(std::exchange(kept_, kept_ + count)) * model_.config().vocab_size;
}

void Decoder::keep_logits(float* logits, int rows, float* to) {
  model_.backend().copy(to, logits, rows * model_.config().vocab_size * sizeof(float));
}

std::span<const float> Decoder::log_probs(const float* logits, std::span<const TokenId> tokens) {
  if (logits == nullptr) return {};
  const std::size_t first = log_probs_.size();
  for (const TokenId token : tokens) {
    model_.backend().download(host_row_.data(), logits, host_row_.size() * sizeof(float));
    const float most = *std::ranges::max_element(host_row_);
    double sum = 0;
    for (const float x : host_row_) sum += std::exp(static_cast<double>(x) - most);
    log_probs_.push_back(static_cast<float>(host_row_[token] - most - std::log(sum)));
    logits += host_row_.size();
  }
  return std::span<const float>(log_probs_).subspan(first);
}

void Decoder::resume(Sequence& sequence, std::span<const TokenId> chosen) {
  check(!chosen.empty(), "a token is pending");
  sequence.tokens_.insert(sequence.tokens_.end(), chosen.begin(), chosen.end());
}

bool Decoder::replay(Sequence& sequence) {
  KvCache& cache = sequence.cache_;
  const auto tokens = std::span<const TokenId>(sequence.tokens_).subspan(cache.length());
  const int left = static_cast<int>(tokens.size()) - 1;
  if (left == 0) return false;
  const int rows = std::min({left, cache.max_rows(), kMaxDraftLen + 1});
  replay_logits_.resize(static_cast<std::size_t>(rows) * model_.config().vocab_size);
  cache.reserve(rows);
  const SequenceInput input{tokens.first(rows), &cache};
  model_.forward({&input, 1}, sequence.target_, replay_logits_);
  cache.settle(rows);
  cache.mass_recorded();
  return true;
}

Decoder::Step Decoder::step(Sequence& sequence, int max_tokens) {
  check(max_tokens >= 1 && max_tokens <= sequence.room(), "a step needs room for its tokens");
  const int cap = std::min(max_tokens, sequence.max_rows()) - 1;
  const Lane lane{&sequence, sequence.drafts_.choose(cap, sequence.cache_.length())};
  const Outcome done = round({&lane, 1});
  sequence.drafts_.observe(lane.choice, done.steps[0].accepted, done.draft_seconds,
                           done.other_seconds);
  return done.steps[0];
}

Decoder::Outcome Decoder::round(std::span<const Lane> lanes) {
  check(!lanes.empty(), "a round has a lane");
  const double share = 1.0 / static_cast<double>(lanes.size());
  const Stopwatch commit_clock;
  for (const Lane& lane : lanes) lane.sequence->cache_.reserve(lane.choice.draft_len + 1);
  const double commit_seconds = commit_clock.seconds();

  Backend& backend = model_.backend();
  const Stopwatch round_clock;
  begin(lanes);
  const auto issue = [&] { this->issue(lanes); };
  if (lanes.size() == 1) {
    // By reference: a copy of `issue` would be allocated.
    backend.run_round(lanes[0].sequence->round_key(lanes[0].choice), std::ref(issue));
  } else {
    issue();
  }
  end(lanes);
  steps_.clear();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    steps_.push_back(lanes[i].sequence->end_round(lanes[i].choice, results_[i]));
    steps_[i].log_probs = log_probs(rows_[i].logits, steps_[i].tokens);
  }
  const double draft_seconds = backend.seconds_between(Mark::kBegin, Mark::kDrafted);
  const double verify_seconds = backend.seconds_between(Mark::kDrafted, Mark::kEnd);
  for (const Lane& lane : lanes) {
    RoundStats& stats = lane.sequence->stats_;
    stats.draft_seconds += share * draft_seconds;
    stats.verify_seconds += share * verify_seconds;
    stats.commit_seconds += share * commit_seconds;
  }
  // What the host adds to a round counts: it is a reason to draft more tokens in fewer rounds.
  return {steps_, draft_seconds, round_clock.seconds() - draft_seconds};
}

// What the round chose for each lane, from the backend.
void Decoder::end(std::span<const Lane> lanes) {
  rounds_.clear();
  for (const Lane& lane : lanes) rounds_.push_back(lane.sequence->round_memory_.as<Round>());
  results_.resize(lanes.size());
  model_.backend().end_rounds(rounds_, results_);
}

// What the passes of the round read and write beside the caches.
void Decoder::begin(std::span<const Lane> lanes) {
  rows_.clear();
  inputs_.reserve(lanes.size());
  group_.reserve(lanes.size());
  grouped_.reserve(lanes.size());
  int target_rows = 0, longest = 0, wanted = 0;
  for (const auto& [sequence, choice] : lanes) {
    sequence->begin_round();
    model_.begin_round(sequence->cache_);
    const DecodingOptions& options = sequence->options_;
    const RoundTokens at = sequence->on_backend();
    // Rejection needs every distribution that was drawn from; the other rules only the tokens.
    rows_.push_back({.at = at,
                     .draft = choice.draft_len > 0 ? &options.plans[choice.plan] : nullptr,
                     .keeps = options.spec_sampling == SpecSampling::kRejection && !at.by_argmax});
    target_rows += choice.draft_len + 1;
    longest = std::max(longest, choice.draft_len);
    if (options.log_probs) wanted += choice.draft_len + 1;
  }
  if (wanted > 0) reserve_log_probs(wanted);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].sequence->options_.log_probs) {
      rows_[i].logits = kept_rows(lanes[i].choice.draft_len + 1);
    }
  }
  model_.reserve(std::max(target_rows, kMaxDraftLen + 1));
  const std::size_t row = model_.config().vocab_size * sizeof(float);
  const auto grow = [&](Buffer& buffer, std::size_t rows) {
    if (buffer.size() >= rows * row) return;
    buffer = Buffer();  // never both
    buffer = model_.backend().allocate(rows * row);
  };
  grow(target_rows_, target_rows);
  grow(draft_rows_, lanes.size() * longest);
}

template <typename PlanOf, typename F>
void Decoder::for_plans(std::span<const Lane> lanes, const PlanOf& plan_of, const F& f) {
  grouped_.assign(lanes.size(), false);
  for (std::size_t first = 0; first < lanes.size(); ++first) {
    const Plan* plan = plan_of(first);
    if (grouped_[first] || plan == nullptr) continue;
    group_.clear();
    for (std::size_t i = first; i < lanes.size(); ++i) {
      const Plan* other = plan_of(i);
      if (grouped_[i] || other == nullptr || (other != plan && !(*other == *plan))) continue;
      grouped_[i] = true;
      group_.push_back(static_cast<int>(i));
    }
    f(std::span<int>(group_));
  }
}

void Decoder::issue(std::span<const Lane> lanes) {
  Backend& backend = model_.backend();
  const std::size_t vocab = model_.config().vocab_size;
  backend.mark(Mark::kBegin);
  auto* rows = draft_rows_.as<float>();
  const auto draft_plan = [&](std::size_t i) { return rows_[i].draft; };
  for_plans(lanes, draft_plan, [&](std::span<int> group) {
    draft(lanes, group, rows);
    rows += group.size() * lanes[group[0]].choice.draft_len * vocab;
  });
  backend.mark(Mark::kDrafted);
  rows = target_rows_.as<float>();
  const auto target = [&](std::size_t i) { return &lanes[i].sequence->target_; };
  for_plans(lanes, target, [&](std::span<int> group) {
    verify(lanes, group, rows);
    for (const int i : group) rows += (lanes[i].choice.draft_len + 1) * vocab;
  });
  backend.mark(Mark::kEnd);
}

// Row r of the group lies at [depth][r], so that a pass writes adjacent rows.
void Decoder::draft(std::span<const Lane> lanes, std::span<int> group, float* rows) {
  std::ranges::sort(group, std::greater(),  // NOTE: a stable sort would allocate
                    [&](int i) { return std::pair(lanes[i].choice.draft_len, -i); });
  const std::size_t vocab = model_.config().vocab_size;
  const auto stride = static_cast<std::ptrdiff_t>(group.size() * vocab);
  const bool keep = std::ranges::any_of(group, [&](int i) { return rows_[i].keeps; });
  for (std::size_t r = 0; r < group.size(); ++r) {
    rows_[group[r]].draft_probs = rows + r * vocab;
    rows_[group[r]].draft_stride = stride;
  }
  for (int depth = 0; depth < lanes[group[0]].choice.draft_len; ++depth) {
    float* logits = rows + (keep ? depth * stride : 0);
    inputs_.clear();
    for (const int i : group) {
      if (lanes[i].choice.draft_len <= depth) break;
      inputs_.push_back({&rows_[i].at, 1, false, depth, &lanes[i].sequence->cache_});
    }
    model_.forward(inputs_, *rows_[group[0]].draft, logits);
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      model_.backend().propose({*inputs_[r].at, logits + r * vocab});
    }
  }
}

// Judges what the lanes drafted with one target pass over it and the tokens before.
void Decoder::verify(std::span<const Lane> lanes, std::span<const int> group, float* rows) {
  const std::size_t vocab = model_.config().vocab_size;
  inputs_.clear();
  for (const int i : group) {
    inputs_.push_back(
        {&rows_[i].at, lanes[i].choice.draft_len + 1, true, 0, &lanes[i].sequence->cache_});
  }
  model_.forward(inputs_, lanes[group[0]].sequence->target_, rows);
  for (const int i : group) {
    const int count = lanes[i].choice.draft_len + 1;
    if (rows_[i].logits != nullptr) keep_logits(rows, count, rows_[i].logits);
    model_.backend().judge({rows_[i].at, rows_[i].draft_probs, rows, count, rows_[i].draft_stride});
    rows += count * vocab;
  }
}

}  // namespace quantspec
