#include "apps/cli/flags.h"

#include <algorithm>
#include <string_view>

#include "bench/fields.h"
#include "datasets/fields.h"
#include "engine/fields.h"
#include "eval/fields.h"
#include "prepare/fields.h"
#include "roofline/fields.h"
#include "sampler/fields.h"

namespace quantspec::cli {

namespace {

struct Row {
  Field field;
  std::string_view flag;
};

// tools/check_layers.py sees that every field has its row.
constexpr Row kFlags[] = {
    {field::kTemperature, "--temp"},
    {field::kTopK, "--top-k"},
    {field::kTopP, "--top-p"},
    {field::kMinP, "--min-p"},
    {field::kRepeatPenalty, "--repeat-penalty"},
    {field::kRepeatLastN, "--repeat-last-n"},
    {field::kPresencePenalty, "--presence-penalty"},
    {field::kFrequencyPenalty, "--frequency-penalty"},
    {field::kSeed, "--seed"},
    {field::kLogitBias, "--logit-bias"},
    {field::kMinTokens, "--min-tokens"},
    {field::kBackend, "--backend"},
    {field::kDevice, "--device"},
    {field::kThreads, "--threads"},
    {field::kRanks, "--ranks"},
    {field::kContextRanks, "--context-ranks"},
    {field::kContext, "--ctx-size"},
    {field::kPageSize, "--page-size"},
    {field::kKvCache, "--kv-cache"},
    {field::kPageMemory, "--page-memory"},
    {field::kHostCache, "--host-cache"},
    {field::kDraftWeights, "generate --draft-weights"},  // which measurements lack
    {field::kTargetWeights, "--target-weights"},
    {field::kDraftStore, "--draft-store"},
    {field::kPlan, "--plan"},
    {field::kDraftBudget, "--draft-budget"},
    {field::kDraftLen, "--draft-len"},
    {field::kPredict, "--predict"},
    {field::kPrediction, "--prediction"},
    {field::kLookupHistory, "--lookup-history"},
    {field::kDataset, "--dataset"},
    {field::kPrompts, "--prompts"},
    {field::kRecallDistance, "--recall-distance"},
    {field::kBudgetShares, "--sweep budget"},  // their one source
    {field::kRepeats, "--repeat"},
    {field::kWarmUp, "--warm-up"},
    {field::kStreams, "--streams"},
    {field::kTrace, "--trace"},
    {field::kLatePrompt, "--late-prompt"},
    {field::kMachine, "--machine"},
    {field::kStride, "--stride"},
    {field::kDraftBytes, "--bytes"},
    {field::kTargetBytes, "--target-bytes"},
    {field::kMethod, "--method"},
    {field::kGroup, "--group"},
    {field::kHeadBits, "--head-bits"},
    {field::kCalibration, "--calibration"},
    {field::kCalibrationTokens, "--tokens"},
};

consteval bool are_distinct() {
  for (const Row& row : kFlags) {
    if (std::ranges::count(kFlags, row.field, &Row::field) != 1) return false;
  }
  return true;
}
static_assert(are_distinct(), "a field is known by its plain name, so no two have the same");

}  // namespace

std::string_view flag_of(Field field) {
  const auto* row = std::ranges::find(kFlags, field, &Row::field);
  return row != std::end(kFlags) ? row->flag : field.plain_name;
}

}  // namespace quantspec::cli
