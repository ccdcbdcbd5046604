#include "apps/cli/flags.h"

namespace quantspec::cli {

std::string_view flag_of(Field field) {
  switch (field) {
    case Field::kTemperature:
      return "--temp";
    case Field::kTopK:
      return "--top-k";
    case Field::kTopP:
      return "--top-p";
    case Field::kMinP:
      return "--min-p";
    case Field::kRepeatPenalty:
      return "--repeat-penalty";
    case Field::kRepeatLastN:
      return "--repeat-last-n";
    case Field::kSeed:
      return "--seed";
    case Field::kBackend:
      return "--backend";
    case Field::kDevice:
      return "--device";
    case Field::kThreads:
      return "--threads";
    case Field::kContext:
      return "--ctx-size";
    case Field::kPageSize:
      return "--page-size";
    case Field::kKvCache:
      return "--kv-cache";
    case Field::kPageMemory:
      return "--page-memory";
    case Field::kHostCache:
      return "--host-cache";
    case Field::kDraftWeights:
      return "generate --draft-weights";  // which the other commands lack
    case Field::kDraftStore:
      return "--draft-store";
    case Field::kPlan:
      return "--plan";
    case Field::kDraftBudget:
      return "--draft-budget";
    case Field::kDraftLen:
      return "--draft-len";
    case Field::kPredict:
      return "--predict";
    case Field::kDataset:
      return "--dataset";
    case Field::kPrompts:
      return "--prompts";
    case Field::kRecallDistance:
      return "--recall-distance";
    case Field::kBudgetShares:
      return "--sweep budget";  // their one source
    case Field::kRepeats:
      return "--repeat";
    case Field::kWarmUp:
      return "--warm-up";
    case Field::kStreams:
      return "--streams";
    case Field::kTrace:
      return "--trace";
    case Field::kLatePrompt:
      return "--late-prompt";
    case Field::kMachine:
      return "--machine";
    case Field::kStride:
      return "--stride";
    case Field::kDraftBytes:
      return "--bytes";
    case Field::kTargetBytes:
      return "--target-bytes";
    case Field::kMethod:
      return "--method";
    case Field::kGroup:
      return "--group";
    case Field::kHeadBits:
      return "--head-bits";
    case Field::kCalibration:
      return "--calibration";
    case Field::kCalibrationTokens:
      return "--tokens";
  }
  return "an option";
}

}  // namespace quantspec::cli
