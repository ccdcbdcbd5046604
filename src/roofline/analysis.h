// What the report is written from: every number of it, once for Markdown and JSON.
#pragma once

#include <vector>

#include "roofline/roofline.h"

namespace quantspec::roofline {

// One (context, batch). Decoding is that of `generated` tokens, plain, with 16-bit KV.
struct Point {
  int context = 0;
  int batch = 0;
  StepCost prefill;
  StepCost decode;
  double kv_fp16 = 0;           // bytes of the cache at 16 bits
  double kv_both = 0;           // of both planes, scales and the ring
  bool fp16_fits = false;       // with the weights, in the machine's memory
  bool quantspec_fits = false;  // both planes, with the weights and the draft's store
};

// Rounds at one (context, batch) and acceptance, against decoding one token at a time.
struct Rounds {
  int context = 0;
  int batch = 0;
  double acceptance = 0;
  double plain_fp16 = 0;  // seconds per token, with 16-bit KV
  double plain_int8 = 0;  // with both planes
  RoundPrediction best;
};

struct Analysis {
  double weight_bytes = 0;        // of what a target reads, and the embedding
  double draft_weight_bytes = 0;  // of the 4-bit store of what a pass reads; 0: the target's own
  double draft_read_bytes = 0;    // of weights, in a draft pass
  double kv_token_fp16 = 0;       // bytes of a token at 16 bits, and in pages
  double kv_token_both = 0;
  double kv_token_upper = 0;
  std::vector<Point> points;   // by context, then batch
  std::vector<Rounds> rounds;  // by batch, then context, then acceptance
};
Analysis analyze(const RooflineRequest& request);

// The parts of Table 1, in its order.
struct Part {
  const char* name;
  Cost (*of)(const StepCost&);
};
inline constexpr Part kParts[] = {
    {"linear", [](const StepCost& cost) { return cost.linear; }},
    {"attention", [](const StepCost& cost) { return cost.attention; }},
    {"aggregate", [](const StepCost& cost) { return cost.total(); }},
};

// Seconds of a part: the aggregate's are its parts', one after the other.
inline double part_seconds(const StepCost& cost, const Part& part, const Machine& machine) {
  return &part == &kParts[2] ? cost.seconds(machine) : part.of(cost).seconds(machine);
}

}  // namespace quantspec::roofline
