#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/coded_linear.h"
#include "backend/cuda/linear_layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/row_upload.h"
#include "backend/params/linear.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerWarp = kTileRows / (kThreads / 32);
constexpr int kInputsPerLane = kPlaneUnit / 32;

// The codes of one unit of a tile, in shared memory, on their way into planes.
using UnitCodes = std::uint8_t[kTileRows][kMostUnit];

__device__ float as_float(float x) { return x; }
__device__ float as_float(__half x) { return __half2float(x); }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ float warp_min(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fminf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

// The codec of quant.h, operation by operation.
__device__ GroupScale scale_of_group(float min, float max, bool finite) {
  constexpr float kHalfMax = 65504.0f;
  if (!finite) return {0x7e00, 0x7e00};
  const float exact = (max * 0.5f - min * 0.5f) / ((255 - 2 * kCodeMargin) * 0.5f);
  const __half scale = __float2half_rn(fminf(exact, kHalfMax));
  const float margin = kCodeMargin * __half2float(scale);
  const float offset = fminf(fmaxf(min - margin + 0.0f, -kHalfMax), kHalfMax);
  return {__half_as_ushort(scale), __half_as_ushort(__float2half_rn(offset))};
}

__device__ std::uint8_t code_of(float x, GroupScale group) {
  const float scale = __half2float(__ushort_as_half(group.scale));
  const float offset = __half2float(__ushort_as_half(group.offset));
  if (!(scale > 0.0f)) return 0;
  return static_cast<std::uint8_t>(fminf(fmaxf(rintf((x - offset) / scale), 0.0f), 255.0f));
}

// Planes on their way; lower may be null.
struct PlaneMatrix {
  PlaneLayout layout;
  int rows, cols;
  std::byte* upper;
  std::byte* lower;

  __device__ std::size_t unit(int tile, int index) const {
    return static_cast<std::size_t>(tile) * layout.units + index;
  }
  __device__ std::byte* upper_unit(int tile, int index) const {
    return upper + unit(tile, index) * layout.upper_bytes();
  }
};

// Packs `bits` bits of each code of a unit, from bit `shift` on; all threads of the block.
__device__ void store_bits(const UnitCodes& codes, const PlaneLayout& layout, int bits, int shift,
                           std::byte* to) {
  const int fields = 8 / bits, words = kTileRows * layout.unit * bits / 32;
  for (int word = threadIdx.x; word < words; word += kThreads) {
    const int lane = word / bits % 32, span = word / bits / 32, first = word % bits * fields;
    std::uint32_t packed = 0;
    for (int i = 0; i < 4 * fields; ++i) {  // the inverse of code_word() and code_shift()
      const int q = first + i % fields, row = lane / 4 + q % 2 * 8;
      const int input =
          span * kSpanInputs + lane_input(layout.group, lane % 4, q / 2 * 4 + i / fields);
      const std::uint32_t code = codes[row][input];
      packed |= (code >> shift & ((1u << bits) - 1)) << (i / fields * 8 + i % fields * bits);
    }
    reinterpret_cast<std::uint32_t*>(to)[word] = packed;
  }
}
__device__ void store_codes(const UnitCodes& codes, const PlaneMatrix& to, int tile, int index) {
  const PlaneLayout& layout = to.layout;
  store_bits(codes, layout, 4, layout.lower_bits, to.upper_unit(tile, index));
  if (to.lower == nullptr || layout.lower_bits == 0) return;
  store_bits(codes, layout, layout.lower_bits, 0,
             to.lower + to.unit(tile, index) * layout.lower_bytes());
}
__device__ void store_scale(const PlaneLayout& layout, GroupScale scale, int row,
                            std::byte* scales) {
  auto* to = reinterpret_cast<std::uint16_t*>(scales) + scale_place(row) * layout.kinds();
  to[0] = scale.scale;
  if (layout.has_offset) to[1] = scale.offset;
}

// Block (unit, tile): quantizes 16 rows x one group of 128.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_units(const T* full, int stride, const PlaneMatrix to) {
  static_assert(kWeightGroup == kPlaneUnit);
  __shared__ UnitCodes codes;
  const int lane = threadIdx.x % 32;
  const int first_input = blockIdx.x * kPlaneUnit + lane * kInputsPerLane;
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int row = threadIdx.x / 32 * kRowsPerWarp + i;
    const int matrix_row = blockIdx.y * kTileRows + row;
    float x[kInputsPerLane];
    float min = INFINITY, max = -INFINITY;
    bool finite = true;
    for (int j = 0; j < kInputsPerLane; ++j) {
      const bool inside = matrix_row < to.rows && first_input + j < to.cols;
      x[j] = inside
                 ? as_float(full[static_cast<std::size_t>(matrix_row) * stride + first_input + j])
                 : 0.0f;
      if (!inside) continue;
      finite = finite && isfinite(x[j]);
      min = fminf(min, x[j]);
      max = fmaxf(max, x[j]);
    }
    min = warp_min(min);
    max = -warp_min(-max);
    finite = __all_sync(~0u, finite);
    const GroupScale group =
        matrix_row < to.rows ? scale_of_group(min, max, finite) : GroupScale{0, 0};
    for (int j = 0; j < kInputsPerLane; ++j) {
      const bool inside = first_input + j < to.cols;
      codes[row][lane * kInputsPerLane + j] = inside ? code_of(x[j], group) : 0;
    }
    if (lane == 0) {
      std::byte* const unit = to.upper_unit(blockIdx.y, blockIdx.x);
      store_scale(to.layout, group, row, unit + to.layout.scale_at(0));
    }
  }
  __syncthreads();
  store_codes(codes, to, blockIdx.y, blockIdx.x);
}

// Block (unit, tile): the same from rows that begin with those of first_tile.
__global__ void __launch_bounds__(kThreads)
    pack_units(const CodedRows from, int first_tile, const PlaneMatrix to) {
  __shared__ UnitCodes codes;
  const PlaneLayout& layout = to.layout;
  const int tile = first_tile + blockIdx.y, rows = to.rows - tile * kTileRows;
  const std::size_t first_row = static_cast<std::size_t>(blockIdx.y) * kTileRows;
  for (int i = threadIdx.x; i < kTileRows * layout.unit; i += kThreads) {
    const int row = i / layout.unit, col = blockIdx.x * layout.unit + i % layout.unit;
    const bool inside = row < rows && col < to.cols;
    codes[row][i % layout.unit] = inside ? from.codes[(first_row + row) * to.cols + col] : 0;
  }
  std::byte* const unit = to.upper_unit(tile, blockIdx.x);
  for (int i = threadIdx.x; i < kTileRows * layout.scales(); i += kThreads) {
    const int row = i % kTileRows, index = i / kTileRows;
    const int block = blockIdx.x * layout.scales() + index;
    const bool inside = row < rows && block < from.blocks;
    store_scale(layout,
                inside ? from.scales[(first_row + row) * from.blocks + block] : GroupScale{0, 0},
                row, unit + layout.scale_at(index));
  }
  for (int i = threadIdx.x; layout.two_levels && i < kTileRows * layout.groups(); i += kThreads) {
    const int row = i % kTileRows, index = i / kTileRows;
    const int group = blockIdx.x * layout.groups() + index;
    const bool inside = row < rows && group < from.groups;
    const std::size_t at = (first_row + row) * from.groups + group;
    const int place = layout.sub_place(row, index);
    unit[layout.sub_scales_at() + place] = std::byte(inside ? from.sub_scales[at] : 0);
    if (!layout.has_offset) continue;
    unit[layout.sub_offsets_at() + place] = std::byte(inside ? from.sub_offsets[at] : 0);
  }
  __syncthreads();
  store_codes(codes, to, tile, blockIdx.x);
}

PlaneLayout layout_of(const WeightFormat& w, int cols) {
  check(!w.dense(), "elements have no planes");
  if (!has_products(w)) {
    fail(ErrorKind::kUnsupportedModel,
         "weights of {} bits in groups of {} and blocks of {}: the GPU reads what GGUF's "
         "quantized types have, and 8 bits in groups of 32, 64 and 128",
         w.bits, w.group, w.block);
  }
  return {w, cols};
}

// The kernels of linear_planes.cuh know the layout of one format.
constexpr PlaneLayout kSliced(sliced_format(64), kPlaneUnit);
static_assert(kSliced.upper_bytes() == upper_unit_bytes(64) &&
              kSliced.lower_bytes() == kLowerUnitBytes && kSliced.unit == kPlaneUnit);

}  // namespace

PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) {
  const PlaneLayout layout = layout_of(format, cols);
  const std::size_t units = static_cast<std::size_t>(row_tiles(rows)) * layout.units;
  return {units * layout.upper_bytes(), units * layout.lower_bytes()};
}

void make_planes(Device& device, const Matrix& elements, std::byte* upper, std::byte* lower) {
  const PlaneMatrix to{layout_of(sliced_format(), elements.cols), elements.rows, elements.cols,
                       upper, lower};
  const dim3 grid(to.layout.units, row_tiles(elements.rows));
  const auto launch = [&]<typename T>(const T* data) {
    quantize_units<<<grid, kThreads, 0, device.stream()>>>(data, padded_cols(elements.cols), to);
    require_launch("make_planes");
  };
  switch (elements.format.dtype) {
    case DType::kF32:
      return launch(static_cast<const float*>(elements.data));
    case DType::kF16:
      return launch(static_cast<const __half*>(elements.data));
    case DType::kBF16:
      return launch(static_cast<const __nv_bfloat16*>(elements.data));
  }
}

void import_planes(Device& device, RowUpload& rows, const CodedMatrix& coded, std::byte* upper,
                   std::byte* lower) {
  const PlaneMatrix to{layout_of(coded.format, coded.cols), coded.rows, coded.cols, upper, lower};
  const int step = portion_rows(coded);
  for (int first = 0; first < coded.rows; first += step) {
    const int count = std::min(step, coded.rows - first);
    const CodedRows from = rows.upload(coded, first, count);
    const dim3 grid(to.layout.units, row_tiles(count));
    pack_units<<<grid, kThreads, 0, device.stream()>>>(from, first / kTileRows, to);
    require_launch("import_planes");
  }
}

}  // namespace quantspec::cuda
