// simd_scalar.h in AVX-512 (F, BW, DQ, VL), with VNNI where the translation unit has it.
#pragma once

// NOTE: g++ 12 warns of its own _mm512_undefined_ps() (gcc bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

#define QS_INLINE inline __attribute__((always_inline))

namespace quantspec::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#ifdef __AVX512VNNI__
constexpr bool kByteDot = true;
#else
constexpr bool kByteDot = false;
#endif
constexpr bool kMergedDot = kByteDot;
constexpr int kMergedCentre = 0;

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct U8x64 {
  __m512i v;
};

QS_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

// --- F32 ---
QS_INLINE F32 set1(float x) { return {_mm512_set1_ps(x)}; }
QS_INLINE F32 zero_f32() { return {_mm512_setzero_ps()}; }
QS_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
QS_INLINE F32 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
QS_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
QS_INLINE void store_n(float* p, F32 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
QS_INLINE __m256i load_u16(const std::uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
QS_INLINE F32 load_f16(const std::uint16_t* p) { return {_mm512_cvtph_ps(load_u16(p))}; }
QS_INLINE F32 load_f16_n(const std::uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
QS_INLINE void store_f16(std::uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QS_INLINE F32 widen_bf16(__m256i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
QS_INLINE F32 load_bf16(const std::uint16_t* p) { return widen_bf16(load_u16(p)); }
QS_INLINE F32 load_bf16_n(const std::uint16_t* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
QS_INLINE F32 in_register(F32 a) {
  asm("" : "+v"(a.v));
  return a;
}
QS_INLINE F32 even_bf16(const std::uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
QS_INLINE F32 odd_bf16(const std::uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_mov_epi16(0xaaaaaaaau, _mm512_loadu_si512(p)))};
}
QS_INLINE F32 even_lanes(F32 a, F32 b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return {_mm512_permutex2var_ps(a.v, even, b.v)};
}
QS_INLINE F32 odd_lanes(F32 a, F32 b) {
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_permutex2var_ps(a.v, odd, b.v)};
}
QS_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
QS_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
QS_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
QS_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
QS_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
QS_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
QS_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
QS_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
QS_INLINE F32 max_abs(F32 a, F32 b) {  // in one instruction
  constexpr int kGreaterMagnitude = 3, kPositive = 2 << 2;
  return {_mm512_range_ps(a.v, b.v, kGreaterMagnitude | kPositive)};
}
QS_INLINE F32 max_magnitude(F32 a, F32 b) {
  return {_mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_castps_si512(abs(a).v), _mm512_castps_si512(abs(b).v)))};
}
QS_INLINE float reduce_max_magnitude(F32 a) {
  return __builtin_bit_cast(float, _mm512_reduce_max_epi32(_mm512_castps_si512(abs(a).v)));
}
QS_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
struct F32x4 {
  __m128 v;
};
QS_INLINE F32x4 operator+(F32x4 a, F32x4 b) { return {_mm_add_ps(a.v, b.v)}; }
QS_INLINE F32x4 min(F32x4 a, F32x4 b) { return {_mm_min_ps(a.v, b.v)}; }
QS_INLINE F32x4 max(F32x4 a, F32x4 b) { return {_mm_max_ps(a.v, b.v)}; }
template <typename F>
QS_INLINE float reduce(F32 a, const F& f) {
  const F32x4 a01 = f(F32x4{_mm512_castps512_ps128(a.v)}, F32x4{_mm512_extractf32x4_ps(a.v, 2)});
  const F32x4 a23 = f(F32x4{_mm512_extractf32x4_ps(a.v, 1)}, F32x4{_mm512_extractf32x4_ps(a.v, 3)});
  F32x4 r = f(a01, a23);
  r = f(r, F32x4{_mm_movehl_ps(r.v, r.v)});
  r = f(r, F32x4{_mm_shuffle_ps(r.v, r.v, 1)});
  return _mm_cvtss_f32(r.v);
}
// reduce_add of four at once, in half the shuffles; the same tree.
QS_INLINE void reduce_add4(const F32* a, float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a[0].v, a[1].v, 0x44),
                                  _mm512_shuffle_f32x4(a[0].v, a[1].v, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(a[2].v, a[3].v, 0x44),
                                  _mm512_shuffle_f32x4(a[2].v, a[3].v, 0xee));
  __m512 r = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  r = _mm512_add_ps(r, _mm512_shuffle_ps(r, r, 0x4e));
  r = _mm512_add_ps(r, _mm512_shuffle_ps(r, r, 0xb1));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, r)));
}
// reduce_add of sixteen at once: the same tree, each level a blend, a shuffle and an add for two.
QS_INLINE void reduce_add16(const F32* a, float* out) {
  const __m512i odd_quarters =
      _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  __m512 b[8], c[4], d[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    b[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a[i].v, a[i + 8].v),
                         _mm512_shuffle_f32x4(a[i].v, a[i + 8].v, 0x4e));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    c[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, b[i], b[i + 4]),
                         _mm512_permutex2var_ps(b[i], odd_quarters, b[i + 4]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 halves = _mm512_shuffle_ps(c[i], c[i + 2], 0x4e);
    d[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, c[i], c[i + 2]), halves);
  }
  const __m512 swapped = _mm512_permute_ps(_mm512_mask_blend_ps(0x5555, d[0], d[1]), 0xb1);
  _mm512_storeu_ps(out, _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, d[0], d[1]), swapped));
}

// --- I32 ---
QS_INLINE I32 set1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
QS_INLINE I32 zero_i32() { return {_mm512_setzero_si512()}; }
QS_INLINE I32 load(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
QS_INLINE void store(std::int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
QS_INLINE void store_s8(std::int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
// 64 integers in order, out of four registers of bytes in the order that packing leaves.
QS_INLINE void store_packed(std::int8_t* p, __m512i words01, __m512i words23) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words01, words23)));
}
QS_INLINE void store_s8(std::int8_t* p, const I32 (&a)[4]) {
  store_packed(p, _mm512_packs_epi32(a[0].v, a[1].v), _mm512_packs_epi32(a[2].v, a[3].v));
}
QS_INLINE void store_split(std::int8_t* high, std::int8_t* low, const I32 (&a)[4]) {
  const __m512i a01 = _mm512_packs_epi32(a[0].v, a[1].v), a23 = _mm512_packs_epi32(a[2].v, a[3].v);
  const __m512i mask = _mm512_set1_epi16(127);
  store_packed(high, _mm512_srai_epi16(a01, 7), _mm512_srai_epi16(a23, 7));
  store_packed(low, _mm512_and_si512(a01, mask), _mm512_and_si512(a23, mask));
}
QS_INLINE I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
QS_INLINE I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
QS_INLINE I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N>
QS_INLINE I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
QS_INLINE I32 shift_right(I32 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
QS_INLINE I32 round_i32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
QS_INLINE F32 to_f32(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
QS_INLINE F32 pow2(I32 n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

QS_INLINE F32 fraction(F32 x) { return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF)}; }
QS_INLINE F32 scale_by_floor(F32 p, F32 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(normal, p.v, x.v)};
}

// --- bytes ---
QS_INLINE __m128i load_16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
QS_INLINE I32 widen_s8(const void* p) { return {_mm512_cvtepi8_epi32(load_16(p))}; }
QS_INLINE I32 widen_u8(const void* p) { return {_mm512_cvtepu8_epi32(load_16(p))}; }
QS_INLINE void store_words(std::int8_t* p, const I32 (&a)[4]) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m512i pairs =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int i = 0; i < 4; i += 2) {
    const __m512i words = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a[i].v, a[i + 1].v));
    _mm512_storeu_si512(p + 32 * i, _mm512_shuffle_epi8(words, pairs));
  }
}
QS_INLINE U8x64 load_u8(const void* p) { return {_mm512_loadu_si512(p)}; }
QS_INLINE void store_u8(void* p, U8x64 a) { _mm512_storeu_si512(p, a.v); }
QS_INLINE U8x64 repeat_16(const void* p) { return {_mm512_broadcast_i32x4(load_16(p))}; }
QS_INLINE U8x64 lookup(U8x64 table, U8x64 nibbles) {
  return {_mm512_shuffle_epi8(table.v, nibbles.v)};
}
template <int kRight>
QS_INLINE U8x64 shifted(U8x64 a, std::uint8_t mask) {
  const __m512i kept = _mm512_set1_epi8(static_cast<char>(mask));
  if constexpr (kRight < 0) {
    return {_mm512_and_si512(_mm512_slli_epi16(a.v, -kRight), kept)};
  } else {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, kRight), kept)};
  }
}
QS_INLINE U8x64 operator|(U8x64 a, U8x64 b) { return {_mm512_or_si512(a.v, b.v)}; }
QS_INLINE U8x64 low_nibbles(U8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
QS_INLINE U8x64 high_nibbles(U8x64 a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
QS_INLINE U8x64 high_nibbles_in_place(U8x64 a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(0xf0)))};
}
QS_INLINE U8x64 merge_low(U8x64 upper, U8x64 lower) {
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(0xf0)),
                                    _mm512_slli_epi16(upper.v, 4), lower.v, 0xca)};
}
QS_INLINE U8x64 merge_high(U8x64 upper, U8x64 lower) {
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(0xf0)), upper.v,
                                    _mm512_srli_epi16(lower.v, 4), 0xca)};
}
QS_INLINE I32 dot(I32 acc, U8x64 u, std::int32_t s4) {
  const __m512i s = _mm512_set1_epi32(s4);
#ifdef __AVX512VNNI__
  return {_mm512_dpbusd_epi32(acc.v, u.v, s)};
#else
  const __m512i pairs = _mm512_maddubs_epi16(u.v, s);
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#endif
}
// NOTE: in assembly where it can be one instruction: given intrinsics, g++ 12 loads all broadcasts
// of a loop into registers and spills the sums (8 columns of attention: 40% slower).
QS_INLINE I32 dot(I32 acc, U8x64 u, const std::int8_t* s4) {
  const auto* word = reinterpret_cast<const char(*)[4]>(s4);
#ifdef __AVX512VNNI__
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(u.v), "m"(*word));
  return acc;
#else
  std::int32_t bytes;
  __builtin_memcpy(&bytes, word, 4);
  return dot(acc, u, bytes);
#endif
}
QS_INLINE I32 dot_pair(I32 acc, U8x64 u, std::int32_t s4, U8x64 v, std::int32_t r4) {
#ifdef __AVX512VNNI__
  return dot(dot(acc, u, s4), v, r4);
#else
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(u.v, _mm512_set1_epi32(s4)),
                                         _mm512_maddubs_epi16(v.v, _mm512_set1_epi32(r4)));
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#endif
}
QS_INLINE I32 even_bytes(U8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(255))}; }
QS_INLINE I32 odd_bytes(U8x64 a) { return {_mm512_srli_epi16(a.v, 8)}; }
QS_INLINE I32 dot_words(I32 acc, I32 words, std::int32_t s2) {
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(words.v, _mm512_set1_epi32(s2)))};
}

QS_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
QS_INLINE void prefetch_to_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace
}  // namespace quantspec::cpu

#include "backend/cpu/simd_common.h"
