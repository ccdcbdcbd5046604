// What reading a prompt is made of: matrix products and attention over many rows, and making pages.
#include <fmt/core.h>

#include <cmath>

#include "apps/bench/lab.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"

namespace quantspec {

namespace {

constexpr int kRows = 512;  // of a chunk of the prompt

void product(benchmark::State& state, Lab& lab, int outputs, int inputs) {
  const std::vector<float> x = normal_values(std::size_t(kRows) * inputs);
  std::vector<float> y(std::size_t(kRows) * outputs);
  Linear linear;
  linear.target =
      dense({lab.next_values(std::size_t{2} * outputs * inputs), DType::kBF16, outputs, inputs});
  const double each = time_each(state, [&] {
    lab.backend().add_linear(
        {Phase::kPrefill, WeightRead::kTarget, x.data(), kRows, &linear, y.data()});
    benchmark::DoNotOptimize(y.data());
  });
  lab.report(state, each, {.flops = 2.0 * kRows * outputs * inputs}, lab.threads());
}

// The rows' own K and V are fp16, those before them too, or pages.
void attention(benchmark::State& state, Lab& lab, int head_dim, int group, int end,
               bool from_pages) {
  const KvShape shape{PageStore::kLayers, 512 / head_dim, head_dim, 128};
  const int num_heads = shape.num_kv_heads * group, first = end - kRows;
  const std::vector<float> q = normal_values(std::size_t(kRows) * num_heads * head_dim);
  std::vector<float> out(q.size());
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  KvView kv;
  if (from_pages) {
    const PageStore::Place place = lab.pages(shape, first / shape.page_size, kBeyondCaches).next();
    kv = {.pages = place.pages, .first_full = first, .layer = place.layer};
  }
  kv.full = lab.next_full_kv(shape, end - kv.first_full);
  const double each = time_each(state, [&] {
    lab.backend().prefill_attention(
        {q.data(), out.data(), num_heads, shape, scale, first, kRows, kv});
    benchmark::DoNotOptimize(out.data());
  });
  const double pairs = double(kRows) * first + 0.5 * kRows * (kRows + 1);  // of query and key
  lab.report(state, each, {.flops = 4 * pairs * num_heads * head_dim}, lab.threads());
}

void quantize(benchmark::State& state, Lab& lab, int num_pages) {
  const KvShape shape{PageStore::kLayers, 4, 128, 128};
  PageStore& store = lab.pages(shape, 64, kBeyondCaches);
  const int tokens = num_pages * shape.page_size;
  const double each = time_each(state, [&] {
    const PageStore::Place place = store.next();
    const FullKv full = lab.next_full_kv(shape, tokens);
    lab.backend().quantize_pages(shape, place.layer, {&full, 1}, 0, place.pages.first(num_pages));
  });
  const double elements = 2.0 * tokens * shape.num_kv_heads * shape.head_dim;
  const double unit = double(shape.unit_bytes());
  lab.report(state, each,
             {.bytes = 2 * elements + num_pages * shape.num_kv_heads * unit, .elements = elements},
             lab.threads());
}

template <typename F>
void add(const std::string& name, const F& f) {
  benchmark::RegisterBenchmark(name.c_str(), f)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace

void register_prefill(Lab& lab) {
  struct Shape {
    int outputs, inputs;
  };
  for (const Shape s : {Shape{512, 512}, {1408, 512}, {512, 1408}, {4096, 4096}}) {
    add(fmt::format("prefill-linear/bf16/{}x{}/r{}", s.outputs, s.inputs, kRows),
        [&lab, s](benchmark::State& state) { product(state, lab, s.outputs, s.inputs); });
  }
  for (const int head_dim : {128, 64}) {
    for (const int group : {1, 4}) {
      for (const bool from_pages : {false, true}) {
        add(fmt::format("prefill-attention/{}/d{}/{}/q{}", from_pages ? "both" : "fp16", head_dim,
                        group == 1 ? "mha" : "gqa4", kRows),
            [&lab, head_dim, group, from_pages](benchmark::State& state) {
              attention(state, lab, head_dim, group, 8192, from_pages);
            });
      }
    }
  }
  for (const int pages : {1, 64}) {
    add(fmt::format("quantize-pages/d128/p{}", pages),
        [&lab, pages](benchmark::State& state) { quantize(state, lab, pages); });
  }
}

}  // namespace quantspec
