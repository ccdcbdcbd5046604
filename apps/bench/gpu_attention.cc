// Decode attention of one sequence over fp16 K and V, over the upper plane of its pages (what a
// draft reads), and over both planes (what a verifying pass reads); its last page and its newest
// tokens lie in the ring. And making pages.
#include <fmt/core.h>

#include "apps/bench/gpu_lab.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"

namespace quantspec {

namespace {

constexpr int kPageSize = 128;
constexpr int kRing = 2 * kPageSize;  // slots
constexpr int kMaxQueries = 8;
constexpr int kPagesAtOnce = 64;      // that a call of quantize_pages makes
constexpr int kCheckedTokens = 1024;  // of a context that the reference reads too

const char* name_of(KvRead read) {
  return read == KvRead::kFull ? "fp16" : read == KvRead::kUpper ? "draft" : "verify";
}

// A context of so many tokens before the queries, in as many layers as make it exceed the L2.
class Context {
 public:
  Context(GpuLab& lab, int kv_heads, int tokens)
      : lab_(lab), tokens_(tokens), shape_{1, kv_heads, kHeadDim, kPageSize} {
    shape_.num_layers = copies_beyond_l2(num_pages() * kv_heads * shape_.upper_unit_bytes());
    full_bytes_ = lab.backend().full_kv_bytes(shape_, capacity());
    check(full_bytes_ == std::size_t{4} * capacity() * kv_heads * kHeadDim, "K and V are fp16");
    full_copies_ = copies_beyond_l2(full_bytes_);
    full_ = lab.random_fp16(full_copies_ * full_bytes_);
    ring_bytes_ = lab.backend().full_kv_bytes(shape_, kRing);
    rings_ = lab.random_fp16(shape_.num_layers * ring_bytes_);
    make_pages();
  }

  int tokens() const { return tokens_; }
  int num_pages() const { return tokens_ / kPageSize - 1; }
  const KvShape& shape() const { return shape_; }
  std::span<const PagePlanes> host_pages() const { return pages_; }
  FullKv ring(int layer) { return {rings_.data() + layer * ring_bytes_, kRing}; }
  FullKv full(int copy) { return {full_.data() + copy * full_bytes_, capacity()}; }
  int first_full() const { return num_pages() * kPageSize; }

  KvView view(KvRead read, int i) {
    const int layer = i % copies(read);
    if (read == KvRead::kFull) return {.full = full(layer), .layer = layer, .all_full = true};
    return {.pages = device_pages(),
            .full = ring(layer),
            .first_full = first_full(),
            .layer = layer,
            .read = read};
  }
  // Layers that are read in turn.
  int copies(KvRead read) const { return read == KvRead::kFull ? full_copies_ : shape_.num_layers; }
  // Bytes that queries have to read.
  double bytes(KvRead read, int queries) const {
    const double token = 4.0 * kHeadDim;
    if (read == KvRead::kFull) return shape_.num_kv_heads * token * (tokens_ + queries);
    double unit = static_cast<double>(shape_.upper_unit_bytes());
    if (read == KvRead::kBoth) unit += static_cast<double>(shape_.lower_unit_bytes());
    return shape_.num_kv_heads * (unit * num_pages() + token * (kPageSize + queries));
  }

  // Makes up to kPagesAtOnce pages of one layer. Returns how many.
  int quantize(int layer, int first_page) {
    const int count = std::min(kPagesAtOnce, num_pages() - first_page);
    const FullKv source = full(0);
    lab_.backend().quantize_pages(shape_, layer, {&source, 1}, first_page * kPageSize,
                                  device_pages().subspan(first_page, count));
    return count;
  }

 private:
  int capacity() const { return tokens_ + 16; }
  std::span<const PagePlanes> device_pages() const {
    return {table_.as<PagePlanes>(), static_cast<std::size_t>(num_pages())};
  }

  void make_pages() {
    Backend& backend = lab_.backend();
    const std::size_t upper = shape_.units() * shape_.upper_unit_bytes();
    const std::size_t lower = shape_.units() * shape_.lower_unit_bytes();
    upper_ = backend.allocate(num_pages() * upper);
    lower_ = backend.allocate(num_pages() * lower);
    for (int i = 0; i < num_pages(); ++i) {
      pages_.push_back({upper_.data() + i * upper, lower_.data() + i * lower});
    }
    table_ = backend.allocate(num_pages() * sizeof(PagePlanes));
    backend.upload(table_.data(), pages_.data(), num_pages() * sizeof(PagePlanes));
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int page = 0; page < num_pages();) page += quantize(layer, page);
    }
  }

  GpuLab& lab_;
  int tokens_;
  KvShape shape_;
  std::size_t full_bytes_, ring_bytes_;
  int full_copies_;
  Buffer full_, rings_, upper_, lower_, table_;
  std::vector<PagePlanes> pages_;
};

// --- checks --------------------------------------------------------------------------------------

// Layer 0 of a context, in the memory of the reference.
class ReferenceContext {
 public:
  ReferenceContext(GpuLab& lab, Context& context) : lab_(lab), shape_(context.shape()) {
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
  void copy_page(Context& context, int page) {
    std::vector<std::byte> upper(shape_.upper_unit_bytes()), lower(shape_.lower_unit_bytes());
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      lab_.backend().export_unit(context.shape(), 0, head, context.host_pages()[page], upper.data(),
                                 lower.data());
      lab_.reference().import_unit(shape_, 0, head, upper.data(), lower.data(), pages_[page]);
    }
  }
  FullKv copy_full(Context& context, FullKv from, Buffer& memory, int first, int end) {
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

// A context's queries as rows of a round, as decoding has them: where they stand and what they read
// in every layer is on the device before the first call.
class QueryRound {
 public:
  QueryRound(GpuLab& lab, Context& context, KvRead read, int queries)
      : context_(context), read_(read), shape_(context.shape()) {
    static std::uint64_t rounds = 0;
    shape_.num_layers = context.copies(read);
    const Round round{.length = context.tokens() + 1};
    round_ = upload(lab, std::span(&round, 1));
    tokens_ = upload(lab, std::span<const TokenId>(std::vector<TokenId>(context.tokens() + kRing)));
    rows_ = {.first_row = 0,
             .num_rows = queries,
             .first_position = context.tokens(),
             .kv = {},
             .tokens = tokens_.as<TokenId>(),
             .lane = 0,
             .verifies = read != KvRead::kUpper};
    RoundLane lane{.draft_len = rows_.verifies ? queries - 1 : queries};
    lane.at.tokens = tokens_.as<TokenId>();
    lane.at.round = round_.as<Round>();
    const LaneKey key{++rounds};
    lab.backend().begin_batch({&lane, 1});
    std::vector<KvView> views;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      views.push_back(context.view(read, layer));
    }
    lab.backend().bind_lanes(shape_, {&key, 1},
                             [&](int, bool) { return std::span<const KvView>(views); });
    begin_pass(lab);
  }

  // Of the i-th call.
  SequenceRows rows(int i) const {
    SequenceRows rows = rows_;
    rows.kv = context_.view(read_, i);
    return rows;
  }
  const KvShape& shape() const { return shape_; }

 private:
  template <typename T>
  static Buffer upload(GpuLab& lab, std::span<const T> values) {
    Buffer buffer = lab.backend().allocate(values.size_bytes());
    lab.backend().upload(buffer.data(), values.data(), values.size_bytes());
    return buffer;
  }
  void begin_pass(GpuLab& lab) {
    constexpr int kHidden = 16;
    const std::uint16_t zeros[kHidden] = {};
    const TensorView host{zeros, DType::kF16, 1, kHidden};
    Backend& backend = lab.backend();
    Buffer table = backend.allocate(backend.matrix_bytes(1, kHidden, DType::kF16));
    Buffer out = backend.allocate(kMaxQueries * kHidden * sizeof(float));
    backend.embed({.sequences = {&rows_, 1},
                   .table = backend.place_matrix(host, table.data()),
                   .out = out.as<float>(),
                   .page_size = kPageSize,
                   .num_rows = rows_.num_rows});
    backend.synchronize();
  }

  Context& context_;
  KvRead read_;
  KvShape shape_;
  Buffer round_, tokens_;
  SequenceRows rows_;
};

constexpr std::size_t kRowFloats = kHeads * kHeadDim;

class Queries {
 public:
  explicit Queries(GpuLab& lab)
      : lab_(lab), host_q_(lab.floats(kMaxQueries * kRowFloats)), q_(lab.upload(host_q_)) {}

  void run(const QueryRound& round, int i, OpOrder order) {
    const SequenceRows rows = round.rows(i);
    lab_.backend().attention(
        {q_.as<float>(), out_.as<float>(), kHeads, round.shape(), kScale, {&rows, 1}, order});
  }
  // Of a draft, in layer 0, as rows of no round.
  void run(Context& context, int queries) {
    const SequenceRows rows{0, queries, context.tokens(), context.view(KvRead::kUpper, 0)};
    lab_.backend().attention({q_.as<float>(),
                              out_.as<float>(),
                              kHeads,
                              context.shape(),
                              kScale,
                              {&rows, 1},
                              OpOrder::kAfter});
  }
  std::vector<float> reference(const ReferenceContext& context, int tokens, KvRead read) {
    std::vector<float> out(host_q_.size());
    const SequenceRows rows{0, kMaxQueries, tokens, context.view(read)};
    lab_.reference().attention(
        {host_q_.data(), out.data(), kHeads, context.shape(), kScale, {&rows, 1}});
    return out;
  }
  void poison() { out_ = lab_.poisoned(host_q_.size()); }
  std::vector<float> out(int queries) { return lab_.download(out_, queries * kRowFloats); }

 private:
  static constexpr float kScale = 0.088388348f;  // 1 / sqrt(kHeadDim)

  GpuLab& lab_;
  std::vector<float> host_q_;
  Buffer q_, out_;
};

void check_attention(GpuLab& lab, const AttentionShape& shape, Results& results) {
  Context context(lab, shape.kv_heads, kCheckedTokens);
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
    results.add_check(name, relative_error(out, queries.reference(reference, kCheckedTokens, read)),
                      read == KvRead::kUpper ? 1e-2 : 2e-3);
    queries.poison();
    queries.run(QueryRound(lab, context, read, 1), 0, OpOrder::kAfter);
    results.add_check(name + ", the bits of a row alone and in company",
                      bit_error(queries.out(1), std::span(out).first(kRowFloats)), 0);
  }
}

// --- times ---------------------------------------------------------------------------------------

void time_attention(GpuLab& lab, const AttentionShape& shape, Context& context,
                    const Baselines& baselines, Results& results) {
  Queries queries(lab);
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth, KvRead::kFull}) {
    for (const int count : {1, 4, 8}) {
      if (read == KvRead::kUpper && count > 1) continue;  // a draft has one query
      const std::string name = fmt::format("{} {} {}", shape.name, context.tokens(), name_of(read));
      queries.poison();
      const QueryRound round(lab, context, read, count);
      const Times times = lab.time([&](int i) { queries.run(round, i, OpOrder::kOverlaps); });
      const std::vector<float> out = queries.out(count);
      if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); })) {
        results.add_check(fmt::format("{}, {} queries: finite", name, count), 1, 0);
      }
      results.add({.group = "decode attention",
                   .name = name,
                   .rows = count,
                   .times = times,
                   .bytes = context.bytes(read, count),
                   .baseline = baselines.attention(shape.name, context.tokens(), count),
                   .flash = baselines.attention(shape.name, context.tokens(), count, true)});
    }
  }
}

void time_quantize(GpuLab& lab, const AttentionShape& shape, Context& context, Results& results) {
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
      Context context(lab, shape.kv_heads, tokens);
      time_attention(lab, shape, context, options.baselines, results);
      if (tokens == options.tokens.back()) time_quantize(lab, shape, context, results);
    }
  }
}

}  // namespace quantspec
