#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/linear_layout.h"
#include "backend/cuda/ops.h"
#include "backend/params/linear.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerWarp = kTileRows / (kThreads / 32);
constexpr int kInputsPerLane = kPlaneUnit / 32;
static_assert(kThreads == kPlaneUnitWords && kInputsPerLane == 4);

// One unit of a tile, in shared memory, on its way into planes.
struct Unit {
  std::uint8_t codes[kTileRows][kPlaneUnit];
  GroupScale scales[kPlaneUnit / 64][kTileRows];  // [group, row]
};

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

// Writes a unit to its place; all threads of the block. lower may be null.
__device__ void store_unit(const Unit& unit, int group, std::byte* upper, std::byte* lower) {
  std::uint32_t high = 0, low = 0;
  // The inverse of weight_place().
  const int half = threadIdx.x / 128, lane = threadIdx.x / 4 % 32, word = threadIdx.x % 4;
  const int first_input = half * 64 + lane % 4 * 16 + word * 4;
#pragma unroll
  for (int nibble = 0; nibble < 8; ++nibble) {
    const std::uint32_t code = unit.codes[lane / 4 + nibble % 2 * 8][first_input + nibble / 2];
    high |= (code >> 4) << (4 * nibble);
    low |= (code & 15) << (4 * nibble);
  }
  reinterpret_cast<std::uint32_t*>(upper)[threadIdx.x] = high;
  if (lower != nullptr) reinterpret_cast<std::uint32_t*>(lower)[threadIdx.x] = low;
  const int groups = kPlaneUnit / group;
  if (threadIdx.x < groups * kTileRows) {
    const int row = threadIdx.x % kTileRows, index = threadIdx.x / kTileRows;
    auto* scales = reinterpret_cast<GroupScale*>(upper + kLowerUnitBytes) + index * kTileRows;
    scales[scale_place(row)] = unit.scales[index][row];
  }
}

struct PlaneMatrix {
  int rows, cols, group;
  std::byte* upper;
  std::byte* lower;
};

__device__ void store_unit(const Unit& unit, const PlaneMatrix& to, int tile, int index) {
  const std::size_t place = static_cast<std::size_t>(tile) * plane_units(to.cols) + index;
  store_unit(unit, to.group, to.upper + place * upper_unit_bytes(to.group),
             to.lower == nullptr ? nullptr : to.lower + place * kLowerUnitBytes);
}

// Block (unit, tile): quantizes 16 rows x one group of 128.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_units(const T* full, int stride, const PlaneMatrix to) {
  static_assert(kWeightGroup == kPlaneUnit);
  __shared__ Unit unit;
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
      unit.codes[row][lane * kInputsPerLane + j] = inside ? code_of(x[j], group) : 0;
    }
    if (lane == 0) unit.scales[0][row] = group;
  }
  __syncthreads();
  store_unit(unit, to, blockIdx.y, blockIdx.x);
}

// Block (unit, tile): the same from codes [rows, cols] and scales [rows, groups] of rows from
// first_tile * 16 on.
__global__ void __launch_bounds__(kThreads)
    pack_units(const std::uint8_t* codes, const GroupScale* scales, int first_tile,
               const PlaneMatrix to) {
  __shared__ Unit unit;
  const int tile = first_tile + blockIdx.y, groups = weight_groups(to.cols, to.group);
  for (int i = threadIdx.x; i < kTileRows * kPlaneUnit; i += kThreads) {
    const int row = i / kPlaneUnit, col = blockIdx.x * kPlaneUnit + i % kPlaneUnit;
    const bool inside = tile * kTileRows + row < to.rows && col < to.cols;
    const std::size_t from = static_cast<std::size_t>(blockIdx.y * kTileRows + row) * to.cols + col;
    unit.codes[row][i % kPlaneUnit] = inside ? codes[from] : 0;
  }
  const int unit_groups = kPlaneUnit / to.group;
  if (threadIdx.x < unit_groups * kTileRows) {
    const int row = threadIdx.x % kTileRows, index = threadIdx.x / kTileRows;
    const int group = blockIdx.x * unit_groups + index;
    const bool inside = tile * kTileRows + row < to.rows && group < groups;
    unit.scales[index][row] =
        inside ? scales[static_cast<std::size_t>(blockIdx.y * kTileRows + row) * groups + group]
               : GroupScale{0, 0};
  }
  __syncthreads();
  store_unit(unit, to, tile, blockIdx.x);
}

bool is_sliced(const WeightFormat& format) {
  return format == sliced_format(64) || format == sliced_format(128);
}

// Codes on their way to the device, at a time.
constexpr std::size_t kUploadBytes = std::size_t{32} << 20;

}  // namespace

PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) {
  check(is_sliced(format), "planes are in groups of 64 or 128 inputs");
  const std::size_t units = static_cast<std::size_t>(row_tiles(rows)) * plane_units(cols);
  return {units * upper_unit_bytes(format.group), units * kLowerUnitBytes};
}

void make_planes(Device& device, const Matrix& elements, std::byte* upper, std::byte* lower) {
  const PlaneMatrix to{elements.rows, elements.cols, kWeightGroup, upper, lower};
  const dim3 grid(plane_units(elements.cols), row_tiles(elements.rows));
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

void import_planes(Device& device, const CodedMatrix& coded, std::byte* upper, std::byte* lower) {
  check(is_sliced(coded.format), "planes are in groups of 64 or 128 inputs");
  const PlaneMatrix to{coded.rows, coded.cols, coded.format.group, upper, lower};
  const std::size_t row_scales = coded.format.groups(coded.cols);
  const std::size_t tile_codes = static_cast<std::size_t>(kTileRows) * coded.cols;
  const int tiles = row_tiles(coded.rows);
  const int step = std::clamp<int>(kUploadBytes / tile_codes, 1, tiles);
  const std::size_t code_bytes = (step * tile_codes + 255) / 256 * 256;
  const std::size_t scale_bytes = step * kTileRows * row_scales * sizeof(GroupScale);
  std::byte* scratch = device.scratch(Scratch::kWorkspace, code_bytes + scale_bytes);
  auto* codes = reinterpret_cast<std::uint8_t*>(scratch);
  auto* scales = reinterpret_cast<GroupScale*>(scratch + code_bytes);
  std::vector<std::uint8_t> host_codes(step * tile_codes);
  std::vector<GroupScale> host_scales(step * kTileRows * row_scales);
  for (int first = 0; first < tiles; first += step) {
    const std::size_t row = static_cast<std::size_t>(first) * kTileRows;
    const std::size_t rows = std::min<std::size_t>(step * kTileRows, coded.rows - row);
    for (std::size_t i = 0; i < rows; ++i) {
      coded.read(static_cast<int>(row + i),
                 {&host_codes[i * coded.cols], &host_scales[i * row_scales], nullptr, nullptr});
    }
    device.upload(codes, host_codes.data(), rows * coded.cols);
    device.upload(scales, host_scales.data(), rows * row_scales * sizeof(GroupScale));
    const dim3 grid(plane_units(coded.cols), std::min(step, tiles - first));
    pack_units<<<grid, kThreads, 0, device.stream()>>>(codes, scales, first, to);
    require_launch("import_planes");
  }
}

}  // namespace quantspec::cuda
