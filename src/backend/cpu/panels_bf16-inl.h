// Panels of bf16 (kernels_bf16.h) out of fp32, of rows of bf16 and of planes. Included by
// kernels_avx512bf16.cc after simd_avx512.h.
#pragma once

#include "backend/cpu/codes-inl.h"
#include "backend/cpu/kernels_bf16.h"

namespace quantspec::cpu {
namespace {

// The lanes of k and those of k + 1, rounded, in pairs.
QS_INLINE void store_pairs(F32 even, F32 odd, std::uint16_t* out) {
  const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(pairs, both));
}

void pair_panel(const float* panel, int depth, std::uint16_t* out) {
  for (int k = 0; k < depth; k += 2) {
    const F32 odd = k + 1 < depth ? load(panel + kLanes * (k + 1)) : zero_f32();
    store_pairs(load(panel + kLanes * k), odd, out + kLanes * k);
  }
}

// --- rows ----------------------------------------------------------------------------------------

QS_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88);
    r[4 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd);
    r[12 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd);
  }
}

void pair_rows(const std::uint16_t* rows, int count, int inputs, std::uint16_t* out) {
  for (int k = 0; k < inputs; k += kPanelDepth) {
    const int left = inputs - k < kPanelDepth ? inputs - k : kPanelDepth;
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
    __m512i r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      r[i] = i < count ? _mm512_maskz_loadu_epi16(mask, rows + std::ptrdiff_t{i} * inputs + k)
                       : _mm512_setzero_si512();
    }
    transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) _mm512_storeu_si512(out + kLanes * (k + 2 * i), r[i]);
  }
}

// --- planes --------------------------------------------------------------------------------------

// What turns the codes of a group into weights.
struct GroupWeights {
  F32 scale, offset;
  I32 zero;
  bool has_offset;

  template <int kByte>
  QS_INLINE F32 weights(U8x64 codes) const {
    const __m512i code =
        _mm512_and_si512(_mm512_srli_epi32(codes.v, 8 * kByte), _mm512_set1_epi32(255));
    const F32 weight = scale * to_f32(I32{code} - zero);
    return has_offset ? weight + offset : weight;
  }
  // Those of four inputs.
  QS_INLINE void store_four(U8x64 codes, std::uint16_t* out) const {
    store_pairs(weights<0>(codes), weights<1>(codes), out);
    store_pairs(weights<2>(codes), weights<3>(codes), out + 2 * kLanes);
  }
};

template <typename Codes>
void unpack_panel_of(const PlanePanel& g, std::uint16_t* out) {
  static_assert(kMergedCentre == 0);
  U8x64 table{};
  if constexpr (Codes::kTable) table = table_bytes(g.format.values);
  const std::byte *upper = g.upper, *lower = g.lower, *header = nullptr;
  for (int first = 0, index = 0; first < g.inputs; first += g.format.group, ++index) {
    if (index % g.format.span_groups == 0) {
      header = upper;
      upper += g.format.header_bytes;
    }
    const GroupLanes lanes = group_lanes(g.format, header, index % g.format.span_groups);
    const GroupWeights group = {lanes.scale * set1(g.unit), lanes.offset,
                                set1(std::int32_t{g.zero}), g.format.has_offset};
    const int left = g.inputs - first < g.format.group ? g.inputs - first : g.format.group;
    for (int k = 0; k < left; k += kTileInputs * Codes::kLineTiles) {
      const U8x64 line = Codes::kLower > 0 ? load_u8(lower) : U8x64{};
      for_constants<Codes::kLineTiles>([&]<int kTile>() {
        const auto tile =
            merge_codes<Codes, kTile>(load_u8(upper + kTile * kTileSize), line, table);
        std::uint16_t* to = out + kLanes * (first + k + kTile * kTileInputs);
        group.store_four(tile.first, to);
        group.store_four(tile.last, to + 4 * kLanes);
      });
      upper += kTileSize * Codes::kLineTiles;
      lower += Codes::kLower > 0 ? kTileSize : 0;
    }
  }
  // The planes' own padding has weights, too.
  for (int k = g.inputs; k % kPanelDepth != 0; ++k) {
    for (int i = 0; i < kLanes; ++i) out[kLanes * (k & ~1) + 2 * i + (k & 1)] = 0;
  }
}

void unpack_panel(const PlanePanel& g, std::uint16_t* out) {
  if (g.format.values != nullptr) return unpack_panel_of<PlaneCodes<0, true>>(g, out);
  switch (g.format.lower_bits) {
    case 1:
      return unpack_panel_of<PlaneCodes<1, false>>(g, out);
    case 2:
      return unpack_panel_of<PlaneCodes<2, false>>(g, out);
    case 4:
      return unpack_panel_of<PlaneCodes<4, false>>(g, out);
    default:
      return unpack_panel_of<PlaneCodes<0, false>>(g, out);
  }
}

}  // namespace
}  // namespace quantspec::cpu
