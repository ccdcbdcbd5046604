// How ranks that share a context have its pages: each has some units of every page, so that pages
// take as much of every rank's memory, whatever texts share them and however long they are.
//
// A run is some pages that follow each other: on processors page_run(), on GPUs turn_pages()
// (cuda/context.h). A unit's runs go around: those of layer l and KV head h begin at another rank
// than those of the next head. So of a page's units, in the order of layers and heads, each rank
// has every context_ranks-th one, and they are numbered alike at all ranks.
//
// All have the KV heads of such a context, in full precision where it is that, and go through its
// pages together. Their query heads are those of some of the KV heads each.
//
// What is in a run is attended to by one rank, whose partial results are one rank's: no split of
// decode attention on the CPU crosses the border of a run (cpu/splits.h), and a split on a GPU is
// of one rank's runs, whose turns begin anew after as many as there are splits.
#pragma once

#include <algorithm>
#include <cstddef>

#include "quant/quant.h"

namespace quantspec {

// KV heads that follow each other, of those that a rank's cache has.
struct KvHeads {
  int first;
  int count;
  bool has(int kv_head) const { return first <= kv_head && kv_head < first + count; }
};

// Pages of about so many bytes of a unit, of both planes, are a grain.
inline constexpr std::size_t kPageGrainBytes = 32 * 1024;
inline constexpr int kMostGrains = 8;  // of a split, and of a run

constexpr int page_grain(const KvShape& shape) {
  return static_cast<int>(std::max<std::size_t>(1, kPageGrainBytes / (4 * shape.plane_bytes())));
}
constexpr int page_run(const KvShape& shape) { return kMostGrains * page_grain(shape); }

constexpr int unit_number(const KvShape& shape, int layer, int kv_head) {
  return layer * shape.num_kv_heads + kv_head;
}
// Which of the ranks that share a context has the turn-th run of a unit.
constexpr int rank_of_turn(const KvShape& shape, int turn, int layer, int kv_head) {
  return (turn + unit_number(shape, layer, kv_head)) % shape.context_ranks;
}
constexpr bool has_unit(const KvShape& shape, int page, int layer, int kv_head) {
  return rank_of_turn(shape, page / page_run(shape), layer, kv_head) == shape.context_rank;
}
// Where a unit is in a page's upper and lower buffers of the rank that has it.
constexpr std::size_t own_upper_offset(const KvShape& shape, int layer, int kv_head) {
  return unit_number(shape, layer, kv_head) / shape.context_ranks * shape.upper_unit_bytes();
}
constexpr std::size_t own_lower_offset(const KvShape& shape, int layer, int kv_head) {
  return unit_number(shape, layer, kv_head) / shape.context_ranks * shape.lower_unit_bytes();
}

}  // namespace quantspec
