#include "engine/draft_rules.h"

#include <algorithm>
#include <utility>

namespace quantspec {

struct DraftRules::Rule {
  explicit Rule(DraftLengths::Options options) : lengths(std::move(options)) {}

  DraftLengths lengths;
  // Of the round at hand: which turns are by it, and what was chosen for them.
  std::vector<std::size_t> turns;
  std::vector<SequenceLoad> loads;
  std::optional<RoundChoice> choice;
};

DraftRules::DraftRules(RoundBytes bytes) : bytes_(std::move(bytes)) {}
DraftRules::~DraftRules() = default;

void DraftRules::reserve(std::size_t members) {
  reserved_ = members;
  draft_bytes_.reserve(members * bytes_.num_plans());
}

DraftRules::Rule& DraftRules::rule_of(std::optional<int> draft_len) {
  auto known = rules_.find(draft_len);
  if (known == rules_.end()) {
    auto rule = std::make_unique<Rule>(bytes_.options(draft_len));
    rule->lengths.set_priors(priors_);
    rule->lengths.reserve(reserved_);
    rule->turns.reserve(reserved_);
    rule->loads.reserve(reserved_);
    known = rules_.emplace(draft_len, std::move(rule)).first;
  }
  return *known->second;
}

DraftRules::Member DraftRules::join(std::optional<int> draft_len) {
  const bool plain = draft_len == 0;
  Rule& rule = rule_of(plain ? std::nullopt : draft_len);
  return {&rule, rule.lengths.sequence(), plain};
}

bool DraftRules::off(const Member& member) { return !member.plain && member.rule->lengths.off(); }

std::string DraftRules::explain(const Member& member) {
  return member.plain ? "plain decoding: no drafts are wanted" : member.rule->lengths.explain();
}

DraftLengths::Rates DraftRules::expected() const {
  for (const auto& [draft_len, rule] : rules_) {
    if (turns_ > 0 && rule->loads.size() == turns_) return rule->lengths.expected();
  }
  return {};
}

void DraftRules::choose(std::span<Turn> round) {
  for (auto& [draft_len, rule] : rules_) {
    rule->turns.clear();
    rule->loads.clear();
    rule->choice.reset();
  }
  turns_ = round.size();
  const std::size_t plans = bytes_.num_plans();
  draft_bytes_.resize(round.size() * plans);
  for (std::size_t i = 0; i < round.size(); ++i) {
    const Turn& turn = round[i];
    if (turn.member == nullptr) continue;
    const std::span draft_bytes = std::span(draft_bytes_).subspan(i * plans, plans);
    bytes_.draft(turn.tokens, draft_bytes);
    Rule& rule = *turn.member->rule;
    rule.turns.push_back(i);
    rule.loads.push_back({&turn.member->drafts, turn.member->plain ? 0 : turn.cap,
                          bytes_.verify(turn.tokens), draft_bytes, turn.found});
  }
  for (auto& [draft_len, rule] : rules_) {
    if (rule->loads.empty()) continue;
    rule->choice = rule->lengths.choose(rule->loads);
    for (std::size_t i = 0; i < rule->loads.size(); ++i) {
      Turn& turn = round[rule->turns[i]];
      const bool looked_up = rule->choice->looked_up[i];
      turn.choice = {looked_up ? bytes_.lookup() : std::max(rule->choice->plan, 0),
                     rule->choice->lengths[i]};
      turn.records_masses = rule->choice->records_masses && !turn.member->plain;
    }
  }
}

// A round in which others chose by other rules says nothing of the time that a rule's choice took.
void DraftRules::observe(std::span<const int> accepted, double draft_seconds,
                         double other_seconds) {
  for (auto& [draft_len, rule] : rules_) {
    if (!rule->choice || rule->loads.size() != turns_) continue;
    rule->lengths.observe(rule->loads, *rule->choice, accepted, draft_seconds, other_seconds);
  }
}

}  // namespace quantspec
