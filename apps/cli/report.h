// What is told of a run when it is over: the JSON object, the summary, the comparison.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/cli/sampling.h"
#include "engine/engine.h"

namespace quantspec::cli {

// One generation and what surrounds it.
struct Run {
  std::string backend;
  GenerateResult result;
  double load_ms = 0;
  ChosenSampling sampling;
  std::size_t peak_rss_bytes = 0;
};

// A self-speculative run and the plain one after it.
struct Comparison {
  bool comparable;                          // whether the tokens ought to be equal
  std::optional<std::size_t> differs_from;  // the first token that is not

  Comparison(const Run& speculative, const Run& plain, bool comparable);
  bool identical() const { return !differs_from; }
};

double speed_up(const Run& speculative, const Run& plain);

// The keys are in the order that the documentation gives.
nlohmann::ordered_json to_json(const Run& run);
nlohmann::ordered_json to_json(const Run& run, const Run& baseline, const Comparison& comparison);

// Lines for standard error.
std::string summary(const Run& run);
std::string table(const Run& run, const Run& baseline, const Comparison& comparison);
// What the colours of the text mean.
std::string legend(bool color);

// "12.3 MB"
std::string megabytes(std::size_t bytes);

}  // namespace quantspec::cli
