// Chooses how many tokens to draft and by which plan, from what rounds were measured to cost and to
// yield (section 4 of docs/design.md, "chosen, not guessed"):
//
//     maximize  (1 + sum_i prod_{j<=i} accept[j]) / (draft_len * t_draft + t_verify(draft_len + 1))
//
// over the candidate plans and draft_len >= 0. draft_len 0 is plain decoding, so a drafter that
// does not pay is switched off. All estimates follow slow changes (the context grows) and ignore
// outliers (a descheduled thread). A plan of which little is known is judged by what it might turn
// out to accept (a bandit's upper confidence bound), so that plans are told apart where it matters;
// other lengths, and drafting when it is off, are probed again, rarely.
//
// One DraftControl serves one sequence; it is not thread-safe. It is deterministic given the
// observations: it owns no clock and no randomness. It allocates when it is made and explained.
// Times are in seconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/params.h"
#include "speculative/draft_estimates.h"

namespace quantspec {

struct DraftChoice {
  int plan;       // of the candidates; of no meaning when draft_len is 0
  int draft_len;  // γ
  bool operator==(const DraftChoice&) const = default;
};

// What came of one round.
struct DraftRound {
  DraftChoice choice;     // draft_len as run
  int accepted;           // of the drafted tokens
  double draft_seconds;   // all draft passes together, their sampling included
  double verify_seconds;  // everything else in the round
};

class DraftControl {
 public:
  static constexpr int kMaxDraftLen = quantspec::kMaxDraftLen;

  // candidates: the names of the plans that may draft; none: never draft. fixed_len: always draft
  // that many tokens (as far as the cap allows), and choose only the plan; nullopt: choose both.
  // REQUIRES: 0 <= fixed_len <= max_len.
  DraftControl(std::vector<std::string> candidates, std::optional<int> fixed_len,
               int max_len = kMaxDraftLen);

  // The choice for the next round; draft_len <= cap (page boundary, tokens still wanted). cap >= 0.
  DraftChoice choose(int cap);
  void observe(const DraftRound& round);

  // Speculation does not pay and is switched off, but for rare probes.
  bool off() const {
    return !fixed_len_ && !arms_.empty() && !exploring() && best(max_len_).draft_len == 0;
  }
  // One line: what is chosen and why, for a log.
  std::string explain() const;

 private:
  struct Arm {
    std::string name;
    TimeEstimate step;  // one draft pass
    AcceptanceEstimate acceptance;
    int rounds = 0;
  };

  double tokens(DraftChoice choice, double optimism = 0) const;
  double seconds(DraftChoice choice) const;
  double seconds_per_token(DraftChoice choice, double optimism = 0) const {
    return seconds(choice) / tokens(choice, optimism);
  }
  // What a probe is expected to cost over the best choice's time for as many tokens.
  double loss(DraftChoice probe, DraftChoice best) const;

  bool exploring() const;
  DraftChoice explore(int cap) const;
  DraftChoice best(int cap, double optimism = 0) const;
  DraftChoice best_of(int plan, int min_len, int cap, double optimism = 0) const;
  std::size_t num_probes(DraftChoice best) const;
  DraftChoice probe(DraftChoice best, std::size_t index) const;
  std::optional<DraftChoice> due_probe(DraftChoice best, int cap);

  std::optional<int> fixed_len_;
  int max_len_;
  std::vector<Arm> arms_;
  VerifyTime verify_;
  int round_ = 0;

  std::optional<DraftChoice> probe_;  // the choice given out last, if it was a probe
  bool repeat_probe_ = false;         // it was accepted in full: look again at once
  std::size_t next_probe_ = 0;        // of num_probes(), in turn
  int last_probe_round_ = 0;
  double probe_seconds_ = 0;  // that may still be lost to probes
};

}  // namespace quantspec
