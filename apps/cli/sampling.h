// How generate samples: every parameter, and where its value comes from.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace quantspec::cli {

// What was typed.
struct SamplingArgs {
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repeat_penalty;
  std::optional<int> repeat_last_n;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<std::uint64_t> seed;
  std::optional<SpecSampling> mode;
};

struct ChosenSampling {
  SamplingParams params;
  SpecSampling mode;
  // By the names of sampler/parameters.h, and "spec_sampling": "option", "generation_config.json",
  // "default" and others.
  std::map<std::string_view, std::string_view> from;
};

// What was typed, else what the model's authors say, else llama.cpp's defaults. A seed is for
// repeating a text, and a comparison for one that is equal: both make coupled sampling the default.
ChosenSampling choose_sampling(const SamplingArgs& args, const GenerationDefaults& model,
                               bool compares);

// {"temperature": {"value": 0.8, "from": "default"}, ...}
nlohmann::ordered_json to_json(const ChosenSampling& sampling);
// "--temp 0.8 (default), ..."
std::string describe(const ChosenSampling& sampling);

}  // namespace quantspec::cli
