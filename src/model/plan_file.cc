// Plan files: JSON (docs/bench.md has the schema).

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/shown.h"
#include "model/json_fields.h"
#include "model/plan.h"

namespace quantspec {

namespace {

// Of the names of plans that come from files, not of those in the files: so they cannot be taken
// for plans that are known by name.
constexpr std::string_view kPrefix = "plan:";

template <typename T>
struct Name {
  std::string_view name;
  T value;
};

constexpr Name<KvTokens> kPages[] = {{"all", KvTokens::kAll},
                                     {"none", KvTokens::kNone},
                                     {"mass", KvTokens::kByMass},
                                     {"bounds", KvTokens::kByBound},
                                     {"streaming", KvTokens::kStreaming},
                                     {"snapkv", KvTokens::kSnap},
                                     {"retrieval", KvTokens::kRetrieval}};
constexpr Name<KvRead> kReads[] = {
    {"upper", KvRead::kUpper}, {"both", KvRead::kBoth}, {"full", KvRead::kFull}};
// As JSON has them. 16 is what files called full before targets could have fewer bits.
constexpr Name<WeightRead> kWeights[] = {{"4", WeightRead::kUpper},
                                         {"8", WeightRead::kBoth},
                                         {"\"full\"", WeightRead::kTarget},
                                         {"16", WeightRead::kTarget}};

template <typename T, std::size_t N>
std::string_view name_of(const Name<T> (&names)[N], T value) {
  return std::ranges::find(names, value, &Name<T>::value)->name;
}

// The key's value as `names` have it; `otherwise` when it is absent.
template <typename T, std::size_t N>
T choice(const Fields& fields, std::string_view key, const Name<T> (&names)[N],
         std::string_view expected, T otherwise) {
  const std::string* text = fields.find_string(key);
  if (text == nullptr) return otherwise;
  const auto found = std::ranges::find(names, *text, &Name<T>::name);
  if (found == std::end(names)) fields.corrupt(key, expected);
  return found->value;
}

WeightRead weights(const Fields& fields, WeightRead otherwise) {
  const Json* bits = fields.find("weights");
  if (bits == nullptr) return otherwise;
  const auto found = std::ranges::find(kWeights, bits->dump(), &Name<WeightRead>::name);
  if (found == std::end(kWeights)) fields.corrupt("weights", "4, 8 or \"full\"");
  return found->value;
}

// A key that is not known is a mistake in the spelling of one that is.
void require_known(const Json& object, const Fields& fields,
                   std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    fail(ErrorKind::kCorruptFile, "{}: there is no key {}; known are {}", fields.where(),
         shown(key), fmt::join(known, ", "));
  }
}

// Tokens, or a share as a string; none: the file says nothing.
KvBudget read_budget(const Fields& fields) {
  constexpr std::string_view kExpected = "tokens, from 1 to 1073741824, or a share such as \"1/4\"";
  const Json* value = fields.find("budget");
  if (value == nullptr) return {};
  const std::string* share = value->get_ptr<const std::string*>();
  const auto budget = KvBudget::parse(share != nullptr ? *share : value->dump());
  if (!budget || budget->is_share() != (share != nullptr)) fields.corrupt("budget", kExpected);
  return *budget;
}

Json budget_json(const KvBudget& budget) {
  return budget.is_share() ? Json(budget.text()) : Json(budget.tokens(0));
}

// `plan`: what holds where the file says nothing.
LayerPlan read_layer(const Fields& fields, LayerPlan plan, const PlanContext& context) {
  plan.run = fields.flag("run", plan.run);
  plan.weights = weights(fields, plan.weights);
  plan.kv.read = choice(fields, "kv", kReads, "upper, both or full", plan.kv.read);
  plan.kv.tokens =
      choice(fields, "pages", kPages, "all, none, mass, bounds, streaming, snapkv or retrieval",
             plan.kv.tokens);
  const KvBudget budget = read_budget(fields);
  if (plan.kv.chooses_pages() || plan.kv.gathers()) {
    plan.kv.budget =
        draft_budget(plan.kv, budget.given() ? budget : plan.kv.budget, context, fields.where());
    return plan;
  }
  if (budget.given()) {
    fail(ErrorKind::kCorruptFile,
         "{}: a budget of {} makes no sense where pages are \"{}\"; leave one of them out",
         fields.where(), budget.text(), name_of(kPages, plan.kv.tokens));
  }
  plan.kv.budget = {};
  return plan;
}

// A layer's copy in full precision is the target's: a draft may read it only where there is one.
void require_consistent(const Plan& plan, const std::string& where) {
  for (int layer = 0; layer < std::ssize(plan.layers); ++layer) {
    const KvAccess& kv = plan.layers[layer].kv;
    const bool full = std::ranges::count(plan.target_full_layers, layer) > 0;
    if (kv.read == KvRead::kFull && !full) {
      fail(ErrorKind::kInvalidRequest,
           "{}: layer {} reads \"full\" KV, which only layers in \"target_full_layers\" have",
           where, layer);
    }
    if (kv.read == KvRead::kFull && kv.tokens != KvTokens::kAll) {
      fail(ErrorKind::kInvalidRequest,
           "{}: layer {} reads \"full\" KV, so its pages must be \"all\"", where, layer);
    }
    if (full && kv.tokens == KvTokens::kByMass) {
      fail(ErrorKind::kInvalidRequest,
           "{}: layer {} chooses pages by mass, which a target in full precision does not give; "
           "\"bounds\" works",
           where, layer);
    }
  }
}

Json layer_json(const LayerPlan& plan) {
  Json json = {{"run", plan.run},
               {"weights", Json::parse(name_of(kWeights, plan.weights))},
               {"kv", name_of(kReads, plan.kv.read)},
               {"pages", name_of(kPages, plan.kv.tokens)}};
  if (plan.kv.budget.given()) json["budget"] = budget_json(plan.kv.budget);
  return json;
}

// What the file says of single layers.
void read_layers(const Json& layers, const std::string& where, const PlanContext& context,
                 Plan& plan) {
  std::vector<bool> read(plan.layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Fields fields(layers[i], fmt::format("{}: layers[{}]", where, i));
    require_known(layers[i], fields, {"layer", "run", "weights", "kv", "pages", "budget"});
    const int layer = fields.integer("layer", 0, context.num_layers - 1);
    if (read[layer]) {
      fail(ErrorKind::kCorruptFile, "{}: layer {} is in the list already", fields.where(), layer);
    }
    read[layer] = true;
    plan.layers[layer] = read_layer(fields, plan.layers[layer], context);
  }
}

}  // namespace

Plan read_plan_file(const std::filesystem::path& file, const PlanContext& context) {
  const std::string where = file.string();
  const Json json = parse_json_file(file);
  const Fields fields(json, where);
  require_known(json, fields, {"name", "default", "head", "layers", "target_full_layers"});
  LayerPlan layer{true, WeightRead::kUpper, {}};
  if (const Json* defaults = fields.find("default")) {
    const Fields default_fields(*defaults, where + ": default");
    require_known(*defaults, default_fields, {"run", "weights", "kv", "pages", "budget"});
    layer = read_layer(default_fields, layer, context);
  }
  const std::string* name = fields.find_string("name");
  if (name != nullptr && name->empty()) fields.corrupt("name", "some text");
  Plan plan = Plan::uniform(std::string(kPrefix) + (name != nullptr ? *name : where),
                            context.num_layers, layer.weights, layer.kv);
  for (LayerPlan& each : plan.layers) each.run = layer.run;
  if (plan.head == WeightRead::kUpper) plan.head = context.upper_head;
  if (const Json* head = fields.find("head")) {
    const Fields head_fields(*head, where + ": head");
    require_known(*head, head_fields, {"weights"});
    plan.head = weights(head_fields, plan.head);
  }
  if (const Json* layers = fields.find("layers")) {
    if (!layers->is_array() || std::ssize(*layers) > context.num_layers) {
      fields.corrupt("layers", fmt::format("a list of up to {}", context.num_layers));
    }
    read_layers(*layers, where, context, plan);
  }
  plan.target_full_layers = fields.integers("target_full_layers", 0, context.num_layers - 1);
  std::ranges::sort(plan.target_full_layers);
  const auto twice = std::ranges::adjacent_find(plan.target_full_layers);
  if (twice != plan.target_full_layers.end()) {
    fail(ErrorKind::kCorruptFile, "{}: target_full_layers has layer {} twice", where, *twice);
  }
  if (std::ranges::none_of(plan.layers, &LayerPlan::run)) {
    fail(ErrorKind::kInvalidRequest, "{}: \"run\" is false for every layer; one must run", where);
  }
  require_consistent(plan, where);
  return plan;
}

void write_plan_file(const Plan& plan, NewFile& file) {
  const bool prefixed = plan.name.starts_with(kPrefix);
  Json json = {{"name", plan.name.substr(prefixed ? kPrefix.size() : 0)},
               {"head", {{"weights", Json::parse(name_of(kWeights, plan.head))}}},
               {"layers", Json::array()}};
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    Json layer = {{"layer", i}};
    layer.update(layer_json(plan.layers[i]));
    json["layers"].push_back(std::move(layer));
  }
  json["target_full_layers"] = plan.target_full_layers;
  const std::string text = dump_json(json, 2) + "\n";
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace quantspec
