// How decode attention cuts what a kv head reads into splits: the pieces that one thread attends to
// at a time, and whose partial results are merged in their order. So splits decide bits, and they
// are a function of positions alone, never of threads or of the rows in a pass: a split's borders
// stay where they are as the context grows, and a row that sees less just has fewer of them.
//
// Everything counts in grains: some pages, or some tokens in full precision, of about so many
// bytes. Splits double with the distance from the start, from one grain to kMostGrains, and the
// longest are handed out first: the work starts in a few large pieces and ends in small ones. So
// none crosses a multiple of kMostGrains, where ranks that share a context take turns. The
// constants are such that up to 64 threads balance with any number of kv heads (splits_test.cc);
// docs/cpu.md has what that costs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/params/context.h"
#include "quant/quant.h"

namespace quantspec::cpu {

// NOTE: the kernel of full precision would gain 2% to 4% with grains twice as long.
inline constexpr std::size_t kTokenGrainBytes = 64 * 1024;
inline constexpr int kOneGrainSplits = 104;  // of all kv heads together, before splits double

// In tokens, a multiple of 16.
inline int token_grain(const KvShape& shape) {
  const std::size_t token_bytes = 4 * static_cast<std::size_t>(shape.head_dim);
  return static_cast<int>((kTokenGrainBytes / token_bytes + 15) / 16 * 16);
}

class SplitBorders {
 public:
  // Of all KV heads of the model, whoever has them. grain: of what is counted: pages or tokens.
  SplitBorders(int num_kv_heads, int grain)
      : grain_(grain), doubling_(2 * ((kOneGrainSplits / 2 + num_kv_heads - 1) / num_kv_heads)) {}

  // Where a split begins.
  int begin(int split) const {
    const int half = doubling_ / 2;
    int grains = split;
    if (split > doubling_) grains += split - doubling_;
    if (split > doubling_ + half) grains += 2 * (split - doubling_ - half);
    if (split > 2 * doubling_) grains += 4 * (split - 2 * doubling_);
    return grains * grain_;
  }
  // How many splits hold the first `count` pages or tokens.
  int splits(int count) const {
    const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
    const int grains = ceil_div(count, grain_);
    if (grains <= doubling_) return grains;
    if (grains <= 2 * doubling_) return doubling_ + ceil_div(grains - doubling_, 2);
    if (grains <= 4 * doubling_) return 3 * doubling_ / 2 + ceil_div(grains - 2 * doubling_, 4);
    return 2 * doubling_ + ceil_div(grains - 4 * doubling_, kMostGrains);
  }

 private:
  int grain_;
  int doubling_;  // splits of one grain; even
};

// Whether a thread takes its next unit before it works on this one, so that it can prefetch across
// the border: not when it has few units of its own, one of which would then wait for it.
inline bool looks_ahead(std::int64_t index, std::int64_t count, int num_threads) {
  constexpr int kUnitsPerThread = 16;
  return count >= kUnitsPerThread * num_threads && index + num_threads < count;
}

}  // namespace quantspec::cpu
