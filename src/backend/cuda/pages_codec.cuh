// The codec of quant.h on panels (pages_panel.cuh): quantizing and its inverse. Bit for bit what
// quant.cc computes: roundings are to nearest even, and nothing is fused that is not fused there.
#pragma once

#include "backend/cuda/pages_panel.cuh"

namespace quantspec::cuda {

__device__ __forceinline__ __half2 as_half2(std::uint32_t x) {
  return *reinterpret_cast<const __half2*>(&x);
}
__device__ __forceinline__ std::uint32_t as_word(__half2 x) {
  return *reinterpret_cast<const std::uint32_t*>(&x);
}

// --- scales --------------------------------------------------------------------------------------

struct ColumnScale {
  float scale;
  float offset;
  float reciprocal;  // for encoding; 0 where every code is 0
};

// group_scale() of quant.h; least and most are NaN or infinite where the group is not finite.
__device__ inline ColumnScale column_scale(float least, float most) {
  if (!(isfinite(least) && isfinite(most))) {
    const float nan = __int_as_float(0x7fffffff);
    return {nan, nan, 0.0f};
  }
  // Of fp16 elements, it is below 65504 by itself.
  const float exact = __fdiv_rn(most * 0.5f - least * 0.5f, (255 - 2 * kCodeMargin) * 0.5f);
  const float scale = __half2float(__float2half_rn(exact));
  const float offset = least - static_cast<float>(kCodeMargin) * scale + 0.0f;
  const float clamped = fminf(fmaxf(offset, -65504.0f), 65504.0f);
  return {scale, __half2float(__float2half_rn(clamped)), scale > 0.0f ? __frcp_rn(scale) : 0.0f};
}

// A tile from shared memory to registers.
template <bool kValues>
__device__ __forceinline__ void load_tile(const Panel<kValues>& panel, const __half* tile,
                                          std::uint32_t (&x)[4]) {
  const int row = threadIdx.x % 8, low = threadIdx.x / 8 % 2 * 8, high = threadIdx.x / 16 % 2 * 8;
  const int token = row + (kValues ? high : low), channel = kValues ? low : high;
  const std::uint32_t from =
      shared_address(tile + token * panel_stride(panel.num_channels) + channel);
  if constexpr (kValues) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
}

// The extremes of a strip's columns; NaN is kept. One lane a column: lane 4 j + t returns (least,
// most) of the j-th of t's columns, j < 4.
template <bool kValues>
__device__ __forceinline__ float2 column_extremes(const Panel<kValues>& panel, int strip) {
  __half2 least[2], most[2];  // of columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9
  std::uint32_t x[4];
  load_tile(panel, panel.tile(strip, 0), x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    least[i] = __hmin2_nan(as_half2(x[2 * i]), as_half2(x[2 * i + 1]));
    most[i] = __hmax2_nan(as_half2(x[2 * i]), as_half2(x[2 * i + 1]));
  }
#pragma unroll 4
  for (int row = 16; row < panel.num_rows(); row += 16) {
    load_tile(panel, panel.tile(strip, row), x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      least[i / 2] = __hmin2_nan(least[i / 2], as_half2(x[i]));
      most[i / 2] = __hmax2_nan(most[i / 2], as_half2(x[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      least[i] = __hmin2_nan(least[i], __shfl_xor_sync(0xffffffff, least[i], lanes));
      most[i] = __hmax2_nan(most[i], __shfl_xor_sync(0xffffffff, most[i], lanes));
    }
  }
  const int j = threadIdx.x / 4 % 4;
  const float2 low = __half22float2(j < 2 ? least[0] : least[1]);
  const float2 high = __half22float2(j < 2 ? most[0] : most[1]);
  return {j % 2 == 0 ? low.x : low.y, j % 2 == 0 ? high.x : high.y};
}

// One warp: a strip's scales, to the unit and to the lanes that need them.
template <bool kValues>
__device__ __forceinline__ void scale_strip(const Panel<kValues>& panel, int strip,
                                            const PanelUnit& unit, ColumnScale (&columns)[4]) {
  const float2 extremes = column_extremes(panel, strip);
  const ColumnScale mine = column_scale(extremes.x, extremes.y);
  const int lane = threadIdx.x % 32, t = lane % 4, j = lane / 4 % 4;
  if (lane < 16) {
    const int at = (16 * strip + 2 * t + j % 2 + 8 * (j / 2)) * unit.stride;
    const __half nan = __ushort_as_half(0x7e00);
    unit.scale[at] = isnan(mine.scale) ? nan : __float2half_rn(mine.scale);
    unit.offset[at] = isnan(mine.scale) ? nan : __float2half_rn(mine.offset);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    columns[i] = {__shfl_sync(0xffffffff, mine.scale, 4 * i + t),
                  __shfl_sync(0xffffffff, mine.offset, 4 * i + t),
                  __shfl_sync(0xffffffff, mine.reciprocal, 4 * i + t)};
  }
}

// --- quantizing ----------------------------------------------------------------------------------

inline constexpr float kIntegers = 0x1p23f;  // floats from here on are integers

// encode() of quant.h, in the low byte.
// NOTE: the quotient is rounded as a division rounds it. With the reciprocal r rounded to nearest,
// x r is within 2 ulp of x / scale, and the remainder is exact, a scale having 11 bits; the sum
// below could err only where the quotient is within 2^-23 ulp of the middle between two floats, and
// for the same reason none is within 2^-12. That is 3 instructions; a division takes 8 and a
// branch.
__device__ __forceinline__ std::uint32_t encode(float x, const ColumnScale& column) {
  x -= column.offset;
  const float quotient = x * column.reciprocal;
  const float remainder = fmaf(-column.scale, quotient, x);
  const float code = fmaf(remainder, column.reciprocal, quotient);
  return __float_as_uint(fminf(fmaxf(code, 0.0f), 255.0f) + kIntegers);  // NaN: 0
}

// The words of a tile: of the upper (x) and lower (y) plane.
__device__ __forceinline__ uint2 encode_tile(const std::uint32_t (&x)[4],
                                             const ColumnScale (&columns)[4]) {
  std::uint32_t bytes[2];  // codes of nibbles 0, 2, 4, 6 and 1, 3, 5, 7
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 a = __half22float2(as_half2(x[2 * i]));
    const float2 b = __half22float2(as_half2(x[2 * i + 1]));
    const ColumnScale &first = columns[2 * i], &second = columns[2 * i + 1];
    const std::uint32_t low = __byte_perm(encode(a.x, first), encode(b.x, first), 0x0040);
    const std::uint32_t high = __byte_perm(encode(a.y, second), encode(b.y, second), 0x0040);
    bytes[i] = __byte_perm(low, high, 0x5410);
  }
  return {select_bits(0x0f0f0f0f, bytes[0] >> 4, bytes[1]),
          select_bits(0x0f0f0f0f, bytes[0], bytes[1] << 4)};
}

// One warp: the codes of a strip, in place.
template <bool kValues>
__device__ __forceinline__ void encode_strip(const Panel<kValues>& panel, int strip,
                                             const ColumnScale (&columns)[4]) {
#pragma unroll 2
  for (int row = 0; row < panel.num_rows(); row += 16) {
    __half* tile = panel.tile(strip, row);
    std::uint32_t x[4];
    load_tile(panel, tile, x);
    const uint2 words = encode_tile(x, columns);
    __syncwarp();  // the tile is read
    *tile_words(panel, tile) = words;
  }
}

template <bool kValues>
__device__ __forceinline__ void quantize_panel(const PanelTask& task, int index, void* shared) {
  const Panel<kValues> panel(task.shape, index, shared);
  const PanelPlace place(task);
  for_each_piece(task, panel, place,
                 [](__half* staged, const __half* full) { copy_async16(staged, full); });
  commit_async_copies();
  const PanelUnit unit = panel_unit(task, panel, place);
  wait_async_copies<0>();
  __syncthreads();
  if (const int strip = threadIdx.x / 32; strip < panel.num_strips()) {
    ColumnScale columns[4];
    scale_strip(panel, strip, unit, columns);
    encode_strip(panel, strip, columns);
  }
  __syncthreads();
  store_words(task.shape, panel, unit);
}

// Shared memory: panel_bytes.
__global__ void __launch_bounds__(kPanelThreads)
    quantize_panels(const __grid_constant__ PanelTask task) {
  extern __shared__ uint4 shared[];
  if (!PanelPlace(task).has_unit(task)) return;
  const int keys = key_panels(task.shape), index = blockIdx.x;
  if (index < keys) return quantize_panel<false>(task, index, shared);
  quantize_panel<true>(task, index - keys, shared);
}

// --- the inverse ---------------------------------------------------------------------------------

// The scales of a lane's columns of a strip, without reciprocals.
__device__ __forceinline__ void load_scales(int strip, const PanelUnit& unit,
                                            ColumnScale (&columns)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 16 * strip + 2 * (threadIdx.x % 4) + i % 2 + 8 * (i / 2);
    columns[i] = {__half2float(unit.scale[column * unit.stride]),
                  __half2float(unit.offset[column * unit.stride])};
  }
}

// One warp: the values of a strip, in the place of its codes.
template <bool kValues>
__device__ __forceinline__ void decode_strip(const Panel<kValues>& panel, int strip,
                                             const ColumnScale (&columns)[4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 2
  for (int row = 0; row < panel.num_rows(); row += 16) {
    __half* tile = panel.tile(strip, row);
    const uint2 words = *tile_words(panel, tile);
    const std::uint32_t bytes[2] = {select_bits(0xf0f0f0f0, words.x << 4, words.y),
                                    select_bits(0xf0f0f0f0, words.x, words.y >> 4)};
    __syncwarp();  // the words are read
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // registers of the tile
      const auto value = [&](int k) {
        const std::uint32_t bits = __byte_perm(bytes[i / 2], __float_as_uint(kIntegers),
                                               0x7440 | (i % 2 + 2 * k));  // kIntegers + code
        const float code = __uint_as_float(bits) - kIntegers;
        const ColumnScale& column = columns[i / 2 * 2 + k];
        return column.offset + column.scale * code;
      };
      const std::uint32_t pair = as_word(__floats2half2_rn(value(0), value(1)));
      const int token = g + 8 * (kValues ? i / 2 : i % 2);
      const int channel = 2 * t + 8 * (kValues ? i % 2 : i / 2);
      *reinterpret_cast<std::uint32_t*>(tile + token * panel_stride(panel.num_channels) + channel) =
          kValues ? transpose8x8(pair) : pair;
    }
  }
}

template <bool kValues>
__device__ __forceinline__ void load_panel(const PanelTask& task, int index, void* shared) {
  const Panel<kValues> panel(task.shape, index, shared);
  const PanelPlace place(task);
  const PanelUnit unit = panel_unit(task, panel, place);
  const int strip = threadIdx.x / 32;
  const bool has_strip = strip < panel.num_strips();
  ColumnScale columns[4];
  if (has_strip) load_scales(strip, unit, columns);  // with the words, not after them
  load_words(task.shape, panel, unit);
  __syncthreads();
  if (has_strip) decode_strip(panel, strip, columns);
  __syncthreads();
  for_each_piece(task, panel, place, [](const __half* staged, __half* full) {
    *reinterpret_cast<uint4*>(full) = *reinterpret_cast<const uint4*>(staged);
  });
}

// Shared memory: panel_bytes.
__global__ void __launch_bounds__(kPanelThreads)
    load_panels(const __grid_constant__ PanelTask task) {
  extern __shared__ uint4 shared[];
  if (!PanelPlace(task).has_unit(task)) return;
  const int keys = key_panels(task.shape), index = blockIdx.x;
  if (index < keys) return load_panel<false>(task, index, shared);
  load_panel<true>(task, index - keys, shared);
}

}  // namespace quantspec::cuda
