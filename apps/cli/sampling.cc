#include <random>

#include "apps/cli/options.h"

namespace quantspec::cli {

SamplingParams resolve_sampling(const SamplingArgs& args, const GenerationDefaults& model) {
  const float temperature = model.do_sample == false ? 0.0f : model.temperature.value_or(0.8f);
  return {.temperature = args.temperature.value_or(temperature),
          .top_k = args.top_k.value_or(model.top_k.value_or(40)),
          .top_p = args.top_p.value_or(model.top_p.value_or(0.95f)),
          .min_p = args.min_p.value_or(0.05f),
          .repeat_penalty = args.repeat_penalty.value_or(model.repetition_penalty.value_or(1.0f)),
          .seed = args.seed ? *args.seed : std::random_device{}()};
}

}  // namespace quantspec::cli
