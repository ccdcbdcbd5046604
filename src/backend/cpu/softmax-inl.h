// The running softmax of decode attention: a part of the tokens at a time, then the merge of the
// parts. Scores and their maxima are in units of ln 2, so that the softmax takes powers of two.
// Included by each kernels_*.cc after its simd_*.h.
#pragma once

#include "backend/cpu/kernels_attention.h"

#define QS_NOINLINE __attribute__((noinline))

namespace quantspec::cpu {
namespace {

// 2^x for x <= 0: relative error below 2e-7 (minimax polynomial of degree 5 on [0, 1), exact at 0);
// 0 for x < -100, NaN for NaN.
QS_INLINE F32 exp2_nonpositive(F32 x) {
  const F32 r = fraction(x);
  F32 p = set1(0x1.e974fap-10f);
  p = fma(p, r, set1(0x1.277856p-7f));
  p = fma(p, r, set1(0x1.c91ce6p-5f));
  p = fma(p, r, set1(0x1.ebdb56p-3f));
  p = fma(p, r, set1(0x1.62e4bap-1f));
  p = fma(p, r, set1(1.0f));
  return scale_by_floor(p, x);
}

// Turns `count` (a multiple of 16) scores into probabilities relative to the column's new maximum,
// and returns their sum. rescale_out: the factor, in every lane, that what it had before must be
// multiplied with. NOTE: not inlined, like fold(); an out argument because g++ 12 crashes on a
// returned F32.
QS_NOINLINE float update_softmax(float* scores, int count, float* column_max, float* column_sum,
                                 F32* rescale_out) {
  F32 most = set1(-__builtin_inff());
  for (int t = 0; t < count; t += 16) most = max(most, load(scores + t));
  const float new_max = max(*column_max, reduce_max(most));
  const F32 rescale = exp2_nonpositive(set1(*column_max) - set1(new_max));
  F32 sum = zero_f32();
  for (int t = 0; t < count; t += 16) {
    const F32 p = exp2_nonpositive(load(scores + t) - set1(new_max));
    store(scores + t, p);
    sum = sum + p;
  }
  *column_max = new_max;
  alignas(
      64) float new_sum[16];  // NOTE: storing one lane to column_sum would stall the next column
  const float added = reduce_add(sum);
  store(new_sum, fma(set1(*column_sum), rescale, set1(added)));
  *column_sum = new_sum[0];
  *rescale_out = rescale;
  return added;
}

// page_mass += 2^(max - most) sum / total, page by page.
QS_INLINE void add_page_mass(const Merge& m, F32 most, F32 total) {
  for (int page = 0; page < m.num_pages; page += 16) {
    const int count = m.num_pages - page < 16 ? m.num_pages - page : 16;
    const F32 weight = exp2_nonpositive(load_n(m.sums.max + page, count) - most);
    const F32 mass = weight * load_n(m.sums.sum + page, count) / total;
    store_n(m.page_mass + page, load_n(m.page_mass + page, count) + mass, count);
  }
}

void merge_partials(const Merge& m) {
  float most = m.max[0];
  for (int i = 1; i < m.num_partials; ++i) most = max(most, m.max[i * m.stride]);
  F32 total = zero_f32();
  F32 acc[kMaxHeadDim / 16];
  for (F32& a : acc) a = zero_f32();
  for (int i = 0; i < m.num_partials; ++i) {
    const F32 weight = exp2_nonpositive(set1(m.max[i * m.stride]) - set1(most));
    total = fma(weight, set1(m.sum[i * m.stride]), total);
    for (int c = 0; c < m.head_dim; c += 16) {
      acc[c / 16] = fma(weight, load(m.out + i * m.stride + c), acc[c / 16]);
    }
  }
  for (int c = 0; c < m.head_dim; c += 16) store(m.result + c, acc[c / 16] / total);
  if (m.page_mass != nullptr) add_page_mass(m, set1(most), total);
}

}  // namespace
}  // namespace quantspec::cpu
