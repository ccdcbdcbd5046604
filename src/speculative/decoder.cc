#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "backend/params/lengths.h"
#include "backend/params/round.h"
#include "backend/params/view.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/comm.h"
#include "sampler/sampler.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

// A number that no other decoder gets.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{0};
  return ++next;
}

}  // namespace

Decoder::MostRows Decoder::most_rows(const Backend& backend, int sequences) {
  constexpr int kRows = kMaxDraftLen + 1;
  const int lanes = backend.padded(sequences);
  return {.lanes = lanes,
          .target = sequences == 1 ? kRows : backend.padded(sequences * kRows),
          .drafts = lanes * kMaxDraftLen};
}

std::size_t Decoder::bytes_for(const ModelConfig& config, const Backend& backend, int sequences) {
  const MostRows most = most_rows(backend, sequences);
  const std::size_t prompt = 1, kept = most.target;
  return sizeof(float) * config.vocab_size * (most.target + most.drafts + prompt + kept);
}

Decoder::Decoder(const Model& model, Communicator* ranks)
    : model_(model), ranks_(ranks), id_(next_id()) {
  const MostRows most = most_rows(model.backend(), 1);
  grow(target_rows_, most.target);
  grow(draft_rows_, most.drafts);
  grow(prompt_row_, 1);
}

Decoder::~Decoder() = default;

void Decoder::grow(Buffer& buffer, std::size_t rows) {
  const std::size_t bytes = rows * model_.config().vocab_size * sizeof(float);
  if (buffer.size() >= bytes) return;
  buffer = Buffer();  // never both
  buffer = model_.backend().allocate(bytes);
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
  // A plan that no sequence drafted by before is known by number from here on, not from the round
  // on that tries it: that one would allocate.
  plan_number(sequence.target_);
  for (const Plan& plan : sequence.options_.plans) plan_number(plan);
  auto reader =
      std::make_unique<Model::Prefill>(model_, tokens, sequence.cache_, prompt_row_.as<float>());
  if (PromptLogProbs* const read = sequence.options_.prompt_log_probs) {
    const int top = sequence.options_.top_log_probs;
    const std::span<const TokenId> text(tokens);
    read->log_probs.resize(text.size() - 1);
    read->top.resize((text.size() - 1) * top);
    const auto room = [this] {
      reserve_log_probs(kMaxDraftLen + 1, 0);
      return kept_row(0);
    };
    reader->tell_logits({room, [=, this](int position, int count, const float* logits) {
                           read_log_probs(*read, text, top, position, count, logits);
                         }});
  }
  return reader;
}

Step Decoder::end_prompt(Sequence& sequence) {
  Backend& backend = model_.backend();
  float* kept = nullptr;
  if (sequence.options_.log_probs) {
    reserve_log_probs(1, sequence.options_.top_log_probs);
    kept = kept_row(0);
    backend.copy(kept, prompt_row_.data(), prompt_row_.size());
  }
  sequence.begin_answer();
  sequence.begin_round();
  const RoundLane lane{.at = sequence.on_backend(), .draft_len = 0};
  backend.begin_batch({&lane, 1});
  backend.judge({0, 1, prompt_row_.as<float>()});
  const Round round = backend.end_round(sequence.round_memory_.as<Round>());
  sequence.tokens_.push_back(round.added[0]);
  sequence.known_ = sequence.tokens_.size();
  sequence.round_length_ = round.length;
  Step step{
      .tokens = std::span<const TokenId>(sequence.tokens_).last(1), .accepted = 0, .choice = {}};
  step.prompt = sequence.options_.prompt_log_probs;
  if (kept != nullptr) add_log_probs(kept, step.tokens, sequence.options_.top_log_probs, step);
  return step;
}

void Decoder::reserve_log_probs(std::size_t rows, std::size_t top) {
  log_probs_.clear();
  log_probs_.reserve(rows);  // spans of it are given out
  top_log_probs_.clear();
  top_log_probs_.reserve(top);
  host_row_.resize(model_.config().vocab_size);
  grow(kept_rows_, rows);
}

float* Decoder::kept_row(int row) {
  return kept_rows_.as<float>() + static_cast<std::size_t>(row) * model_.config().vocab_size;
}

void Decoder::add_log_probs(const float* logits, std::span<const TokenId> tokens, int top,
                            Step& step) {
  const std::size_t first = log_probs_.size(), first_top = top_log_probs_.size();
  for (const TokenId token : tokens) {
    model_.backend().download(host_row_.data(), logits, host_row_.size() * sizeof(float));
    const LogProbs row(host_row_);
    log_probs_.push_back(row.of(token));
    top_log_probs_.resize(top_log_probs_.size() + top);
    row.find(std::span(top_log_probs_).last(top));
    logits += host_row_.size();
  }
  step.log_probs = std::span<const float>(log_probs_).subspan(first);
  step.top_log_probs = std::span<const TokenLogProb>(top_log_probs_).subspan(first_top);
}

// By the rows of a prompt's tokens from `position` on, each of the token behind it.
void Decoder::read_log_probs(PromptLogProbs& read, std::span<const TokenId> prompt, int top,
                             int position, int count, const float* logits) {
  for (int i = position; i < position + count && i + 1 < std::ssize(prompt); ++i) {
    model_.backend().download(host_row_.data(), logits, host_row_.size() * sizeof(float));
    const LogProbs row(host_row_);
    read.log_probs[i] = row.of(prompt[i + 1]);
    row.find(std::span(read.top).subspan(static_cast<std::size_t>(i) * top, top));
    logits += host_row_.size();
  }
}

void Decoder::resume(Sequence& sequence, std::span<const TokenId> chosen) {
  check(!chosen.empty(), "a token is pending");
  sequence.begin_answer();
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
  const FoundTokens found = sequence.look_up(cap);
  const DraftChoice choice = sequence.drafts_.choose(cap, sequence.cache_.length(), found);
  Lane lane{&sequence, choice, sequence.drafts_.records_masses()};
  if (sequence.looks_up(choice)) lane.proposed = found.tokens.first(choice.draft_len);
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
  const auto issue = [&] { this->issue(); };
  if (one_plan_) {
    backend.run_round(key(), std::ref(issue));  // a copy of `issue` would be allocated
  } else {
    issue();
  }
  end(lanes);
  const double draft_seconds = backend.seconds_between(Mark::kBegin, Mark::kDrafted);
  const double verify_seconds = backend.seconds_between(Mark::kDrafted, Mark::kEnd);
  for (const Lane& lane : lanes) {
    RoundStats& stats = lane.sequence->stats_;
    stats.draft_seconds += share * draft_seconds;
    stats.verify_seconds += share * verify_seconds;
    stats.commit_seconds += share * commit_seconds;
  }
  // What the host adds to a round counts: it is a reason to draft more tokens in fewer rounds.
  struct Times {
    double draft, other;
  };
  const Times times =
      Agreement(ranks_).on(Times{draft_seconds, round_clock.seconds() - draft_seconds});
  return {steps_, times.draft, times.other};
}

// What the round chose for each lane, from the backend.
void Decoder::end(std::span<const Lane> lanes) {
  rounds_.clear();
  for (const Lane& lane : lanes) rounds_.push_back(lane.sequence->round_memory_.as<Round>());
  results_.resize(lanes.size());
  model_.backend().end_rounds(rounds_, results_);
  steps_.resize(lanes.size());
  for (std::size_t b = 0; b < lanes.size(); ++b) {  // of the batch
    const int i = rows_[b].index;
    steps_[i].log_probs = {};
    steps_[i].top_log_probs = {};
    const DecodingOptions& options = lanes[i].sequence->options_;
    if (!options.log_probs) continue;
    const std::span added(results_[i].added, results_[i].accepted + 1);
    add_log_probs(kept_row(batch_[b].first_row), added, options.top_log_probs, steps_[i]);
  }
  // Nothing is thrown from here on: either all sequences have the round or none.
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Step counted = steps_[i];
    steps_[i] = lanes[i].sequence->end_round(lanes[i].choice, results_[i]);
    steps_[i].log_probs = counted.log_probs;
    steps_[i].top_log_probs = counted.top_log_probs;
    const int rejected = lanes[i].choice.draft_len - results_[i].accepted;
    steps_[i].rejected = std::span(results_[i].rejected).first(rejected);
  }
}

void Decoder::reserve(int sequences) {
  const MostRows most = most_rows(model_.backend(), sequences);
  model_.reserve(std::max(most.lanes, most.target));
  grow(target_rows_, most.target);
  grow(draft_rows_, most.drafts);
}

// Where rounds are repeated, by rounds of lanes that are empty: what a backend takes for itself
// follows from shapes.
void Decoder::warm_up(std::span<Sequence* const> sequences) {
  Backend& backend = model_.backend();
  const int count = static_cast<int>(sequences.size());
  const int lanes = backend.padded(count);
  const auto rows_of = [&](int each) { return count == 1 ? each : backend.padded(count * each); };
  std::vector<Lane> idle;
  for (Sequence* sequence : sequences) {
    model_.begin_round(sequence->cache_);
    idle.push_back({sequence, {}});
  }
  if (!backend.repeats_rounds()) return;
  order(idle);
  make_batch(idle);
  for (RoundLane& lane : batch_) lane = {.at = lane.at};
  backend.begin_batch(batch_);
  const auto pass = [&](const Plan& plan, bool verifies, int each, float* logits) {
    bind();
    inputs_.clear();
    for (const Row& row : rows_) {
      const bool empty = row.sequence == nullptr;
      inputs_.push_back({&batch_[0].at, empty ? 0 : each, empty ? nullptr : &row.sequence->cache_});
    }
    const RoundPass shape{.first_lane = 0,
                          .verifies = verifies,
                          .drafted = 0,
                          .num_rows = verifies ? rows_of(each) : lanes};
    model_.forward(inputs_, shape, plan, logits);
  };
  for (const int each : {kMaxDraftLen + 1, 1}) {
    pass(sequences[0]->target_, true, each, target_rows_.as<float>());
  }
  for (std::size_t p = 0; p < sequences[0]->options_.plans.size(); ++p) {
    if (sequences[0]->options_.plans[p].looks_up()) continue;
    for (Sequence* sequence : sequences) sequence->plan_ = static_cast<int>(p);
    for (Row& row : rows_) {
      if (row.sequence != nullptr) keys_[&row - rows_.data()] = row.sequence->lane_key();
    }
    pass(sequences[0]->options_.plans[p], false, 1, draft_rows_.as<float>());
  }
  results_.resize(count);
  rounds_.clear();
  for (Sequence* sequence : sequences) {
    sequence->plan_ = -1;
    rounds_.push_back(sequence->round_memory_.as<Round>());
  }
  backend.end_rounds(rounds_, results_);
}

int Decoder::plan_number(const Plan& plan) {
  const auto found = std::ranges::find(plans_, plan);
  if (found == plans_.end()) return plans_.push_back(plan), static_cast<int>(plans_.size()) - 1;
  return static_cast<int>(found - plans_.begin());
}

// What the passes of the round read and write beside the caches.
void Decoder::begin(std::span<const Lane> lanes) {
  for (const Lane& lane : lanes) {
    lane.sequence->begin_round(lane);
    model_.begin_round(lane.sequence->cache_);
  }
  order(lanes);
  make_batch(lanes);
  make_groups();
  model_.backend().begin_batch(batch_);
  bind();
}

// Lanes of equal plans beside each other, and of those the longest drafts first: what draws a row
// at some depth is at the front of its group.
void Decoder::order(std::span<const Lane> lanes) {
  rows_.clear();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Sequence* const sequence = lanes[i].sequence;
    const bool drafts = lanes[i].choice.draft_len > 0 && lanes[i].proposed.empty();
    check(lanes[i].proposed.empty() ||
              std::cmp_equal(lanes[i].proposed.size(), lanes[i].choice.draft_len),
          "a lane verifies all that is proposed");
    rows_.push_back({.sequence = sequence,
                     .index = static_cast<int>(i),
                     .target_plan = plan_number(sequence->target_),
                     .draft_plan = drafts ? plan_number(*sequence->draft_plan()) : -1});
  }
  std::ranges::sort(rows_, {}, [&](const Row& row) {  // NOTE: a stable sort would allocate
    const unsigned draft_plan = row.draft_plan;       // none comes last
    return std::tuple(row.target_plan, draft_plan, -lanes[row.index].choice.draft_len, row.index);
  });
  int draft_plan = -1;
  one_plan_ = true;
  for (const Row& row : rows_) {
    one_plan_ &= row.target_plan == rows_[0].target_plan;
    if (row.draft_plan < 0) continue;
    one_plan_ &= draft_plan < 0 || row.draft_plan == draft_plan;
    draft_plan = row.draft_plan;
  }
}

void Decoder::make_batch(std::span<const Lane> lanes) {
  batch_.clear();
  keys_.clear();
  keeps_logits_ = false;
  int first_row = 0;
  for (const Row& row : rows_) {
    batch_.push_back({.at = row.sequence->on_backend(),
                      .draft_len = lanes[row.index].choice.draft_len,
                      .first_row = first_row,
                      .proposed = !lanes[row.index].proposed.empty()});
    keys_.push_back(row.sequence->lane_key());
    first_row += batch_.back().rows();
    keeps_logits_ |= row.sequence->options_.log_probs;
  }
  if (!one_plan_) return;
  const auto padded =
      static_cast<std::size_t>(model_.backend().padded(static_cast<int>(lanes.size())));
  rows_.resize(padded);
  keys_.resize(padded);
  batch_.resize(padded, {.first_row = first_row});
}

// NOTE: where all draft by one plan, those that draft nothing are in its group, too: then groups
// are the whole batch.
void Decoder::make_groups() {
  const auto groups_of = [&](std::vector<Group>& groups, const auto& plan_of) {
    groups.clear();
    const int size = static_cast<int>(batch_.size());
    for (int first = 0, end = 0; first < size; first = end) {
      const auto joins = [&](int b) {
        return one_plan_ || (rows_[b].target_plan == rows_[first].target_plan &&
                             plan_of(rows_[b]) == plan_of(rows_[first]));
      };
      for (end = first + 1; end < size && joins(end);) ++end;
      if (plan_of(rows_[first]) >= 0) groups.push_back({first, end - first, end - first, nullptr});
    }
  };
  groups_of(draft_groups_, [](const Row& row) { return row.draft_plan; });
  groups_of(target_groups_, [](const Row& row) { return row.target_plan; });
  reserve_rows();
  place_rows();
}

// Memory for the rows of all groups' passes.
void Decoder::reserve_rows() {
  int target_rows = 0, draft_rows = 0;
  for (Group& group : target_groups_) {
    const RoundLane& last = batch_[group.first + group.count - 1];
    group.num_rows = last.first_row + last.rows() - batch_[group.first].first_row;
    if (one_plan_ && group.count > 1) group.num_rows = model_.backend().padded(group.num_rows);
    target_rows += group.num_rows;
  }
  for (const Group& group : draft_groups_) draft_rows += group.count * batch_[group.first].drafts();
  const int most = std::max({target_rows, static_cast<int>(batch_.size()), kMaxDraftLen + 1});
  model_.reserve(most);
  grow(target_rows_, target_rows);
  grow(draft_rows_, draft_rows);
  if (keeps_logits_) {
    std::size_t top = 0;
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      const Sequence* const sequence = rows_[b].sequence;
      if (sequence != nullptr) top += batch_[b].rows() * sequence->options_.top_log_probs;
    }
    reserve_log_probs(target_rows, top);
  }
}

void Decoder::place_rows() {
  const std::size_t vocab = model_.config().vocab_size;
  auto* rows = target_rows_.as<float>();
  for (Group& group : target_groups_) {
    group.rows = rows;
    rows += group.num_rows * vocab;
  }
  rows = draft_rows_.as<float>();
  for (Group& group : draft_groups_) {
    group.rows = rows;
    for (int i = 0; i < group.count && rows_[group.first + i].sequence != nullptr; ++i) {
      RoundLane& lane = batch_[group.first + i];
      const DecodingOptions& options = rows_[group.first + i].sequence->options_;
      // Rejection needs every distribution that was drawn from; the other rules only the tokens.
      group.keeps |= lane.drafts() > 0 && !lane.at.by_argmax &&
                     options.spec_sampling == SpecSampling::kRejection;
      lane.draft_probs = rows + i * vocab;
      lane.draft_stride = static_cast<std::ptrdiff_t>(group.count * vocab);
    }
    rows += group.count * batch_[group.first].drafts() * vocab;
  }
}

void Decoder::bind() {
  const auto views = [&](int lane, bool verifies) {
    const Sequence& sequence = *rows_[lane].sequence;
    const Plan* plan = verifies ? &sequence.target_ : sequence.draft_plan();
    return plan == nullptr ? std::span<const KvView>() : model_.views(sequence.cache_, *plan);
  };
  model_.backend().bind_lanes(rows_[0].sequence->cache_.shape(), keys_, std::cref(views));
}

RoundKey Decoder::key() const {
  const bool drafts = !draft_groups_.empty();
  return {.issuer = id_,
          .draft_plan = drafts ? rows_[0].draft_plan : -1,
          .target_plan = rows_[0].target_plan,
          .keeps_drafts = drafts && draft_groups_[0].keeps,
          .keeps_logits = keeps_logits_,
          .contexts = contexts()};
}

int Decoder::contexts() const {
  BatchLengths lengths;
  for (const Row& row : rows_) {
    if (row.sequence != nullptr) lengths.add(row.sequence->cache_.length());
  }
  return lengths.key();
}

void Decoder::issue() {
  Backend& backend = model_.backend();
  backend.mark(Mark::kBegin);
  for (const Group& group : draft_groups_) draft(group);
  backend.mark(Mark::kDrafted);
  for (const Group& group : target_groups_) verify(group);
  backend.mark(Mark::kEnd);
}

// The group's lane i has row i of a pass, where it drafts so deep; logits lie at [depth][lane].
void Decoder::draft(const Group& group) {
  Backend& backend = model_.backend();
  const bool all = one_plan_ && backend.repeats_rounds();
  const auto stride = static_cast<std::ptrdiff_t>(group.count) * model_.config().vocab_size;
  for (int depth = 0; depth < batch_[group.first].drafts(); ++depth) {
    float* logits = group.rows + (group.keeps ? depth * stride : 0);
    inputs_.clear();
    for (int b = group.first; b < group.first + group.count; ++b) {
      const bool has_row = batch_[b].drafts() > depth;
      if (!has_row && !all) break;
      const Sequence* sequence = rows_[b].sequence;
      inputs_.push_back(
          {&batch_[b].at, has_row, sequence == nullptr ? nullptr : &sequence->cache_});
    }
    const int count = static_cast<int>(inputs_.size());
    const RoundPass pass{
        .first_lane = group.first, .verifies = false, .drafted = depth, .num_rows = count};
    model_.forward(inputs_, pass, plans_[rows_[group.first].draft_plan], logits);
    backend.propose({group.first, count, depth, logits});
  }
}

// Judges what the lanes drafted with one target pass over it and the tokens before.
void Decoder::verify(const Group& group) {
  Backend& backend = model_.backend();
  inputs_.clear();
  for (int b = group.first; b < group.first + group.count; ++b) {
    const Sequence* sequence = rows_[b].sequence;
    inputs_.push_back(
        {&batch_[b].at, batch_[b].rows(), sequence == nullptr ? nullptr : &sequence->cache_});
  }
  const RoundPass pass{
      .first_lane = group.first, .verifies = true, .drafted = 0, .num_rows = group.num_rows};
  model_.forward(inputs_, pass, plans_[rows_[group.first].target_plan], group.rows);
  if (keeps_logits_) {
    backend.copy(kept_row(batch_[group.first].first_row), group.rows,
                 sizeof(float) * group.num_rows * model_.config().vocab_size);
  }
  backend.judge({group.first, group.count, group.rows});
}

}  // namespace quantspec
