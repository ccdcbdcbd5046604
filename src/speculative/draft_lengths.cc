#include "speculative/draft_lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace quantspec {
namespace {

constexpr double kPays = 1.03;       // times plain decoding's tokens a second; less is not worth it
constexpr double kSwitchOn = 1.04;   // the same when drafting is off
constexpr double kKeepPlan = 1.01;   // a plan stays unless another is so much better
constexpr double kFoundPays = 1.01;  // of what is expected without tokens that were looked up
constexpr double kKeepLengths = 0.01;  // of the goodput may be lost by lengths that stay
constexpr float kFewTrials = 16;       // of a plan that is judged by the others
constexpr int kIdleRounds = 16;        // estimates of plans not in use are told of time so often
constexpr int kStaleRounds = 1024;     // after which times of passes are doubted

constexpr SequenceAcceptance::Survival kCertain = [] {
  SequenceAcceptance::Survival all{};
  all.fill(1);
  return all;
}();

}  // namespace

DraftLengths::DraftLengths(Options options)
    : fixed_len_(options.fixed_len),
      lookup_(options.lookup),
      costs_(options.target_bytes, options.plan_bytes, options.max_rows),
      common_(options.plans.size()),
      rows_seen_(costs_.target().num_knots(), kNever),
      sizes_drafted_(costs_.target().num_knots(), false) {
  check(options.plans.size() == options.plan_bytes.size(), "every plan's passes read some bytes");
  options.by_mass.resize(options.plans.size());
  check(!fixed_len_ || (*fixed_len_ >= 0 && *fixed_len_ <= kMaxDraftLen),
        "fixed_len is within kMaxDraftLen");
  options.acceptance.resize(options.plans.size(), PlanAcceptance::kUsual);
  for (std::size_t i = 0; i < options.plans.size(); ++i) {
    arms_.push_back({std::move(options.plans[i]), PlanAcceptance(options.acceptance[i])});
    arms_.back().by_mass = options.by_mass[i];
    if (static_cast<int>(i) == lookup_) arms_.back().trials = 0;
  }
}

void DraftLengths::set_priors(std::span<const TimedPass> passes) {
  for (const TimedPass& pass : passes) {
    costs_.set_prior(pass);
    if (pass.plan != TimedPass::kTarget) {
      arms_[pass.plan].trials = 0;
      sizes_drafted_[costs_.target().knot(pass.load.rows)] = true;
      continue;
    }
    rows_seen_[costs_.target().knot(pass.load.rows)] = round_;
    if (pass.load.rows == 1) plain_trials_ = 0;
  }
}

SequenceDrafts DraftLengths::sequence() const {
  SequenceDrafts drafts;
  for (const Arm& arm : arms_) {
    drafts.plans_.push_back({SequenceAcceptance(arm.acceptance), round_});
  }
  return drafts;
}

void DraftLengths::reserve(std::size_t sequences) {
  lanes_.reserve(sequences);
  blended_.reserve(sequences);
  looked_up_.reserve(sequences);
  for (std::vector<int>* lengths : {&lengths_, &trial_, &wanted_}) lengths->reserve(sequences);
  goodput_.reserve(sequences);
}

RoundChoice DraftLengths::choose(std::span<const SequenceLoad> batch) {
  check(!batch.empty() && std::ssize(batch) <= costs_.target().max_rows(),
        "a batch has a sequence or more, and no more than a pass has rows");
  lengths_.assign(batch.size(), 0);
  trial_.assign(batch.size(), 0);
  looked_up_.assign(batch.size(), false);
  probe_.running = false;
  wants_masses_ = false;
  if (fixed_len_ == 0 || std::ssize(batch) >= costs_.target().max_rows()) return chosen(kPlain);
  Found found;
  if (mark_usable(batch)) {
    told_.exploring = true;
    if (!fixed_len_ && !plain_known(batch.size())) return chosen(kPlain);
    found = best(batch);
    if (explore(batch, found)) return chosen(found.plan);
    settle(batch, found);
    if (found.plan != kPlain) note_wanted(batch);
    if (!ready(found.plan)) {
      found = without_masses(batch);
    } else if (!fixed_len_ && probe(batch, found)) {
      lengths_ = trial_;
      return chosen(found.plan);
    }
  } else if (lookup_ >= 0 && arms_.size() == 1) {
    told_.exploring = !costs_.target().measured();
    set_lanes(batch, kPlain);
    expected_ = {goodput_.plain(), goodput_.plain()};
  }
  look_up(batch, found);
  return chosen(found.plan);
}

// Sequences for which tokens were found take those, all of them or only those that are expected to
// accept as many as of what they would draft, if the round yields more by that.
void DraftLengths::look_up(std::span<const SequenceLoad> batch, const Found& found) {
  const auto has_found = [](const SequenceLoad& load) { return !load.found.tokens.empty(); };
  if (lookup_ < 0 || std::ranges::none_of(batch, has_found)) return;
  wanted_ = lengths_;  // without them
  set_lanes(batch, found.plan);
  Rates rates{goodput_.of(wanted_), goodput_.plain()};
  for (const bool all : {true, false}) {
    if (all && fixed_len_) continue;
    set_lanes(batch, found.plan);
    trial_ = wanted_;
    if (!replace(batch, all)) break;
    goodput_.set(costs_, std::max(found.plan, 0), lanes_);
    if (!fixed_len_) {
      goodput_.best(trial_, max_rows(batch.size()));
      goodput_.refine(trial_, max_rows(batch.size()));
    }
    const double rate = goodput_.of(trial_);
    if (rate < kFoundPays * rates.chosen && !fixed_len_) continue;
    expected_ = rates = {rate, rates.plain};
    lengths_ = trial_;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      looked_up_[i] = lanes_[i].looked_up && lengths_[i] > 0;
    }
  }
}

// lanes_: of sequences for which tokens were found, those; trial_: as many of them as may be.
bool DraftLengths::replace(std::span<const SequenceLoad> batch, bool all) {
  const auto expected = [](const SequenceAcceptance::Survival* survival, int length) {
    return survival == nullptr ? 0.0f : std::reduce(survival->begin(), survival->begin() + length);
  };
  bool any = false;
  int room = max_rows(batch.size()) - static_cast<int>(batch.size()) - drafted(trial_);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceLoad& load = batch[i];
    int cap = std::min(
        {load.cap, static_cast<int>(load.found.tokens.size()), fixed_len_.value_or(kMaxDraftLen)});
    if (cap == 0) continue;
    if (fixed_len_) cap = std::min(cap, room + trial_[i]);  // others are chosen within the rows
    const float instead = expected(lanes_[i].survival, trial_[i]);
    if (cap <= 0 || (!all && expected(load.found.survival, cap) < instead)) continue;
    room -= cap - trial_[i];
    lanes_[i] = {load.found.survival, cap, 0, load.verify_bytes, true};
    trial_[i] = cap;
    any = true;
  }
  return any;
}

// A round by `plan`, of lengths_, before which there was one by plan_ or a probe.
RoundChoice DraftLengths::chosen(int plan) {
  has_masses_ = wants_masses_ || by_mass(plan) || by_mass(plan_);
  return {plan, lengths_, has_masses_, looked_up_};
}

// Whether there are the masses that the plan chooses by; if not, there will be in the next round.
// NOTE: who wants a fixed length gets it at once, of all pages.
bool DraftLengths::ready(int plan) {
  if (fixed_len_ || !by_mass(plan) || has_masses_) return true;
  wants_masses_ = true;
  return false;
}

void DraftLengths::observe(std::span<const SequenceLoad> batch, const RoundChoice& run,
                           std::span<const int> accepted, double draft_seconds,
                           double verify_seconds) {
  check(run.lengths.size() == batch.size() && accepted.size() == batch.size(),
        "a length and an outcome for every sequence");
  ++round_;
  set_lanes(batch, run.plan);
  for (std::size_t i = 0; i < run.looked_up.size(); ++i) {
    if (!run.looked_up[i]) continue;
    lanes_[i] = {&kCertain, run.lengths[i], 0, batch[i].verify_bytes, true};
  }
  if (!run.looked_up.empty()) goodput_.set(costs_, std::max(run.plan, 0), lanes_);
  const PassLoad verify = goodput_.verify_load(run.lengths);
  costs_.observe(run.plan, goodput_.draft_loads(run.lengths), draft_seconds, verify,
                 verify_seconds);
  rows_seen_[costs_.target().knot(verify.rows)] = round_;
  most_rows_ = std::max(most_rows_, verify.rows);
  if (plain_trials_ > 0 && drafted(run.lengths) == 0) --plain_trials_;
  if (probe_.running && off_) note_promising(batch, run, accepted);
  learn(batch, run, accepted);
  settle_probe(draft_seconds + verify_seconds);
}

int DraftLengths::drafted(std::span<const int> lengths) {
  return std::reduce(lengths.begin(), lengths.end());
}

// By a page's border or by the tokens still wanted.
bool DraftLengths::mostly_cut_short(std::span<const SequenceLoad> batch) {
  const auto cut = std::ranges::count_if(
      batch, [](const SequenceLoad& load) { return load.cap < load.drafts->wanted_; });
  return 2 * cut > std::ssize(batch);
}

// Which plans some sequence could draft by now; false: none.
bool DraftLengths::mark_usable(std::span<const SequenceLoad> batch) {
  bool any = false;
  for (int plan = 0; plan < std::ssize(arms_); ++plan) {
    if (plan == lookup_) continue;
    const auto user = std::ranges::find_if(batch, [&](const SequenceLoad& load) {
      check(load.cap >= 0, "a cap on the draft length is not negative");
      check(load.drafts->plans_.size() == arms_.size() && load.draft_bytes.size() == arms_.size(),
            "a sequence knows every plan of its engine");
      return load.cap > 0 && load.may_draft_by(plan);
    });
    arms_[plan].usable = user != batch.end();
    if (arms_[plan].usable) arms_[plan].kv_bytes = user->draft_bytes[plan];
    any |= arms_[plan].usable;
  }
  return any;
}

// Of a verification. NOTE: not beyond twice the most rows that were tried: times are extrapolated,
// also from those over an empty cache.
int DraftLengths::max_rows(std::size_t sequences) const {
  const int plain = static_cast<int>(sequences);
  const int most = costs_.target().max_rows();
  if (fixed_len_) return most;
  return std::min(most, std::max({plain + 4, 2 * plain, 2 * most_rows_ - 1}));
}

// goodput_ is about this batch and plan from now on. kPlain: nobody drafts.
void DraftLengths::set_lanes(std::span<const SequenceLoad> batch, int plan, Belief belief) {
  lanes_.clear();
  const bool hopeful = belief == Belief::kHopeful;
  if (hopeful && blended_.size() < batch.size()) blended_.resize(batch.size());
  const float hope = 1 / std::sqrt(static_cast<float>(batch.size()));  // errors average out
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceLoad& load = batch[i];
    const bool may = plan != kPlain && load.may_draft_by(plan);
    DraftLane lane{nullptr, may ? std::min(load.cap, kMaxDraftLen) : 0, 0, load.verify_bytes};
    if (may) {
      const SequenceAcceptance& acceptance = load.drafts->plans_[plan].acceptance;
      lane.draft_bytes = load.draft_bytes[plan];
      lane.survival = belief == Belief::kCertain ? &kCertain : &acceptance.survival();
      if (hopeful) {
        for (int d = 0; d < kMaxDraftLen; ++d) {
          blended_[i][d] = acceptance.survival()[d] +
                           hope * (acceptance.hopeful()[d] - acceptance.survival()[d]);
        }
        lane.survival = &blended_[i];
      }
    }
    lanes_.push_back(lane);
  }
  goodput_.set(costs_, std::max(plan, 0), lanes_);
}

// trial_: the best lengths that draft, or the fixed ones. Returns their tokens a second; 0 if
// nobody can draft.
double DraftLengths::find_lengths() {
  if (!fixed_len_) return goodput_.best(trial_, max_rows(lanes_.size()));
  int room = max_rows(lanes_.size()) - static_cast<int>(lanes_.size());
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    trial_[i] = std::min({*fixed_len_, lanes_[i].cap, room});
    room -= trial_[i];
  }
  return drafted(trial_) > 0 ? goodput_.of(trial_) : 0;
}

DraftLengths::Found DraftLengths::best(std::span<const SequenceLoad> batch) {
  Found found = best_plan(batch, Belief::kHopeful);
  if (found.plan != kPlain && !pays(batch, found)) {
    found = best_plan(batch, Belief::kEstimate);
    if (found.plan != kPlain && !pays(batch, found)) found.plan = kPlain;
  }
  if (found.plan == kPlain) found.rate = goodput_.plain();
  return found;
}

// It is what is done from now on, but for rounds that are cut short.
void DraftLengths::settle(std::span<const SequenceLoad> batch, const Found& found) {
  told_.exploring = false;
  if (mostly_cut_short(batch)) return;
  off_ = !fixed_len_ && found.plan == kPlain;
  plan_ = found.plan;
  told_ = {false, static_cast<int>(batch.size()), drafted(lengths_), found.rate, goodput_.plain()};
  expected_ = {told_.rate, told_.plain_rate};
}

// What pays in a round that records the masses for the plan to come.
DraftLengths::Found DraftLengths::without_masses(std::span<const SequenceLoad> batch) {
  std::ranges::fill(lengths_, 0);
  for (Arm& arm : arms_) arm.usable &= !arm.by_mass;
  Found found = best_plan(batch, Belief::kEstimate);
  if (found.plan != kPlain && !pays(batch, found)) found.plan = kPlain;
  return found;
}

// The plan that is best, or might be by what its sequences might turn out to accept; kPlain if even
// so it does not pay.
DraftLengths::Found DraftLengths::best_plan(std::span<const SequenceLoad> batch, Belief belief) {
  Found best;
  for (int plan = 0; plan < std::ssize(arms_); ++plan) {
    if (!arms_[plan].usable) continue;
    set_lanes(batch, plan, belief);
    const double found = fixed_len_ ? find_lengths() : goodput_.best_rate(max_rows(batch.size()));
    const double rate = found * (plan == plan_ ? kKeepPlan : 1);
    if (rate > best.rate) best = {plan, rate};
  }
  if (belief == Belief::kHopeful) candidate_ = best.plan;
  if (!fixed_len_ && best.rate < kPays * goodput_.plain()) best.plan = kPlain;
  return best;
}

// Whether drafts by the plan, as many as caps and the rows of a pass allow, would be as fast as
// plain decoding if all of them were accepted; or its passes were timed so long ago that the
// machine may be another.
bool DraftLengths::could_pay(std::span<const SequenceLoad> batch, int plan) {
  if (round_ - std::max<RoundNumber>(arms_[plan].last_round, 0) >= kStaleRounds) return true;
  set_lanes(batch, plan, Belief::kCertain);
  return goodput_.best_rate(max_rows(batch.size())) >= goodput_.plain();
}

// lengths_: the best of that plan. False: they are not worth it.
bool DraftLengths::pays(std::span<const SequenceLoad> batch, Found& found) {
  set_lanes(batch, found.plan);
  find_lengths();
  if (!fixed_len_) goodput_.refine(trial_, max_rows(batch.size()));
  if (!fixed_len_ && found.plan == plan_) keep_lengths(batch);
  found.rate = goodput_.of(trial_);
  const double needed = plan_ == kPlain ? kSwitchOn : kPays;
  if (!fixed_len_ && found.rate < needed * goodput_.plain()) return false;
  lengths_ = trial_;
  return true;
}

// trial_: what a sequence had before, wherever that costs next to nothing.
void DraftLengths::keep_lengths(std::span<const SequenceLoad> batch) {
  wanted_.clear();
  for (const SequenceLoad& load : batch) wanted_.push_back(load.drafts->wanted_);
  goodput_.prefer(trial_, wanted_, max_rows(batch.size()), kKeepLengths);
}

void DraftLengths::note_wanted(std::span<const SequenceLoad> batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    int& wanted = batch[i].drafts->wanted_;
    const bool cut_short = lengths_[i] == lanes_[i].cap && wanted > lengths_[i];
    if (!cut_short) wanted = lengths_[i];
  }
}

void DraftLengths::learn(std::span<const SequenceLoad> batch, const RoundChoice& run,
                         std::span<const int> accepted) {
  const auto looked_up = [&](std::size_t i) { return !run.looked_up.empty() && run.looked_up[i]; };
  bool drafts = false;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (run.lengths[i] == 0) continue;
    drafts |= !looked_up(i);
    if (!looked_up(i)) continue;
    arms_[lookup_].last_round = round_;
    found_ += run.lengths[i];
    found_right_ += accepted[i];
  }
  if (drafts) {
    Arm& arm = arms_[run.plan];
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (run.lengths[i] == 0 || looked_up(i)) continue;
      arm.acceptance.observe(run.lengths[i], accepted[i]);
      common_.observe(run.plan, arm.acceptance.prior(), run.lengths[i], accepted[i]);
    }
    arm.acceptance.end_round();
    if (arm.trials > 0) --arm.trials;
    common_.end_round();
    for (std::size_t i = 0; i < arms_.size(); ++i) {
      PlanAcceptance& of = arms_[i].acceptance;
      of.expect(common_.expected(i, of.prior()));
    }
    arm.last_round = round_;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto& plans = batch[i].drafts->plans_;
    for (int plan = 0; plan < std::ssize(plans); ++plan) {
      const PlanAcceptance& all = arms_[plan].acceptance;
      if (drafts && plan == run.plan && run.lengths[i] > 0 && !looked_up(i)) {
        plans[plan].acceptance.observe(all, run.lengths[i], accepted[i]);
        plans[plan].seen_round = round_;
      } else if (all.trials() < kFewTrials || round_ - plans[plan].seen_round >= kIdleRounds) {
        plans[plan].acceptance.idle(all, round_ - plans[plan].seen_round);
        plans[plan].seen_round = round_;
      }
    }
  }
}

std::string DraftLengths::explain() const {
  if (arms_.empty() || fixed_len_ == 0) return "plain decoding: no drafts are wanted";
  std::string arms;
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    const Arm& arm = arms_[i];
    if (static_cast<int>(i) == lookup_) {
      if (arm.last_round == kNever) continue;
      arms += fmt::format("; {} of {} tokens looked up were right", found_right_, found_);
      continue;
    }
    arms += arm.last_round == kNever
                ? fmt::format("; {} not tried", arm.name)
                : fmt::format("; {} drafts a token in {:.2f} ms, accepts {:.2f}", arm.name,
                              1e3 * costs_.draft(static_cast<int>(i))
                                        .seconds({.rows = 1, .kv_bytes = arm.kv_bytes}),
                              arm.acceptance.pooled());
  }
  if (arms_.size() == 1 && lookup_ == 0) return "looks tokens up where that pays" + arms;
  if (told_.exploring) return "still measuring" + arms;
  if (plan_ == kPlain) {
    return fmt::format("drafting does not pay{}; plain decoding expects {:.2f} tokens/s{}",
                       looks_up_lately() ? ", but looking up does" : "", told_.plain_rate, arms);
  }
  const std::string whose =
      told_.sequences == 1 ? "" : fmt::format(" for {} sequences", told_.sequences);
  return fmt::format("now drafts {}{} by {}, expects {:.2f} tokens/s, {:.2f} by plain decoding{}",
                     told_.drafted, whose, arms_[plan_].name, told_.rate, told_.plain_rate, arms);
}

}  // namespace quantspec
