#include "bench/entries.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace bench {

namespace {

std::optional<int> budget_of(const std::vector<Plan>& plans) {
  int most = 0;
  if (plans.size() == 1) {
    for (const LayerPlan& layer : plans.front().layers) most = std::max(most, layer.kv.budget);
  }
  return most > 0 ? std::optional(most) : std::nullopt;
}

std::vector<int> budgets(Engine& engine, const BenchOptions& options, int context) {
  if (options.budget_shares.empty()) return options.draft_budgets;
  const int page_size = engine.pool().shape().page_size;
  std::vector<int> budgets;
  for (const int share : options.budget_shares) {
    budgets.push_back(std::max(1, context / share / page_size) * page_size);
  }
  return budgets;
}

// A plan by every budget that makes a difference to it.
std::vector<std::vector<Plan>> resolve(Engine& engine, const BenchOptions& options,
                                       const std::string& spec, int context) {
  if (spec == "auto") return {engine.plans(spec, context)};
  std::vector<std::vector<Plan>> resolved;
  for (const int budget : budgets(engine, options, context)) {
    std::vector<Plan> plans = engine.plans(spec, context, budget);
    if (std::ranges::find(resolved, plans) == resolved.end()) resolved.push_back(std::move(plans));
  }
  return resolved;
}

// A budget that was asked for is some plan's.
void require_use_of_budgets(const BenchOptions& options, const std::vector<Entry>& entries) {
  const bool shares = !options.budget_shares.empty();
  const bool asked = shares || std::ranges::any_of(options.draft_budgets, std::identity());
  const auto has_budget = [](const Entry& entry) { return entry.budget.has_value(); };
  if (!asked || std::ranges::any_of(entries, has_budget)) return;
  fail(ErrorKind::kInvalidRequest,
       "{}: none of the plans {} reads by a budget; streaming, snapkv, retrieval and plans with "
       "+sparse or +bounds do",
       shares ? std::string("--sweep budget")
              : fmt::format("--draft-budget {}", fmt::join(options.draft_budgets, ",")),
       fmt::join(options.plans, ", "));
}

}  // namespace

std::vector<Entry> make_entries(Engine& engine, const BenchOptions& options, int context) {
  std::vector<Entry> entries;
  for (const float temperature : options.temperatures) {
    DecodingOptions decoding;
    decoding.sampling.temperature = temperature;
    decoding.spec_sampling = options.spec_sampling;
    decoding.draft_len = 0;
    entries.push_back({std::string(kPlainFp16), decoding, KvStore::kFull});
    entries.push_back({std::string(kPlainInt8), decoding});
    for (const std::string& spec : options.plans) {
      for (const std::vector<Plan>& plans : resolve(engine, options, spec, context)) {
        for (const std::optional<int> draft_len : options.draft_lens) {
          decoding.plans = plans;
          decoding.draft_len = draft_len;
          entries.push_back({spec, decoding, KvStore::kHierarchical, budget_of(plans)});
        }
      }
    }
  }
  require_use_of_budgets(options, entries);
  return entries;
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

void require_benchable(const BenchOptions& options, const ModelConfig& model) {
  const auto at_least = [](const char* flag, int value, int least) {
    if (value >= least) return;
    fail(ErrorKind::kInvalidRequest, "{} {}: must be {} or more", flag, value, least);
  };
  at_least("--predict", options.predict, 1);
  at_least("--prompts", options.prompts, 1);
  at_least("--repeat", options.repeats, 1);
  at_least("--warm-up", options.warm_up, 0);
  check(!options.contexts.empty() && !options.temperatures.empty() && !options.draft_lens.empty(),
        "there is something to measure");
  for (const int context : options.contexts) {
    if (context >= 1 && context <= model.max_positions) continue;
    fail(ErrorKind::kInvalidRequest, "--ctx {}: this model takes from 1 to {} tokens", context,
         model.max_positions);
  }
  for (const std::optional<int> draft_len : options.draft_lens) {
    if (!draft_len || (*draft_len >= 0 && *draft_len <= DraftControl::kMaxDraftLen)) continue;
    fail(ErrorKind::kInvalidRequest, "--draft-len {}: supported are auto and 0 to {}", *draft_len,
         DraftControl::kMaxDraftLen);
  }
  for (const float temperature : options.temperatures) {
    SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.validate();
  }
}

}  // namespace quantspec
