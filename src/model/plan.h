// Plans: what a pass over the model reads, layer by layer. A plan is data, not code (section 4 of
// docs/design.md): QuantSpec's own draft, its ablations, the sparse methods that it is compared
// with and layer skipping are plans over the same kernels. docs/bench.md has the names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/message.h"
#include "kv_cache/kv_cache.h"

namespace quantspec {

struct LayerPlan {
  bool run = true;  // false: the layer is left out, for a draft
  WeightRead weights = WeightRead::kFull;
  KvAccess kv = {};
  bool operator==(const LayerPlan&) const = default;
};

struct Plan {
  std::string name;  // as bench, eval and logs show it; without a budget but in auto_plans()
  std::vector<LayerPlan> layers;
  WeightRead head = WeightRead::kFull;
  // Of the target that verifies it: layers whose KV it reads in full precision instead of 8 bits.
  std::vector<int> target_full_layers = {};

  bool operator==(const Plan&) const = default;

  // The pass that decides what the user gets.
  static Plan target(int num_layers, const std::vector<int>& full_layers = {});
  // All layers alike.
  static Plan uniform(std::string name, int num_layers, WeightRead weights, KvAccess kv);
  // QuantSpec's draft: the upper plane of all pages.
  static Plan draft(int num_layers, WeightRead weights);
};

// What a plan's name is resolved with.
struct PlanContext {
  int num_layers = 0;
  int page_size = 0;
  int context = 0;  // tokens of the prompt
  int budget = 0;   // tokens that a sparse draft reads; 0: a quarter of the context
  // How plans of 4-bit weights read the head, unless a plan file says (Weights::head_read()).
  WeightRead upper_head = WeightRead::kUpper;
};

// A plan by name: BASE or BASE+MODIFIER+..., one modifier of each kind. Throws kInvalidRequest
// listing the names that exist, or saying what a plan file has wrong.
//   bases      quantspec, weights-only, kv-only, streaming, snapkv, retrieval, layer-skip:LIST,
//              plan:FILE
//   modifiers  w4, w8, w16: bits of the draft's weights; sparse: pages by attention mass; bounds:
//              pages by key bounds instead
// Plan::name is the shortest spec that means the same: the base, its pages, and its weights where
// they are not the base's own ("quantspec+w8+sparse" is "quantspec+sparse+w8", "quantspec+w4" is
// "quantspec"). Of a file it is plan:NAME with the name that the file gives, else plan:FILE.
Plan make_plan(std::string_view spec, const PlanContext& context);
// The names, for help and messages, one a line.
std::string describe_plans();

// A plan file (docs/bench.md has the schema).
Plan read_plan_file(const std::filesystem::path& file, const PlanContext& context);
// Writes one, and finishes the file.
void write_plan_file(const Plan& plan, NewFile& file);

// The plans among which `auto` chooses: 4- and 8-bit weights with all pages, and with fewer pages
// (of the budget, if one is given) where the context is long enough for that to matter. Names of
// the latter end in their budget: "quantspec+sparse@2048".
std::vector<Plan> auto_plans(const PlanContext& context);

// The tokens that `access` reads in this context: `own`, the plan's, if it has one, else the
// context's budget, else a quarter of the context. `what` names the plan in the message of the
// kInvalidRequest that is thrown where that does not fit.
int draft_budget(const KvAccess& access, int own, const PlanContext& context, const Message& what);

// What a cache must give for these plans. Throws kInvalidRequest where two of them want different
// targets.
KvOptions kv_options(const std::vector<Plan>& plans);

}  // namespace quantspec
