// What tests of the engine share.
#pragma once

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

}  // namespace quantspec
