// Chooses how many tokens each sequence of a batch drafts in the next round, and by which plan, so
// that the batch as a whole yields most tokens a second: from what rounds were measured to take
// (cost_model.h), from what sequences accept (acceptance_estimates.h), by goodput.h. Length 0 is
// plain decoding, so drafts that do not pay are switched off: for a sequence, or for all. A batch
// of one is a batch.
//
// All drafts of a round are by one plan: draft passes of two plans share no read of the weights, so
// a second plan costs its passes anew at every depth. A sequence that may not use the round's plan
// drafts nothing in it.
//
// It begins with priors: of acceptance by the kind of a plan, of times by passes that were timed
// before the first request (set_priors). What was not timed is tried first: plain decoding, and by
// short drafts the plan that would be best, if its passes read bytes as fast as verification does.
//
// Tokens that were looked up (lookup_drafts.h) are no plan's: they cost no pass, and how likely
// they are to be accepted is known without a try. So nothing of the above is for them: once lengths
// are chosen, sequences verify what was found for them instead where the round yields more by that.
//
// A plan of which little is known is judged by what it might turn out to accept (a bandit's upper
// confidence bound). What is not in use is probed again, rarely: of all time at most a share is
// expected to be lost to that, and nearly none to drafts that would not pay if all that fit a pass
// were accepted.
// Lengths and plans are kept unless a change gains more than a little, and a round drafts only if
// that beats plain decoding by 3%.
//
// Masses of pages, by which sparse plans choose, cost a verification time. So they are recorded
// only while such a plan is in use, and in one round before it is tried, which is by another.
//
// One DraftLengths serves an engine; it is not thread-safe. It is deterministic given the
// observations: it owns no clock and no randomness, and sees no token (acceptance_estimates.h says
// why). It allocates when a batch is larger than all before (reserve), and to explain. Times are in
// seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"
#include "speculative/acceptance_estimates.h"
#include "speculative/goodput.h"

namespace quantspec {

// What is known of one sequence's drafts; made by DraftLengths::sequence.
class SequenceDrafts {
 private:
  friend class DraftLengths;
  struct ByPlan {
    SequenceAcceptance acceptance;
    std::int64_t seen_round;  // up to which acceptance was told of rounds
  };
  std::vector<ByPlan> plans_;
  int wanted_ = -1;         // the last length that no cap cut short; -1: none yet
  bool promising_ = false;  // it accepted more of a probe than was expected
};

// Tokens that were looked up for a sequence (lookup_drafts.h).
struct FoundTokens {
  std::span<const TokenId> tokens = {};
  // [i]: the probability that the first i + 1 are right; of no meaning where there are none.
  const SequenceAcceptance::Survival* survival = nullptr;
};

// A sequence of the next round.
struct SequenceLoad {
  SequenceDrafts* drafts;
  int cap;              // most tokens to draft, >= 0: page border, tokens still wanted
  double verify_bytes;  // of KV that a verification reads of it (kv_bytes of the target's plan)
  // The same of a draft pass, by plan; negative: the sequence drafts nothing by that plan now.
  std::span<const double> draft_bytes;
  FoundTokens found = {};

  bool may_draft_by(int plan) const { return draft_bytes[plan] >= 0; }
};

struct RoundChoice {
  int plan;                      // of no meaning if all lengths are 0
  std::span<const int> lengths;  // γ by sequence, in the order of the loads
  // Whether the verification is to record masses, since a later round may choose pages by them.
  bool records_masses = false;
  // By sequence: its length is of tokens that were looked up, not drafted by the plan. Empty: none.
  std::span<const char> looked_up = {};
};

class DraftLengths {
 public:
  static constexpr int kMostRows = 1024;  // of one pass

  struct Options {
    std::vector<std::string> plans;  // the names of the plans that may draft; none: never draft
    std::vector<double> plan_bytes;  // what a pass of each reads besides the cache
    std::vector<char> by_mass = {};  // whether each chooses pages by masses; none: none does
    // The share of each one's tokens that is thought to be accepted, within (0, 1), to begin with;
    // none: a usual one.
    std::vector<float> acceptance = {};
    int lookup = -1;          // the plan that has no passes (Plan::lookup); -1: none
    double target_bytes = 1;  // what verification does
    int max_rows = kMostRows;
    std::optional<int> fixed_len;  // always so many, as far as caps allow; only the plan is chosen
  };
  // REQUIRES: as many plan_bytes as plans; 0 <= fixed_len <= kMaxDraftLen.
  explicit DraftLengths(Options options);
  // Passes that were timed before the first round; they need not be tried.
  void set_priors(std::span<const TimedPass> passes);

  // For a new sequence. It begins with the engine's estimates.
  SequenceDrafts sequence() const;

  // Batches of so many sequences allocate nothing from now on.
  void reserve(std::size_t sequences);

  // For the next round of these sequences. The lengths are valid until the next call.
  // REQUIRES: 1 <= batch.size() <= max_rows.
  RoundChoice choose(std::span<const SequenceLoad> batch);
  // What came of a round: `run` as it ran (a choice, or less), and tokens accepted by sequence.
  // draft_seconds: all draft passes, their sampling included. verify_seconds: all else in the
  // round.
  void observe(std::span<const SequenceLoad> batch, const RoundChoice& run,
               std::span<const int> accepted, double draft_seconds, double verify_seconds);

  const CostModel& costs() const { return costs_; }

  // Speculation does not pay for the batch of the last choice, and is off but for rare probes. A
  // round that caps cut short for most of its sequences does not count, here and in explain().
  bool off() const { return off_ && !looks_up_lately(); }
  // One line: what was chosen last and why, for a log.
  std::string explain() const;
  // Tokens a second of the whole batch, that the last choice is expected to make, and that plain
  // decoding is; 0 while they are measured.
  struct Rates {
    double chosen = 0, plain = 0;
  };
  Rates expected() const { return told_.exploring ? Rates{} : expected_; }

 private:
  friend class Aged;  // of the tests: one that ran for years
  using RoundNumber = std::int64_t;
  static constexpr int kPlain = -1;
  static constexpr RoundNumber kNever = -1;
  static constexpr int kTrials = 2;  // of what was not timed

  enum class Belief {  // how many drafted tokens will be accepted
    kEstimate,
    kHopeful,  // as many as well might
    kCertain,  // all
  };

  struct Arm {  // a plan
    std::string name;
    PlanAcceptance acceptance;
    int trials = kTrials;             // that are left to try it
    RoundNumber last_round = kNever;  // that it drafted
    bool by_mass = false;             // it chooses pages by masses
    bool usable = false;              // by a sequence of the batch at hand
    double kv_bytes = 0;              // that a draft pass reads of such a sequence
  };
  struct Found {
    int plan = kPlain;
    double rate = 0;  // tokens a second
  };
  struct Probe {
    bool running = false;  // the last choice was one
    bool repeat = false;   // sequences accepted more of it than was expected: look again at once
    int plan = kPlain;
    double loss = 0;         // expected of the running one
    std::uint64_t next = 0;  // kind of the next one, in turn
    std::uint64_t next_lane = 0;
    RoundNumber last_round = 0;  // of a probe, or of looking for one in vain
    double seconds = 0;          // that may still be lost to probes
    double credit = 0;           // the same beyond that, by one that is repeated
  };
  struct Told {  // of the last choice, for explain()
    bool exploring = true;
    int sequences = 0, drafted = 0;
    double rate = 0, plain_rate = 0;
  };

  static int drafted(std::span<const int> lengths);  // all together
  static bool mostly_cut_short(std::span<const SequenceLoad> batch);
  bool mark_usable(std::span<const SequenceLoad> batch);
  int max_rows(std::size_t sequences) const;
  void set_lanes(std::span<const SequenceLoad> batch, int plan, Belief belief = Belief::kEstimate);
  double find_lengths();
  void spread(int length, std::uint64_t first, std::size_t sequences);

  RoundChoice chosen(int plan);
  bool by_mass(int plan) const { return plan != kPlain && arms_[plan].by_mass; }
  bool ready(int plan);
  bool could_pay(std::span<const SequenceLoad> batch, int plan);

  bool plain_known(std::size_t sequences) const;
  bool explore(std::span<const SequenceLoad> batch, Found& found);
  Found best(std::span<const SequenceLoad> batch);
  Found best_plan(std::span<const SequenceLoad> batch, Belief belief);
  Found without_masses(std::span<const SequenceLoad> batch);
  void settle(std::span<const SequenceLoad> batch, const Found& found);
  bool pays(std::span<const SequenceLoad> batch, Found& found);
  void look_up(std::span<const SequenceLoad> batch, const Found& found);
  bool replace(std::span<const SequenceLoad> batch, bool all);
  void keep_lengths(std::span<const SequenceLoad> batch);
  void note_wanted(std::span<const SequenceLoad> batch);

  bool probe(std::span<const SequenceLoad> batch, Found& found);
  bool probe_again(std::span<const SequenceLoad> batch, Found& found);
  std::optional<int> probe_off(std::span<const SequenceLoad> batch, int kind);
  std::optional<int> probe_on(std::span<const SequenceLoad> batch, int usual, int kind);
  void scale_lengths(int numerator, int denominator, int more);
  bool is_fresh(int plan, const Found& usual);
  double loss_of_trial(double usual_rate);
  void start_probe(int plan, double usual_rate, Found& found);

  void learn(std::span<const SequenceLoad> batch, const RoundChoice& run,
             std::span<const int> accepted);
  void note_promising(std::span<const SequenceLoad> batch, const RoundChoice& run,
                      std::span<const int> accepted);
  void settle_probe(double seconds);
  bool recent(RoundNumber round) const;
  bool looks_up_lately() const { return lookup_ >= 0 && recent(arms_[lookup_].last_round); }

  std::optional<int> fixed_len_;
  int lookup_;
  CostModel costs_;
  std::vector<Arm> arms_;
  CommonAcceptance common_;
  Goodput goodput_;
  RoundNumber round_ = 0;
  int plain_trials_ = kTrials;  // that are left
  // By knot of rows: the last round whose verification had so many.
  std::vector<RoundNumber> rows_seen_;
  int most_rows_ = 0;  // of a verification that ran
  // By knot of rows: a batch of that size need not be drafted for to learn of it, since one was,
  // all of it, or draft passes of so many rows were timed (set_priors).
  std::vector<char> sizes_drafted_;

  std::vector<DraftLane> lanes_;
  std::vector<SequenceAcceptance::Survival> blended_;
  std::vector<int> lengths_, trial_, wanted_;
  std::vector<char> looked_up_;
  std::int64_t found_ = 0, found_right_ = 0;  // tokens that were looked up, and accepted
  int plan_ = kPlain;       // chosen last, probes and rounds that were cut short aside
  int candidate_ = kPlain;  // the best plan, whether it pays or not
  bool off_ = false;
  bool has_masses_ = false;    // the last round was to record them
  bool wants_masses_ = false;  // the round at hand is, for the next one
  Probe probe_;
  Told told_;
  Rates expected_;
};

}  // namespace quantspec
