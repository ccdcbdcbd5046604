// Choosing one setting for every part of a model under a budget of bytes, when the harm of settings
// adds up (KL divergence does, nearly: docs/eval.md). Private to eval/. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace quantspec {

struct Setting {
  double kl;          // that it adds
  std::size_t bytes;  // that it reads
};

// parts[i]: the settings that part i may have, one or more. Returns the index of each part's
// setting: from the cheapest of all on, the step of most KL saved per byte as long as one fits,
// then exchanges of one part's step up for another's step down that save KL and still fit. The same
// is tried from `known` on, settings that fit, so that the result is no worse. nullopt: not even
// the cheapest settings fit.
std::optional<std::vector<std::size_t>> choose_settings(
    const std::vector<std::vector<Setting>>& parts, std::size_t budget,
    const std::optional<std::vector<std::size_t>>& known = {});

}  // namespace quantspec
