// What this room's tests share: the bundled model in small, and a text.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "bench/bench.h"

namespace quantspec::bench::testing {

inline const std::filesystem::path kModel =
    std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";

inline std::unique_ptr<Engine> load_engine(const std::filesystem::path& model = kModel,
                                           TargetWeights target = TargetWeights::kCheckpoint) {
  EngineOptions options;
  options.model = model;
  options.target_weights = target;
  options.num_threads = 1;
  options.ctx_size = 1024;
  options.page_size = 32;
  return Engine::load(options);
}

inline Engine& engine() {
  static const std::unique_ptr<Engine> engine = load_engine();
  return *engine;
}

inline const Dataset& dataset() {
  static const Dataset dataset =
      Dataset::load(std::string("text:") + QUANTSPEC_SOURCE_DIR + "/prompts");
  return dataset;
}

// Two prompts of 300 tokens and 40 more, so that pages are made while decoding; nothing is probed.
inline BenchOptions small_bench() {
  BenchOptions options;
  options.contexts = {300};
  options.predict = 40;
  options.plans = {"quantspec", "quantspec+sparse", "auto"};
  options.draft_lens = {2};
  options.prompts = 2;
  options.repeats = 2;
  options.warm_up = 8;
  options.machine = Machine{"test", 1e10, 1e11, 1e10};
  options.num_threads = 1;
  return options;
}

}  // namespace quantspec::bench::testing
