// What a caller can set and this library checks, as data. The library knows no spelling of these:
// the command line calls kContext --ctx-size, a server calls it by a key of JSON. Each has one
// table, a FieldNames, by which it reads messages (base/message.h). Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace quantspec {

enum class Field : std::uint8_t {
  // how tokens are chosen
  kTemperature,
  kTopK,
  kTopP,
  kMinP,
  kRepeatPenalty,
  kRepeatLastN,
  kSeed,
  // an engine and its sessions
  kBackend,
  kDevice,
  kThreads,
  kContext,
  kPageSize,
  kKvCache,
  kPageMemory,
  kHostCache,
  kDraftWeights,
  kDraftStore,
  kPlan,
  kDraftBudget,
  kDraftLen,
  kPredict,
  // texts to measure on
  kDataset,
  kPrompts,
  kRecallDistance,
  // measurements
  kBudgetShares,
  kRepeats,
  kWarmUp,
  kStreams,
  kTrace,
  kLatePrompt,
  kMachine,
  kStride,
  kDraftBytes,
  kTargetBytes,
  // preparing draft weights
  kMethod,
  kGroup,
  kHeadBits,
  kCalibration,
  kCalibrationTokens,
};

// How somebody calls each of them, such that a value can follow: "context size", "--ctx-size".
using FieldNames = std::string_view (*)(Field);

// In plain words: what a message has where nobody says otherwise.
std::string_view plain_name(Field field);

}  // namespace quantspec
