#include "speculative/draft_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace quantspec {
namespace {

constexpr int kExploreRounds = 2;  // of each arm, and of plain decoding
constexpr std::array<int, kExploreRounds> kExploreLens = {1, 2};  // cheap if drafting does not pay
constexpr double kOptimism = 0.5;                                 // in standard errors
constexpr int kProbeSpacing = 16;                                 // rounds between probes, at least
constexpr double kProbeShare = 0.01;  // of all time may be lost to probes
constexpr int kFreshRounds = 64;      // what was measured so recently needs no probe

}  // namespace

DraftControl::DraftControl(std::vector<std::string> candidates, std::optional<int> fixed_len,
                           int max_len)
    : fixed_len_(fixed_len), max_len_(max_len), verify_(max_len + 1) {
  check(max_len >= 0, "a draft length is not negative");
  check(!fixed_len || (*fixed_len >= 0 && *fixed_len <= max_len), "fixed_len is within max_len");
  for (std::string& name : candidates) {
    arms_.push_back({std::move(name), {}, AcceptanceEstimate(max_len)});
  }
}

DraftChoice DraftControl::choose(int cap) {
  check(cap >= 0, "a cap on the draft length is not negative");
  probe_.reset();
  cap = std::min(cap, fixed_len_.value_or(max_len_));
  if (arms_.empty() || cap == 0) return {0, 0};
  if (exploring()) return explore(cap);
  probe_ = due_probe(best(cap), cap);
  if (probe_) return *probe_;
  const DraftChoice hopeful = best(cap, kOptimism);
  // The plan that might be best, at the length that is best by what is known of it.
  return hopeful.draft_len == 0 ? hopeful : best_of(hopeful.plan, 1, cap);
}

void DraftControl::observe(const DraftRound& round) {
  const DraftChoice choice = round.choice;
  const double total = round.draft_seconds + round.verify_seconds;
  ++round_;
  verify_.observe(choice.draft_len + 1, round.verify_seconds, round_);
  if (choice.draft_len > 0) {
    check(choice.plan >= 0 && choice.plan < std::ssize(arms_),
          "a round was drafted by one of the candidate plans");
    Arm& arm = arms_[choice.plan];
    arm.step.observe(round.draft_seconds / choice.draft_len, round_);
    arm.acceptance.observe(choice.draft_len, round.accepted);
    ++arm.rounds;
    for (Arm& other : arms_) {
      if (&other != &arm) other.acceptance.fade();
    }
  }
  probe_seconds_ += kProbeShare * total;
  repeat_probe_ = false;
  if (!probe_) return;
  const DraftChoice usual = best(max_len_);
  probe_seconds_ -= std::max(0.0, loss(choice, usual));
  repeat_probe_ = choice.draft_len > 0 && round.accepted == choice.draft_len;
  if (!repeat_probe_) ++next_probe_;
  last_probe_round_ = round_;
}

double DraftControl::tokens(DraftChoice choice, double optimism) const {
  if (choice.draft_len == 0) return 1;
  return arms_[choice.plan].acceptance.expected_tokens(choice.draft_len, optimism);
}

double DraftControl::seconds(DraftChoice choice) const {
  const double verify = verify_.seconds(choice.draft_len + 1);
  if (choice.draft_len == 0) return verify;
  return verify + choice.draft_len * arms_[choice.plan].step.seconds();
}

double DraftControl::loss(DraftChoice probe, DraftChoice best) const {
  return seconds(probe) - tokens(probe) * seconds_per_token(best);
}

bool DraftControl::exploring() const {
  const bool plain_known = fixed_len_ || verify_.measured(1).count() >= kExploreRounds;
  return !plain_known ||
         std::ranges::any_of(arms_, [](const Arm& arm) { return arm.rounds < kExploreRounds; });
}

// Plain decoding first, then every arm in turn.
DraftChoice DraftControl::explore(int cap) const {
  if (!fixed_len_ && verify_.measured(1).count() < kExploreRounds) return {0, 0};
  const auto next = std::ranges::min_element(arms_, {}, &Arm::rounds);
  return {static_cast<int>(next - arms_.begin()),
          std::min(cap, fixed_len_.value_or(kExploreLens[next->rounds]))};
}

// NOTE: not beyond twice the longest draft that was tried: verify times are extrapolated there.
DraftChoice DraftControl::best_of(int plan, int min_len, int cap, double optimism) const {
  if (fixed_len_) return {plan, std::min(*fixed_len_, cap)};
  cap = std::min(cap, std::max(4, 2 * (verify_.most_rows() - 1)));
  DraftChoice best{plan, std::min(min_len, cap)};
  for (int len = best.draft_len + 1; len <= cap; ++len) {
    const DraftChoice longer{plan, len};
    if (seconds_per_token(longer, optimism) < seconds_per_token(best, optimism)) best = longer;
  }
  return best;
}

DraftChoice DraftControl::best(int cap, double optimism) const {
  DraftChoice best = best_of(0, 0, cap, optimism);
  for (int plan = 1; plan < std::ssize(arms_); ++plan) {
    const DraftChoice other = best_of(plan, 0, cap, optimism);
    if (seconds_per_token(other, optimism) < seconds_per_token(best, optimism)) best = other;
  }
  return best;
}

// What could turn out to be better than the estimates say: drafting when it is off; else plain
// decoding, and shorter and longer drafts.
std::size_t DraftControl::num_probes(DraftChoice best) const {
  if (fixed_len_) return 0;
  return best.draft_len == 0 ? arms_.size() : 3;
}

DraftChoice DraftControl::probe(DraftChoice best, std::size_t index) const {
  if (best.draft_len == 0) return best_of(static_cast<int>(index), 2, max_len_);
  const std::array lens = {0, best.draft_len * 2 / 3, best.draft_len * 3 / 2 + 1};
  return {best.plan, std::min(lens[index], max_len_)};
}

// The probe whose turn it is, if it is time for one, it fits under the cap and can be afforded.
std::optional<DraftChoice> DraftControl::due_probe(DraftChoice best, int cap) {
  if (!repeat_probe_ && round_ - last_probe_round_ < kProbeSpacing) return std::nullopt;
  const std::size_t count = num_probes(best);
  for (std::size_t tried = 0; tried < count; ++tried, ++next_probe_) {
    const DraftChoice probe = this->probe(best, next_probe_ % count);
    const bool other_arm = probe.draft_len > 0 && probe.plan != best.plan;
    const auto& latest = other_arm || best.draft_len == 0 ? arms_[probe.plan].step
                                                          : verify_.measured(probe.draft_len + 1);
    const bool fresh = latest.known() && round_ - latest.last_round() < kFreshRounds;
    if (probe == best || (fresh && !repeat_probe_)) continue;
    const bool fits = probe.draft_len <= cap;
    const bool affordable = repeat_probe_ || loss(probe, best) <= probe_seconds_;
    return fits && affordable ? std::optional(probe) : std::nullopt;
  }
  return std::nullopt;
}

std::string DraftControl::explain() const {
  if (arms_.empty() || fixed_len_ == 0) return "plain decoding: no drafts are wanted";
  std::string arms;
  for (const Arm& arm : arms_) {
    arms += arm.rounds == 0
                ? fmt::format("; {} not tried", arm.name)
                : fmt::format("; {} drafts a token in {:.2f} ms, accepts {:.2f}", arm.name,
                              1e3 * arm.step.seconds(), arm.acceptance.pooled());
  }
  if (exploring()) return "still measuring" + arms;
  const DraftChoice choice = best(max_len_);
  std::string head =
      choice.draft_len == 0
          ? std::string("drafting does not pay")
          : fmt::format("now drafts {} by {}, expects {:.2f} tokens a round at {:.2f} ms each",
                        choice.draft_len, arms_[choice.plan].name, tokens(choice),
                        1e3 * seconds_per_token(choice));
  head += fmt::format("; verify {:.2f} ms", 1e3 * verify_.seconds(choice.draft_len + 1));
  if (verify_.measured(1).known()) {
    head += fmt::format(", plain decoding {:.2f} ms when last tried", 1e3 * verify_.seconds(1));
  }
  return head + arms;
}

}  // namespace quantspec
