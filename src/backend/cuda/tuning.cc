#include "backend/cuda/tuning.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string>

#include "base/error.h"

namespace quantspec::cuda {

namespace {

// The first row is of GPUs that have none.
constexpr struct {
  int capability;
  Tuning tuning;
} kTimed[] = {
    // An NVIDIA H200. docs/decisions/0017, 0018 and 0023 have what each choice gains; a run of
    // tools/gpu_tune.py confirmed all but draft_rounds, which followed from it (0024).
    {90,
     {.half_rows = 17,
      .half_large_rows = 12,
      .half_large = 32 << 10,
      .plane_rows = 9,
      .plane_large_rows = 5,
      .plane_large = 28 << 10,
      .code_rows = 9,
      .streamed_stages = 5,
      .short_split = 1024,
      .draft_rounds = 1,
      .overlaps = 1}},
};

// So that a few times the CTAs of draft_rounds are no more than an int has.
constexpr int kMost = 1 << 19;

constexpr struct {
  std::string_view name;
  int Tuning::*value;
  int least = 1;
  int most = kMost;
  bool power_of_two = false;
} kConstants[] = {
    {"half_rows", &Tuning::half_rows},
    {"half_large_rows", &Tuning::half_large_rows},
    {"half_large", &Tuning::half_large},
    {"plane_rows", &Tuning::plane_rows},
    {"plane_large_rows", &Tuning::plane_large_rows},
    {"plane_large", &Tuning::plane_large},
    {"code_rows", &Tuning::code_rows},
    {"streamed_stages", &Tuning::streamed_stages, 2},
    {"short_split", &Tuning::short_split, 1, kMost, true},
    {"draft_rounds", &Tuning::draft_rounds},
    {"overlaps", &Tuning::overlaps, 0, 1},
};
static_assert(std::size(kConstants) * sizeof(int) == sizeof(Tuning));

[[noreturn]] void refuse(std::string_view change) {
  std::string names;
  for (const auto& constant : kConstants) (names += names.empty() ? "" : ", ") += constant.name;
  fail(ErrorKind::kInvalidRequest, "QUANTSPEC_TUNING: '{}' is not NAME=NUMBER; the names are {}",
       change, names);
}

}  // namespace

Tuning timed_tuning(int capability) {
  for (const auto& row : kTimed) {
    if (row.capability == capability) return row.tuning;
  }
  return kTimed[0].tuning;
}

Tuning changed(Tuning tuning, std::string_view changes) {
  while (!changes.empty()) {
    const std::string_view change = changes.substr(0, changes.find(','));
    changes.remove_prefix(std::min(changes.size(), change.size() + 1));
    const std::size_t equals = std::min(change.find('='), change.size());
    const auto* constant = std::begin(kConstants);
    while (constant != std::end(kConstants) && constant->name != change.substr(0, equals)) {
      ++constant;
    }
    if (constant == std::end(kConstants) || equals == change.size()) refuse(change);
    const std::string_view number = change.substr(equals + 1);
    int value = 0;
    const auto [end, error] = std::from_chars(number.begin(), number.end(), value);
    if (error != std::errc() || end != number.end() || value < constant->least ||
        value > constant->most) {
      fail(ErrorKind::kInvalidRequest,
           "QUANTSPEC_TUNING: {} must be a number from {} to {}, not '{}'", constant->name,
           constant->least, constant->most, number);
    }
    if (constant->power_of_two && !std::has_single_bit(static_cast<unsigned>(value))) {
      fail(ErrorKind::kInvalidRequest, "QUANTSPEC_TUNING: {} must be a power of two, not {}",
           constant->name, value);
    }
    tuning.*constant->value = value;
  }
  return tuning;
}

std::string_view tuning_changes() {
  const char* changes = std::getenv("QUANTSPEC_TUNING");
  return changes == nullptr ? std::string_view() : changes;
}

}  // namespace quantspec::cuda
