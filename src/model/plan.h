// Plans: what a pass over the model reads, layer by layer. A plan is data, not code (section 4 of
// docs/design.md): QuantSpec's own draft, its ablations, the sparse methods that it is compared
// with and layer skipping are plans over the same kernels. docs/bench.md has the names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "kv_cache/kv_cache.h"

namespace quantspec {

class NewFile;

struct LayerPlan {
  bool run = true;  // false: the layer is left out, for a draft
  WeightRead weights = WeightRead::kTarget;
  KvAccess kv = {};
  bool operator==(const LayerPlan&) const = default;
};

struct Plan {
  std::string name;  // as bench, eval and logs show it; without a budget but in auto_plans()
  std::vector<LayerPlan> layers;
  WeightRead head = WeightRead::kTarget;
  // Of the target that verifies it: layers whose KV it reads in full precision instead of 8 bits.
  std::vector<int> target_full_layers = {};
  // Where it is one of several, sequences of fewer tokens do without it: it would read about what
  // another one reads.
  int from_tokens = 0;

  bool operator==(const Plan&) const = default;

  // The pass that decides what the user gets.
  static Plan target(int num_layers, const std::vector<int>& full_layers = {});
  // All layers alike.
  static Plan uniform(std::string name, int num_layers, WeightRead weights, KvAccess kv);
  // No pass at all: tokens are looked up in the text (speculative/lookup_drafts.h). It has no
  // layers. full_layers: of the target that verifies them.
  static Plan lookup(const std::vector<int>& full_layers = {});
  bool looks_up() const { return layers.empty(); }
  // Whether a layer that runs chooses pages by the mass that the target gave them.
  bool chooses_by_mass() const;
  // QuantSpec's draft: the upper plane of all pages.
  static Plan draft(int num_layers, WeightRead weights);
};

// What a plan's name is resolved with: all that it means is the same for every text.
struct PlanContext {
  int num_layers = 0;
  int page_size = 0;
  KvBudget budget = {};  // of a sparse draft; none given: a quarter
  // How plans of 4-bit weights read the head, unless a plan file says (Weights::head_read()).
  WeightRead upper_head = WeightRead::kUpper;
};

// A plan by name: BASE or BASE+MODIFIER+..., one modifier of each kind. Throws kInvalidRequest
// listing the names that exist, or saying what a plan file has wrong.
//   bases      quantspec, weights-only, kv-only, streaming, snapkv, retrieval, layer-skip:LIST,
//              plan:FILE
//   modifiers  w4, w8: bits of the draft's weights; wfull: the target's, whatever their format;
//              h8: 8 bits of the head, beside 4-bit weights;
//              sparse: pages by attention mass; bounds: pages by key bounds instead
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

// The plans among which `auto` chooses: 4- and 8-bit weights, and 4-bit ones with 8 bits of the
// head, with all pages, and with fewer: of the
// budget, if one is given, else a quarter and a sixteenth. Names of the latter end in their budget:
// "quantspec+sparse@1/4"; they are for sequences that are long enough for that to matter.
std::vector<Plan> auto_plans(const PlanContext& context);

// The budget by which `access` reads: `own`, the plan's, if it has one, else the context's, else a
// quarter. `what` names the plan in the message of the kInvalidRequest that is thrown where that is
// too small.
KvBudget draft_budget(const KvAccess& access, KvBudget own, const PlanContext& context,
                      const Message& what);

// The plan as a measurement at prompts of so many tokens has it: the number of tokens that it
// gathers is known before, where it is a share. Throws kInvalidRequest, with `what` for the plan,
// where a budget leaves nothing out or too little in.
Plan plan_at(Plan plan, int prompt_tokens, int page_size, const Message& what);

// What a cache must give for these plans. Throws kInvalidRequest where two of them want different
// targets.
KvOptions kv_options(const std::vector<Plan>& plans);

}  // namespace quantspec
