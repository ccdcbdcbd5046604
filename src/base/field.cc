#include "base/field.h"

namespace quantspec {

std::string_view plain_name(Field field) {
  switch (field) {
    case Field::kTemperature:
      return "temperature";
    case Field::kTopK:
      return "top-k";
    case Field::kTopP:
      return "top-p";
    case Field::kMinP:
      return "min-p";
    case Field::kRepeatPenalty:
      return "repeat penalty";
    case Field::kRepeatLastN:
      return "reach of the repeat penalty";
    case Field::kSeed:
      return "seed";
    case Field::kBackend:
      return "backend";
    case Field::kDevice:
      return "device";
    case Field::kThreads:
      return "number of threads";
    case Field::kContext:
      return "context size";
    case Field::kPageSize:
      return "page size";
    case Field::kKvCache:
      return "KV cache";
    case Field::kPageMemory:
      return "page memory";
    case Field::kHostCache:
      return "host cache";
    case Field::kDraftWeights:
      return "draft weights";
    case Field::kDraftStore:
      return "draft store";
    case Field::kPlan:
      return "plan";
    case Field::kDraftBudget:
      return "draft budget";
    case Field::kDraftLen:
      return "draft length";
    case Field::kPredict:
      return "number of tokens to predict";
    case Field::kDataset:
      return "dataset";
    case Field::kPrompts:
      return "number of prompts";
    case Field::kRecallDistance:
      return "recall distance";
    case Field::kBudgetShares:
      return "budget shares";
    case Field::kRepeats:
      return "number of repeats";
    case Field::kWarmUp:
      return "warm-up";
    case Field::kStreams:
      return "number of streams";
    case Field::kTrace:
      return "trace";
    case Field::kLatePrompt:
      return "late prompt";
    case Field::kMachine:
      return "machine";
    case Field::kStride:
      return "stride";
    case Field::kDraftBytes:
      return "draft bytes";
    case Field::kTargetBytes:
      return "target bytes";
    case Field::kMethod:
      return "method";
    case Field::kGroup:
      return "group size";
    case Field::kHeadBits:
      return "head bits";
    case Field::kCalibration:
      return "calibration text";
    case Field::kCalibrationTokens:
      return "calibration tokens";
  }
  return "option";
}

}  // namespace quantspec
