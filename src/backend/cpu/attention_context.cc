// Decode attention of ranks that share a context: who attends to which unit, and what they tell
// each other.
#include <algorithm>
#include <array>

#include "backend/cpu/attention.h"
#include "backend/params/context.h"
#include "base/error.h"
#include "comm/comm.h"

namespace quantspec::cpu {

namespace {

constexpr int kMostRanks = 8;  // of a context

}  // namespace

AttentionParams DecodeAttention::gather_queries(const AttentionParams& params) {
  AttentionParams all = params;
  all.num_heads = params.num_heads * group_.shares();
  if (params.sequences.empty()) return all;
  const SequenceRows& last = params.sequences.back();
  const std::size_t rows = last.first_row + last.num_rows;
  const std::size_t width = static_cast<std::size_t>(params.num_heads) * params.shape.head_dim;
  const std::size_t own = rows * width;
  grow(given_, group_.size() * own * sizeof(float));
  grow(got_, group_.size() * own * sizeof(float));
  grow(all_queries_, group_.shares() * own * sizeof(float));
  for (int getter = 0; getter < group_.size(); ++getter) {
    std::copy_n(params.q, own, given_.as<float>() + getter * own);
  }
  const std::size_t bytes = group_.size() * own * sizeof(float);
  group_.ranks->all_to_all({got_.data(), bytes}, {given_.data(), bytes}, group_.size());
  auto* out = all_queries_.as<float>();
  for (std::size_t row = 0; row < rows; ++row) {
    for (int share = 0; share < group_.shares(); ++share, out += width) {
      std::copy_n(got_.as<float>() + share * group_.groups.alike * own + row * width, width, out);
    }
  }
  all.q = all_queries_.as<float>();
  return all;
}

int DecodeAttention::rank_of(const AttentionParams& params, const Unit& unit) const {
  const Plan& plan = *unit.plan;
  const int turn = unit.split < plan.page_splits()
                       ? plan.page_borders.begin(unit.split) / page_run(params.shape)
                       : unit.split;
  return rank_of_turn(params.shape, turn, plan.rows->kv.layer, unit.kv_head);
}

template <typename F>
void DecodeAttention::for_given(const AttentionParams& params, const F& f) const {
  std::array<KvHeads, kMostRanks> wanted;
  for (int getter = 0; getter < group_.size(); ++getter) {
    wanted[getter] = kv_heads_of(group_, params.shape, getter);
  }
  for (const Plan& plan : plans_) {
    for (int head = 0; head < params.shape.num_kv_heads; ++head) {
      for (int split = 0; split < plan.splits; ++split) {
        const Unit unit{&plan, head, split};
        const int giver = rank_of(params, unit);
        for (int getter = 0; getter < group_.size(); ++getter) {
          if (wanted[getter].has(head)) f(giver, getter, unit);
        }
      }
    }
  }
}

void DecodeAttention::give_partials(const AttentionParams& params) {
  const int size = group_.size(), own = group_.rank();
  check(size <= kMostRanks, "so many ranks share a context");
  floats_.assign(static_cast<std::size_t>(size) * size, 0);
  for_given(params, [&](int giver, int getter, const Unit& unit) {
    floats_[giver * size + getter] += unit.plan->partial_stride;
  });
  const std::size_t piece = floats_.empty() ? 0 : *std::ranges::max_element(floats_);
  grow(given_, size * piece * sizeof(float));
  grow(got_, size * piece * sizeof(float));
  std::ranges::fill(floats_, 0);
  for_given(params, [&](int giver, int getter, const Unit& unit) {
    std::size_t& done = floats_[giver * size + getter];
    const std::size_t count = unit.plan->partial_stride;
    if (giver == own) {
      std::copy_n(partial(params, unit).out, count, given_.as<float>() + getter * piece + done);
    }
    done += count;
  });
  const std::size_t bytes = size * piece * sizeof(float);
  group_.ranks->all_to_all({got_.data(), bytes}, {given_.data(), bytes}, size);
  std::ranges::fill(floats_, 0);
  for_given(params, [&](int giver, int getter, const Unit& unit) {
    std::size_t& done = floats_[giver * size + getter];
    const std::size_t count = unit.plan->partial_stride;
    if (getter == own && giver != own) {
      std::copy_n(got_.as<float>() + giver * piece + done, count, partial(params, unit).out);
    }
    done += count;
  });
}

}  // namespace quantspec::cpu
