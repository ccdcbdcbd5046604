// What can be typed after `quantspec eval`, and what comes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quantspec::cli {

// What `eval targets` compares with: one thing is read otherwise, the rest as asked for.
enum class Against : std::uint8_t {
  kReference,   // the reference backend
  kCheckpoint,  // the checkpoint's weights
};

// One set for all that is measured; each has a part of it.
struct EvalArgs {
  EngineOptions engine;
  std::string dataset;
  std::vector<int> contexts;
  Against against = Against::kReference;
  std::vector<int> chunks;  // empty: the backend's
  int stride = 0;           // 0: half of the context
  int tokens = 0;
  int prompts = 1;
  int streams = 0;          // 0: one generation after another
  int recall_distance = 0;  // 0: half of the prompt
  std::vector<std::string> plans;
  KvBudget budget = {};
  std::vector<std::optional<int>> draft_lens;  // nullopt: auto
  int round = 5;
  float temperature = 0.8f;
  std::uint64_t seed = 0;
  std::optional<std::size_t> draft_bytes;
  std::size_t target_bytes = 0;
  std::filesystem::path plan_file = "plan.json";
  bool json = false;
  bool quiet = false;
};

// Each returns the exit code. Errors are thrown.
int run_perplexity(const EvalArgs& args);
int run_axes(const EvalArgs& args);
int run_fidelity(const EvalArgs& args);
int run_targets(const EvalArgs& args);
int run_prefill(const EvalArgs& args);
int run_sensitivity(const EvalArgs& args);
int run_lossless(const EvalArgs& args);

}  // namespace quantspec::cli
