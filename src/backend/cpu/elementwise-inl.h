// Norm, rotation, activation and conversions. Included by kernels_*.cc after one simd_*.h. An
// element's bits do not depend on its lane or on the elements beside it.
#pragma once

#include "backend/cpu/kernels_linear.h"

namespace quantspec::cpu {
namespace {

// Calls f(i, n) for the runs of at most 16 lanes that cover [0, count).
template <typename F>
QS_INLINE void for_lanes(int count, const F& f) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, count - i);
}
QS_INLINE F32 load_run(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
QS_INLINE void store_run(float* p, F32 x, int n) { n == kLanes ? store(p, x) : store_n(p, x, n); }

// Sums of segments, kCount of each, added as a balanced tree as they come. Those of the last stay
// with the caller, so that a sum of one segment costs nothing.
template <typename T, int kCount>
struct SegmentTree {
  T waits[kSegmentLevels][kCount];
  int waiting = 0;

  // `sums` of segment `index` become those of the subtree that ends with it, and wait for more.
  QS_INLINE void add(int index, T (&sums)[kCount], bool last) {
    for (; index % 2 == 1; index /= 2) {
      --waiting;
#pragma GCC unroll 64
      for (int i = 0; i < kCount; ++i) sums[i] = waits[waiting][i] + sums[i];
    }
    if (last) return;
#pragma GCC unroll 64
    for (int i = 0; i < kCount; ++i) waits[waiting][i] = sums[i];
    ++waiting;
  }
};

// How the elements of a checkpoint are read: 16 in a row, and, by a gemv, kParts * 16 of them part
// by part in the order that is cheapest to widen.
struct F32Elements {
  using Type = float;
  static constexpr int kParts = 1;
  static QS_INLINE F32 at(const float* p) { return load(p); }
  static QS_INLINE F32 at_n(const float* p, int n) { return load_n(p, n); }
  static QS_INLINE F32 part(const float* p, int) { return load(p); }
};
struct F16Elements {
  using Type = std::uint16_t;
  static constexpr int kParts = 1;
  static QS_INLINE F32 at(const std::uint16_t* p) { return load_f16(p); }
  static QS_INLINE F32 at_n(const std::uint16_t* p, int n) { return load_f16_n(p, n); }
  static QS_INLINE F32 part(const std::uint16_t* p, int) { return load_f16(p); }
};
struct Bf16Elements {
  using Type = std::uint16_t;
  static constexpr int kParts = 2;
  static QS_INLINE F32 at(const std::uint16_t* p) { return load_bf16(p); }
  static QS_INLINE F32 at_n(const std::uint16_t* p, int n) { return load_bf16_n(p, n); }
  static QS_INLINE F32 part(const std::uint16_t* p, int part) {
    return part == 0 ? even_bf16(p) : odd_bf16(p);
  }
};

template <typename Elements>
void to_f32(const void* in, int count, float* out) {
  const auto* p = static_cast<const typename Elements::Type*>(in);
  for_lanes(count, [&](int i, int n) {
    store_run(out + i, n == kLanes ? Elements::at(p + i) : Elements::at_n(p + i, n), n);
  });
}

void to_f16(const float* in, int count, std::uint16_t* out) {
  for_lanes(count, [&](int i, int n) {
    std::uint16_t half[kLanes];
    store_f16(half, load_run(in + i, n));
    __builtin_memcpy(out + i, half, sizeof(std::uint16_t) * n);
  });
}

void rms_norm(const float* x, const float* weight, float epsilon, int count, float* out) {
  F32 squares = zero_f32();
  for_lanes(count, [&](int i, int n) {
    const F32 v = load_run(x + i, n);
    squares = fma(v, v, squares);
  });
  const float mean = reduce_add(squares) / static_cast<float>(count);
  const F32 inverse = set1(1.0f / __builtin_sqrtf(mean + epsilon));
  for_lanes(count, [&](int i, int n) {
    store_run(out + i, load_run(x + i, n) * inverse * load_run(weight + i, n), n);
  });
}

void rope(float* x, const float* cos, const float* sin, int head_dim) {
  float* y = x + head_dim / 2;
  for_lanes(head_dim / 2, [&](int i, int n) {
    const F32 a = load_run(x + i, n), b = load_run(y + i, n);
    const F32 c = load_run(cos + i, n), s = load_run(sin + i, n);
    store_run(x + i, a * c - b * s, n);
    store_run(y + i, b * c + a * s, n);
  });
}

void silu_mul(float* gate, const float* up, int count) {
  for_lanes(count, [&](int i, int n) {
    const F32 g = load_run(gate + i, n);
    const F32 silu = g / (set1(1.0f) + exp(zero_f32() - g));
    store_run(gate + i, silu * load_run(up + i, n), n);
  });
}

void scale_row(const float* x, float factor, int count, float* out) {
  const F32 f = set1(factor);
  for_lanes(count, [&](int i, int n) { store_run(out + i, load_run(x + i, n) * f, n); });
}

void add_row(const float* x, int count, float* out) {
  for_lanes(count, [&](int i, int n) {
    store_run(out + i, load_run(out + i, n) + load_run(x + i, n), n);
  });
}

}  // namespace
}  // namespace quantspec::cpu
