// What the roofline says of an entry. Private to bench/.
#pragma once

#include "bench/entries.h"

namespace quantspec::bench {

// What a pass by this plan reads after `context` tokens: means over its layers (docs/bench.md).
PassRead read_of(const ModelConfig& model, const Plan& plan, int context);

// Milliseconds for a token. draft: the plan that drafts, or null; draft_len and acceptance as
// measured.
double predicted_ms(const Machine& machine, const ModelConfig& model, const Entry& entry,
                    int context, const Plan* draft, int draft_len, double acceptance);

}  // namespace quantspec::bench
