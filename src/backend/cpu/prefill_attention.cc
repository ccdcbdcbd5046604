#include "backend/cpu/prefill_attention.h"

#include <limits>

#include "backend/cpu/packing.h"
#include "backend/cpu/pages.h"
#include "base/dtype.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr int kLane = 16;
constexpr int kTileTokens = 256;  // keys between two rescalings
// Rows that share a converted tile of K and V, all heads together.
constexpr int kTileQueries = 128;
constexpr int kLeastPositions = 8;
// Rows that are thought to take as long as it takes to convert K and V: by counting instructions.
constexpr int kConversionRows = 12;

// What a call reads.
struct Call {
  const PrefillAttentionParams& params;
  const LayerPages& pages;
  KvHeads kv_heads;

  int heads_per_kv_head() const { return params.num_heads / kv_heads.count; }
};
// Query positions of a unit: all heads of one kv head at these positions. Of a slice of few rows
// units are smaller, if all threads together then end earlier: each converts K and V anew.
int positions_per_unit(const Call& call, int threads) {
  const PrefillAttentionParams& p = call.params;
  const int heads = call.heads_per_kv_head();
  int best = std::max(kLeastPositions, kTileQueries / heads / kLeastPositions * kLeastPositions);
  int least_rows = std::numeric_limits<int>::max();  // that a thread computes, conversions as well
  for (int size = best; size >= kLeastPositions; size /= 2) {
    const int units = (p.num_rows + size - 1) / size * call.kv_heads.count;
    const int rows =
        (units + threads - 1) / threads * (std::min(size, p.num_rows) * heads + kConversionRows);
    if (rows >= least_rows) continue;
    least_rows = rows;
    best = size;
  }
  return best;
}

// One thread's buffers, and what it computes: the query heads of one kv head at positions
// [first, last).
class Unit {
 public:
  // index: of kv_heads.
  Unit(const Context& context, const Call& call, int index, int first, int last, int thread)
      : kernels_(context.kernels.linear),
        bf16_(context.kernels.bf16),
        load_panels_(context.kernels.attention.load_panels),
        p_(call.params),
        pages_(call.pages),
        dim_(call.params.shape.head_dim),
        num_heads_(call.heads_per_kv_head()),
        first_head_(index * num_heads_),
        kv_head_(call.kv_heads.first + index),
        first_(first),
        last_(last) {
    const std::size_t rows = static_cast<std::size_t>(num_heads_) * num_positions();
    const std::size_t tile = static_cast<std::size_t>(kTileTokens) * dim_;
    const std::size_t scores = static_cast<std::size_t>(num_positions()) * kTileTokens;
    const std::size_t floats = 2 * rows * dim_ + 2 * tile + scores + 2 * rows;
    // In bf16: queries, keys, values and probabilities once more, each half of a float.
    const std::size_t rounded = bf16_ == nullptr ? 0 : (rows * dim_ + 2 * tile + scores) / 2;
    q_ = context.scratch.get_for_thread<float>(thread, floats + rounded);
    out_ = q_ + rows * dim_;
    keys_ = out_ + rows * dim_;
    values_ = keys_ + tile;
    scores_ = values_ + tile;
    max_ = scores_ + scores;
    sum_ = max_ + rows;
    rounded_q_ = reinterpret_cast<std::uint16_t*>(q_ + floats);
    rounded_keys_ = rounded_q_ + rows * dim_;
    rounded_values_ = rounded_keys_ + tile;
    rounded_scores_ = rounded_values_ + tile;
  }

  void run() {
    load_queries();
    for (int token = 0; token < last_; token += kTileTokens) {
      const int count = std::min(kTileTokens, last_ - token);
      load_tile(token, count);
      for (int head = 0; head < num_heads_; ++head) attend(head, token, count);
    }
    store_result();
  }

 private:
  int num_positions() const { return last_ - first_; }
  // The row of a query head in q and out; heads of a group are consecutive.
  std::size_t row_offset(int head, int position) const {
    const std::size_t row = position - p_.first_position;
    return (row * p_.num_heads + first_head_ + head) * dim_;
  }

  // Queries times the softmax scale, [heads, positions, dim].
  void load_queries() {
    float* q = q_;
    for (int head = 0; head < num_heads_; ++head) {
      for (int position = first_; position < last_; ++position, q += dim_) {
        kernels_.scale(p_.q + row_offset(head, position), p_.scale, dim_, q);
      }
    }
    const int rows = num_heads_ * num_positions();
    std::fill_n(max_, rows, std::numeric_limits<float>::lowest());
    std::fill_n(sum_, rows, 0.0f);
    if (bf16_ != nullptr) bf16_->round(q_, rows * dim_, rounded_q_);
  }

  // K and V of positions [token, token + count) as fp32 panels: keys [tokens / 16][dim][16],
  // values [dim / 16][tokens][16]. Piece by piece, of pages and of full precision.
  void load_tile(int token, int count) {
    for (int done = 0; done < count;) {
      const int position = token + done, most = count - done;
      float* const keys = keys_ + static_cast<std::ptrdiff_t>(done) * dim_;
      float* const values = values_ + kLane * done;
      done += position < p_.kv.first_full ? load_page(position, most, keys, values)
                                          : load_full(position, most, keys, values);
    }
    if (bf16_ == nullptr) return;
    for (int t = 0; t < count; t += kLane) {
      bf16_->pair_panel(keys_ + t * dim_, dim_, rounded_keys_ + t * dim_);
    }
    for (int c = 0; c < dim_; c += kLane) {
      bf16_->pair_panel(values_ + c * kTileTokens, count, rounded_values_ + c * kTileTokens);
    }
  }

  // Both load `most` positions, or those up to a border of what they are in; they return how many.
  int load_page(int position, int most, float* keys, float* values) {
    const KvShape& shape = p_.shape;
    const int page = position / shape.page_size, first = position % shape.page_size;
    const int count = std::min(most, shape.page_size - first);
    const std::byte* upper = pages_.upper(page, kv_head_);
    const std::byte* lower = pages_.lower(page, kv_head_);
    load_panels_({.page = {reinterpret_cast<const std::uint8_t*>(upper),
                           reinterpret_cast<const std::uint8_t*>(lower)},
                  .shape = {dim_, shape.page_size, shape.value_groups()},
                  .first = first,
                  .count = count,
                  .keys = keys,
                  .values = values,
                  .panel_tokens = kTileTokens});
    return count;
  }
  int load_full(int position, int most, float* keys, float* values) {
    const FullKv& kv = p_.kv.full;
    const int slot = position % kv.capacity, count = std::min(most, kv.capacity - slot);
    const int padded = (count + kLane - 1) / kLane * kLane;
    const auto* data = reinterpret_cast<const std::uint16_t*>(kv.data);
    kernels_.to_f32[static_cast<int>(DType::kF16)](
        data + full_key_block(p_.shape, kv.capacity, kv_head_, slot), padded * dim_, keys);
    kernels_.value_panels(data + full_value_row(p_.shape, kv.capacity, kv_head_, slot), count, dim_,
                          kTileTokens, values);
    return count;
  }

  void attend(int head, int token, int count) {
    const int rows = num_positions();
    const std::size_t first_row = static_cast<std::size_t>(head) * rows;
    float* out = out_ + first_row * dim_;
    bf16_ != nullptr ? score(bf16_->panel_gemm, rounded_q_, rounded_keys_, first_row, count)
                     : score(kernels_.panel_gemm, q_, keys_, first_row, count);
    for (int i = 0; i < rows; ++i) {
      const int visible = std::clamp(first_ + i + 1 - token, 0, count);
      const float correction =
          kernels_.softmax_step(scores_ + static_cast<std::size_t>(i) * kTileTokens, visible,
                                even(count), max_ + first_row + i, sum_ + first_row + i);
      float* row = out + static_cast<std::size_t>(i) * dim_;
      if (token > 0 && correction != 1.0f) kernels_.scale(row, correction, dim_, row);
    }
    if (bf16_ == nullptr) {
      return add_values(kernels_.panel_gemm, scores_, values_, count, token > 0, out);
    }
    for (int i = 0; i < rows; ++i) {
      const std::size_t row = static_cast<std::size_t>(i) * kTileTokens;
      bf16_->round(scores_ + row, even(count), rounded_scores_ + row);
    }
    add_values(bf16_->panel_gemm, rounded_scores_, rounded_values_, even(count), token > 0, out);
  }

  static int even(int count) { return (count + 1) / 2 * 2; }

  // scores_ of the queries from `first_row` on.
  template <typename Gemm, typename Element>
  void score(void (*gemm)(const Gemm&), const Element* queries, const Element* keys,
             std::size_t first_row, int count) {
    gemm({.a = queries + first_row * dim_,
          .a_stride = dim_,
          .rows = num_positions(),
          .panels = keys,
          .panel_stride = kLane * dim_,
          .num_panels = (count + kLane - 1) / kLane,
          .depth = dim_,
          .c = scores_,
          .c_stride = kTileTokens,
          .accumulate = false});
  }

  // The values of so many tokens, weighed by their probabilities.
  template <typename Gemm, typename Element>
  void add_values(void (*gemm)(const Gemm&), const Element* probabilities, const Element* values,
                  int count, bool accumulate, float* out) {
    gemm({.a = probabilities,
          .a_stride = kTileTokens,
          .rows = num_positions(),
          .panels = values,
          .panel_stride = kLane * kTileTokens,
          .num_panels = dim_ / kLane,
          .depth = count,
          .c = out,
          .c_stride = dim_,
          .accumulate = accumulate});
  }

  void store_result() {
    const float* out = out_;
    const float* sum = sum_;
    for (int head = 0; head < num_heads_; ++head) {
      for (int position = first_; position < last_; ++position, out += dim_, ++sum) {
        kernels_.scale(out, 1.0f / *sum, dim_, p_.out + row_offset(head, position));
      }
    }
  }

  const LinearKernels& kernels_;
  const Bf16Kernels* bf16_;  // null: all in fp32
  void (*load_panels_)(const LoadPanels&);
  const PrefillAttentionParams& p_;
  const LayerPages& pages_;
  int dim_;
  int num_heads_;
  int first_head_;
  int kv_head_;
  int first_;
  int last_;
  float* q_;       // [heads, positions, dim]
  float* out_;     // [heads, positions, dim], relative to max_
  float* keys_;    // panels
  float* values_;  // panels
  float* scores_;  // [positions, kTileTokens]
  float* max_;     // [heads, positions]
  float* sum_;
  // With bf16_, the same once more; panels in pairs.
  std::uint16_t* rounded_q_;
  std::uint16_t* rounded_keys_;
  std::uint16_t* rounded_values_;
  std::uint16_t* rounded_scores_;
};

}  // namespace

void prefill_attention(const Context& context, const PrefillAttentionParams& p,
                       const LayerPages& pages, const KvHeads& kv_heads) {
  const Call call{p, pages, kv_heads};
  const int end = p.first_position + p.num_rows;
  const KvView& kv = p.kv;
  check_shape(p.shape);
  check(kv.first_full == static_cast<int>(kv.pages.size()) * p.shape.page_size,
        "prefill attention reads in full precision what is in no page");
  check(kv.first_full <= p.first_position, "rows come after their pages");
  check(end - kv.first_full <= kv.full.capacity && kv.full.capacity % kLane == 0,
        "every position after the pages has a slot");
  check(kv.read == KvRead::kBoth && kv.page_lists.empty() && kv.num_gathered == 0 &&
            kv.page_mass.data == nullptr,
        "prefill attention reads all pages at 8 bits, and nothing else");
  const int size = positions_per_unit(call, context.pool.num_threads());
  const int num_blocks = (p.num_rows + size - 1) / size;
  context.pool.parallel_for(
      static_cast<std::int64_t>(num_blocks) * kv_heads.count, [&](std::int64_t index, int thread) {
        // The last positions see the most keys, so they come first: the threads end together.
        const int block = num_blocks - 1 - static_cast<int>(index / kv_heads.count);
        const int kv_head = static_cast<int>(index % kv_heads.count);
        const int first = p.first_position + block * size;
        Unit(context, call, kv_head, first, std::min(end, first + size), thread).run();
      });
}

}  // namespace quantspec::cpu
