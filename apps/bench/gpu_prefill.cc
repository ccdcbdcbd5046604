// Attention over a whole prompt, causal, in as many rows at once as the backend takes.
#include <fmt/core.h>

#include "apps/bench/gpu_lab.h"
#include "backend/params/attention.h"

namespace quantspec {

namespace {

class Prompt {
 public:
  Prompt(GpuLab& lab, const AttentionShape& shape, int tokens)
      : lab_(lab),
        tokens_(tokens),
        shape_{1, shape.kv_heads, kHeadDim, kPageSize},
        kv_(lab.random_fp16(lab.backend().full_kv_bytes(shape_, tokens))),
        q_(lab.random_floats(tokens * kRowFloats)),
        out_(lab.poisoned(tokens * kRowFloats)) {}

  void run() {
    const int rows = std::max(kPageSize, lab_.backend().prefill_rows());
    for (int first = 0; first < tokens_; first += rows) {
      const std::size_t at = first * kRowFloats;
      lab_.backend().prefill_attention({q_.as<float>() + at,
                                        out_.as<float>() + at,
                                        kHeads,
                                        shape_,
                                        kScale,
                                        first,
                                        std::min(rows, tokens_ - first),
                                        {.full = {kv_.data(), tokens_}}});
    }
  }

  double flops() const { return 2.0 * kRowFloats * tokens_ * tokens_; }

  // The largest difference from what the reference makes of the same, relative.
  double error() {
    Backend& reference = lab_.reference();
    Buffer memory = reference.allocate(reference.full_kv_bytes(shape_, tokens_));
    const FullKv kv{memory.data(), tokens_};
    std::vector<float> keys(tokens_ * kHeadDim), values(keys.size());
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      lab_.backend().read_full_kv(shape_, {kv_.data(), tokens_}, head, 0, tokens_, keys.data(),
                                  values.data());
      reference.write_full_kv(shape_, kv, head, 0, tokens_, keys.data(), values.data());
    }
    const std::vector<float> q = lab_.download(q_, tokens_ * kRowFloats);
    std::vector<float> out(q.size());
    reference.prefill_attention(
        {q.data(), out.data(), kHeads, shape_, kScale, 0, tokens_, {.full = kv}});
    run();
    return relative_error(lab_.download(out_, out.size()), out);
  }

 private:
  GpuLab& lab_;
  int tokens_;
  KvShape shape_;
  Buffer kv_, q_, out_;
};

}  // namespace

void measure_prefill(GpuLab& lab, const GpuBenchOptions& options, Results& results) {
  constexpr int kCheckedTokens = 512;
  for (const AttentionShape& shape : kAttentionShapes) {
    results.add_check(shape.name + " prefill", Prompt(lab, shape, kCheckedTokens).error(), 4e-3);
    for (const int tokens : options.prefill_tokens) {
      Prompt prompt(lab, shape, tokens);
      const Times times = lab.time([&](int) { prompt.run(); });
      results.add({.group = "other ops",
                   .name = fmt::format("{} prefill attention", shape.name),
                   .rows = tokens,
                   .times = times,
                   .flops = prompt.flops(),
                   .baseline = options.baselines.prefill(shape.name, tokens)});
    }
  }
}

}  // namespace quantspec
