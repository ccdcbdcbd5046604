#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/context.h"
#include "backend/cpu/packing.h"
#include "backend/cpu/pages.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr float kLog2E = 1.44269504088896341f;  // the kernels' softmax takes powers of two
constexpr std::size_t kMergeBytes = 16 * 1024;  // of partials, at least, to a thread at a time

int group_size(const AttentionParams& params) {
  return params.num_heads / params.shape.num_kv_heads;
}

// How many pages a kv head reads.
int pages_read(const AttentionParams& params, const KvView& kv) {
  return static_cast<int>(kv.page_lists.empty() ? kv.pages.size()
                                                : kv.page_lists.size() / params.shape.num_kv_heads);
}

void check_page_lists(const AttentionParams& params, const KvView& kv) {
  const std::size_t count = pages_read(params, kv);
  check(kv.page_lists.size() == count * params.shape.num_kv_heads, "kv heads read as many pages");
  check(kv.page_mass.data == nullptr, "page_mass is of all pages, not of listed ones");
  for (std::size_t i = 0; i < kv.page_lists.size(); ++i) {
    const int page = kv.page_lists[i], last = i % count == 0 ? -1 : kv.page_lists[i - 1];
    check(page > last && page < std::ssize(kv.pages), "listed pages exist and ascend");
  }
}

void check_sequence(const AttentionParams& params, const SequenceRows& rows) {
  const KvView& kv = rows.kv;
  check(rows.num_rows > 0, "a sequence has a row");
  check(kv.first_full % 16 == 0, "the ring's part starts at a multiple of 16");
  check(kv.first_full >= std::ssize(kv.pages) * params.shape.page_size,
        "positions come from pages or from the ring");
  check(rows.first_position >= kv.first_full, "rows come after the pages");
  check(kv.full.capacity % 16 == 0 && kv.gathered.capacity % 16 == 0,
        "the capacity is a multiple of 16");
  check(rows.first_position + rows.num_rows - kv.first_full <= kv.full.capacity,
        "the positions after the pages fit in full precision");
  check(kv.num_gathered >= 0 && kv.num_gathered <= kv.gathered.capacity,
        "the gathered positions fit in their slots");
  if (!kv.page_lists.empty()) check_page_lists(params, kv);
  check(kv.page_mass.data == nullptr || std::ssize(kv.pages) <= kv.page_mass.max_pages,
        "page_mass has room for the pages");
  check(params.shape.context_ranks == 1 || (kv.page_lists.empty() && kv.page_mass.data == nullptr),
        "of a shared context all pages are read");
}

// The sums of a column, from a page on.
PageSums at(const PageSums& sums, int column, int page) {
  if (sums.sum == nullptr) return {};
  const std::ptrdiff_t offset = column * sums.stride + page;
  return {sums.sum + offset, sums.max + offset, sums.stride};
}

}  // namespace

void DecodeAttention::grow(Buffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = Buffer();  // never both
  buffer = Buffer(bytes + bytes / 4);
}

void DecodeAttention::run(const AttentionParams& params) {
  check_shape(params.shape);
  const KvHeads own = kv_heads_of(group_, params.shape, group_.rank());
  const AttentionParams all = group_.shared() ? gather_queries(params) : params;
  check(all.num_heads % all.shape.num_kv_heads == 0, "heads form groups");
  make_plans(all);
  scale_queries(all);
  attend_all(all);
  if (group_.shared()) give_partials(all);
  merge_all(all, own);
}

float* DecodeAttention::queries(const AttentionParams& params, const Plan& plan, int kv_head) {
  const std::size_t column =
      plan.first_column + static_cast<std::size_t>(kv_head) * plan.num_columns;
  return queries_.as<float>() + column * params.shape.head_dim;
}

// Once a call, not once a unit.
void DecodeAttention::scale_queries(const AttentionParams& params) {
  const int width = group_size(params) * params.shape.head_dim;
  const int kv_heads = params.shape.num_kv_heads;
  const float scale = params.scale * kLog2E;
  for (const Plan& plan : plans_) {
    for_rows(pool_, plan.rows->num_rows, [&](int row) {
      const std::int64_t in_row = plan.rows->first_row + row;
      for (int head = 0; head < kv_heads; ++head) {
        const float* in = params.q + (in_row * kv_heads + head) * width;
        float* out = queries(params, plan, head) + static_cast<std::ptrdiff_t>(row) * width;
        for (int i = 0; i < width; ++i) out[i] = in[i] * scale;
      }
    });
  }
}

void DecodeAttention::attend_all(const AttentionParams& params) {
  pool_.share_indices(units_, [&](HandOut& units, int thread) {
    const std::int64_t count = units.count();
    for (std::int64_t index = units.take(thread); index < count;) {
      const bool ahead = looks_ahead(index, count, pool_.num_threads());
      const std::int64_t following = ahead ? units.take(thread) : count;
      const Unit now = unit(index);
      if (following < count) {
        const Unit then = unit(following);
        attend(params, now, &then, thread);
      } else {
        attend(params, now, nullptr, thread);
      }
      index = ahead ? following : units.take(thread);
    }
  });
}

void DecodeAttention::merge_all(const AttentionParams& params, const KvHeads& heads) {
  pool_.parallel_for(merges_, [&](std::int64_t index, int) {
    std::size_t s = plans_.size() - 1;
    while (plans_[s].first_merge > index) --s;
    const Plan& plan = plans_[s];
    const int local = static_cast<int>(index - plan.first_merge);
    const int kv_head = local / plan.merges();
    if (!heads.has(kv_head)) return;
    merge(params, plan, heads, kv_head, local % plan.merges() * plan.merge_columns);
  });
}

DecodeAttention::Plan DecodeAttention::make_plan(const AttentionParams& params,
                                                 const SequenceRows& rows) const {
  const KvView& kv = rows.kv;
  const int kv_heads = params.shape.num_kv_heads * group_.head_ranks();  // as at one rank
  const SplitBorders tokens(kv_heads, token_grain(params.shape));
  const int ring_tokens = rows.first_position + rows.num_rows - kv.first_full;
  const int columns = rows.num_rows * group_size(params);
  Plan plan{.rows = &rows,
            .num_columns = columns,
            .num_pages = pages_read(params, kv),
            .page_borders = {kv_heads, page_grain(params.shape)},
            .gathered = {kv.gathered, 0, kv.num_gathered, 0, 0, tokens},
            .ring = {kv.full, kv.first_full, ring_tokens, 1, 0, tokens}};
  plan.gathered.first_split = plan.page_borders.splits(plan.num_pages);
  plan.ring.first_split = plan.gathered.first_split + tokens.splits(plan.gathered.tokens);
  plan.splits = plan.ring.first_split + tokens.splits(plan.ring.tokens);
  plan.partial_stride =
      (static_cast<std::size_t>(columns) * (params.shape.head_dim + 2) + 15) / 16 * 16;
  // The columns of a head add to one page_mass.
  const std::size_t column_bytes = sizeof(float) * params.shape.head_dim * plan.splits;
  plan.merge_columns = kv.page_mass.data != nullptr
                           ? columns
                           : static_cast<int>(std::min<std::size_t>(
                                 columns, (kMergeBytes + column_bytes - 1) / column_bytes));
  return plan;
}

void DecodeAttention::make_plans(const AttentionParams& params) {
  plans_.clear();
  units_.clear();
  merges_ = 0;
  std::int64_t units = 0;
  std::size_t floats = 0, sums = 0, columns = 0;
  for (const SequenceRows& rows : params.sequences) {
    check_sequence(params, rows);
    Plan plan = make_plan(params, rows);
    plan.first_unit = units;
    plan.first_merge = merges_;
    plan.first_partial = floats;
    plan.first_sum = sums;
    plan.first_column = columns;
    units_.push_back({params.shape.num_kv_heads, plan.splits});
    const std::int64_t count = std::int64_t{params.shape.num_kv_heads} * plan.splits;
    units += count;
    merges_ += std::int64_t{params.shape.num_kv_heads} * plan.merges();
    floats += count * plan.partial_stride;
    columns += static_cast<std::size_t>(params.shape.num_kv_heads) * plan.num_columns;
    if (rows.kv.page_mass.data != nullptr) {
      sums += 2 * plan.sum_stride() * plan.num_columns * params.shape.num_kv_heads;
    }
    max_columns_ = std::max(max_columns_, plan.num_columns);
    plans_.push_back(plan);
  }
  grow(partials_, floats * sizeof(float));
  grow(page_sums_, sums * sizeof(float));
  grow(queries_, columns * params.shape.head_dim * sizeof(float));
  grow(tokens_, static_cast<std::size_t>(pool_.num_threads()) * max_columns_ * sizeof(int));
}

DecodeAttention::Unit DecodeAttention::unit(std::int64_t index) const {
  std::size_t s = plans_.size() - 1;
  while (plans_[s].first_unit > index) --s;
  const Plan& plan = plans_[s];
  const int local = static_cast<int>(index - plan.first_unit);
  const int kv_heads = static_cast<int>(units_[s].count);
  return {&plan, local % kv_heads, plan.splits - 1 - local / kv_heads};
}

Partial DecodeAttention::partial(const AttentionParams& params, const Unit& unit) {
  const Plan& plan = *unit.plan;
  float* out =
      partials_.as<float>() + plan.first_partial +
      (static_cast<std::size_t>(unit.kv_head) * plan.splits + unit.split) * plan.partial_stride;
  float* max = out + static_cast<std::size_t>(plan.num_columns) * params.shape.head_dim;
  return {out, max, max + plan.num_columns};
}

PageSums DecodeAttention::page_sums(const Plan& plan, int kv_head) {
  if (plan.rows->kv.page_mass.data == nullptr) return {};
  const std::size_t stride = 2 * plan.sum_stride();
  float* sums = page_sums_.as<float>() + plan.first_sum + kv_head * plan.num_columns * stride;
  return {sums, sums + plan.sum_stride(), static_cast<std::ptrdiff_t>(stride)};
}

PageUnit DecodeAttention::page_unit(const AttentionParams& params, const Unit& unit,
                                    int index) const {
  const KvView& kv = unit.plan->rows->kv;
  const PagePlanes& planes =
      kv.pages[kv.page_lists.empty() ? index
                                     : kv.page_lists[unit.kv_head * unit.plan->num_pages + index]];
  const auto bytes = [](std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); };
  return {bytes(planes.upper + own_upper_offset(params.shape, kv.layer, unit.kv_head)),
          kv.read == KvRead::kUpper
              ? nullptr
              : bytes(planes.lower + own_lower_offset(params.shape, kv.layer, unit.kv_head))};
}

void DecodeAttention::attend(const AttentionParams& params, const Unit& unit, const Unit* following,
                             int thread) {
  if (group_.shared() && rank_of(params, unit) != group_.rank()) return;
  const Plan& plan = *unit.plan;
  const int dim = params.shape.head_dim;
  const Partial result = partial(params, unit);
  std::fill_n(result.out, static_cast<std::size_t>(plan.num_columns) * dim, 0.0f);
  std::fill_n(result.max, plan.num_columns, -std::numeric_limits<float>::infinity());
  std::fill_n(result.sum, plan.num_columns, 0.0f);
  const Columns columns{queries(params, plan, unit.kv_head), plan.num_columns, dim, result};
  if (unit.split < plan.page_splits()) {
    attend_pages(params, unit, following, columns);
  } else {
    attend_full(params, unit, following, columns,
                tokens_.as<int>() + static_cast<std::size_t>(thread) * max_columns_);
  }
}

void DecodeAttention::attend_pages(const AttentionParams& params, const Unit& unit,
                                   const Unit* following, const Columns& columns) {
  const SplitBorders& borders = unit.plan->page_borders;
  const int begin = borders.begin(unit.split);
  const int end = std::min(borders.begin(unit.split + 1), unit.plan->num_pages);
  PageUnit after_last{};
  if (following != nullptr && following->split < following->plan->page_splits()) {
    after_last =
        page_unit(params, *following, following->plan->page_borders.begin(following->split));
  }
  const PageShape shape{params.shape.head_dim, params.shape.page_size, params.shape.value_groups()};
  const PageSums sums = page_sums(*unit.plan, unit.kv_head);
  for (int i = begin; i < end; ++i) {
    const PageUnit next = i + 1 < end ? page_unit(params, unit, i + 1) : after_last;
    kernels_.attend_page({page_unit(params, unit, i), next, shape, columns, at(sums, 0, i)});
  }
}

const std::uint16_t* DecodeAttention::key_block(const AttentionParams& params, const FullPart& part,
                                                int kv_head, int token) {
  const int slot = (part.first + token) % part.kv.capacity;
  return reinterpret_cast<const std::uint16_t*>(part.kv.data) +
         full_key_block(params.shape, part.kv.capacity, kv_head, slot);
}

void DecodeAttention::attend_full(const AttentionParams& params, const Unit& unit,
                                  const Unit* following, const Columns& columns, int* tokens) {
  const FullPart& part = unit.plan->full_part(unit.split);
  const int num_rows = unit.plan->rows->num_rows;
  const auto* data = reinterpret_cast<const std::uint16_t*>(part.kv.data);
  const int split = unit.split - part.first_split;
  const int split_begin = part.borders.begin(split);
  const int split_end = std::min(part.borders.begin(split + 1), part.tokens);
  const std::uint16_t* after_last = nullptr;
  if (following != nullptr && following->split >= following->plan->page_splits()) {
    const FullPart& then = following->plan->full_part(following->split);
    const int t = then.borders.begin(following->split - then.first_split);
    after_last = key_block(params, then, following->kv_head, t);
  }
  for (int begin = split_begin; begin < split_end; begin += kFullBand) {
    AttendFull band{{}, {}, tokens, columns, nullptr};
    const int end = std::min(begin + kFullBand, split_end);
    for (int t = begin; t < end; t += 16) {
      const int slot = (part.first + t) % part.kv.capacity;
      band.key_blocks[(t - begin) / 16] = key_block(params, part, unit.kv_head, t);
      band.value_blocks[(t - begin) / 16] =
          data + full_value_row(params.shape, part.kv.capacity, unit.kv_head, slot);
    }
    for (int i = 0; i < columns.num_columns; ++i) {
      const int row = i / group_size(params);
      tokens[i] = std::clamp(part.tokens_of(row, num_rows) - begin, 0, end - begin);
    }
    band.next = end < split_end ? key_block(params, part, unit.kv_head, end) : after_last;
    kernels_.attend_full(band);
  }
}

void DecodeAttention::merge(const AttentionParams& params, const Plan& plan, const KvHeads& heads,
                            int kv_head, int first_column) {
  const int dim = params.shape.head_dim, group = group_size(params);
  const SequenceRows& rows = *plan.rows;
  const Partial first = partial(params, {&plan, kv_head, 0});
  const PageSums sums = page_sums(plan, kv_head);
  const PageScores& all = rows.kv.page_mass;
  float* mass = all.data;
  if (mass != nullptr) {
    mass += static_cast<std::ptrdiff_t>(kv_head) * all.max_pages;
    std::fill_n(mass, plan.num_pages, 0.0f);
    std::fill(mass + plan.num_pages, mass + all.max_pages, std::nanf(""));
  }
  const int end_column = std::min(first_column + plan.merge_columns, plan.num_columns);
  for (int i = first_column; i < end_column; ++i) {
    const int row = i / group;
    // A row has no part in splits that only later rows see.
    const int ring_splits = plan.ring.borders.splits(plan.ring.tokens_of(row, rows.num_rows));
    const std::size_t head = static_cast<std::size_t>(rows.first_row + row) * heads.count * group +
                             (kv_head - heads.first) * group + i % group;
    kernels_.merge({first.out + static_cast<std::size_t>(i) * dim, first.max + i, first.sum + i,
                    static_cast<std::ptrdiff_t>(plan.partial_stride),
                    plan.ring.first_split + ring_splits, dim, params.out + head * dim,
                    at(sums, i, 0), plan.num_pages, mass});
  }
}

}  // namespace quantspec::cpu
