// What tests of the engine share.
#pragma once

#include <optional>

#include "engine/engine.h"

namespace quantspec {

inline EngineOptions bundled(DraftWeights draft_weights = DraftWeights::kAuto) {
  EngineOptions options;
  options.model = std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";
  options.num_threads = 2;
  options.ctx_size = 2048;
  options.draft_weights = draft_weights;
  return options;
}

inline GenerateOptions greedy(int predict, std::optional<int> draft_len = std::nullopt) {
  GenerateOptions options;
  options.predict = predict;
  options.sampling.temperature = 0;
  options.draft_len = draft_len;
  options.ignore_eos = true;
  return options;
}

}  // namespace quantspec
