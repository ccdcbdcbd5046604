#include "backend/cuda/batch_linear.h"

#include <algorithm>

namespace quantspec::cuda {

// What a launch takes is the memory's time or that of the multiprocessor with most items. Items are
// as long as they can be, as nodes of a sum take a launch and go through memory: shorter ones have
// to save a seventh. (Ops whose nodes go there in any case are not told apart.) Of blocks there are
// as few as take no longer.
// NOTE: measured on an H100 (docs/decisions/0018): 7B's gate and up by 86 blocks with two items
// each take 72 us, by 132, of which 40 have two, 76.
BatchSharing share_out_batch(int num_sms, int tiles, int block_tiles, int product_time) {
  const int row_blocks = divide_up(tiles, block_tiles);
  BatchSharing best{};
  int least = 0;
  for (int run = kSegments; run > 0; run /= 2) {
    const int items = row_blocks * kSegments / run, of_block = divide_up(items, num_sms);
    const int time = std::max(8 * row_blocks * kSegments / num_sms, product_time * run * of_block);
    if (best.run == 0 || 7 * time < 6 * least) {
      best = {.run = run, .items = items, .blocks = divide_up(items, of_block)};
      least = time;
    }
  }
  return best;
}

// NOTE: measured on an H200 (docs/decisions/0018): with 17 rows a layer of 8B takes 137 us instead
// of 158, though its o loses 2 us and its down 3; with 12 and 16 heads gain, and gate and up gain
// or take about as long.
int least_batch_rows(const Tuning& tuning, int tiles, int bands) {
  return tiles * bands < tuning.half_large ? tuning.half_rows : tuning.half_large_rows;
}

// The kernel of a few rows prepares activations in every block or cluster, and its products have 4
// rows at a time; this one takes a launch more, which is little beside many weights.
// NOTE: measured on an H200 (docs/decisions/0018): of 8B, o and qkv gain from 9 rows on (o of 8
// bits from 16, and loses 1 us before), down, gate and up, and heads from 5.
int least_batch_rows_of_planes(const Tuning& tuning, int tiles, int bands) {
  return tiles * bands < tuning.plane_large ? tuning.plane_rows : tuning.plane_large_rows;
}

// NOTE: measured on an H200 with Q4_K, Q6_K and Q8_0 (docs/decisions/0018): with 12 rows all
// matrices of 8B gain, with 8 next to none. 17 rows have the kernel of 32.
bool batches_codes(const Tuning& tuning, int rows, int bands) {
  return rows >= tuning.code_rows && (rows != kMaxRows || bands > 8 * kSegments);
}

}  // namespace quantspec::cuda
