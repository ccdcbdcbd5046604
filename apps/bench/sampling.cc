// From a row of logits to a token.
#include <fmt/core.h>

#include "apps/bench/lab.h"
#include "sampler/sampler.h"

namespace quantspec {

namespace {

struct Case {
  const char* name;
  SamplingParams params;
};

// Time of copying the logits is in it: a small part.
void run(benchmark::State& state, const Lab& lab, const SamplingParams& params, int vocabulary) {
  std::vector<float> logits = normal_values(vocabulary);
  for (float& logit : logits) logit *= 3;
  std::vector<float> probabilities(logits.size());
  SamplerScratch scratch;
  float uniform = 0.1f;
  const double each = time_each(state, [&] {
    probabilities = logits;
    to_probabilities(params, {}, probabilities, scratch);
    benchmark::DoNotOptimize(sample(probabilities, uniform));
    uniform = uniform > 0.9f ? 0.1f : uniform + 0.01f;
  });
  lab.report(state, each, {}, 1);
}

}  // namespace

void register_sampling(Lab& lab) {
  const Case cases[] = {{"greedy", {.temperature = 0}},
                        {"temperature", {.temperature = 0.8f}},
                        {"top-k", {.temperature = 0.8f, .top_k = 40}},
                        {"top-p", {.temperature = 0.8f, .top_p = 0.9f}}};
  for (const int vocabulary : {8192, 32000, 128000}) {
    for (const Case& c : cases) {
      benchmark::RegisterBenchmark(fmt::format("sampling/{}/v{}", c.name, vocabulary).c_str(),
                                   [&lab, params = c.params, vocabulary](benchmark::State& state) {
                                     run(state, lab, params, vocabulary);
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace quantspec
