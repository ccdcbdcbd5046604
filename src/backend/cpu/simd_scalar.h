// Sixteen lanes in plain C++: the kernels' only view of an instruction set, and the definition of
// what simd_avx2.h, simd_avx512.h and simd_neon.h do. One of them is included by each kernels_*.cc.
//
// Everything is in an anonymous namespace and needs no std template: a translation unit compiled
// for AVX-512 must not give the linker a function that another might then call on an older machine.
//
//   F32, I32   16 lanes of float, int32          U8x64   64 bytes; lane i is bytes 4i .. 4i+3
//   min(a, b) = a < b ? a : b, max likewise: if either is NaN, b.   fma: fused where hardware can.
//   reductions: 8+8 lanes, then 4+4, 2+2, 1+1.   *_n: the first n lanes, 0 <= n <= 16, others 0.
#pragma once

#include <cstddef>
#include <cstdint>

#define QS_INLINE inline  // NOTE: forcing it here triples the time to compile, for nothing

namespace quantspec::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 4;          // 16-lane registers that a kernel may plan with
constexpr bool kByteDot = true;        // dot() is exact for full bytes, not only for nibbles
constexpr bool kMergedDot = kByteDot;  // and for the bytes that merge_low, merge_high give,
constexpr int kMergedCentre = 0;       // which are this much less than the codes

struct F32 {
  float v[16];
};
struct I32 {
  std::int32_t v[16];
};
struct U8x64 {
  std::uint8_t v[64];
};

template <typename V, typename F>
QS_INLINE V make(const F& f) {
  V r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

QS_INLINE float bits_to_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }
QS_INLINE std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }

QS_INLINE float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  const std::uint32_t magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) {  // inf, NaN (made quiet, as hardware does)
    const std::uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    return bits_to_float(sign | 0x7f800000 | quiet | (magnitude << 13));
  }
  // A half's exponent field read as a float's is 2^-112 too small; subnormals come out right too.
  const float x = bits_to_float(magnitude << 13) * 0x1p112f;
  return bits_to_float(sign | float_bits(x));
}

QS_INLINE std::uint16_t float_to_half(float f) {  // to nearest even
  const std::uint32_t sign = (float_bits(f) >> 16) & 0x8000;
  const std::uint32_t magnitude = float_bits(f) & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves multiples of 2^-24, rounded
    return sign | (float_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1;
  return sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

// Element i of an array at any address: a checkpoint's tensors need not be aligned.
template <typename T>
QS_INLINE T element(const T* p, int i) {
  T x;
  __builtin_memcpy(&x, reinterpret_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return x;
}

// --- F32 ---
QS_INLINE F32 set1(float x) {
  return make<F32>([&](int) { return x; });
}
QS_INLINE F32 zero_f32() { return set1(0.0f); }
QS_INLINE F32 load(const float* p) {
  return make<F32>([&](int i) { return element(p, i); });
}
QS_INLINE F32 load_n(const float* p, int n) {
  return make<F32>([&](int i) { return i < n ? element(p, i) : 0.0f; });
}
QS_INLINE void store(float* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
QS_INLINE void store_n(float* p, F32 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
QS_INLINE F32 load_f16(const std::uint16_t* p) {
  return make<F32>([&](int i) { return half_to_float(element(p, i)); });
}
QS_INLINE F32 load_f16_n(const std::uint16_t* p, int n) {
  return make<F32>([&](int i) { return i < n ? half_to_float(element(p, i)) : 0.0f; });
}
QS_INLINE void store_f16(std::uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}
QS_INLINE F32 load_bf16(const std::uint16_t* p) {
  return make<F32>(
      [&](int i) { return bits_to_float(static_cast<std::uint32_t>(element(p, i)) << 16); });
}
QS_INLINE F32 load_bf16_n(const std::uint16_t* p, int n) {
  return make<F32>([&](int i) {
    return i < n ? bits_to_float(static_cast<std::uint32_t>(element(p, i)) << 16) : 0.0f;
  });
}
// a, loaded once and kept: a compiler would rather load it again for every use.
QS_INLINE F32 in_register(F32 a) { return a; }
// Elements 0, 2, .. 30 of 32, and 1, 3, .. 31: cheaper to widen than 32 in a row.
QS_INLINE F32 even_bf16(const std::uint16_t* p) {
  return make<F32>(
      [&](int i) { return bits_to_float(static_cast<std::uint32_t>(element(p, 2 * i)) << 16); });
}
QS_INLINE F32 odd_bf16(const std::uint16_t* p) { return even_bf16(p + 1); }
// The same of the 32 lanes of two.
QS_INLINE F32 even_lanes(F32 a, F32 b) {
  return make<F32>([&](int i) { return i < 8 ? a.v[2 * i] : b.v[2 * i - 16]; });
}
QS_INLINE F32 odd_lanes(F32 a, F32 b) {
  return make<F32>([&](int i) { return i < 8 ? a.v[2 * i + 1] : b.v[2 * i - 15]; });
}
QS_INLINE F32 operator+(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] + b.v[i]; });
}
QS_INLINE F32 operator-(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] - b.v[i]; });
}
QS_INLINE F32 operator*(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] * b.v[i]; });
}
QS_INLINE F32 operator/(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] / b.v[i]; });
}
QS_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return make<F32>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
QS_INLINE F32 min(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
QS_INLINE F32 max(F32 a, F32 b) {
  return make<F32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
QS_INLINE F32 abs(F32 a) {
  return make<F32>([&](int i) { return bits_to_float(float_bits(a.v[i]) & 0x7fffffff); });
}
// max(a, |b|) for a >= 0; which operand a NaN gives is not defined.
QS_INLINE F32 max_abs(F32 a, F32 b) { return max(a, abs(b)); }
// The greater magnitude, where NaN is greater than infinity: it stays visible.
QS_INLINE F32 max_magnitude(F32 a, F32 b) {
  return make<F32>([&](int i) {
    const std::uint32_t x = float_bits(a.v[i]) & 0x7fffffff, y = float_bits(b.v[i]) & 0x7fffffff;
    return bits_to_float(x > y ? x : y);
  });
}
QS_INLINE float reduce_max_magnitude(F32 a) {
  std::uint32_t most = 0;
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t x = float_bits(a.v[i]) & 0x7fffffff;
    most = x > most ? x : most;
  }
  return bits_to_float(most);
}
// a < b ? x : y
QS_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return make<F32>([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
template <typename F>
QS_INLINE float reduce(F32 a, const F& f) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = f(a.v[i], a.v[i + half]);
  }
  return a.v[0];
}
QS_INLINE float reduce_add(F32 a);
QS_INLINE void reduce_add4(const F32* a, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = reduce_add(a[i]);
}
QS_INLINE void reduce_add16(const F32* a, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = reduce_add(a[i]);
}

// --- I32 ---
QS_INLINE I32 set1(std::int32_t x) {
  return make<I32>([&](int) { return x; });
}
QS_INLINE I32 zero_i32() { return set1(std::int32_t{0}); }
QS_INLINE I32 load(const std::int32_t* p) {
  return make<I32>([&](int i) { return p[i]; });
}
QS_INLINE void store(std::int32_t* p, I32 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
QS_INLINE void store_s8(std::int8_t* p, I32 a) {  // REQUIRES: they fit
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}
QS_INLINE I32 operator+(I32 a, I32 b) {
  return make<I32>([&](int i) { return a.v[i] + b.v[i]; });
}
QS_INLINE I32 operator-(I32 a, I32 b) {
  return make<I32>([&](int i) { return a.v[i] - b.v[i]; });
}
QS_INLINE I32 operator&(I32 a, I32 b) {
  return make<I32>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int N>
QS_INLINE I32 shift_left(I32 a) {
  return make<I32>(
      [&](int i) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) << N); });
}
template <int N>
QS_INLINE I32 shift_right(I32 a) {  // arithmetic: floor(a / 2^N)
  return make<I32>([&](int i) { return a.v[i] >> N; });
}
// To nearest even. NaN and what does not fit: some integer.
QS_INLINE I32 round_i32(F32 a) {
  return make<I32>([&](int i) {
    const float x = a.v[i];
    if (!(x > -4194304.0f && x < 4194304.0f)) {
      return x > -2147483648.0f && x < 2147483648.0f ? static_cast<std::int32_t>(x)
                                                     : -2147483647 - 1;
    }
    return static_cast<std::int32_t>((x + 12582912.0f) - 12582912.0f);
  });
}
QS_INLINE F32 to_f32(I32 a) {
  return make<F32>([&](int i) { return static_cast<float>(a.v[i]); });
}
QS_INLINE F32 pow2(I32 n) {  // REQUIRES: -127 < n; infinity for n = 128
  return make<F32>(
      [&](int i) { return bits_to_float((static_cast<std::uint32_t>(n.v[i]) + 127) << 23); });
}

// x - floor(x), and p * 2^floor(x) where x >= -100, 0 below. REQUIRES: x <= 0, or NaN: it stays.
QS_INLINE F32 floor(F32 x) {
  return make<F32>([&](int i) { return __builtin_floorf(x.v[i]); });
}
QS_INLINE F32 fraction(F32 x) { return x - floor(x); }
QS_INLINE F32 scale_by_floor(F32 p, F32 x) {
  const F32 scaled = p * pow2(round_i32(max(set1(-100.0f), floor(x))));
  return select_less(x, set1(-100.0f), zero_f32(), scaled);
}

// --- bytes ---
// 16 bytes as integers.
QS_INLINE I32 widen_s8(const void* p) {
  return make<I32>([&](int i) { return static_cast<const std::int8_t*>(p)[i]; });
}
QS_INLINE I32 widen_u8(const void* p) {
  return make<I32>([&](int i) { return static_cast<const std::uint8_t*>(p)[i]; });
}
// 64 integers in order. REQUIRES: they fit
QS_INLINE void store_s8(std::int8_t* p, const I32 (&a)[4]) {
  for (int i = 0; i < 4; ++i) store_s8(p + 16 * i, a[i]);
}
// 64 integers of 15 bits: a = 128 high + low, 0 <= low < 128.
QS_INLINE void store_split(std::int8_t* high, std::int8_t* low, const I32 (&a)[4]) {
  for (int i = 0; i < 4; ++i) {
    store_s8(high + 16 * i, shift_right<7>(a[i]));
    store_s8(low + 16 * i, a[i] & set1(std::int32_t{127}));
  }
}
// 64 integers of 16 bits; of every 8, in the order 0, 2, 1, 3, 4, 6, 5, 7, in which even_bytes()
// and odd_bytes() pair the terms of a tile.
QS_INLINE void store_words(std::int8_t* p, const I32 (&a)[4]) {
  constexpr int kOrder[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int i = 0; i < 64; ++i) {
    const int from = i / 8 * 8 + kOrder[i % 8];
    const auto word = static_cast<std::int16_t>(a[from / 16].v[from % 16]);
    __builtin_memcpy(p + 2 * i, &word, 2);
  }
}
QS_INLINE U8x64 load_u8(const void* p) {
  U8x64 r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
QS_INLINE void store_u8(void* p, U8x64 a) { __builtin_memcpy(p, a.v, 64); }
// The same 16 bytes four times over, in which lookup() finds the byte of every nibble.
QS_INLINE U8x64 repeat_16(const void* p) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<const std::uint8_t*>(p)[i % 16];
  return r;
}
QS_INLINE U8x64 lookup(U8x64 table, U8x64 nibbles) {
  for (auto& x : nibbles.v) x = table.v[x];
  return nibbles;
}
// Every byte shifted right by kRight bits, left where it is negative, less what `mask` has not.
// REQUIRES: it has none of the bits that come from nowhere.
template <int kRight>
QS_INLINE U8x64 shifted(U8x64 a, std::uint8_t mask) {
  for (auto& x : a.v) {
    if constexpr (kRight < 0) {
      x = static_cast<std::uint8_t>(x << -kRight) & mask;
    } else {
      x = static_cast<std::uint8_t>(x >> kRight) & mask;
    }
  }
  return a;
}
QS_INLINE U8x64 operator|(U8x64 a, U8x64 b) {
  for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
  return a;
}
QS_INLINE U8x64 low_nibbles(U8x64 a) {
  for (auto& x : a.v) x &= 15;
  return a;
}
QS_INLINE U8x64 high_nibbles(U8x64 a) {
  for (auto& x : a.v) x >>= 4;
  return a;
}
QS_INLINE U8x64 high_nibbles_in_place(U8x64 a) {
  for (auto& x : a.v) x &= 0xf0;
  return a;
}
// The bytes 16 u + l - kMergedCentre of the low (high) nibbles of both planes.
QS_INLINE U8x64 merge_low(U8x64 upper, U8x64 lower) {
  for (int i = 0; i < 64; ++i) upper.v[i] = (upper.v[i] << 4) | (lower.v[i] & 15);
  return upper;
}
QS_INLINE U8x64 merge_high(U8x64 upper, U8x64 lower) {
  for (int i = 0; i < 64; ++i) upper.v[i] = (upper.v[i] & 0xf0) | (lower.v[i] >> 4);
  return upper;
}
// acc[i] += sum over j < 4 of u[4i + j] * s[j], s = the four signed bytes of `s4`, lowest first.
// REQUIRES: u are at most 63, unless kByteDot.
QS_INLINE I32 dot(I32 acc, U8x64 u, std::int32_t s4) {
  std::int8_t s[4];
  __builtin_memcpy(s, &s4, 4);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 4; ++j) acc.v[i] += u.v[4 * i + j] * s[j];
  }
  return acc;
}
// The same with the four bytes where they lie in memory.
QS_INLINE I32 dot(I32 acc, U8x64 u, const std::int8_t* s4) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, s4, 4);
  return dot(acc, u, bytes);
}
// Both products. REQUIRES: the same of both, and that no s4 or r4 is -128.
QS_INLINE I32 dot_pair(I32 acc, U8x64 u, std::int32_t s4, U8x64 v, std::int32_t r4) {
  return dot(dot(acc, u, s4), v, r4);
}
// Bytes 0 and 2 of every lane as its two words, lowest first; bytes 1 and 3.
QS_INLINE I32 even_bytes(U8x64 a) {
  return make<I32>([&](int i) { return a.v[4 * i] | a.v[4 * i + 2] << 16; });
}
QS_INLINE I32 odd_bytes(U8x64 a) {
  return make<I32>([&](int i) { return a.v[4 * i + 1] | a.v[4 * i + 3] << 16; });
}
// acc[i] += the products of the two words of `words` with those of s2.
QS_INLINE I32 dot_words(I32 acc, I32 words, std::int32_t s2) {
  return make<I32>([&](int i) {
    return acc.v[i] + static_cast<std::int16_t>(words.v[i]) * static_cast<std::int16_t>(s2) +
           (words.v[i] >> 16) * (s2 >> 16);
  });
}

QS_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
QS_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace quantspec::cpu

#include "backend/cpu/simd_common.h"
