// simd_scalar.h in NEON (AArch64): sixteen lanes are four registers. Dot products by DotProd or
// I8MM where the translation unit has them.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#define QS_INLINE inline __attribute__((always_inline))

namespace quantspec::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 8;
constexpr bool kByteDot = false;  // nibbles leave one sum a column, so room for more columns
#ifdef __ARM_FEATURE_DOTPROD
constexpr bool kMergedDot = true;
#else
constexpr bool kMergedDot = false;
#endif
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kMergedCentre = 128;  // DotProd alone multiplies signed bytes with signed bytes
#else
constexpr int kMergedCentre = 0;
#endif

struct F32 {
  float32x4_t a, b, c, d;  // lanes 0..3, 4..7, 8..11, 12..15
};
struct I32 {
  int32x4_t a, b, c, d;
};
struct U8x64 {
  uint8x16_t a, b, c, d;
};

// f(i) for the register of index i; f(registers of x...) for each of the four. NOTE: f is a lambda,
// never an intrinsic itself: g++ has no body to take the address of.
template <typename V, typename F>
QS_INLINE V make(const F& f) {
  return {f(0), f(1), f(2), f(3)};
}
template <typename V, typename F, typename... X>
QS_INLINE V map(const F& f, const X&... x) {
  return {f(x.a...), f(x.b...), f(x.c...), f(x.d...)};
}

// --- F32 ---
QS_INLINE F32 set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
QS_INLINE F32 zero_f32() { return set1(0.0f); }
QS_INLINE F32 load(const float* p) {
  return make<F32>([&](int i) { return vld1q_f32(p + 4 * i); });
}
QS_INLINE F32 load_n(const float* p, int n) {
  float padded[16] = {};
  __builtin_memcpy(padded, p, 4 * static_cast<std::size_t>(n));
  return load(padded);
}
QS_INLINE void store(float* p, F32 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
QS_INLINE void store_n(float* p, F32 x, int n) {
  float all[16];
  store(all, x);
  __builtin_memcpy(p, all, 4 * static_cast<std::size_t>(n));
}
QS_INLINE F32 load_f16(const std::uint16_t* p) {
  return make<F32>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
QS_INLINE F32 load_f16_n(const std::uint16_t* p, int n) {
  std::uint16_t padded[16] = {};
  __builtin_memcpy(padded, p, 2 * static_cast<std::size_t>(n));
  return load_f16(padded);
}
QS_INLINE void store_f16(std::uint16_t* p, F32 x) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
  vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
  vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(x.c)));
  vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(x.d)));
}
QS_INLINE F32 load_bf16(const std::uint16_t* p) {
  return make<F32>(
      [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
QS_INLINE F32 load_bf16_n(const std::uint16_t* p, int n) {
  std::uint16_t padded[16] = {};
  __builtin_memcpy(padded, p, 2 * static_cast<std::size_t>(n));
  return load_bf16(padded);
}
QS_INLINE F32 in_register(F32 x) { return x; }  // there is no arithmetic on memory
QS_INLINE uint32x4_t load_pairs(const std::uint16_t* p) {
  return vreinterpretq_u32_u16(vld1q_u16(p));
}
QS_INLINE F32 even_bf16(const std::uint16_t* p) {
  return make<F32>(
      [&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(load_pairs(p + 8 * i), 16)); });
}
QS_INLINE F32 odd_bf16(const std::uint16_t* p) {
  const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
  return make<F32>(
      [&](int i) { return vreinterpretq_f32_u32(vandq_u32(load_pairs(p + 8 * i), upper)); });
}
QS_INLINE F32 even_lanes(F32 x, F32 y) {
  return {vuzp1q_f32(x.a, x.b), vuzp1q_f32(x.c, x.d), vuzp1q_f32(y.a, y.b), vuzp1q_f32(y.c, y.d)};
}
QS_INLINE F32 odd_lanes(F32 x, F32 y) {
  return {vuzp2q_f32(x.a, x.b), vuzp2q_f32(x.c, x.d), vuzp2q_f32(y.a, y.b), vuzp2q_f32(y.c, y.d)};
}
QS_INLINE F32 operator+(F32 x, F32 y) {
  return map<F32>([](auto u, auto v) { return u + v; }, x, y);
}
QS_INLINE F32 operator-(F32 x, F32 y) {
  return map<F32>([](auto u, auto v) { return u - v; }, x, y);
}
QS_INLINE F32 operator*(F32 x, F32 y) {
  return map<F32>([](auto u, auto v) { return u * v; }, x, y);
}
QS_INLINE F32 operator/(F32 x, F32 y) {
  return map<F32>([](auto u, auto v) { return u / v; }, x, y);
}
QS_INLINE F32 fma(F32 x, F32 y, F32 z) {
  return map<F32>([](auto u, auto v, auto w) { return vfmaq_f32(w, u, v); }, x, y, z);
}
struct F32x4 {
  float32x4_t v;
};
QS_INLINE F32x4 operator+(F32x4 x, F32x4 y) { return {vaddq_f32(x.v, y.v)}; }
// NOTE: vminq_f32 and vmaxq_f32 would answer NaN where y is wanted.
QS_INLINE F32x4 min(F32x4 x, F32x4 y) { return {vbslq_f32(vcltq_f32(x.v, y.v), x.v, y.v)}; }
QS_INLINE F32x4 max(F32x4 x, F32x4 y) { return {vbslq_f32(vcgtq_f32(x.v, y.v), x.v, y.v)}; }
QS_INLINE F32 min(F32 x, F32 y) {
  return map<F32>([](float32x4_t u, float32x4_t v) { return min(F32x4{u}, F32x4{v}).v; }, x, y);
}
QS_INLINE F32 max(F32 x, F32 y) {
  return map<F32>([](float32x4_t u, float32x4_t v) { return max(F32x4{u}, F32x4{v}).v; }, x, y);
}
QS_INLINE F32 abs(F32 x) {
  return map<F32>([](auto v) { return vabsq_f32(v); }, x);
}
QS_INLINE F32 max_abs(F32 x, F32 y) {
  return map<F32>([](auto u, auto v) { return vmaxq_f32(u, vabsq_f32(v)); }, x, y);
}
QS_INLINE int32x4_t max_magnitude_bits(float32x4_t x, float32x4_t y) {
  return vmaxq_s32(vreinterpretq_s32_f32(vabsq_f32(x)), vreinterpretq_s32_f32(vabsq_f32(y)));
}
QS_INLINE F32 max_magnitude(F32 x, F32 y) {
  return map<F32>(
      [](float32x4_t u, float32x4_t v) { return vreinterpretq_f32_s32(max_magnitude_bits(u, v)); },
      x, y);
}
QS_INLINE float reduce_max_magnitude(F32 x) {
  return __builtin_bit_cast(
      float, vmaxvq_s32(vmaxq_s32(max_magnitude_bits(x.a, x.b), max_magnitude_bits(x.c, x.d))));
}
QS_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return map<F32>([](float32x4_t p, float32x4_t q, float32x4_t u,
                     float32x4_t v) { return vbslq_f32(vcltq_f32(p, q), u, v); },
                  a, b, x, y);
}
template <typename F>
QS_INLINE float reduce(F32 x, const F& f) {
  const F32x4 r = f(f(F32x4{x.a}, F32x4{x.c}), f(F32x4{x.b}, F32x4{x.d}));
  const F32x4 pair = f(r, F32x4{vextq_f32(r.v, r.v, 2)});
  return vgetq_lane_f32(f(pair, F32x4{vdupq_laneq_f32(pair.v, 1)}).v, 0);
}
// reduce_add of four at once; the same tree.
QS_INLINE void reduce_add4(const F32* x, float* out) {
  float32x4_t sums[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sums[i] = (x[i].a + x[i].c) + (x[i].b + x[i].d);
  const auto halves = [](float32x4_t p, float32x4_t q) {  // lanes 0, 1 + lanes 2, 3 of p, of q
    const float64x2_t u = vreinterpretq_f64_f32(p), v = vreinterpretq_f64_f32(q);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(u, v)),
                     vreinterpretq_f32_f64(vzip2q_f64(u, v)));
  };
  vst1q_f32(out, vpaddq_f32(halves(sums[0], sums[1]), halves(sums[2], sums[3])));
}
QS_INLINE void reduce_add16(const F32* x, float* out) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) reduce_add4(x + i, out + i);
}

// --- I32 ---
QS_INLINE I32 set1(std::int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
QS_INLINE I32 zero_i32() { return set1(std::int32_t{0}); }
QS_INLINE I32 load(const std::int32_t* p) {
  return make<I32>([&](int i) { return vld1q_s32(p + 4 * i); });
}
QS_INLINE void store(std::int32_t* p, I32 x) {
  vst1q_s32(p, x.a);
  vst1q_s32(p + 4, x.b);
  vst1q_s32(p + 8, x.c);
  vst1q_s32(p + 12, x.d);
}
QS_INLINE void store_s8(std::int8_t* p, I32 x) {
  const auto even = [](int32x4_t u, int32x4_t v) {  // the lower 16 bits of each
    return vuzp1q_s16(vreinterpretq_s16_s32(u), vreinterpretq_s16_s32(v));
  };
  vst1q_s8(p,
           vuzp1q_s8(vreinterpretq_s8_s16(even(x.a, x.b)), vreinterpretq_s8_s16(even(x.c, x.d))));
}
QS_INLINE I32 operator+(I32 x, I32 y) {
  return map<I32>([](auto u, auto v) { return u + v; }, x, y);
}
QS_INLINE I32 operator-(I32 x, I32 y) {
  return map<I32>([](auto u, auto v) { return u - v; }, x, y);
}
QS_INLINE I32 operator&(I32 x, I32 y) {
  return map<I32>([](auto u, auto v) { return u & v; }, x, y);
}
template <int N>
QS_INLINE I32 shift_left(I32 x) {
  return map<I32>([](int32x4_t v) { return vshlq_n_s32(v, N); }, x);
}
template <int N>
QS_INLINE I32 shift_right(I32 x) {
  if constexpr (N == 0) {
    return x;
  } else {
    return map<I32>([](int32x4_t v) { return vshrq_n_s32(v, N); }, x);
  }
}
QS_INLINE I32 round_i32(F32 x) {
  return map<I32>([](auto v) { return vcvtnq_s32_f32(v); }, x);
}
QS_INLINE F32 to_f32(I32 x) {
  return map<F32>([](auto v) { return vcvtq_f32_s32(v); }, x);
}
QS_INLINE F32 pow2(I32 n) {
  return map<F32>([](auto v) { return vreinterpretq_f32_s32(v); },
                  shift_left<23>(n + set1(std::int32_t{127})));
}
QS_INLINE F32 floor(F32 x) {
  return map<F32>([](auto v) { return vrndmq_f32(v); }, x);
}
QS_INLINE F32 fraction(F32 x) { return x - floor(x); }
QS_INLINE F32 scale_by_floor(F32 p, F32 x) {
  const I32 n = map<I32>([](auto v) { return vcvtmq_s32_f32(v); }, x);
  return select_less(x, set1(-100.0f), zero_f32(), p * pow2(n));
}

// --- bytes ---
QS_INLINE I32 widen_s16(int16x8_t first, int16x8_t last) {
  return {vmovl_s16(vget_low_s16(first)), vmovl_high_s16(first), vmovl_s16(vget_low_s16(last)),
          vmovl_high_s16(last)};
}
QS_INLINE I32 widen_s8(const void* p) {
  const int8x16_t v = vld1q_s8(static_cast<const std::int8_t*>(p));
  return widen_s16(vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
}
QS_INLINE I32 widen_u8(const void* p) {
  const uint8x16_t v = vld1q_u8(static_cast<const std::uint8_t*>(p));
  return widen_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(v))),
                   vreinterpretq_s16_u16(vmovl_high_u8(v)));
}
QS_INLINE int8x16_t words_in_order(int32x4_t first, int32x4_t last) {  // 0, 2, 1, 3, 4, 6, 5, 7
  constexpr std::uint8_t kOrder[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const int16x8_t words = vuzp1q_s16(vreinterpretq_s16_s32(first), vreinterpretq_s16_s32(last));
  return vqtbl1q_s8(vreinterpretq_s8_s16(words), vld1q_u8(kOrder));
}
QS_INLINE void store_words(std::int8_t* p, const I32 (&x)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    vst1q_s8(p + 32 * i, words_in_order(x[i].a, x[i].b));
    vst1q_s8(p + 32 * i + 16, words_in_order(x[i].c, x[i].d));
  }
}
QS_INLINE void store_s8(std::int8_t* p, const I32 (&x)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) store_s8(p + 16 * i, x[i]);
}
QS_INLINE void store_split(std::int8_t* high, std::int8_t* low, const I32 (&x)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store_s8(high + 16 * i, shift_right<7>(x[i]));
    store_s8(low + 16 * i, x[i] & set1(std::int32_t{127}));
  }
}
QS_INLINE U8x64 load_u8(const void* p) {
  const auto* bytes = static_cast<const std::uint8_t*>(p);
  return make<U8x64>([&](int i) { return vld1q_u8(bytes + 16 * i); });
}
QS_INLINE void store_u8(void* p, U8x64 x) {
  auto* bytes = static_cast<std::uint8_t*>(p);
  vst1q_u8(bytes, x.a);
  vst1q_u8(bytes + 16, x.b);
  vst1q_u8(bytes + 32, x.c);
  vst1q_u8(bytes + 48, x.d);
}
QS_INLINE U8x64 repeat_16(const void* p) {
  const uint8x16_t v = vld1q_u8(static_cast<const std::uint8_t*>(p));
  return {v, v, v, v};
}
QS_INLINE U8x64 lookup(U8x64 table, U8x64 nibbles) {
  return map<U8x64>([](uint8x16_t t, uint8x16_t v) { return vqtbl1q_u8(t, v); }, table, nibbles);
}
template <int kRight>
QS_INLINE U8x64 shifted(U8x64 x, std::uint8_t mask) {
  const uint8x16_t kept = vdupq_n_u8(mask);
  return map<U8x64>(
      [&](uint8x16_t v) {
        if constexpr (kRight < 0) {
          return vandq_u8(vshlq_n_u8(v, -kRight), kept);
        } else if constexpr (kRight > 0) {
          return vandq_u8(vshrq_n_u8(v, kRight), kept);
        } else {
          return vandq_u8(v, kept);
        }
      },
      x);
}
QS_INLINE U8x64 operator|(U8x64 x, U8x64 y) {
  return map<U8x64>([](uint8x16_t u, uint8x16_t v) { return vorrq_u8(u, v); }, x, y);
}
QS_INLINE U8x64 low_nibbles(U8x64 x) {
  return map<U8x64>([](uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }, x);
}
QS_INLINE U8x64 high_nibbles(U8x64 x) {
  return map<U8x64>([](uint8x16_t v) { return vshrq_n_u8(v, 4); }, x);
}
QS_INLINE U8x64 high_nibbles_in_place(U8x64 x) {
  return map<U8x64>([](uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(0xf0)); }, x);
}
// Without I8MM, with the highest bit of either nibble flipped, which is 128 less as a signed byte.
QS_INLINE uint8x16_t centred(uint8x16_t upper) {
  return kMergedCentre == 0 ? upper : veorq_u8(upper, vdupq_n_u8(0x88));
}
QS_INLINE U8x64 merge_low(U8x64 upper, U8x64 lower) {
  return map<U8x64>([](uint8x16_t u, uint8x16_t l) { return vsliq_n_u8(l, centred(u), 4); }, upper,
                    lower);
}
QS_INLINE U8x64 merge_high(U8x64 upper, U8x64 lower) {
  return map<U8x64>([](uint8x16_t u, uint8x16_t l) { return vsriq_n_u8(centred(u), l, 4); }, upper,
                    lower);
}
QS_INLINE int32x4_t dot(int32x4_t acc, uint8x16_t u, int8x16_t s) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(acc, u, s);
#elif defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, vreinterpretq_s8_u8(u), s);
#else
  const int8x16_t v = vreinterpretq_s8_u8(u);
  const int16x8_t first = vmull_s8(vget_low_s8(v), vget_low_s8(s));
  return vpadalq_s16(acc, vpaddq_s16(first, vmull_high_s8(v, s)));
#endif
}
// Both products; without DotProd they are added in 16 bits.
QS_INLINE int32x4_t dot_both(int32x4_t acc, uint8x16_t u, int8x16_t s, uint8x16_t v, int8x16_t r) {
#if defined(__ARM_FEATURE_DOTPROD)
  return dot(dot(acc, u, s), v, r);
#else
  const int8x16_t x = vreinterpretq_s8_u8(u), y = vreinterpretq_s8_u8(v);
  const int16x8_t first =
      vmlal_s8(vmull_s8(vget_low_s8(x), vget_low_s8(s)), vget_low_s8(y), vget_low_s8(r));
  return vpadalq_s16(acc, vpaddq_s16(first, vmlal_high_s8(vmull_high_s8(x, s), y, r)));
#endif
}
QS_INLINE int8x16_t repeat_word(std::int32_t s4) { return vreinterpretq_s8_s32(vdupq_n_s32(s4)); }
QS_INLINE I32 dot(I32 acc, U8x64 u, std::int32_t s4) {
  const int8x16_t s = repeat_word(s4);
  return map<I32>([&](int32x4_t sum, uint8x16_t x) { return dot(sum, x, s); }, acc, u);
}
QS_INLINE I32 dot(I32 acc, U8x64 u, const std::int8_t* s4) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, s4, 4);
  return dot(acc, u, bytes);
}
QS_INLINE I32 dot_pair(I32 acc, U8x64 u, std::int32_t s4, U8x64 v, std::int32_t r4) {
  const int8x16_t s = repeat_word(s4), r = repeat_word(r4);
  return map<I32>(
      [&](int32x4_t sum, uint8x16_t x, uint8x16_t y) { return dot_both(sum, x, s, y, r); }, acc, u,
      v);
}
QS_INLINE I32 even_bytes(U8x64 x) {
  return map<I32>(
      [](uint8x16_t v) {
        return vreinterpretq_s32_u16(vandq_u16(vreinterpretq_u16_u8(v), vdupq_n_u16(255)));
      },
      x);
}
QS_INLINE I32 odd_bytes(U8x64 x) {
  return map<I32>(
      [](uint8x16_t v) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_u8(v), 8)); },
      x);
}
QS_INLINE I32 dot_words(I32 acc, I32 words, std::int32_t s2) {
  const auto s0 = static_cast<std::int16_t>(s2), s1 = static_cast<std::int16_t>(s2 >> 16);
  const auto add = [&](int32x4_t& x, int32x4_t& y, int32x4_t u, int32x4_t v) {
    const int16x8_t p = vreinterpretq_s16_s32(u), q = vreinterpretq_s16_s32(v);
    const int16x8_t even = vuzp1q_s16(p, q), odd = vuzp2q_s16(p, q);
    x = vmlal_n_s16(vmlal_n_s16(x, vget_low_s16(even), s0), vget_low_s16(odd), s1);
    y = vmlal_high_n_s16(vmlal_high_n_s16(y, even, s0), odd, s1);
  };
  add(acc.a, acc.b, words.a, words.b);
  add(acc.c, acc.d, words.c, words.d);
  return acc;
}

QS_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
QS_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace quantspec::cpu

#include "backend/cpu/simd_common.h"
