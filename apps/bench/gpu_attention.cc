// Decode attention of one sequence: its contexts are compared with the reference's and timed. And
// making pages.
#include <fmt/core.h>

#include "apps/bench/gpu_contexts.h"
#include "backend/params/attention.h"

namespace quantspec {

namespace {

constexpr int kCheckedTokens = 1024;  // of a context that the reference reads too

// --- checks --------------------------------------------------------------------------------------

// Layer 0 of a context, in the memory of the reference.
class ReferenceContext {
 public:
  ReferenceContext(GpuLab& lab, Contexts& context) : lab_(lab), shape_(context.shape()) {
    shape_.num_layers = 1;
    Backend& reference = lab.reference();
    const std::size_t upper = shape_.units() * shape_.upper_unit_bytes();
    const std::size_t lower = shape_.units() * shape_.lower_unit_bytes();
    upper_ = reference.allocate(context.num_pages() * upper);
    lower_ = reference.allocate(context.num_pages() * lower);
    for (int i = 0; i < context.num_pages(); ++i) {
      pages_.push_back({upper_.data() + i * upper, lower_.data() + i * lower});
      copy_page(context, i);
    }
    const int end = context.tokens() + kMaxQueries;
    ring_ = copy_full(context, context.ring(0), ring_memory_, context.first_full(), end);
    full_ = copy_full(context, context.full(0), full_memory_, 0, end);
    first_full_ = context.first_full();
  }

  const KvShape& shape() const { return shape_; }
  KvView view(KvRead read) const {
    if (read == KvRead::kFull) return {.full = full_, .all_full = true};
    return {.pages = pages_, .full = ring_, .first_full = first_full_, .read = read};
  }
  // How far the first page is from what the reference makes of the same K and V.
  double page_error() {
    const std::size_t upper_bytes = shape_.units() * shape_.upper_unit_bytes();
    const std::size_t lower_bytes = shape_.units() * shape_.lower_unit_bytes();
    Buffer upper = lab_.reference().allocate(upper_bytes);
    Buffer lower = lab_.reference().allocate(lower_bytes);
    const PagePlanes page{upper.data(), lower.data()};
    lab_.reference().quantize_pages(shape_, 0, {&full_, 1}, 0, {&page, 1});
    const bool same = std::equal(upper.data(), upper.data() + upper_bytes, pages_[0].upper) &&
                      std::equal(lower.data(), lower.data() + lower_bytes, pages_[0].lower);
    return same ? 0 : 1;
  }

 private:
  void copy_page(Contexts& context, int page) {
    std::vector<std::byte> upper(shape_.upper_unit_bytes()), lower(shape_.lower_unit_bytes());
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      lab_.backend().export_unit(context.shape(), 0, head, context.host_pages()[page], upper.data(),
                                 lower.data());
      lab_.reference().import_unit(shape_, 0, head, upper.data(), lower.data(), pages_[page]);
    }
  }
  FullKv copy_full(Contexts& context, FullKv from, Buffer& memory, int first, int end) {
    memory = lab_.reference().allocate(lab_.reference().full_kv_bytes(shape_, from.capacity));
    const FullKv to{memory.data(), from.capacity};
    std::vector<float> keys((end - first) * kHeadDim), values(keys.size());
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      lab_.backend().read_full_kv(context.shape(), from, head, first, end - first, keys.data(),
                                  values.data());
      lab_.reference().write_full_kv(shape_, to, head, first, end - first, keys.data(),
                                     values.data());
    }
    return to;
  }

  GpuLab& lab_;
  KvShape shape_;
  Buffer upper_, lower_, ring_memory_, full_memory_;
  std::vector<PagePlanes> pages_;
  FullKv ring_, full_;
  int first_full_;
};

std::vector<float> reference_out(GpuLab& lab, const Queries& queries,
                                 const ReferenceContext& context, int tokens, KvRead read) {
  std::vector<float> out(queries.host().size());
  const SequenceRows rows{0, kMaxQueries, tokens, context.view(read)};
  lab.reference().attention(
      {queries.host().data(), out.data(), kHeads, context.shape(), kScale, {&rows, 1}});
  return out;
}

void check_attention(GpuLab& lab, const AttentionShape& shape, Results& results) {
  Contexts context(lab, shape.kv_heads, {kCheckedTokens});
  ReferenceContext reference(lab, context);
  results.add_check(shape.name + " quantize pages", reference.page_error(), 0);
  Queries queries(lab);
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth, KvRead::kFull}) {
    const std::string name = fmt::format("{} {}", shape.name, name_of(read));
    queries.poison();
    if (read != KvRead::kUpper) {
      queries.run(QueryRound(lab, context, read, kMaxQueries), 0, OpOrder::kAfter);
    } else {  // a draft's rounds have one query
      queries.run(context, kMaxQueries);
    }
    const std::vector<float> out = queries.out(kMaxQueries);
    results.add_check(
        name, relative_error(out, reference_out(lab, queries, reference, kCheckedTokens, read)),
        read == KvRead::kUpper ? 1e-2 : 2e-3);
    queries.poison();
    queries.run(QueryRound(lab, context, read, 1), 0, OpOrder::kAfter);
    results.add_check(name + ", the bits of a row alone and in company",
                      bit_error(queries.out(1), std::span(out).first(kRowFloats)), 0);
  }
}

// --- times ---------------------------------------------------------------------------------------

void time_attention(GpuLab& lab, const AttentionShape& shape, Contexts& context,
                    const Baselines& baselines, Results& results) {
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth, KvRead::kFull}) {
    for (const int count : {1, 4, 8}) {
      if (read == KvRead::kUpper && count > 1) continue;  // a draft has one query
      const std::string name = fmt::format("{} {} {}", shape.name, context.tokens(), name_of(read));
      Measurement measured = time_queries(lab, context, read, count, name, results);
      measured.baseline = baselines.attention(shape.name, context.tokens(), count);
      measured.flash = baselines.attention(shape.name, context.tokens(), count, true);
      results.add(std::move(measured));
    }
  }
}

void time_quantize(GpuLab& lab, const AttentionShape& shape, Contexts& context, Results& results) {
  const int pages = std::min(kPagesAtOnce, context.num_pages());
  const double unit = static_cast<double>(context.shape().unit_bytes());
  const Times times = lab.time([&](int i) {
    const int series = context.num_pages() / pages;
    context.quantize(i / series % context.shape().num_layers, i % series * pages);
  });
  results.add({.group = "other ops",
               .name = fmt::format("{} quantize {} pages", shape.name, pages),
               .rows = pages * kPageSize,
               .times = times,
               .bytes = pages * shape.kv_heads * (unit + 4.0 * kHeadDim * kPageSize)});
}

}  // namespace

void measure_attention(GpuLab& lab, const GpuBenchOptions& options, Results& results) {
  for (const AttentionShape& shape : kAttentionShapes) check_attention(lab, shape, results);
  for (const AttentionShape& shape : kAttentionShapes) {
    for (const int tokens : options.tokens) {
      Contexts context(lab, shape.kv_heads, {tokens});
      time_attention(lab, shape, context, options.baselines, results);
      if (tokens == options.tokens.back()) time_quantize(lab, shape, context, results);
    }
  }
}

}  // namespace quantspec
