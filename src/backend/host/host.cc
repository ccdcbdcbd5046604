#include "backend/host/host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/params/attention.h"
#include "backend/params/context.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "base/system_memory.h"
#include "comm/comm.h"
#include "sampler/acceptance.h"

namespace quantspec {

namespace {

// The verdict of a rule that does not ask the target which drafted tokens to accept.
Acceptance simulated_verdict(const TokenRule& rule, ProbsView target, const Round& round) {
  const CounterRng rng(rule.sampling.seed);
  int accepted = 0;
  while (accepted < round.drafted &&
         rng.uniform(round.length + accepted, RandomStream::kAccept) < rule.simulated_acceptance) {
    ++accepted;
  }
  return {accepted, argmax(target.row(accepted))};
}

}  // namespace

HostBackend::HostBackend(Communicator* ranks, RankGroups groups)
    : group_{ranks != nullptr && ranks->size() > 1 ? ranks : nullptr, groups} {
  check((group_.ranks == nullptr || group_.ranks->size() % groups.context == 0) &&
            groups.context % groups.alike == 0,
        "groups are equal parts of all ranks");
}

bool HostBackend::adds_sums() const {
  return group_.ranks != nullptr && group_.ranks->size() > group_.groups.alike;
}

void HostBackend::add_sums(const AddLinearParams& params, std::span<const float> sums) {
  const Linear& linear = *params.linear;
  const std::span<float> x(params.x, sums.size());
  if (linear.bias != nullptr) {
    const int outputs = linear.outputs();
    float* row = params.x;
    for (int i = 0; i < params.num_rows; ++i, row += outputs) {
      for (int output = 0; output < outputs; ++output) row[output] += linear.bias[output];
    }
  }
  group_.ranks->reduce_add(x, sums, group_.groups.alike);
}

void HostBackend::gather_logits(const HeadParams& params, std::span<const float> own) {
  const auto alike = static_cast<std::size_t>(group_.groups.alike);
  const std::size_t all = group_.ranks->size(), shares = all / alike;
  const auto outputs = static_cast<std::size_t>(params.head->outputs());
  gathered_.resize(own.size() * all);
  group_.ranks->all_gather(std::as_writable_bytes(std::span(gathered_)), std::as_bytes(own));
  for (std::size_t share = 0; share < shares; ++share) {
    const float* from = gathered_.data() + share * alike * own.size();
    for (int row = 0; row < params.num_rows; ++row, from += outputs) {
      std::copy_n(from, outputs, params.logits + (row * shares + share) * outputs);
    }
  }
}

int HostBackend::context_turn(const KvShape& shape, int page) const {
  return page / page_run(shape);
}

// What a rank computed of sums and logits, and logits as they are gathered.
std::size_t HostBackend::pass_scratch_bytes(const PassSizes& sizes) const {
  if (sizes.ranks == 1) return 0;
  const std::size_t own = std::max(sizes.hidden, sizes.head);
  const std::size_t gathered =
      static_cast<std::size_t>(sizes.ranks) * group_.groups.alike * sizes.head;
  return sizeof(float) * sizes.sequences * sizes.rows * (own + gathered);
}

std::size_t HostBackend::available_bytes() const { return available_memory_bytes(); }

void HostBackend::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void HostBackend::copy_angles(const EmbedParams& params) {
  const std::size_t row = params.half * sizeof(float);
  for (const SequenceRows& rows : params.sequences) {
    for (int i = 0; i < rows.num_rows; ++i) {
      const std::ptrdiff_t from =
          static_cast<std::ptrdiff_t>(rows.first_position + i) * params.half;
      const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(rows.first_row + i) * params.half;
      std::memcpy(params.cos + to, params.cos_table + from, row);
      std::memcpy(params.sin + to, params.sin_table + from, row);
    }
  }
}

void HostBackend::select_pages(const SelectPagesParams& params) {
  for (const SequenceRows& rows : params.sequences) {
    if (rows.num_rows == 0 || rows.kv.page_lists.empty()) continue;
    select_pages(rows.kv, params.shape.num_kv_heads);
  }
}

void HostBackend::select_pages(const KvView& kv, int num_kv_heads) {
  const int num_pages = static_cast<int>(kv.pages.size());
  const std::ptrdiff_t count = std::ssize(kv.page_lists) / num_kv_heads;
  order_.resize(num_pages);
  page_order_.resize(num_pages);
  for (int head = 0; head < num_kv_heads; ++head) {
    const float* scores = kv.page_scores.data + std::ptrdiff_t{head} * kv.page_scores.max_pages;
    page_order_[0] = {2, 0.0f};
    for (int page = 1; page < num_pages; ++page) {
      page_order_[page] =
          std::isnan(scores[page]) ? PageOrder{1, 0.0f} : PageOrder{0, scores[page]};
    }
    std::iota(order_.begin(), order_.end(), 0);
    const auto end = order_.begin() + count;
    std::nth_element(order_.begin(), end, order_.end(), [&](int a, int b) {
      return page_order_[a] != page_order_[b] ? page_order_[a] > page_order_[b] : a < b;
    });
    std::sort(order_.begin(), end);
    std::copy(order_.begin(), end, kv.page_lists.begin() + head * count);
  }
}

void HostBackend::to_distribution(const RoundTokens& at, int position, float* logits) {
  const TokenRule& rule = *at.rule;
  to_probabilities(rule.sampling,
                   {.history = {at.tokens, static_cast<std::size_t>(position)},
                    .chosen = static_cast<std::size_t>(position - rule.prompt_length),
                    .biases = {rule.biases, static_cast<std::size_t>(rule.biases_at(position))}},
                   {logits, static_cast<std::size_t>(at.vocab_size)}, scratch_);
}

void HostBackend::propose(const ProposeParams& params) {
  for (int i = 0; i < params.count; ++i) {
    const RoundLane& lane = lanes_.at(params.first_lane + i);
    if (lane.drafts() <= params.depth) continue;
    propose(lane.at, params.logits + std::ptrdiff_t{i} * lane.at.vocab_size);
  }
}

void HostBackend::propose(const RoundTokens& at, float* logits) {
  Round& round = *at.round;
  const int position = round.length + round.drafted;
  const std::span<const float> row(logits, static_cast<std::size_t>(at.vocab_size));
  if (at.by_argmax) {
    at.tokens[position] = argmax(row);
  } else {
    to_distribution(at, position, logits);
    at.tokens[position] =
        draft_token(at.rule->mode, row, CounterRng(at.rule->sampling.seed), position);
  }
  ++round.drafted;
}

void HostBackend::judge(const JudgeParams& params) {
  for (int i = 0; i < params.count; ++i) {
    const RoundLane& lane = lanes_.at(params.first_lane + i);
    const std::ptrdiff_t row = lane.first_row - lanes_[params.first_lane].first_row;
    if (lane.rows() > 0) judge(lane, params.target_logits + row * lane.at.vocab_size);
  }
}

void HostBackend::judge(const RoundLane& lane, float* target_logits) {
  const RoundTokens& at = lane.at;
  Round& round = *at.round;
  const auto drafted = static_cast<std::size_t>(round.drafted);
  check(lane.rows() == round.drafted + 1, "a verdict needs a row for every token of the round");
  const std::span<const TokenId> proposed(at.tokens + round.length, drafted);
  const ProbsView target{target_logits, lane.rows(), at.vocab_size};
  Acceptance verdict;
  if (at.rule->simulated_acceptance >= 0) {
    verdict = simulated_verdict(*at.rule, target, round);
  } else if (at.by_argmax) {
    std::array<TokenId, kMaxDraftLen + 1> choices;
    for (int i = 0; i < lane.rows(); ++i) choices[i] = argmax(target.row(i));
    verdict = accept_matching(proposed, std::span(choices).first(drafted + 1));
  } else {
    for (int i = 0; i < lane.rows(); ++i) {
      to_distribution(at, round.length + i,
                      target_logits + static_cast<std::ptrdiff_t>(i) * at.vocab_size);
    }
    const SpecSampling mode = lane.proposed ? SpecSampling::kCoupled : at.rule->mode;
    verdict = accept(mode, {lane.draft_probs, round.drafted, at.vocab_size, lane.draft_stride},
                     target, proposed, CounterRng(at.rule->sampling.seed), round.length);
  }
  std::copy_n(proposed.begin(), verdict.accepted, round.added);
  std::copy(proposed.begin() + verdict.accepted, proposed.end(), round.rejected);
  round.added[verdict.accepted] = verdict.next;
  at.tokens[round.length + verdict.accepted] = verdict.next;
  round.accepted = verdict.accepted;
  round.length += verdict.accepted + 1;
  round.drafted = 0;
}

void HostBackend::end_rounds(std::span<const Round* const> rounds, std::span<Round> results) {
  check(rounds.size() == results.size(), "every round has a place");
  std::ranges::transform(rounds, results.begin(), [](const Round* round) { return *round; });
}

void HostBackend::mark(Mark mark) { marks_[static_cast<int>(mark)] = clock_.seconds(); }

double HostBackend::seconds_between(Mark from, Mark to) {
  return marks_[static_cast<int>(to)] - marks_[static_cast<int>(from)];
}

}  // namespace quantspec
