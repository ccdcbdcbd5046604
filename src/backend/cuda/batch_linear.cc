#include "backend/cuda/batch_linear.h"

#include <algorithm>

namespace quantspec::cuda {

// The longest of the items with which the launch takes least, in fifths of what a multiprocessor's
// share of the memory's bandwidth takes for a segment: the memory may take all of it, or a
// multiprocessor its items, at 8/5 of its share. Of blocks there are as few as take no longer.
// NOTE: measured on an H100 (docs/decisions/0018): 7B's gate and up by 86 blocks with two items
// each take 72 us, by 132, of which 40 have two, 76.
BatchSharing share_out_batch(int num_sms, int tiles, int block_tiles) {
  const int row_blocks = divide_up(tiles, block_tiles);
  BatchSharing best{};
  int least = 0;
  for (int run = kSegments; run > 0; run /= 2) {
    const int items = row_blocks * kSegments / run, of_block = divide_up(items, num_sms);
    const int time = std::max(8 * row_blocks * kSegments / num_sms, 5 * run * of_block);
    if (best.run == 0 || time < least) {
      best = {.run = run, .items = items, .blocks = divide_up(items, of_block)};
      least = time;
    }
  }
  return best;
}

// The kernel of a few rows prepares activations in every block or cluster, and its products have 4
// rows at a time; this one takes a launch more, which is little beside many weights.
// NOTE: measured on an H200 (docs/decisions/0018): of 8B, o and qkv gain from 9 rows on (o of 8
// bits from 16, and loses 1 us before), down, gate and up, and heads from 5.
int least_batch_rows(int tiles, int bands) { return tiles * bands < 28 << 10 ? 9 : 5; }

// NOTE: measured on an H200 with Q4_K, Q6_K and Q8_0 (docs/decisions/0018): with 12 rows all
// matrices of 8B gain, with 8 next to none. 17 rows have the kernel of 32.
bool batches_codes(int rows, int bands) {
  return rows > 8 && (rows != kMaxRows || bands > 8 * kSegments);
}

}  // namespace quantspec::cuda
