// What the simd_*.h wrappers share, written once over their primitives. Included by each of them at
// its end; not a header of its own. See simd_scalar.h for the rules of these files.
#pragma once

namespace quantspec::cpu {
namespace {

QS_INLINE float min(float a, float b) { return a < b ? a : b; }
QS_INLINE float max(float a, float b) { return a > b ? a : b; }

// Sum, greatest and least element; the same tree in every wrapper. NaNs: see min and max.
QS_INLINE float reduce_add(F32 x) {
  return reduce(x, [](auto a, auto b) { return a + b; });
}
QS_INLINE float reduce_max(F32 x) {
  return reduce(x, [](auto a, auto b) { return max(a, b); });
}
QS_INLINE float reduce_min(F32 x) {
  return reduce(x, [](auto a, auto b) { return min(a, b); });
}

// e^x with a relative error below 3e-7: Cephes' expf (x = n ln 2 + r, |r| <= ln 2 / 2, degree 7).
// 0 for x < -87, +inf for x > 88.37, NaN for NaN.
QS_INLINE F32 exp(F32 x) {
  const F32 clamped = max(set1(-88.0f), min(set1(89.0f), x));  // this order keeps a NaN
  const I32 n = round_i32(clamped * set1(1.44269504088896341f));
  const F32 nf = to_f32(n);
  F32 r = fma(nf, set1(-0.693359375f), clamped);
  r = fma(nf, set1(2.12194440e-4f), r);
  F32 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return select_less(x, set1(-87.0f), zero_f32(), p * pow2(n));
}

}  // namespace
}  // namespace quantspec::cpu
