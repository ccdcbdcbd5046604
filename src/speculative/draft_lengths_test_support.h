// A batch on a machine of fixed times, for tests of DraftLengths.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "speculative/draft_lengths.h"

namespace quantspec {

// A batch on a machine of fixed times: a draft pass by plan i takes step[i], a verification 10 ms,
// row_seconds a row, and drafts_seconds if there are drafts.
struct DraftBatch {
  DraftLengths lengths;
  std::vector<double> step;
  std::vector<std::vector<double>> draft_bytes;
  std::vector<SequenceDrafts> drafts;
  std::vector<int> caps;
  double row_seconds = 1e-4;
  double drafts_seconds = 0;
  // By sequence, of tokens that were looked up: how many, and how many of them are right.
  std::vector<int> found, right;
  std::vector<SequenceAcceptance::Survival> found_survival;

  static constexpr std::array<TokenId, kMaxDraftLen> kNothing{};  // which tokens is no matter

  // The last plan is Plan::lookup().
  static DraftBatch that_looks_up(int sequences, std::vector<double> steps,
                                  std::optional<int> fixed_len = {}) {
    steps.push_back(0);
    DraftBatch batch(0, steps);
    DraftLengths::Options wanted = options(steps, fixed_len, 1024, {});
    wanted.lookup = static_cast<int>(steps.size()) - 1;
    batch.lengths = DraftLengths(wanted);
    for (int i = 0; i < sequences; ++i) batch.add(batch.lengths.sequence());
    return batch;
  }
  // So many are found for each, right with that probability, and so many are.
  void find(std::vector<int> counts, float share, int right_ones) {
    found = std::move(counts);
    right.assign(found.size(), right_ones);
    found_survival.resize(found.size());
    for (auto& survival : found_survival) {
      float all = 1;
      for (float& here : survival) here = all *= share;
    }
  }

  DraftBatch(int sequences, std::vector<double> steps, std::optional<int> fixed_len = {},
             int max_rows = 1024, std::vector<char> by_mass = {})
      : lengths(options(steps, fixed_len, max_rows, std::move(by_mass))), step(steps) {
    for (int i = 0; i < sequences; ++i) add(lengths.sequence());
  }
  static DraftLengths::Options options(const std::vector<double>& steps,
                                       std::optional<int> fixed_len, int max_rows,
                                       std::vector<char> by_mass) {
    DraftLengths::Options options{.by_mass = std::move(by_mass),
                                  .target_bytes = 1e6,
                                  .max_rows = max_rows,
                                  .fixed_len = fixed_len};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      options.plans.push_back("plan" + std::to_string(i));
      options.plan_bytes.push_back(1e8 * steps[i]);
    }
    return options;
  }
  void add(SequenceDrafts sequence, int cap = kMaxDraftLen) {
    drafts.push_back(std::move(sequence));
    caps.push_back(cap);
    draft_bytes.emplace_back(step.size(), 1.0);
  }
  // One that drafts by these plans alone.
  void add_for(const std::vector<int>& plans, int cap = kMaxDraftLen) {
    add(lengths.sequence(), cap);
    std::ranges::fill(draft_bytes.back(), -1.0);
    for (const int plan : plans) draft_bytes.back()[plan] = 1.0;
  }

  std::vector<SequenceLoad> loads() {
    std::vector<SequenceLoad> loads;
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      loads.push_back({&drafts[i], caps[i], 2.0, draft_bytes[i]});
      if (found.empty()) continue;
      loads.back().found = {std::span(kNothing).first(found[i]), &found_survival[i]};
    }
    return loads;
  }
  struct Round {
    int plan;
    std::vector<int> lengths;
    bool records_masses = false;
    std::vector<char> looked_up = {};
    bool drafts() const {
      return std::ranges::any_of(lengths, [](int n) { return n > 0; });
    }
  };
  // accept(i): how many tokens sequence i would accept at most.
  template <typename F>
  Round round(const F& accept) {
    const std::vector<SequenceLoad> loads = this->loads();
    const RoundChoice choice = lengths.choose(loads);
    const Round round{choice.plan,
                      {choice.lengths.begin(), choice.lengths.end()},
                      choice.records_masses,
                      {choice.looked_up.begin(), choice.looked_up.end()}};
    std::vector<int> accepted;
    int longest = 0;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const bool looked_up = round.looked_up[i];
      accepted.push_back(std::min(round.lengths[i], looked_up ? right[i] : accept(i)));
      if (!looked_up) longest = std::max(longest, round.lengths[i]);
    }
    const int rows =
        static_cast<int>(loads.size()) + std::reduce(round.lengths.begin(), round.lengths.end());
    lengths.observe(loads, choice, accepted, longest > 0 ? longest * step[round.plan] : 0,
                    0.01 + row_seconds * rows + (round.drafts() ? drafts_seconds : 0));
    return round;
  }
  Round rounds(int count, int accept) {
    Round last;
    for (int i = 0; i < count; ++i) last = round([&](std::size_t) { return accept; });
    return last;
  }
};

}  // namespace quantspec
