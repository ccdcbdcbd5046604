#include "model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

struct Base {
  std::string_view name;
  std::string_view what;
  WeightRead weights;
  KvAccess kv;
};

constexpr Base kBases[] = {
    {"quantspec", "4-bit weights and the upper plane of all pages", WeightRead::kUpper, {}},
    {"weights-only",
     "4-bit weights and the target's 8-bit KV",
     WeightRead::kUpper,
     {KvRead::kBoth}},
    {"kv-only", "full weights and the upper plane of all pages", WeightRead::kFull, {}},
    {"streaming",
     "full weights; the first 16 tokens and the latest, in fp16",
     WeightRead::kFull,
     {KvRead::kUpper, KvTokens::kStreaming}},
    {"snapkv",
     "full weights; tokens by the prompt's last queries, in fp16",
     WeightRead::kFull,
     {KvRead::kUpper, KvTokens::kSnap}},
    {"retrieval",
     "full weights; chunks of 8 by their mean key, in fp16",
     WeightRead::kFull,
     {KvRead::kUpper, KvTokens::kRetrieval}},
};

struct Modifier {
  std::string_view name;
  std::string_view what;
  void (*apply)(LayerPlan&);
};

constexpr Modifier kModifiers[] = {
    {"w4", "4-bit weights", [](LayerPlan& plan) { plan.weights = WeightRead::kUpper; }},
    {"w8", "8-bit weights", [](LayerPlan& plan) { plan.weights = WeightRead::kBoth; }},
    {"w16", "the checkpoint's weights", [](LayerPlan& plan) { plan.weights = WeightRead::kFull; }},
    {"sparse", "only the pages of most attention in the last target pass",
     [](LayerPlan& plan) { plan.kv.tokens = KvTokens::kByMass; }},
    {"bounds", "only the pages whose keys could match best",
     [](LayerPlan& plan) { plan.kv.tokens = KvTokens::kByBound; }},
};

constexpr std::string_view kSkip = "layer-skip:";
constexpr std::string_view kFile = "plan:";

template <typename Named>
const Named* find(const Named* begin, const Named* end, std::string_view name) {
  const Named* found = std::find_if(begin, end, [&](const Named& n) { return n.name == name; });
  return found == end ? nullptr : found;
}

[[noreturn]] void fail_unknown(std::string_view what, std::string_view name, const auto& known,
                               std::string_view more) {
  std::string names;
  for (const auto& one : known) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  fail(ErrorKind::kInvalidRequest, "--plan: there is no {} '{}'; known are {}{}", what, name, names,
       more);
}

[[noreturn]] void fail_layers(std::string_view list, int num_layers) {
  fail(ErrorKind::kInvalidRequest,
       "--plan layer-skip:{}: must be layers from 0 to {} such as 1,3-4, and not all of them", list,
       num_layers - 1);
}

std::vector<int> parse_layers(std::string_view list, int num_layers) {
  std::vector<int> layers;
  const char* at = list.data();
  const char* const end = list.data() + list.size();
  const auto number = [&] {
    int value = -1;
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc() || value < 0 || value >= num_layers) fail_layers(list, num_layers);
    at = parsed.ptr;
    return value;
  };
  while (true) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
      if (last < first) fail_layers(list, num_layers);
    }
    for (int layer = first; layer <= last; ++layer) layers.push_back(layer);
    if (at == end) break;
    if (*at++ != ',') fail_layers(list, num_layers);
  }
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  if (layers.empty() || std::ssize(layers) == num_layers) fail_layers(list, num_layers);
  return layers;
}

// "a+b+c" -> {a, b, c}
std::vector<std::string_view> split(std::string_view spec) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t plus = spec.find('+');
    parts.push_back(spec.substr(0, plus));
    if (plus == std::string_view::npos) return parts;
    spec.remove_prefix(plus + 1);
  }
}

LayerPlan base_plan(std::string_view name, std::vector<int>& skipped, const PlanContext& context) {
  if (name == "auto") {
    fail(ErrorKind::kInvalidRequest, "--plan auto: it chooses by itself and takes no modifiers");
  }
  if (name.starts_with(kSkip)) {
    skipped = parse_layers(name.substr(kSkip.size()), context.num_layers);
    return {true, WeightRead::kFull, {KvRead::kBoth}};
  }
  const Base* base = find(std::begin(kBases), std::end(kBases), name);
  if (base == nullptr) fail_unknown("plan", name, kBases, ", layer-skip:LIST, plan:FILE and auto");
  return {true, base->weights, base->kv};
}

}  // namespace

Plan Plan::target(int num_layers, const std::vector<int>& full_layers) {
  Plan plan = uniform("target", num_layers, WeightRead::kFull, KvAccess::target());
  for (const int layer : full_layers) plan.layers[layer].kv.read = KvRead::kFull;
  plan.target_full_layers = full_layers;
  return plan;
}

Plan Plan::uniform(std::string name, int num_layers, WeightRead weights, KvAccess kv) {
  return {std::move(name), std::vector(num_layers, LayerPlan{true, weights, kv}), weights};
}

Plan Plan::draft(int num_layers, WeightRead weights) {
  constexpr std::string_view kNames[] = {"quantspec+w4", "quantspec+w8", "quantspec+w16"};
  return uniform(std::string(kNames[static_cast<int>(weights)]), num_layers, weights, {});
}

int draft_budget(const KvAccess& access, int wanted, const PlanContext& context,
                 std::string_view what) {
  constexpr int kLeastGathered = 64;
  const int given = wanted > 0 ? wanted : context.budget;
  const int budget = given > 0 ? given : context.context / 4;
  const int least = access.chooses_pages() ? context.page_size : kLeastGathered;
  if (budget >= least && budget < context.context) return budget;
  if (least >= context.context) {
    fail(ErrorKind::kInvalidRequest, "{}: a context of {} tokens has nothing to leave out", what,
         context.context);
  }
  fail(ErrorKind::kInvalidRequest,
       "--draft-budget {}: {} needs from {} to {} tokens in a context of {}{}", budget, what, least,
       context.context - 1, context.context,
       given > 0 ? "" : " (a quarter of the context is the default)");
}

Plan make_plan(std::string_view spec, const PlanContext& context) {
  if (spec.starts_with(kFile)) return read_plan_file(spec.substr(kFile.size()), context);
  const auto parts = split(spec);
  std::vector<int> skipped;
  LayerPlan layer = base_plan(parts[0], skipped, context);
  const bool gathers = layer.kv.gathers();
  for (const std::string_view part : std::span(parts).subspan(1)) {
    const Modifier* modifier = find(std::begin(kModifiers), std::end(kModifiers), part);
    if (modifier == nullptr) fail_unknown("modifier", part, kModifiers, "");
    modifier->apply(layer);
  }
  if (gathers && layer.kv.chooses_pages()) {
    fail(ErrorKind::kInvalidRequest, "--plan {}: {} has no pages to choose from", spec, parts[0]);
  }
  if (gathers || layer.kv.chooses_pages()) {
    layer.kv.budget = draft_budget(layer.kv, 0, context, "--plan " + std::string(spec));
  }
  Plan plan{std::string(spec), std::vector(context.num_layers, layer), layer.weights};
  for (const int index : skipped) plan.layers[index].run = false;
  return plan;
}

std::string describe_plans() {
  std::string text;
  for (const Base& base : kBases) text += fmt::format("  {:16} {}\n", base.name, base.what);
  text +=
      fmt::format("  {:16} leaves these layers out, e.g. layer-skip:1,3-4\n", "layer-skip:LIST");
  text += fmt::format("  {:16} layer by layer, as a file says (docs/bench.md)\n", "plan:FILE");
  text += fmt::format("  {:16} chosen by measured cost, round by round\n", "auto");
  for (const Modifier& modifier : kModifiers) {
    text += fmt::format("  {:16} {}\n", fmt::format("NAME+{}", modifier.name), modifier.what);
  }
  return text;
}

std::vector<Plan> auto_plans(const PlanContext& context) {
  PlanContext dense = context;
  dense.budget = 0;
  std::vector<Plan> plans;
  for (const char* spec : {"quantspec+w4", "quantspec+w8", "weights-only+w8"}) {
    plans.push_back(make_plan(spec, dense));
  }
  std::vector<int> budgets = {context.budget};
  if (context.budget == 0) budgets = {context.context / 4, context.context / 16};
  for (const int budget : budgets) {
    // With so few pages it would save next to nothing.
    if (context.budget == 0 && budget < 4 * context.page_size) break;
    PlanContext sparse = context;
    sparse.budget = budget;
    for (const char* spec : {"quantspec+sparse+w4", "quantspec+sparse+w8"}) {
      plans.push_back(make_plan(spec, sparse));
      plans.back().name += fmt::format("@{}", budget);
    }
  }
  return plans;
}

KvOptions kv_options(const std::vector<Plan>& plans) {
  KvOptions options;
  for (const Plan& plan : plans) {
    if (plan.target_full_layers != plans.front().target_full_layers) {
      fail(ErrorKind::kInvalidRequest,
           "the plans {} and {} want different targets; use them in different sessions",
           plans.front().name, plan.name);
    }
    for (const LayerPlan& layer : plan.layers) {
      const bool wanted = layer.kv.gathers() || layer.kv.chooses_pages();
      if (wanted && std::ranges::find(options.accesses, layer.kv) == options.accesses.end()) {
        options.accesses.push_back(layer.kv);
      }
    }
  }
  if (!plans.empty()) options.full_layers = plans.front().target_full_layers;
  return options;
}

}  // namespace quantspec
