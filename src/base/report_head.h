// What every report of a measurement says first, under the same keys: what was measured, by which
// program, on what, and where. docs/bench.md and docs/eval.md have the keys.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace quantspec {

struct ReportHead {
  std::string measurement;  // "bench", or which of eval's
  std::string version;      // of the program
  std::string commit;       // of its sources; "unknown" where there was no git
  std::string date;         // of the start: UTC, ISO 8601
  std::string model;
  std::string dataset;
  std::string draft_store;     // empty: none
  std::string target_weights;  // in what the target reads them: "bf16", "Q4_K + Q6_K", "8 bits"
  std::string backend;
  std::string cpu;
  int threads = 0;
  int ranks = 1;              // that shared the model
  int context_ranks = 1;      // of these, that shared each context
  int page_size = 0;          // tokens
  std::vector<int> contexts;  // tokens of a prompt or of a window
  int prompts = 0;
  int tokens = 0;           // as asked for: scored, read after a prompt, or decoded in a run
  int recall_distance = 0;  // tokens; 0: half of the prompt, or no recall prompts
};

// Fills in the date, the processor's name and the threads; num_threads 0: physical cores.
void note_start(ReportHead& head, int num_threads);

// The shortest decimal number that reads as this float, as it was typed: 0.8 of 0.8f.
double as_typed(float value);

// The keys are the names of the members, in their order.
nlohmann::ordered_json to_json(const ReportHead& head);

}  // namespace quantspec
