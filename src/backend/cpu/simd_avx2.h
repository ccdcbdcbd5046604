// simd_scalar.h in AVX2 with FMA and F16C, with AVX-VNNI where the translation unit has it: sixteen
// lanes are two registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define QS_INLINE inline __attribute__((always_inline))

namespace quantspec::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 8;
#ifdef __AVXVNNI__
constexpr bool kByteDot = true;
#else
constexpr bool kByteDot = false;
#endif
constexpr bool kMergedDot = kByteDot;
constexpr int kMergedCentre = 0;

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct U8x64 {
  __m256i lo, hi;
};

QS_INLINE __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
QS_INLINE void store_256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
QS_INLINE __m128i load_128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
QS_INLINE I32 first_lanes(int n) {
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), iota),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), iota)};
}

// --- F32 ---
QS_INLINE F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
QS_INLINE F32 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
QS_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QS_INLINE F32 load_n(const float* p, int n) {
  const I32 mask = first_lanes(n);
  return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
QS_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
QS_INLINE void store_n(float* p, F32 a, int n) {
  const I32 mask = first_lanes(n);
  _mm256_maskstore_ps(p, mask.lo, a.lo);
  _mm256_maskstore_ps(p + 8, mask.hi, a.hi);
}
QS_INLINE F32 load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}
QS_INLINE F32 load_f16_n(const std::uint16_t* p, int n) {
  std::uint16_t padded[16] = {};
  __builtin_memcpy(padded, p, 2 * static_cast<std::size_t>(n));
  return load_f16(padded);
}
QS_INLINE void store_f16(std::uint16_t* p, F32 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  store_256(p, _mm256_setr_m128i(_mm256_cvtps_ph(a.lo, kNearest), _mm256_cvtps_ph(a.hi, kNearest)));
}
QS_INLINE __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
QS_INLINE F32 load_bf16(const std::uint16_t* p) {
  return {widen_bf16(load_128(p)), widen_bf16(load_128(p + 8))};
}
QS_INLINE F32 load_bf16_n(const std::uint16_t* p, int n) {
  std::uint16_t padded[16] = {};
  __builtin_memcpy(padded, p, 2 * static_cast<std::size_t>(n));
  return load_bf16(padded);
}
QS_INLINE F32 in_register(F32 a) {
  asm("" : "+x"(a.lo), "+x"(a.hi));
  return a;
}
QS_INLINE F32 even_bf16(const std::uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_256(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load_256(p + 16), 16))};
}
QS_INLINE F32 odd_bf16(const std::uint16_t* p) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(load_256(p), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(load_256(p + 16), upper))};
}
QS_INLINE __m256 in_order(__m256 pairs) {  // 64-bit parts 0, 2, 1, 3
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8));
}
QS_INLINE F32 even_lanes(F32 a, F32 b) {
  return {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0x88)),
          in_order(_mm256_shuffle_ps(b.lo, b.hi, 0x88))};
}
QS_INLINE F32 odd_lanes(F32 a, F32 b) {
  return {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)),
          in_order(_mm256_shuffle_ps(b.lo, b.hi, 0xdd))};
}
QS_INLINE F32 operator+(F32 a, F32 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
QS_INLINE F32 operator-(F32 a, F32 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
QS_INLINE F32 operator*(F32 a, F32 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
QS_INLINE F32 operator/(F32 a, F32 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
QS_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
QS_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
QS_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
QS_INLINE __m256i magnitude_bits(__m256 a) {
  return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
}
QS_INLINE F32 abs(F32 a) {
  return {_mm256_castsi256_ps(magnitude_bits(a.lo)), _mm256_castsi256_ps(magnitude_bits(a.hi))};
}
QS_INLINE F32 max_abs(F32 a, F32 b) { return max(a, abs(b)); }
QS_INLINE F32 max_magnitude(F32 a, F32 b) {
  return {
      _mm256_castsi256_ps(_mm256_max_epi32(magnitude_bits(a.lo), magnitude_bits(b.lo))),
      _mm256_castsi256_ps(_mm256_max_epi32(magnitude_bits(a.hi), magnitude_bits(b.hi))),
  };
}
QS_INLINE float reduce_max_magnitude(F32 a) {
  const __m256i m8 = _mm256_max_epi32(magnitude_bits(a.lo), magnitude_bits(a.hi));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return __builtin_bit_cast(float, _mm_cvtsi128_si32(m));
}
QS_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
struct F32x4 {
  __m128 v;
};
QS_INLINE F32x4 operator+(F32x4 a, F32x4 b) { return {_mm_add_ps(a.v, b.v)}; }
QS_INLINE F32x4 min(F32x4 a, F32x4 b) { return {_mm_min_ps(a.v, b.v)}; }
QS_INLINE F32x4 max(F32x4 a, F32x4 b) { return {_mm_max_ps(a.v, b.v)}; }
template <typename F>
QS_INLINE float reduce(F32 a, const F& f) {
  const F32x4 a01 = f(F32x4{_mm256_castps256_ps128(a.lo)}, F32x4{_mm256_castps256_ps128(a.hi)});
  const F32x4 a23 = f(F32x4{_mm256_extractf128_ps(a.lo, 1)}, F32x4{_mm256_extractf128_ps(a.hi, 1)});
  F32x4 r = f(a01, a23);
  r = f(r, F32x4{_mm_movehl_ps(r.v, r.v)});
  r = f(r, F32x4{_mm_shuffle_ps(r.v, r.v, 1)});
  return _mm_cvtss_f32(r.v);
}
QS_INLINE float reduce_add(F32 a);
QS_INLINE void reduce_add4(const F32* a, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = reduce_add(a[i]);
}
QS_INLINE void reduce_add16(const F32* a, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = reduce_add(a[i]);
}

// --- I32 ---
QS_INLINE I32 set1(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
QS_INLINE I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QS_INLINE I32 load(const std::int32_t* p) { return {load_256(p), load_256(p + 8)}; }
QS_INLINE void store(std::int32_t* p, I32 a) {
  store_256(p, a.lo);
  store_256(p + 8, a.hi);
}
QS_INLINE void store_s8(std::int8_t* p, I32 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
QS_INLINE I32 operator+(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
QS_INLINE I32 operator-(I32 a, I32 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
QS_INLINE I32 operator&(I32 a, I32 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int N>
QS_INLINE I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
QS_INLINE I32 shift_right(I32 a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
QS_INLINE I32 round_i32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
QS_INLINE F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
QS_INLINE F32 pow2(I32 n) {
  const I32 bits = shift_left<23>(n + set1(std::int32_t{127}));
  return {_mm256_castsi256_ps(bits.lo), _mm256_castsi256_ps(bits.hi)};
}

QS_INLINE F32 floor(F32 x) { return {_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)}; }
QS_INLINE F32 fraction(F32 x) { return x - floor(x); }
QS_INLINE F32 scale_by_floor(F32 p, F32 x) {
  const F32 least = set1(-100.0f);
  return select_less(x, least, zero_f32(), p * pow2(round_i32(max(least, floor(x)))));
}

// --- bytes ---
QS_INLINE I32 widen_s8(const void* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(
              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(static_cast<const char*>(p) + 8)))};
}
QS_INLINE I32 widen_u8(const void* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi32(
              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(static_cast<const char*>(p) + 8)))};
}
QS_INLINE void store_s8(std::int8_t* p, const I32 (&a)[4]) {
  for (int i = 0; i < 4; ++i) store_s8(p + 16 * i, a[i]);
}
QS_INLINE void store_split(std::int8_t* high, std::int8_t* low, const I32 (&a)[4]) {
  for (int i = 0; i < 4; ++i) {
    store_s8(high + 16 * i, shift_right<7>(a[i]));
    store_s8(low + 16 * i, a[i] & set1(std::int32_t{127}));
  }
}
QS_INLINE void store_words(std::int8_t* p, const I32 (&a)[4]) {
  const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 4; ++i) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a[i].lo, a[i].hi), 0xd8);
    store_256(p + 32 * i, _mm256_shuffle_epi8(words, pairs));
  }
}
QS_INLINE U8x64 load_u8(const void* p) {
  return {load_256(p), load_256(static_cast<const char*>(p) + 32)};
}
QS_INLINE void store_u8(void* p, U8x64 a) {
  store_256(p, a.lo);
  store_256(static_cast<char*>(p) + 32, a.hi);
}
QS_INLINE U8x64 repeat_16(const void* p) {
  const __m256i twice = _mm256_broadcastsi128_si256(load_128(p));
  return {twice, twice};
}
QS_INLINE U8x64 lookup(U8x64 table, U8x64 nibbles) {
  return {_mm256_shuffle_epi8(table.lo, nibbles.lo), _mm256_shuffle_epi8(table.hi, nibbles.hi)};
}
template <int kRight>
QS_INLINE __m256i shifted_words(__m256i a) {
  if constexpr (kRight < 0) {
    return _mm256_slli_epi16(a, -kRight);
  } else {
    return _mm256_srli_epi16(a, kRight);
  }
}
template <int kRight>
QS_INLINE U8x64 shifted(U8x64 a, std::uint8_t mask) {
  const __m256i kept = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(shifted_words<kRight>(a.lo), kept),
          _mm256_and_si256(shifted_words<kRight>(a.hi), kept)};
}
QS_INLINE U8x64 operator|(U8x64 a, U8x64 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
QS_INLINE __m256i nibble_mask() { return _mm256_set1_epi8(15); }
QS_INLINE U8x64 low_nibbles(U8x64 a) {
  return {_mm256_and_si256(a.lo, nibble_mask()), _mm256_and_si256(a.hi, nibble_mask())};
}
QS_INLINE U8x64 high_nibbles(U8x64 a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), nibble_mask()),
          _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), nibble_mask())};
}
QS_INLINE U8x64 high_nibbles_in_place(U8x64 a) {
  return {_mm256_andnot_si256(nibble_mask(), a.lo), _mm256_andnot_si256(nibble_mask(), a.hi)};
}
QS_INLINE __m256i merge_256(__m256i high, __m256i low) {  // their upper and lower nibbles
  return _mm256_or_si256(_mm256_andnot_si256(nibble_mask(), high),
                         _mm256_and_si256(nibble_mask(), low));
}
QS_INLINE U8x64 merge_low(U8x64 upper, U8x64 lower) {
  return {merge_256(_mm256_slli_epi16(upper.lo, 4), lower.lo),
          merge_256(_mm256_slli_epi16(upper.hi, 4), lower.hi)};
}
QS_INLINE U8x64 merge_high(U8x64 upper, U8x64 lower) {
  return {merge_256(upper.lo, _mm256_srli_epi16(lower.lo, 4)),
          merge_256(upper.hi, _mm256_srli_epi16(lower.hi, 4))};
}
QS_INLINE I32 dot(I32 acc, U8x64 u, std::int32_t s4) {
  const __m256i s = _mm256_set1_epi32(s4);
#ifdef __AVXVNNI__
  return {_mm256_dpbusd_avx_epi32(acc.lo, u.lo, s), _mm256_dpbusd_avx_epi32(acc.hi, u.hi, s)};
#else
  const __m256i ones = _mm256_set1_epi16(1);
  return acc + I32{_mm256_madd_epi16(_mm256_maddubs_epi16(u.lo, s), ones),
                   _mm256_madd_epi16(_mm256_maddubs_epi16(u.hi, s), ones)};
#endif
}
QS_INLINE I32 dot(I32 acc, U8x64 u, const std::int8_t* s4) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, s4, 4);
  return dot(acc, u, bytes);
}
QS_INLINE I32 dot_pair(I32 acc, U8x64 u, std::int32_t s4, U8x64 v, std::int32_t r4) {
#ifdef __AVXVNNI__
  return dot(dot(acc, u, s4), v, r4);
#else
  const __m256i s = _mm256_set1_epi32(s4), r = _mm256_set1_epi32(r4), ones = _mm256_set1_epi16(1);
  const __m256i lo = _mm256_add_epi16(_mm256_maddubs_epi16(u.lo, s), _mm256_maddubs_epi16(v.lo, r));
  const __m256i hi = _mm256_add_epi16(_mm256_maddubs_epi16(u.hi, s), _mm256_maddubs_epi16(v.hi, r));
  return acc + I32{_mm256_madd_epi16(lo, ones), _mm256_madd_epi16(hi, ones)};
#endif
}
QS_INLINE I32 even_bytes(U8x64 a) {
  const __m256i mask = _mm256_set1_epi16(255);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
QS_INLINE I32 odd_bytes(U8x64 a) {
  return {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)};
}
QS_INLINE I32 dot_words(I32 acc, I32 words, std::int32_t s2) {
  const __m256i s = _mm256_set1_epi32(s2);
  return acc + I32{_mm256_madd_epi16(words.lo, s), _mm256_madd_epi16(words.hi, s)};
}

QS_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
QS_INLINE void prefetch_to_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace quantspec::cpu

#include "backend/cpu/simd_common.h"
