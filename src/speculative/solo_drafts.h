// Chooses what a sequence drafts that decodes by itself: DraftLengths for a batch of one, with what
// passes of its model read. Copies go on with what was measured, each on its own. Not thread-safe;
// allocates when it is made, copied and explained. Times are in seconds.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "speculative/draft_lengths.h"
#include "speculative/round_bytes.h"

namespace quantspec {

struct DraftChoice {
  static constexpr int kProposed = -1;  // no plan: who asks proposes tokens
  int plan;       // of those that may draft; of no meaning when draft_len is 0
  int draft_len;  // γ
  bool operator==(const DraftChoice&) const = default;
};

class SoloDrafts {
 public:
  // cache: of the sequence; target: the plan that verifies. plans, fixed_len:
  // DraftLengths::Options.
  SoloDrafts(const Model& model, const KvCache& cache, const Plan& target,
             std::span<const Plan> plans, std::optional<int> fixed_len);

  // As DraftLengths'.
  void set_priors(std::span<const TimedPass> passes) { lengths_.set_priors(passes); }
  // For the next round, after so many tokens, for which those were looked up; draft_len <= cap.
  // cap >= 0.
  DraftChoice choose(int cap, int context, const FoundTokens& found = {});
  bool records_masses() const { return records_masses_; }  // RoundChoice's, of that round
  // What came of it. draft_seconds: all draft passes, their sampling included. verify_seconds: all
  // else in the round.
  void observe(DraftChoice run, int accepted, double draft_seconds, double verify_seconds);

  // As DraftLengths'.
  bool off() const { return lengths_.off(); }
  std::string explain() const { return lengths_.explain(); }

 private:
  SequenceLoad load(int cap, const FoundTokens& found = {}) {
    return {&drafts_, cap, verify_bytes_, draft_bytes_, found};
  }

  RoundBytes bytes_;
  DraftLengths lengths_;
  SequenceDrafts drafts_;
  double verify_bytes_ = 0;  // of the round at hand
  std::vector<double> draft_bytes_;
  bool records_masses_ = false;
};

}  // namespace quantspec
