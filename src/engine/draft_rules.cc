#include "engine/draft_rules.h"

#include <algorithm>
#include <utility>

namespace quantspec {

namespace {

// K and V that a pass by this plan reads of a sequence of so many tokens.
double kv_bytes_of(const KvShape& shape, const Plan& plan, int tokens) {
  double bytes = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.run) bytes += static_cast<double>(kv_bytes(shape, layer.kv, tokens));
  }
  return bytes;
}

DraftLengths::Options draft_options(const Model& model, const KvShape& shape,
                                    const std::vector<Plan>& plans) {
  DraftLengths::Options options;
  const auto bytes = [&](const Plan& plan) {
    return static_cast<double>(pass_bytes(model.weights(), model.backend(), shape, plan, 0));
  };
  for (const Plan& plan : plans) {
    options.plans.push_back(plan.name);
    options.plan_bytes.push_back(bytes(plan));
  }
  options.target_bytes = bytes(Plan::target(model.config().num_layers));
  return options;
}

}  // namespace

struct DraftRules::Rule {
  explicit Rule(DraftLengths::Options options) : lengths(std::move(options)) {}

  DraftLengths lengths;
  // Of the round at hand: which turns are by it, and what was chosen for them.
  std::vector<std::size_t> turns;
  std::vector<SequenceLoad> loads;
  std::optional<RoundChoice> choice;
};

DraftRules::DraftRules(const Model& model, const KvShape& shape, std::vector<Plan> plans)
    : shape_(shape),
      plans_(std::move(plans)),
      target_(Plan::target(model.config().num_layers)),
      options_(draft_options(model, shape, plans_)) {}

DraftRules::~DraftRules() = default;

DraftRules::Rule& DraftRules::rule_of(std::optional<int> draft_len) {
  std::unique_ptr<Rule>& rule = rules_[draft_len];
  if (rule == nullptr) {
    DraftLengths::Options options = options_;
    options.fixed_len = draft_len;
    rule = std::make_unique<Rule>(std::move(options));
  }
  return *rule;
}

DraftRules::Member DraftRules::join(std::optional<int> draft_len) {
  Rule& rule = rule_of(draft_len);
  return {&rule, rule.lengths.sequence()};
}

const DraftLengths& DraftRules::lengths_of(const Member& member) { return member.rule->lengths; }

void DraftRules::choose(std::span<Turn> round) {
  for (auto& [draft_len, rule] : rules_) {
    rule->turns.clear();
    rule->loads.clear();
    rule->choice.reset();
  }
  turns_ = round.size();
  bytes_.resize(round.size() * plans_.size());
  for (std::size_t i = 0; i < round.size(); ++i) {
    const Turn& turn = round[i];
    if (turn.member == nullptr) continue;
    const std::span bytes = std::span(bytes_).subspan(i * plans_.size(), plans_.size());
    std::ranges::transform(plans_, bytes.begin(), [&](const Plan& plan) {
      return kv_bytes_of(shape_, plan, turn.tokens);
    });
    Rule& rule = *turn.member->rule;
    rule.turns.push_back(i);
    rule.loads.push_back(
        {&turn.member->drafts, turn.cap, kv_bytes_of(shape_, target_, turn.tokens), bytes});
  }
  for (auto& [draft_len, rule] : rules_) {
    if (rule->loads.empty()) continue;
    rule->choice = rule->lengths.choose(rule->loads);
    for (std::size_t i = 0; i < rule->loads.size(); ++i) {
      round[rule->turns[i]].choice = {std::max(rule->choice->plan, 0), rule->choice->lengths[i]};
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

std::string DraftRules::explain() { return rule_of(std::nullopt).lengths.explain(); }

}  // namespace quantspec
