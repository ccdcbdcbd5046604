#include "model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/fields.h"

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
    {"kv-only", "full weights and the upper plane of all pages", WeightRead::kTarget, {}},
    {"streaming",
     "full weights; the first 16 tokens and the latest, in fp16",
     WeightRead::kTarget,
     {KvRead::kUpper, KvTokens::kStreaming}},
    {"snapkv",
     "full weights; tokens by the prompt's last queries, in fp16",
     WeightRead::kTarget,
     {KvRead::kUpper, KvTokens::kSnap}},
    {"retrieval",
     "full weights; segments of 8 by their mean key, in fp16",
     WeightRead::kTarget,
     {KvRead::kUpper, KvTokens::kRetrieval}},
};

// What a name says: all layers alike, and the head.
struct Meaning {
  LayerPlan layer;
  bool wide_head = false;  // 8 bits of the head, beside 4-bit weights
  bool operator==(const Meaning&) const = default;
};

// A plan has at most one modifier of each kind. A name gives them in this order.
enum ModifierKind : std::uint8_t { kPagesRead, kWeightsRead, kHeadRead, kModifierKinds };

struct Modifier {
  std::string_view name;
  std::string_view what;
  ModifierKind kind;
  void (*apply)(Meaning&);
};

constexpr Modifier kModifiers[] = {
    {"w4", "4-bit weights", kWeightsRead,
     [](Meaning& plan) { plan.layer.weights = WeightRead::kUpper; }},
    {"w8", "8-bit weights", kWeightsRead,
     [](Meaning& plan) { plan.layer.weights = WeightRead::kBoth; }},
    {"wfull", "full weights: the target's own, whatever their format", kWeightsRead,
     [](Meaning& plan) { plan.layer.weights = WeightRead::kTarget; }},
    {"sparse", "only the pages of most attention in the last target pass", kPagesRead,
     [](Meaning& plan) { plan.layer.kv.tokens = KvTokens::kByMass; }},
    {"bounds", "only the pages whose keys could match best", kPagesRead,
     [](Meaning& plan) { plan.layer.kv.tokens = KvTokens::kByBound; }},
    {"h8", "8 bits of the head, beside 4-bit weights", kHeadRead,
     [](Meaning& plan) { plan.wide_head = true; }},
};

constexpr std::string_view kSkip = "layer-skip:";
constexpr std::string_view kFile = "plan:";
constexpr std::string_view kLookup = "lookup";

template <typename Named>
const Named* find(const Named* begin, const Named* end, std::string_view name) {
  const Named* found = std::find_if(begin, end, [&](const Named& n) { return n.name == name; });
  return found == end ? nullptr : found;
}

std::string names_of(const auto& known, std::string_view before = "") {
  std::string names;
  for (const auto& one : known) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", before, one.name);
  }
  return names;
}

[[noreturn]] void fail_layers(std::string_view list, int num_layers) {
  fail(ErrorKind::kInvalidRequest,
       "{} layer-skip:{}: must be layers from 0 to {} such as 1,3-4, and not all of them",
       field::kPlan, list, num_layers - 1);
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
  if (name == "auto" || name == "all") {
    fail(ErrorKind::kInvalidRequest, "{} {}: it is several plans{} and takes no modifiers{}",
         field::kPlan, name, name == "all" ? ", for quantspec bench alone," : "",
         name == "all" ? "" : " but nolookup");
  }
  if (name == kLookup) {
    fail(
        ErrorKind::kInvalidRequest,
        "{} {}: it has no passes, and so no modifiers and nothing to measure of them; it drafts in "
        "generate, chat, serve and bench",
        field::kPlan, name);
  }
  if (name.starts_with(kSkip)) {
    skipped = parse_layers(name.substr(kSkip.size()), context.num_layers);
    return {true, WeightRead::kTarget, {KvRead::kBoth}};
  }
  const Base* base = find(std::begin(kBases), std::end(kBases), name);
  if (base == nullptr) {
    fail(
        ErrorKind::kInvalidRequest,
        "{}: there is no plan '{}'; known are {}, layer-skip:LIST, plan:FILE, lookup, auto and, in "
        "bench, all; modifiers are {}, +lookup",
        field::kPlan, name, names_of(kBases), names_of(kModifiers, "+"));
  }
  return {true, base->weights, base->kv};
}

// By kind; null: none of it.
using GivenModifiers = std::array<const Modifier*, kModifierKinds>;

GivenModifiers read_modifiers(std::string_view spec, std::span<const std::string_view> names) {
  GivenModifiers given = {};
  for (const std::string_view name : names) {
    const Modifier* modifier = find(std::begin(kModifiers), std::end(kModifiers), name);
    if (modifier == nullptr) {
      fail(ErrorKind::kInvalidRequest, "{} {}: there is no modifier '{}'; known are {}",
           field::kPlan, spec, name, names_of(kModifiers));
    }
    const Modifier*& one = given[modifier->kind];
    if (one == modifier) {
      fail(ErrorKind::kInvalidRequest, "{} {}: +{} stands there twice", field::kPlan, spec, name);
    }
    if (one != nullptr) {
      fail(ErrorKind::kInvalidRequest, "{} {}: +{} and +{} exclude each other", field::kPlan, spec,
           one->name, name);
    }
    one = modifier;
  }
  return given;
}

}  // namespace

Plan Plan::target(int num_layers, const std::vector<int>& full_layers) {
  Plan plan = uniform("target", num_layers, WeightRead::kTarget, KvAccess::target());
  for (const int layer : full_layers) plan.layers[layer].kv.read = KvRead::kFull;
  plan.target_full_layers = full_layers;
  return plan;
}

Plan Plan::lookup(const std::vector<int>& full_layers) {
  return {.name = std::string(kLookup), .layers = {}, .target_full_layers = full_layers};
}

Plan Plan::uniform(std::string name, int num_layers, WeightRead weights, KvAccess kv) {
  return {std::move(name), std::vector(num_layers, LayerPlan{true, weights, kv}), weights};
}

Plan Plan::draft(int num_layers, WeightRead weights) {
  constexpr std::string_view kNames[] = {"quantspec", "quantspec+w8", "quantspec+wfull"};
  return uniform(std::string(kNames[static_cast<int>(weights)]), num_layers, weights, {});
}

bool Plan::chooses_by_mass() const {
  return std::ranges::any_of(layers, [](const LayerPlan& layer) {
    return layer.run && layer.kv.tokens == KvTokens::kByMass;
  });
}

namespace {

int least_budget(const KvAccess& access, int page_size) {
  constexpr int kLeastGathered = 64;
  return access.chooses_pages() ? page_size : kLeastGathered;
}

}  // namespace

KvBudget draft_budget(const KvAccess& access, KvBudget own, const PlanContext& context,
                      const Message& what) {
  const KvBudget given = own.given() ? own : context.budget;
  if (!given.given()) return KvBudget::one_in(4);
  const int least = least_budget(access, context.page_size);
  if (given.is_share() || given.tokens(0) >= least) return given;
  fail(ErrorKind::kInvalidRequest, "{}: {} {}: must be {} tokens or more, or a share such as 1/4",
       what, field::kDraftBudget, given.text(), least);
}

Plan plan_at(Plan plan, int prompt_tokens, int page_size, const Message& what) {
  for (LayerPlan& layer : plan.layers) {
    KvAccess& kv = layer.kv;
    if (!layer.run || !(kv.gathers() || kv.chooses_pages())) continue;
    const int least = least_budget(kv, page_size), tokens = kv.budget.tokens(prompt_tokens);
    if (least >= prompt_tokens) {
      fail(ErrorKind::kInvalidRequest, "{}: of a prompt of {} tokens there is nothing to leave out",
           what, prompt_tokens);
    }
    if (tokens < least || tokens >= prompt_tokens) {
      const std::string is = kv.budget.is_share() ? fmt::format(" is {} tokens", tokens) : "";
      fail(ErrorKind::kInvalidRequest, "{}: {} {}{}; from {} to {} tokens fit a context of {}",
           what, field::kDraftBudget, kv.budget.text(), is, least, prompt_tokens - 1,
           prompt_tokens);
    }
    if (kv.gathers()) kv.budget = tokens;
  }
  return plan;
}

Plan make_plan(std::string_view spec, const PlanContext& context) {
  if (spec.starts_with(kFile)) return read_plan_file(spec.substr(kFile.size()), context);
  const auto parts = split(spec);
  std::vector<int> skipped;
  const LayerPlan base = base_plan(parts[0], skipped, context);
  Meaning meaning{base, context.upper_head == WeightRead::kBoth};
  LayerPlan& layer = meaning.layer;
  Plan plan;
  plan.name = parts[0];
  for (const Modifier* modifier : read_modifiers(spec, std::span(parts).subspan(1))) {
    if (modifier == nullptr) continue;
    const Meaning before = meaning;
    modifier->apply(meaning);
    if (meaning != before) plan.name += fmt::format("+{}", modifier->name);
    if (modifier->kind == kHeadRead && layer.weights != WeightRead::kUpper) {
      fail(ErrorKind::kInvalidRequest, "{} {}: +{} is for 4-bit weights, whose head has 4 bits",
           field::kPlan, spec, modifier->name);
    }
  }
  const Message what = Message::format("{} {}", field::kPlan, spec);
  if (base.kv.gathers() && layer.kv.chooses_pages()) {
    fail(ErrorKind::kInvalidRequest, "{}: {} has no pages to choose from", what, parts[0]);
  }
  if (layer.kv.gathers() || layer.kv.chooses_pages()) {
    layer.kv.budget = draft_budget(layer.kv, {}, context, what);
  }
  plan.layers = std::vector(context.num_layers, layer);
  for (const int index : skipped) plan.layers[index].run = false;
  const bool wide = layer.weights == WeightRead::kUpper && meaning.wide_head;
  plan.head = wide ? WeightRead::kBoth : layer.weights;
  return plan;
}

std::string describe_plans() {
  std::string text;
  for (const Base& base : kBases) text += fmt::format("  {:16} {}\n", base.name, base.what);
  text +=
      fmt::format("  {:16} leaves these layers out, e.g. layer-skip:1,3-4\n", "layer-skip:LIST");
  text += fmt::format("  {:16} layer by layer, as a file says (docs/bench.md)\n", "plan:FILE");
  text += fmt::format("  {:16} no pass: what followed the last words where they came before\n",
                      kLookup);
  text += fmt::format(
      "  {:16} 4- or 8-bit weights, all pages or few, lookup: whatever\n"
      "  {:16} measures fastest, round by round\n",
      "auto", "");
  for (const Modifier& modifier : kModifiers) {
    text += fmt::format("  {:16} {}\n", fmt::format("NAME+{}", modifier.name), modifier.what);
  }
  text += fmt::format("  {:16} lookup too, where that yields more\n", "NAME+lookup");
  text += fmt::format("  {:16} auto without lookup\n", "auto+nolookup");
  return text;
}

namespace {

// The length from which on `auto` reads by this budget.
int worth_from(const KvBudget& budget, int page_size) {
  if (budget.is_share()) {  // reading less than four pages it would save next to nothing
    const std::int64_t tokens = std::int64_t{4} * page_size * budget.parts();
    return static_cast<int>(std::min<std::int64_t>(tokens, std::numeric_limits<int>::max()));
  }
  // There is a page more than it reads, and one that is still in the ring (first_full_position).
  return (budget.tokens(0) / page_size + 2) * page_size;
}

}  // namespace

std::vector<Plan> auto_plans(const PlanContext& context) {
  PlanContext dense = context;
  dense.budget = {};
  std::vector<Plan> plans;
  const auto add = [&](Plan plan) {
    // Where 4-bit weights have 8 bits of the head anyway, +h8 is no other plan.
    if (std::ranges::find(plans, plan.name, &Plan::name) == plans.end()) plans.push_back(plan);
  };
  for (const char* spec : {"quantspec", "quantspec+h8", "quantspec+w8", "weights-only+w8"}) {
    add(make_plan(spec, dense));
  }
  std::vector<KvBudget> budgets = {context.budget};
  if (!context.budget.given()) budgets = {KvBudget::one_in(4), KvBudget::one_in(16)};
  for (const KvBudget& budget : budgets) {
    PlanContext sparse = context;
    sparse.budget = draft_budget({.tokens = KvTokens::kByMass}, budget, context,
                                 Message::format("{} auto", field::kPlan));
    for (const char* spec : {"quantspec+sparse", "quantspec+sparse+h8", "quantspec+sparse+w8"}) {
      Plan plan = make_plan(spec, sparse);
      plan.name += fmt::format("@{}", budget.text());
      plan.from_tokens = worth_from(budget, context.page_size);
      add(std::move(plan));
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
