// Times of passes before anything is asked of the model.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "comm/comm.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

constexpr std::array kDraftLens = {2, 6};  // so that verification is timed at few rows and at more
// Sweeps over all kinds of rounds. The first rounds of a process are slow, some for long: sweeps go
// on as long as one finds a kind faster than before.
constexpr int kLeastSweeps = 3;
constexpr int kMostSweeps = 12;
constexpr double kFaster = 0.98;
// Where rounds are repeated they run as they are issued first (RoundGraphs).
constexpr int kLeastSweepsRepeated = 10;

// A kind of round, and the least that it took: whatever else runs on a machine adds to it.
struct Kind {
  DraftChoice choice;
  double draft_pass = std::numeric_limits<double>::infinity();
  double other = std::numeric_limits<double>::infinity();

  // Whether it was much faster.
  bool note(const Decoder::Outcome& round) {
    const auto least = [](double& known, double seconds) {
      const bool faster = seconds < kFaster * known;
      known = std::min(known, seconds);
      return faster;
    };
    bool faster = least(other, round.other_seconds);
    if (choice.draft_len > 0 && choice.plan >= 0)
      faster |= least(draft_pass, round.draft_seconds / choice.draft_len);
    return faster;
  }
};

// Over an empty cache their passes are the same.
bool read_same_weights(const Plan& a, const Plan& b) {
  return a.head == b.head &&
         std::ranges::equal(a.layers, b.layers, [](const LayerPlan& x, const LayerPlan& y) {
           return x.run == y.run && x.weights == y.weights;
         });
}

std::vector<Kind> kinds(const std::vector<Plan>& plans, int most_rows) {
  std::vector<Kind> kinds = {{.choice = {0, 0}}};
  for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
    const bool timed = std::any_of(
        plans.begin(), plan, [&](const Plan& before) { return read_same_weights(before, *plan); });
    for (const int length : kDraftLens) {
      if (timed || length >= most_rows) continue;
      const int drafts =
          plan->looks_up() ? DraftChoice::kProposed : static_cast<int>(plan - plans.begin());
      if (drafts == DraftChoice::kProposed && plans.size() > 1) continue;  // others verify as many
      kinds.push_back({.choice = {drafts, length}});
    }
  }
  return kinds;
}

std::vector<TimedPass> passes(const std::vector<Kind>& kinds, const std::vector<Plan>& plans) {
  std::vector<TimedPass> passes;
  for (const Kind& kind : kinds) {
    if (!std::isfinite(kind.other)) continue;  // there was no time for it
    passes.push_back({.load = {.rows = kind.choice.draft_len + 1}, .seconds = kind.other});
    if (kind.choice.draft_len == 0 || kind.choice.plan < 0) continue;
    for (std::size_t plan = 0; plan < plans.size(); ++plan) {
      if (!read_same_weights(plans[plan], plans[kind.choice.plan])) continue;
      passes.push_back({static_cast<int>(plan), {.rows = 1}, kind.draft_pass});
    }
  }
  return passes;
}

}  // namespace

std::vector<TimedPass> Decoder::time_passes(Sequence& sequence, double most_seconds) {
  check(sequence.tokens_.empty(), "passes over an empty cache are timed");
  const std::vector<Plan>& plans = sequence.options_.plans;
  if (plans.empty() || most_seconds <= 0) return {};  // there is nothing to choose
  const Agreement agreement(ranks_);
  const Stopwatch clock;
  std::vector<Kind> kinds = quantspec::kinds(plans, sequence.max_rows());
  const int least = model_.backend().repeats_rounds() ? kLeastSweepsRepeated : kLeastSweeps;
  constexpr std::array<TokenId, kMaxDraftLen> nothing{};
  bool faster = true;
  for (int sweep = 0; sweep < kMostSweeps && (faster || sweep < least); ++sweep) {
    faster = false;
    for (Kind& kind : kinds) {
      if (agreement.on(clock.seconds() > most_seconds)) break;
      resume(sequence, std::array<TokenId, 1>{});
      Lane lane{&sequence, kind.choice};
      if (kind.choice.plan < 0) lane.proposed = std::span(nothing).first(kind.choice.draft_len);
      faster |= kind.note(round({&lane, 1}));
      sequence.clear();
    }
  }
  sequence.plan_ = -1;
  sequence.stats_ = {};
  return passes(kinds, plans);
}

}  // namespace quantspec
