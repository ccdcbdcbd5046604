#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "backend/cpu/packing.h"
#include "backend/cpu/pages.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr int kSplitPages = 8;
constexpr int kSplitTokens = 4 * kFullChunk;  // of the full-precision part

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int group_size(const AttentionParams& params) {
  return params.num_heads / params.shape.num_kv_heads;
}

int first_full(const AttentionParams& params, const SequenceRows& rows) {
  return static_cast<int>(rows.kv.pages.size()) * params.shape.page_size;
}

// Full-precision positions that row `row` of the sequence sees.
int full_tokens(const AttentionParams& params, const SequenceRows& rows, int row) {
  return rows.first_position + row + 1 - first_full(params, rows);
}

void check_sequence(const AttentionParams& params, const SequenceRows& rows) {
  check(rows.num_rows > 0, "a sequence has a row");
  check(rows.first_position >= first_full(params, rows), "rows come after the pages");
  check(rows.kv.full.capacity % 16 == 0, "the capacity is a multiple of 16");
  check(full_tokens(params, rows, rows.num_rows - 1) <= rows.kv.full.capacity,
        "the positions after the pages fit in full precision");
}

void grow(Buffer& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes + bytes / 4);
}

}  // namespace

void DecodeAttention::run(const AttentionParams& params) {
  check_shape(params.shape);
  check(params.num_heads % params.shape.num_kv_heads == 0, "heads form groups");
  const std::int64_t count = make_plans(params);
  // NOTE: a thread takes its next unit before it works on the present one, so that it can prefetch
  // across the border; not when units are so few that this would leave a thread without one.
  const bool look_ahead = count >= 4 * pool_.num_threads();
  std::atomic<std::int64_t> next{0};
  pool_.share([&](int thread) {
    for (std::int64_t index = next++; index < count;) {
      const std::int64_t following = look_ahead ? next++ : count;
      const Unit now = unit(index);
      if (following < count) {
        const Unit then = unit(following);
        attend(params, now, &then, thread);
      } else {
        attend(params, now, nullptr, thread);
      }
      index = look_ahead ? following : next++;
    }
  });
  const int kv_heads = params.shape.num_kv_heads;
  pool_.parallel_for(static_cast<std::int64_t>(plans_.size()) * kv_heads, [&](std::int64_t i, int) {
    merge(params, plans_[i / kv_heads], static_cast<int>(i % kv_heads));
  });
}

std::int64_t DecodeAttention::make_plans(const AttentionParams& params) {
  plans_.clear();
  std::int64_t units = 0;
  std::size_t floats = 0;
  for (const SequenceRows& rows : params.sequences) {
    check_sequence(params, rows);
    Plan plan;
    plan.rows = &rows;
    plan.num_columns = rows.num_rows * group_size(params);
    plan.page_splits = ceil_div(static_cast<int>(rows.kv.pages.size()), kSplitPages);
    plan.full_splits = ceil_div(full_tokens(params, rows, rows.num_rows - 1), kSplitTokens);
    plan.first_unit = units;
    plan.first_partial = floats;
    plan.partial_stride =
        (static_cast<std::size_t>(plan.num_columns) * (params.shape.head_dim + 2) + 15) / 16 * 16;
    const std::int64_t count = std::int64_t{params.shape.num_kv_heads} * plan.splits();
    units += count;
    floats += count * plan.partial_stride;
    max_columns_ = std::max(max_columns_, plan.num_columns);
    plans_.push_back(plan);
  }
  const std::size_t columns = static_cast<std::size_t>(pool_.num_threads()) * max_columns_;
  grow(partials_, floats * sizeof(float));
  grow(queries_, columns * params.shape.head_dim * sizeof(float));
  grow(tokens_, columns * sizeof(int));
  return units;
}

DecodeAttention::Unit DecodeAttention::unit(std::int64_t index) const {
  std::size_t s = plans_.size() - 1;
  while (plans_[s].first_unit > index) --s;
  const Plan& plan = plans_[s];
  const int local = static_cast<int>(index - plan.first_unit);
  return {&plan, local / plan.splits(), local % plan.splits()};
}

Partial DecodeAttention::partial(const AttentionParams& params, const Unit& unit) {
  const Plan& plan = *unit.plan;
  float* out =
      partials_.as<float>() + plan.first_partial +
      (static_cast<std::size_t>(unit.kv_head) * plan.splits() + unit.split) * plan.partial_stride;
  float* max = out + static_cast<std::size_t>(plan.num_columns) * params.shape.head_dim;
  return {out, max, max + plan.num_columns};
}

PageUnit DecodeAttention::page_unit(const AttentionParams& params, const Unit& unit,
                                    int page) const {
  const KvView& kv = unit.plan->rows->kv;
  const PagePlanes& planes = kv.pages[page];
  const auto bytes = [](std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); };
  return {bytes(planes.upper + params.shape.upper_offset(kv.layer, unit.kv_head)),
          kv.read == KvRead::kUpper
              ? nullptr
              : bytes(planes.lower + params.shape.lower_offset(kv.layer, unit.kv_head))};
}

void DecodeAttention::attend(const AttentionParams& params, const Unit& unit, const Unit* following,
                             int thread) {
  const Plan& plan = *unit.plan;
  const int dim = params.shape.head_dim, group = group_size(params);
  const std::size_t slot = static_cast<std::size_t>(thread) * max_columns_;
  float* q = queries_.as<float>() + slot * dim;
  for (int row = 0; row < plan.rows->num_rows; ++row) {
    const std::size_t head =
        static_cast<std::size_t>(plan.rows->first_row + row) * params.num_heads +
        unit.kv_head * group;
    for (int i = 0; i < group * dim; ++i) {
      q[row * group * dim + i] = params.q[head * dim + i] * params.scale;
    }
  }
  const Partial result = partial(params, unit);
  std::fill_n(result.out, static_cast<std::size_t>(plan.num_columns) * dim, 0.0f);
  std::fill_n(result.max, plan.num_columns, -std::numeric_limits<float>::infinity());
  std::fill_n(result.sum, plan.num_columns, 0.0f);
  const Columns columns{q, plan.num_columns, dim, result};
  if (unit.split < plan.page_splits) {
    attend_pages(params, unit, following, columns);
  } else {
    attend_ring(params, unit, columns, tokens_.as<int>() + slot);
  }
}

void DecodeAttention::attend_pages(const AttentionParams& params, const Unit& unit,
                                   const Unit* following, const Columns& columns) {
  const int begin = unit.split * kSplitPages;
  const int end = std::min(begin + kSplitPages, static_cast<int>(unit.plan->rows->kv.pages.size()));
  PageUnit after_last{};
  if (following != nullptr && following->split < following->plan->page_splits) {
    after_last = page_unit(params, *following, following->split * kSplitPages);
  }
  const PageShape shape{params.shape.head_dim, params.shape.page_size, params.shape.value_groups()};
  for (int page = begin; page < end; ++page) {
    const PageUnit next = page + 1 < end ? page_unit(params, unit, page + 1) : after_last;
    kernels_.attend_page({page_unit(params, unit, page), next, shape, columns});
  }
}

void DecodeAttention::attend_ring(const AttentionParams& params, const Unit& unit,
                                  const Columns& columns, int* tokens) {
  const SequenceRows& rows = *unit.plan->rows;
  const FullKv& full = rows.kv.full;
  const auto* data = reinterpret_cast<const std::uint16_t*>(full.data);
  const int split_begin = (unit.split - unit.plan->page_splits) * kSplitTokens;
  const int seen = full_tokens(params, rows, rows.num_rows - 1);  // by the last row
  const int split_end = std::min(split_begin + kSplitTokens, seen);
  for (int begin = split_begin; begin < split_end; begin += kFullChunk) {
    AttendFull chunk{{}, {}, tokens, columns};
    for (int t = begin; t < std::min(begin + kFullChunk, seen); t += 16) {
      const int slot = (first_full(params, rows) + t) % full.capacity;
      chunk.key_blocks[(t - begin) / 16] =
          data + full_key_block(params.shape, full.capacity, unit.kv_head, slot);
      chunk.value_blocks[(t - begin) / 16] =
          data + full_value_row(params.shape, full.capacity, unit.kv_head, slot);
    }
    for (int i = 0; i < columns.num_columns; ++i) {
      const int row = i / group_size(params);
      tokens[i] = std::clamp(full_tokens(params, rows, row) - begin, 0, kFullChunk);
    }
    kernels_.attend_full(chunk);
  }
}

void DecodeAttention::merge(const AttentionParams& params, const Plan& plan, int kv_head) {
  const int dim = params.shape.head_dim, group = group_size(params);
  const Partial first = partial(params, {&plan, kv_head, 0});
  for (int i = 0; i < plan.num_columns; ++i) {
    const int row = i / group;
    // A row has no part in splits that only later rows see.
    const int full_splits = ceil_div(full_tokens(params, *plan.rows, row), kSplitTokens);
    const std::size_t head =
        static_cast<std::size_t>(plan.rows->first_row + row) * params.num_heads + kv_head * group +
        i % group;
    kernels_.merge({first.out + static_cast<std::size_t>(i) * dim, first.max + i, first.sum + i,
                    static_cast<std::ptrdiff_t>(plan.partial_stride),
                    plan.page_splits + full_splits, dim, params.out + head * dim});
  }
}

}  // namespace quantspec::cpu
