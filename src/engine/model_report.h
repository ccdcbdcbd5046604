// What can be known of a model and a machine before anything large is loaded.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "engine/engine_options.h"
#include "model/config.h"

namespace quantspec {

// What weights take by what the target reads, and by what drafts do.
struct WeightCost {
  TargetWeights target;
  std::size_t target_bytes = 0;
  std::size_t upper_bytes = 0;  // more, where drafts may read 4 bits
  std::size_t both_bytes = 0;   // more, where they may read 4 and 8
};

// What `quantspec info` prints; of the checkpoint only the header is read.
struct ModelReport {
  ModelConfig config;
  int page_size = 0;
  std::string backend;              // and whose memory it is
  std::size_t available_bytes = 0;  // that it can still give
  // The most of the model's tokens that fit it, and that can be computed; 0: none do with these
  // weights for drafts.
  int largest_context = 0;
  Message advice;  // what would fit, where none do
  // More than those would fit: what ends them is the model's sliding window.
  bool limited_by_window = false;
  std::string target_weights;                                 // "bf16", "Q4_K + Q6_K", "8 bits"
  std::vector<std::pair<std::string, std::string>> matrices;  // each, and what it is in
  std::vector<WeightCost> weights;  // of all targets that the checkpoint can be, the default first
  std::vector<std::string> unread_tensors;  // of the checkpoint, that the model does not use
  int ranks = 1;                            // that the options ask for
  int context_ranks = 1;                    // of them
  std::vector<int> rank_counts;             // how many could share the model, so many a context
  // By context length; of one of the ranks, as are available_bytes and what follows from them.
  std::vector<std::pair<int, MemoryPlan>> plans;
};
ModelReport report_model(const EngineOptions& options, std::span<const int> contexts);

}  // namespace quantspec
