// How a layer's attention is spread. Private to eval/.
#pragma once

#include <span>
#include <vector>

#include "eval/eval.h"

namespace quantspec {

// For every layer the entropy of the distribution that a kv head's queries, on average, give to the
// pages one by one and to the ring as a whole: mean over kv heads and over the true tokens after
// the prompts, where something is thrown those before it. REQUIRES: as eval_sensitivity.
void attention_entropies(const EvalModel& model, std::span<const Prompt> prompts,
                         const Model::Progress& progress, std::vector<LayerEntropy>& entropies);

}  // namespace quantspec
