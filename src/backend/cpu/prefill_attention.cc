#include "backend/cpu/prefill_attention.h"

#include <limits>

#include "backend/cpu/packing.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr int kLane = 16;
constexpr int kTileTokens = 256;  // keys between two rescalings
constexpr int kTileQueries =
    128;  // rows that share a converted tile of K and V, all heads together

int heads_per_kv_head(const PrefillAttentionParams& p) {
  return p.num_heads / p.shape.num_kv_heads;
}
// Query positions of a unit: all heads of one kv head at these positions.
int positions_per_unit(const PrefillAttentionParams& p) {
  return std::max(kLane, kTileQueries / heads_per_kv_head(p) / kLane * kLane);
}

// One thread's buffers, and what it computes: the query heads of one kv head at positions
// [first, last).
class Unit {
 public:
  Unit(const Context& context, const PrefillAttentionParams& params, int kv_head, int first,
       int last, int thread)
      : kernels_(context.kernels.linear),
        p_(params),
        dim_(params.shape.head_dim),
        kv_head_(kv_head),
        first_(first),
        last_(last) {
    const std::size_t rows = static_cast<std::size_t>(heads_per_kv_head(p_)) * num_positions();
    const std::size_t tile = static_cast<std::size_t>(kTileTokens) * dim_;
    const std::size_t scores = static_cast<std::size_t>(num_positions()) * kTileTokens;
    q_ = context.scratch.get_for_thread<float>(thread,
                                               2 * rows * dim_ + 2 * tile + scores + 2 * rows);
    out_ = q_ + rows * dim_;
    keys_ = out_ + rows * dim_;
    values_ = keys_ + tile;
    scores_ = values_ + tile;
    max_ = scores_ + scores;
    sum_ = max_ + rows;
  }

  void run() {
    load_queries();
    for (int token = 0; token < last_; token += kTileTokens) {
      const int count = std::min(kTileTokens, last_ - token);
      load_tile(token, count);
      for (int head = 0; head < heads_per_kv_head(p_); ++head) attend(head, token, count);
    }
    store_result();
  }

 private:
  int num_positions() const { return last_ - first_; }
  // The row of a query head in q and out; heads of a group are consecutive.
  std::size_t row_offset(int head, int position) const {
    const std::size_t row = position - p_.first_position;
    return (row * p_.num_heads + kv_head_ * heads_per_kv_head(p_) + head) * dim_;
  }

  // Queries times the softmax scale, [heads, positions, dim].
  void load_queries() {
    float* q = q_;
    for (int head = 0; head < heads_per_kv_head(p_); ++head) {
      for (int position = first_; position < last_; ++position, q += dim_) {
        kernels_.scale(p_.q + row_offset(head, position), p_.scale, dim_, q);
      }
    }
    const int rows = heads_per_kv_head(p_) * num_positions();
    std::fill_n(max_, rows, std::numeric_limits<float>::lowest());
    std::fill_n(sum_, rows, 0.0f);
  }

  // K and V of positions [token, token + count) as fp32 panels: keys [tokens / 16][dim][16],
  // values [dim / 16][tokens][16].
  void load_tile(int token, int count) {
    const auto* data = reinterpret_cast<const std::uint16_t*>(p_.kv.full.data);
    const int padded = (count + kLane - 1) / kLane * kLane;
    const std::size_t keys = full_key_block(p_.shape, p_.kv.full.capacity, kv_head_, token);
    kernels_.to_f32[static_cast<int>(DType::kF16)](data + keys, padded * dim_, keys_);
    const std::size_t values = full_value_row(p_.shape, p_.kv.full.capacity, kv_head_, token);
    kernels_.value_panels(data + values, count, dim_, kTileTokens, values_);
  }

  void attend(int head, int token, int count) {
    const int rows = num_positions();
    const std::size_t first_row = static_cast<std::size_t>(head) * rows;
    float* out = out_ + first_row * dim_;
    kernels_.panel_gemm({.a = q_ + first_row * dim_,
                         .a_stride = dim_,
                         .rows = rows,
                         .panels = keys_,
                         .panel_stride = kLane * dim_,
                         .num_panels = (count + kLane - 1) / kLane,
                         .depth = dim_,
                         .c = scores_,
                         .c_stride = kTileTokens,
                         .accumulate = false});
    for (int i = 0; i < rows; ++i) {
      const int visible = std::clamp(first_ + i + 1 - token, 0, count);
      const float correction =
          kernels_.softmax_step(scores_ + static_cast<std::size_t>(i) * kTileTokens, visible, count,
                                max_ + first_row + i, sum_ + first_row + i);
      float* row = out + static_cast<std::size_t>(i) * dim_;
      if (token > 0 && correction != 1.0f) kernels_.scale(row, correction, dim_, row);
    }
    kernels_.panel_gemm({.a = scores_,
                         .a_stride = kTileTokens,
                         .rows = rows,
                         .panels = values_,
                         .panel_stride = kLane * kTileTokens,
                         .num_panels = dim_ / kLane,
                         .depth = count,
                         .c = out,
                         .c_stride = dim_,
                         .accumulate = token > 0});
  }

  void store_result() {
    const float* out = out_;
    const float* sum = sum_;
    for (int head = 0; head < heads_per_kv_head(p_); ++head) {
      for (int position = first_; position < last_; ++position, out += dim_, ++sum) {
        kernels_.scale(out, 1.0f / *sum, dim_, p_.out + row_offset(head, position));
      }
    }
  }

  const LinearKernels& kernels_;
  const PrefillAttentionParams& p_;
  int dim_;
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
};

}  // namespace

void prefill_attention(const Context& context, const PrefillAttentionParams& p) {
  const int end = p.first_position + p.num_rows;
  check(p.kv.pages.empty(), "prefill attention reads no pages yet");
  check(end <= p.kv.full.capacity, "prefill attention reads positions beyond its K and V");
  check(p.shape.head_dim % kLane == 0, "head_dim is a multiple of 16");
  const int size = positions_per_unit(p);
  const int first_block = p.first_position / size;
  const int num_blocks = (end + size - 1) / size - first_block;
  context.pool.parallel_for(
      static_cast<std::int64_t>(num_blocks) * p.shape.num_kv_heads,
      [&](std::int64_t index, int thread) {
        // The last positions see the most keys, so they come first: the threads end together.
        const int block =
            first_block + num_blocks - 1 - static_cast<int>(index / p.shape.num_kv_heads);
        const int kv_head = static_cast<int>(index % p.shape.num_kv_heads);
        const int first = std::max(p.first_position, block * size);
        Unit(context, p, kv_head, first, std::min(end, (block + 1) * size), thread).run();
      });
}

}  // namespace quantspec::cpu
