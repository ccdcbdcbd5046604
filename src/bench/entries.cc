#include "bench/entries.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "bench/fields.h"
#include "datasets/fields.h"
#include "engine/fields.h"
#include "engine/request_loop.h"

namespace quantspec {

namespace bench {

namespace {

// The most tokens that a layer reads by it.
std::optional<int> budget_of(const Plan& plan, int context) {
  int most = 0;
  for (const LayerPlan& layer : plan.layers) {
    most = std::max(most, layer.kv.budget.tokens(context));
  }
  return most > 0 ? std::optional(most) : std::nullopt;
}

std::vector<KvBudget> budgets(Engine& engine, const BenchOptions& options, int context) {
  if (options.budget_shares.empty()) return options.draft_budgets;
  const int page_size = engine.pool().shape().page_size;
  std::vector<KvBudget> budgets;
  for (const int share : options.budget_shares) {
    budgets.emplace_back(std::max(1, context / share / page_size) * page_size);
  }
  return budgets;
}

// A spec of a plan.
struct Asked {
  std::string spec;
  bool by_all;  // it is left out where it cannot be run
};

std::vector<Asked> asked_for(const BenchOptions& options, int num_layers) {
  std::vector<Asked> asked;
  for (const std::string& spec : options.plans) {
    if (spec != "all") {
      asked.push_back({spec, false});
      continue;
    }
    for (std::string& each : all_bench_plans(num_layers)) asked.push_back({std::move(each), true});
  }
  return asked;
}

// A plan, or what auto chooses among, at one budget.
struct Candidate {
  std::string name;
  std::vector<Plan> plans;
  std::optional<int> budget;
  bool is_auto;
  bool operator==(const Candidate&) const = default;
};

// NOTE: the budget of auto is that of its sparse plans, where it was given.
Candidate resolve(Engine& engine, const std::string& spec, int context, KvBudget budget,
                  bool many) {
  std::vector<Plan> plans = engine.plans_at(context, spec, budget);
  if (many) RequestLoop::require_plans(plans, 2);
  const DraftSpec wanted = read_draft_spec(spec);
  const bool is_auto = wanted.is_auto();
  std::string name = is_auto ? wanted.auto_name() : plans.front().name;
  if (!is_auto && plans.size() > 1) name += "+" + plans.back().name;
  const auto used = !is_auto         ? budget_of(plans.front(), context)
                    : budget.given() ? std::optional(budget.tokens(context))
                                     : std::nullopt;
  return {std::move(name), std::move(plans), used, is_auto};
}

// Why `spec` cannot be run, in the words that hold for all plans of that reason.
Message reason(const Message& why, const std::string& spec) {
  return why.without(Message::format("{} {}: ", field::kPlan, spec));
}

// Of one spec: a plan by every budget that makes a difference to it.
std::vector<Candidate> candidates_of(Engine& engine, const Asked& asked,
                                     std::span<const KvBudget> budgets, int context, bool many,
                                     std::vector<LeftOut>& left_out) {
  std::vector<Candidate> candidates;
  for (const KvBudget& budget : budgets) {
    try {
      Candidate candidate = resolve(engine, asked.spec, context, budget, many);
      if (std::ranges::find(candidates, candidate) == candidates.end()) {
        candidates.push_back(std::move(candidate));
      }
    } catch (const Error& error) {
      if (!asked.by_all || error.kind() != ErrorKind::kInvalidRequest) throw;
      left_out.push_back({context, asked.spec, reason(error.message(), asked.spec)});
    }
  }
  return candidates;
}

std::vector<Candidate> all_candidates(Engine& engine, const BenchOptions& options, int context,
                                      std::vector<LeftOut>& left_out) {
  const std::vector<KvBudget> budgets_wanted = budgets(engine, options, context);
  std::vector<Candidate> all;
  for (const Asked& asked : asked_for(options, engine.config().num_layers)) {
    auto some =
        candidates_of(engine, asked, budgets_wanted, context, options.many_streams, left_out);
    for (const Candidate& candidate : some) {
      if (std::ranges::find(all, candidate.name, &Candidate::name) == all.end()) continue;
      fail(ErrorKind::kInvalidRequest, "{} {}: the list has {} already", field::kPlan, asked.spec,
           candidate.name);
    }
    std::ranges::move(some, std::back_inserter(all));
  }
  return all;
}

// A budget that was asked for is some plan's.
void require_use_of_budgets(const BenchOptions& options, std::span<const Candidate> candidates,
                            std::span<const LeftOut> left_out) {
  const bool shares = !options.budget_shares.empty();
  const bool asked = shares || std::ranges::any_of(options.draft_budgets, &KvBudget::given);
  const auto has_budget = [](const Candidate& one) { return one.budget.has_value(); };
  if (!asked || std::ranges::any_of(candidates, has_budget)) return;
  std::vector<std::string> budgets;
  for (const KvBudget& budget : options.draft_budgets) budgets.push_back(budget.text());
  const Message typed =
      shares ? Message::format("{}", field::kBudgetShares)
             : Message::format("{} {}", field::kDraftBudget, fmt::join(budgets, ","));
  if (!left_out.empty()) {
    fail(ErrorKind::kInvalidRequest, "{}: no plan can use it; {}", typed, describe(left_out));
  }
  fail(ErrorKind::kInvalidRequest,
       "{}: none of the plans {} reads by a budget; streaming, snapkv, retrieval, auto and plans "
       "with +sparse or +bounds do",
       typed, fmt::join(options.plans, ", "));
}

}  // namespace

std::vector<Entry> make_entries(Engine& engine, const BenchOptions& options, int context,
                                std::vector<LeftOut>* left_out) {
  std::vector<LeftOut> missing;
  const std::vector<Candidate> candidates = all_candidates(engine, options, context, missing);
  require_use_of_budgets(options, candidates, missing);
  std::vector<Entry> entries;
  for (const float temperature : options.temperatures) {
    DecodingOptions decoding;
    decoding.sampling.temperature = temperature;
    decoding.spec_sampling = options.spec_sampling;
    decoding.draft_len = 0;
    entries.push_back({std::string(kPlainFp16), decoding, KvStore::kFull});
    entries.push_back({std::string(kPlainInt8), decoding});
    for (const Candidate& candidate : candidates) {
      for (const std::optional<int> draft_len : options.draft_lens) {
        decoding.plans = candidate.plans;
        decoding.draft_len = draft_len;
        entries.push_back({candidate.name, decoding, KvStore::kHierarchical, candidate.budget,
                           candidate.is_auto});
      }
    }
  }
  if (left_out != nullptr) std::ranges::move(missing, std::back_inserter(*left_out));
  return entries;
}

std::string Entry::label_of(const Plan& plan) const {
  return plan_label(plan.name, is_auto || plan.looks_up() ? std::nullopt : budget);
}

std::vector<int> run_order(int num_entries, int repeat) {
  std::vector<int> order(num_entries);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::rotate(order, order.begin() + repeat % num_entries);
  return order;
}

}  // namespace bench

std::vector<std::string> all_bench_plans(int num_layers) {
  std::vector<std::string> plans = {
      "quantspec",        "quantspec+w8",       "weights-only",     "weights-only+w8",
      "kv-only",          "streaming",          "streaming+w4",     "streaming+w8",
      "snapkv",           "snapkv+w4",          "snapkv+w8",        "retrieval",
      "retrieval+w4",     "retrieval+w8",       "quantspec+sparse", "quantspec+sparse+w8",
      "quantspec+bounds", "quantspec+bounds+w8"};
  // A third of the layers, those in the middle.
  if (num_layers >= 3) {
    plans.push_back("layer-skip:" + std::to_string(num_layers / 3) + "-" +
                    std::to_string(2 * num_layers / 3 - 1));
  }
  plans.push_back("auto");
  return plans;
}

std::string plan_label(const std::string& plan, std::optional<int> budget) {
  return budget ? fmt::format("{}@{}", plan, *budget) : plan;
}

Message describe(std::span<const LeftOut> left_out) {
  // Contexts by plans and reason, each in the order of their first.
  std::vector<std::pair<Message, std::vector<int>>> groups;
  std::vector<LeftOut> rest(left_out.begin(), left_out.end());
  while (!rest.empty()) {
    const LeftOut first = rest.front();
    const auto alike = [&](const LeftOut& one) {
      return one.why == first.why && one.context == first.context;
    };
    std::vector<std::string> plans;
    for (const LeftOut& one : rest) {
      if (alike(one)) plans.push_back(one.plan);
    }
    std::erase_if(rest, alike);
    auto text = Message::format("{} ({})", fmt::join(plans, ", "), first.why);
    auto group = std::ranges::find(groups, text, &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {std::move(text), {}});
    group->second.push_back(first.context);
  }
  Message line;
  std::vector<int> before;
  for (const auto& [text, contexts] : groups) {
    line += line.empty() ? Message::format("{} all leaves out: ", field::kPlan) : Message("; ");
    if (contexts != before) line += Message::format("at {} tokens ", fmt::join(contexts, ", "));
    line += text;
    before = contexts;
  }
  return line;
}

void require_benchable(const BenchOptions& options, const ModelConfig& model) {
  const auto at_least = [](Field field, int value, int least) {
    if (value >= least) return;
    fail(ErrorKind::kInvalidRequest, "{} {}: must be {} or more", field, value, least);
  };
  at_least(field::kPredict, options.predict, 1);
  at_least(field::kPrompts, options.prompts, 1);
  at_least(field::kRepeats, options.repeats, 1);
  at_least(field::kWarmUp, options.warm_up, 0);
  check(!options.contexts.empty() && !options.temperatures.empty() && !options.draft_lens.empty(),
        "there is something to measure");
  for (const int context : options.contexts) {
    if (context >= 1 && context <= model.max_positions) continue;
    fail(ErrorKind::kInvalidRequest, "{} {}: this model takes from 1 to {} tokens", field::kContext,
         context, model.max_positions);
  }
  const int longest = std::ranges::max(options.contexts);
  if (options.predict > model.max_positions - longest) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: after a prompt of {} tokens, this model has room for {}", field::kPredict,
         options.predict, longest, model.max_positions - longest);
  }
  for (const std::optional<int> draft_len : options.draft_lens) {
    if (!draft_len || (*draft_len >= 0 && *draft_len <= kMaxDraftLen)) continue;
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are auto and 0 to {}", field::kDraftLen,
         *draft_len, kMaxDraftLen);
  }
  for (const float temperature : options.temperatures) {
    SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.validate();
  }
}

void require_plans(const BenchOptions& options, const EngineOptions& engine,
                   const ModelConfig& model) {
  for (const std::string& spec : options.plans) {
    if (spec == "all") continue;  // what cannot be run is left out
    for (const KvBudget& budget : options.draft_budgets) {
      require_plan(spec, engine, model, budget);
    }
  }
}

}  // namespace quantspec
