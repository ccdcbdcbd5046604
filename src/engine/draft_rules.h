// Draft lengths of many requests, some of which ask for a length of their own: those that ask for
// the same are chosen for together (DraftLengths), by a rule that learns from them alone. Not
// thread-safe. Times are in seconds.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "speculative/speculative.h"

namespace quantspec {

class DraftRules {
 public:
  // bytes: what the rounds read; its plans are those that draft.
  explicit DraftRules(RoundBytes bytes);
  ~DraftRules();

  // As DraftLengths', of all rules. REQUIRES: nobody has joined.
  void set_priors(std::vector<TimedPass> passes) { priors_ = std::move(passes); }
  // Rounds of so many allocate nothing. REQUIRES: nobody has joined.
  void reserve(std::size_t members);

  // A request's part in them.
  struct Rule;
  struct Member {
    Rule* rule = nullptr;
    SequenceDrafts drafts = {};
    bool plain = false;  // it never drafts: its rows take part in what others' drafts cost
  };
  // draft_len: it always drafts so many; none: what yields most.
  Member join(std::optional<int> draft_len);

  // As DraftLengths'.
  static bool off(const Member& member);
  static std::string explain(const Member& member);
  // The same of the last round's choice, if it was by one rule.
  DraftLengths::Rates expected() const;

  // What a member does in the next round.
  struct Turn {
    Member* member;          // null: it has its choice already
    int cap;                 // tokens that it may draft at most
    int tokens;              // in its cache
    FoundTokens found = {};  // what was looked up for it
    DraftChoice choice = {0, 0};
    bool records_masses = true;  // RoundChoice's
  };
  void choose(std::span<Turn> round);
  // What came of the round that was chosen last, if it ran as it was chosen. accepted: by turn.
  void observe(std::span<const int> accepted, double draft_seconds, double other_seconds);

 private:
  Rule& rule_of(std::optional<int> draft_len);

  RoundBytes bytes_;
  std::vector<TimedPass> priors_;
  std::map<std::optional<int>, std::unique_ptr<Rule>> rules_;
  std::vector<double> draft_bytes_;  // by turn and plan
  std::size_t turns_ = 0;            // of the last round
  std::size_t reserved_ = 0;         // members
};

}  // namespace quantspec
