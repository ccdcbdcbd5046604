// What the roofline says of an entry. Private to bench/.
#pragma once

#include "bench/entries.h"

namespace quantspec::bench {

// Of a model as it is kept: pages of page_size tokens, weights of so many bytes.
struct Predictor {
  Machine machine;
  const ModelConfig& model;
  int page_size;
  WeightBytes weights;

  // What a pass by this plan reads after `context` tokens: means over its layers (docs/bench.md).
  PassRead read_of(const Plan& plan, int context) const;
  // For a token. draft: the plan that drafts, or null; draft_len and acceptance as measured.
  double milliseconds(const Entry& entry, int context, const Plan* draft, int draft_len,
                      double acceptance) const;

 private:
  PassRead uniform(WeightRead read, KvRead kv) const {
    return pass_read(model, weights, read, kv, page_size);
  }
};

}  // namespace quantspec::bench
