// Quantizing full-precision K and V into a unit of a page, and back: the arithmetic of
// quant/quant.cc, sixteen lanes at a time, byte for byte the same. And what a page's scales say
// about its keys. Included by each kernels_*.cc after its simd_*.h.
#pragma once

#include "backend/cpu/kernels_attention.h"
#include "quant/quant.h"

namespace quantspec::cpu {
namespace {

// --- the parts of a unit (unit_planes, unit_scales of quant.h) -----------------------------------

struct UnitParts {
  std::ptrdiff_t plane_bytes;  // of keys; values follow
  std::ptrdiff_t upper_bytes;
};
QS_INLINE UnitParts unit_parts(const PageShape& shape) {
  const std::ptrdiff_t plane = static_cast<std::ptrdiff_t>(shape.page_size) * shape.head_dim / 2;
  return {plane, 2 * plane + 4 * shape.head_dim + 4 * shape.page_size * shape.value_groups};
}

template <typename Half>
struct ScaleArrays {
  Half* key_scale;
  Half* key_offset;
  Half* value_scale;
  Half* value_offset;
};
template <typename Half>
QS_INLINE ScaleArrays<Half> scale_arrays(const PageShape& shape, Half* first) {
  Half* value_scale = first + 2 * shape.head_dim;
  return {first, first + shape.head_dim, value_scale,
          value_scale + shape.page_size * shape.value_groups};
}
QS_INLINE ScaleArrays<const std::uint16_t> unit_scale_arrays(const PageShape& shape,
                                                             const std::uint8_t* upper) {
  const void* scales = upper + 2 * unit_parts(shape).plane_bytes;
  return scale_arrays(shape, static_cast<const std::uint16_t*>(scales));
}
QS_INLINE ScaleArrays<std::uint16_t> unit_scale_arrays(const PageShape& shape,
                                                       std::uint8_t* upper) {
  void* scales = upper + 2 * unit_parts(shape).plane_bytes;
  return scale_arrays(shape, static_cast<std::uint16_t*>(scales));
}

// --- codec ---------------------------------------------------------------------------------------

constexpr float kHalfMax = 65504.0f;

// group_scale() of quant.h for 16 groups: their extremes, and their greatest magnitude, which is
// infinite or NaN where the group is not finite.
QS_INLINE void store_group_scales(F32 least, F32 most, F32 magnitude, std::uint16_t* scales,
                                  std::uint16_t* offsets) {
  const F32 half = set1(0.5f), nan = set1(__builtin_nanf(""));
  const F32 exact = (most * half - least * half) / set1((255 - 2 * kCodeMargin) * 0.5f);
  const F32 finite_limit = set1(__builtin_inff());
  store_f16(scales, select_less(magnitude, finite_limit, min(exact, set1(kHalfMax)), nan));
  const F32 offset = least - set1(static_cast<float>(kCodeMargin)) * load_f16(scales) +
                     zero_f32();  // +0, never -0
  const F32 clamped = max(set1(-kHalfMax), min(set1(kHalfMax), offset));
  store_f16(offsets, select_less(magnitude, finite_limit, clamped, nan));
}

// encode() of quant.h for 16 elements.
QS_INLINE I32 encode(F32 x, F32 scale, F32 offset) {
  const F32 code = min(max((x - offset) / scale, zero_f32()), set1(255.0f));
  return round_i32(select_less(zero_f32(), scale, code, zero_f32()));
}

// The tile words (packing.h) of 16 outputs: eight terms, in order, of one code per lane.
struct TileWords {
  I32 upper = zero_i32();
  I32 lower = zero_i32();

  template <int kTerm>
  QS_INLINE void add(I32 code) {
    constexpr int kShift = 8 * (kTerm % 4) + 4 * (kTerm / 4);
    const I32 u = shift_right<4>(code);
    upper = upper + shift_left<kShift>(u);
    lower = lower + shift_left<kShift>(code - shift_left<4>(u));
  }
};

// code_of(term) is the codes of 16 outputs.
template <typename F>
QS_INLINE void store_tile(std::uint8_t* upper, std::uint8_t* lower, const F& code_of) {
  TileWords words;
  words.add<0>(code_of(0));
  words.add<1>(code_of(1));
  words.add<2>(code_of(2));
  words.add<3>(code_of(3));
  words.add<4>(code_of(4));
  words.add<5>(code_of(5));
  words.add<6>(code_of(6));
  words.add<7>(code_of(7));
  __builtin_memcpy(upper, &words.upper, 64);
  __builtin_memcpy(lower, &words.lower, 64);
}

// A term's codes out of a tile.
template <int kTerm>
QS_INLINE F32 nibbles_of(I32 words) {
  constexpr int kShift = 8 * (kTerm % 4) + 4 * (kTerm / 4);
  return to_f32(shift_right<kShift>(words) & set1(std::int32_t{15}));
}

// --- quantize ------------------------------------------------------------------------------------

QS_INLINE void quantize_keys(const QuantizeUnit& a, const ScaleArrays<std::uint16_t>& scales) {
  const int dim = a.shape.head_dim, blocks = a.shape.page_size / 16;
  float least[16], most[16], magnitude[16];
  for (int c = 0; c < dim; ++c) {
    F32 lo = load_f16(a.key_blocks[0] + 16 * c), hi = lo, size = lo;
    for (int b = 1; b < blocks; ++b) {
      const F32 x = load_f16(a.key_blocks[b] + 16 * c);
      lo = min(lo, x);
      hi = max(hi, x);
      size = max_magnitude(size, x);
    }
    least[c % 16] = reduce_min(lo);
    most[c % 16] = reduce_max(hi);
    magnitude[c % 16] = reduce_max_magnitude(size);
    if (c % 16 == 15) {
      store_group_scales(load(least), load(most), load(magnitude), scales.key_scale + c - 15,
                         scales.key_offset + c - 15);
    }
  }
  for (int c = 0; c < dim; c += 8) {
    float scale[16], offset[16];
    store(scale, load_f16_n(scales.key_scale + c, 8));
    store(offset, load_f16_n(scales.key_offset + c, 8));
    for (int b = 0; b < blocks; ++b) {
      const std::ptrdiff_t tile = (static_cast<std::ptrdiff_t>(b) * dim + c) * 8;
      store_tile(a.upper + tile, a.lower + tile, [&](int term) {
        return encode(load_f16(a.key_blocks[b] + 16 * (c + term)), set1(scale[term]),
                      set1(offset[term]));
      });
    }
  }
}

QS_INLINE void quantize_values(const QuantizeUnit& a, const ScaleArrays<std::uint16_t>& scales,
                               int group) {
  const int dim = a.shape.head_dim, groups = a.shape.value_groups;
  const int begin = kValueGroup * group;
  const int end = begin + kValueGroup < dim ? begin + kValueGroup : dim;
  const std::ptrdiff_t plane = unit_parts(a.shape).plane_bytes;
  for (int t = 0; t < a.shape.page_size; t += 16) {
    const std::uint16_t* rows = a.value_blocks[t / 16];
    float least[16], most[16], magnitude[16], scale[16], offset[16];
    std::uint16_t half_scale[16], half_offset[16];
    for (int i = 0; i < 16; ++i) {
      const std::uint16_t* row = rows + static_cast<std::ptrdiff_t>(i) * dim;
      F32 lo = load_f16(row + begin), hi = lo, size = lo;
      for (int c = begin + 16; c < end; c += 16) {
        const F32 x = load_f16(row + c);
        lo = min(lo, x);
        hi = max(hi, x);
        size = max_magnitude(size, x);
      }
      least[i] = reduce_min(lo);
      most[i] = reduce_max(hi);
      magnitude[i] = reduce_max_magnitude(size);
    }
    store_group_scales(load(least), load(most), load(magnitude), half_scale, half_offset);
    for (int i = 0; i < 16; ++i) {
      scales.value_scale[(t + i) * groups + group] = half_scale[i];
      scales.value_offset[(t + i) * groups + group] = half_offset[i];
    }
    store(scale, load_f16(half_scale));
    store(offset, load_f16(half_offset));
    for (int c = begin; c < end; c += 16) {
      for (int i = 0; i < 16; i += 8) {
        const std::ptrdiff_t tile =
            plane + (static_cast<std::ptrdiff_t>(c / 16) * a.shape.page_size + t + i) * 8;
        store_tile(a.upper + tile, a.lower + tile, [&](int term) {
          return encode(load_f16(rows + static_cast<std::ptrdiff_t>(i + term) * dim + c),
                        set1(scale[i + term]), set1(offset[i + term]));
        });
      }
    }
  }
}

void quantize_unit(const QuantizeUnit& a) {
  const auto scales = unit_scale_arrays(a.shape, a.upper);
  quantize_keys(a, scales);
  for (int g = 0; g < a.shape.value_groups; ++g) quantize_values(a, scales, g);
}

// --- load ----------------------------------------------------------------------------------------

// The codes of a tile, a byte each: byte t % 4 of lane i of codes[t / 4] is of output i, term t.
struct TileCodes {
  I32 codes[2];

  QS_INLINE TileCodes(const std::uint8_t* upper, const std::uint8_t* lower) {
    const I32 low = set1(std::int32_t{0x0f0f0f0f});
    I32 u, l;
    __builtin_memcpy(&u, upper, 64);
    __builtin_memcpy(&l, lower, 64);
    codes[0] = shift_left<4>(u & low) + (l & low);
    codes[1] = shift_left<4>(shift_right<4>(u) & low) + (shift_right<4>(l) & low);
  }
  template <int kTerm>
  QS_INLINE F32 term() const {
    return to_f32(shift_right<8 * (kTerm % 4)>(codes[kTerm / 4]) & set1(std::int32_t{255}));
  }
};

// Writes the values of term i to out + 16 * i; its scale and offset are i * stride further.
// NOTE: scale * code has 19 bits, so that the fused sum is rounded as the plain one.
template <int kTerm = 0>
QS_INLINE void store_terms(const TileCodes& tile, const float* scales, const float* offsets,
                           int stride, float* out) {
  store(out + 16 * kTerm,
        fma(tile.term<kTerm>(), set1(scales[kTerm * stride]), set1(offsets[kTerm * stride])));
  if constexpr (kTerm < 7) store_terms<kTerm + 1>(tile, scales, offsets, stride, out);
}

QS_INLINE void to_floats(const std::uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i += 16) store(out + i, load_f16(halves + i));
}

void load_panels(const LoadPanels& a) {
  constexpr int kMaxGroups = kMaxHeadDim / kValueGroup;
  float scale[kMaxPageSize * kMaxGroups], offset[kMaxPageSize * kMaxGroups];
  static_assert(kMaxHeadDim <= kMaxPageSize * kMaxGroups);
  const auto scales = unit_scale_arrays(a.shape, a.page.upper);
  const int dim = a.shape.head_dim, groups = a.shape.value_groups;
  to_floats(scales.key_scale, dim, scale);
  to_floats(scales.key_offset, dim, offset);
  for (std::ptrdiff_t t = 0; t < a.count; t += 16) {
    for (std::ptrdiff_t c = 0; c < dim; c += 8) {
      const std::ptrdiff_t tile = ((a.first + t) / 16 * dim + c) * 8;
      store_terms(TileCodes(a.page.upper + tile, a.page.lower + tile), scale + c, offset + c, 1,
                  a.keys + t * dim + 16 * c);
    }
  }
  to_floats(scales.value_scale + a.first * groups, a.count * groups, scale);
  to_floats(scales.value_offset + a.first * groups, a.count * groups, offset);
  const std::ptrdiff_t plane = unit_parts(a.shape).plane_bytes;
  for (std::ptrdiff_t c = 0; c < dim; c += 16) {
    for (std::ptrdiff_t t = 0; t < a.count; t += 8) {
      const std::ptrdiff_t tile = plane + (c / 16 * a.shape.page_size + a.first + t) * 8;
      const std::ptrdiff_t group = t * groups + c / kValueGroup;
      store_terms(TileCodes(a.page.upper + tile, a.page.lower + tile), scale + group,
                  offset + group, groups, a.values + c * a.panel_tokens + 16 * t);
    }
  }
}

// --- bounds --------------------------------------------------------------------------------------

float page_bound(const PageBound& a) {
  const int dim = a.shape.head_dim;
  const auto scales = unit_scale_arrays(a.shape, a.upper);
  const auto ahead = unit_scale_arrays(a.shape, a.next);
  for (int c = 0; c < 2 * dim; c += 32) prefetch(ahead.key_scale + c);
  float bound = -__builtin_inff();
  for (int column = 0; column < a.num_columns; ++column) {
    F32 sum = zero_f32();
    for (int c = 0; c < dim; c += 16) {
      const F32 q = load(a.q + column * dim + c);
      const F32 scale = load_f16(scales.key_scale + c), offset = load_f16(scales.key_offset + c);
      const F32 least = fma(scale, set1(static_cast<float>(kCodeMargin)), offset);
      const F32 most = fma(scale, set1(static_cast<float>(255 - kCodeMargin)), offset);
      sum = sum + max(q * least, q * most);
    }
    bound = max(bound, reduce_add(sum));
  }
  return bound;
}

}  // namespace
}  // namespace quantspec::cpu
