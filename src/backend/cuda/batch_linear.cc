#include "backend/cuda/batch_linear.h"

#include <algorithm>

namespace quantspec::cuda {

// The longest of the items with which the launch takes least, in fifths of what a multiprocessor's
// share of the memory's bandwidth takes for a segment: the memory may take all of it, or a
// multiprocessor its items, at 8/5 of its share. Of blocks there are as few as take no longer.
// NOTE: measured on an H100 (docs/decisions/0018): 7B's gate and up by 86 blocks with two items
// each take 72 us, by 132, of which 40 have two, 76.
BatchSharing share_out_batch(int num_sms, int tiles) {
  const int row_blocks = divide_up(tiles, kBatchTiles);
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

// The kernel of a few rows prepares activations in every block or cluster, so long rows are dear to
// it.
// NOTE: measured on an H100 with 4096 outputs of 4096, 11008 and 14336 inputs
// (docs/decisions/0018), of which the first gain nothing with both planes.
int least_batch_rows(bool both, int bands) {
  if (bands <= 8 * kSegments) return kLeastBatchRows;
  return both ? 9 : 13;
}

// NOTE: measured on an H200 with Q4_K, Q6_K and Q8_0 (docs/decisions/0018): with 12 rows all
// matrices of 8B gain, with 8 next to none. 17 rows have the kernel of 32.
bool batches_codes(int rows, int bands) {
  return rows > 8 && (rows != kMaxRows || bands > 8 * kSegments);
}

}  // namespace quantspec::cuda
