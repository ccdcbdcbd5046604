// Makes draft weights from a checkpoint, once: a store (model/draft_store.h) that `--draft-store`
// reads. docs/draft-weights.md says why and what it gives.
//
// The inputs of every matrix come from the model's own target pass over calibration text. NOTE:
// matrices are then rounded independently of each other: the inputs of a layer are those that the
// unrounded layers before it give. The method's authors feed it what the rounded ones give.
//
// Errors: as the model's, the dataset's and the store's; kInvalidRequest naming the calibration
// text, where it is missing or of no use.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "backend/backend.h"

namespace quantspec {

enum class DraftMethod { kRtn, kGptq };

inline constexpr int kLeastCalibrationTokens = 128;

struct PrepareOptions {
  std::filesystem::path model;
  DraftMethod method = DraftMethod::kGptq;
  // KIND:PATH, as Dataset::load takes it. gptq needs it; rtn does not, and measures its error on it
  // where there is one.
  std::string calibration;
  int calibration_tokens = 16384;  // about so many, kLeastCalibrationTokens or more
  int group = 0;                   // 32, 64 or 128; 0: as the backend keeps drafts of what it loads
  int head_bits = 4;               // 8: both planes of the head, rounded to nearest
  std::filesystem::path output;
  BackendOptions backend;
};

struct PrepareSummary {
  std::size_t weights = 0;
  double bits_per_weight = 0.0;  // of what a draft reads, scales included
  int calibration_tokens = 0;
  // The share of a matrix's output that is error at 4 bits (output_error()), the mean over matrices
  // of both methods in these groups. 0 without calibration.
  double error = 0.0;
  double rtn_error = 0.0;
  double seconds = 0.0;
};

// `progress(stage, share done)` may throw to cancel, which leaves no file. `begin` is called when
// the model and the text are there and before there is a file: from here on progress comes often.
PrepareSummary prepare_draft_store(
    const PrepareOptions& options,
    const std::function<void(std::string_view, double)>& progress = {},
    const std::function<void()>& begin = {});

}  // namespace quantspec
