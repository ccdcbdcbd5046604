// Planes in groups of 128 for the kernel of batch_products.cuh, and activations beside them.
#pragma once

#include <cfloat>

#include "backend/cuda/batch_items.cuh"
#include "backend/cuda/linear_planes.cuh"

namespace quantspec::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp's ring of units of its tile, by bulk copies: all but what it multiplies is under way.
template <int kDepth, int kUpper, int kLower>
class PlaneWeights {
 public:
  __device__ PlaneWeights(const BatchArgs& args, std::byte* ring, std::uint64_t* full)
      : args_(args), item_(blockIdx.x), ring_(shared_address(ring)), full_(full) {
    if (elect_one()) {
      for (int i = 0; i < kDepth; ++i) barrier_init(full + i, 1);
      barrier_init_fence();
    }
    __syncwarp();
    begin();
    for (int i = 0; i < kDepth; ++i) load();
  }
  // The next stage, to be given back before the one after it is asked for.
  __device__ std::uint32_t next() {
    barrier_wait(full_ + place_.stage, place_.parity);
    return ring_ + place_.stage * (kUpper + kLower);
  }
  __device__ void give_back() {
    __syncwarp();
    place_.advance();
    load();
  }
  __device__ void finish() {}

 private:
  // Finds the next item that has units.
  __device__ void begin() {
    for (; units_ == 0 && item_ < args_.items; item_ += gridDim.x) {
      const BatchItem<kPlaneUnit> item(args_, item_);
      const BatchTile at(args_, item.row_block);
      units_ = item.end_unit - item.unit;
      upper_ = args_.data[at.source] + at.tile * args_.stride + item.unit * kUpper;
      if (kLower > 0) {
        lower_ = args_.lower[at.source] + at.tile * args_.lower_stride + item.unit * kLower;
      }
    }
  }
  __device__ void load() {
    if (units_ == 0) return;
    const std::uint32_t to = ring_ + loading_ * (kUpper + kLower);
    if (elect_one()) {
      barrier_expect(full_ + loading_, kUpper + kLower);
      copy_bulk_once(to, upper_, kUpper, full_ + loading_);
      if (kLower > 0) copy_bulk_once(to + kUpper, lower_, kLower, full_ + loading_);
    }
    upper_ += kUpper;
    lower_ += kLower;
    if (++loading_ == kDepth) loading_ = 0;
    if (--units_ == 0) begin();
  }

  const BatchArgs& args_;
  int item_;  // the next
  std::uint32_t ring_;
  std::uint64_t* full_;
  RingPlace<kDepth> place_;
  int loading_ = 0;  // stage
  int units_ = 0;    // left of the item
  const std::byte *upper_ = nullptr, *lower_ = nullptr;
};

#endif

// Products are the integers of PlaneFormat, whose order of additions is the units'. Of a unit, 128
// inputs and one group, a step has inputs 16 t + 8 i .. + 7 of a span of 64 (lane 4 g + t; i = 0
// for steps 0 and 2), in places 4 t .. 4 t + 3 of both halves. Behind the operands of a unit there
// is a record for each row: step, (sum of x') step. Of upper nibbles alone, rows r + 8 of weights
// are 16 u: a mask for each word, where PlaneFormat subtracts for each sum.
template <bool kBoth>
struct BatchPlanes {
  static constexpr bool kBothPlanes = kBoth;
  static constexpr int kGroup = 128;
  using Planes = PlaneFormat<kBoth, kGroup, 1>;
  static constexpr int kUnit = kPlaneUnit;
  static constexpr int kUpper = upper_unit_bytes(kGroup), kLower = kBoth ? kLowerUnitBytes : 0;
  static constexpr int kWeightBytes = kUpper + kLower;
  static constexpr int kMostRows = kMostBatchRows;
  static constexpr int kDepth = kBoth ? 8 : 14;
  static constexpr int kStages(int rows) { return rows == 64 ? (kBoth ? 5 : 6) : (kBoth ? 7 : 9); }
  static constexpr int kRecordBytes(int rows) { return sizeof(float2) * rows; }
  static constexpr bool kHalvesTiles = false;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Weights = PlaneWeights<kDepth, kUpper, kLower>;

  struct UnitWeights {
    std::uint32_t a[4 * kBatchSteps];
    float2 low, high;  // scale and offset of rows g and g + 8

    __device__ __forceinline__ explicit UnitWeights(std::uint32_t stage) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int span = 0; span < 2; ++span) {
        const std::uint32_t from = stage + span * 512 + lane * 16;
        const uint4 upper = load_shared16(from);
        const uint4 lower = kBoth ? load_shared16<kUpper>(from) : uint4{};
        std::uint32_t* const to = a + 8 * span;
        Planes::bytes(upper.x, lower.x, to[0], to[1]);
        Planes::bytes(upper.y, lower.y, to[2], to[3]);
        Planes::bytes(upper.z, lower.z, to[4], to[5]);
        Planes::bytes(upper.w, lower.w, to[6], to[7]);
        if constexpr (!kBoth) {
#pragma unroll
          for (int i = 1; i < 8; i += 2) to[i] &= 0xf0f0f0f0;
        }
      }
#pragma unroll
      for (std::uint32_t& x : a) asm volatile("" : "+r"(x));  // operands before products begin
      const uint2 stored = load_shared8(stage + 4 * kPlaneUnitWords + lane / 4 * 8);
      low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
      high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
    }
  };
  // [4 i] to [4 i + 3]: as for_rows() has them.
  template <int kRows>
  struct Sums {
    float of[kRows / 2];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (float& sum : of) sum = 0.0f;
    }
    // NOTE: 32 rows at a time: registers do not suffice for the integers of more.
    __device__ __forceinline__ void add(const UnitWeights& lane, std::uint32_t operands) {
#pragma unroll
      for (int part = 0; part < kRows / 32; ++part) {
        std::int32_t dots[32];
        products_begin();
        multiply(lane, operands, part, dots);
        products_wait<0>(dots);
        add_part(lane, operands, part, dots);
      }
      __syncwarp();  // all lanes have read records
    }
    __device__ __forceinline__ void multiply(const UnitWeights& lane, std::uint32_t operands,
                                             int part, std::int32_t (&dots)[32]) {
      operands += part * 4 * kGroupBytes;
      wgmma_bytes<false>(dots, lane.a, operand_of_step<kRows>(operands, 0));
#pragma unroll
      for (int i = 1; i < kBatchSteps; ++i) {
        wgmma_bytes<true>(dots, lane.a + 4 * i, operand_of_step<kRows>(operands, i));
      }
      products_commit();
    }
    // NOTE: m scale, step instead of scale, m step: m and steps are powers of two, so the product
    // is the same.
    __device__ __forceinline__ void add_part(const UnitWeights& lane, std::uint32_t operands,
                                             int part, const std::int32_t (&dots)[32]) {
      const std::uint32_t records =
          operands + operand_bytes(kRows) + (32 * part + threadIdx.x % 4 * 2) * sizeof(float2);
      const float scale_low = Planes::kStep * lane.low.x;
      const float of_low = fmaf(Planes::kValue, lane.low.x, lane.low.y);
      const float of_high = fmaf(Planes::kValue, lane.high.x, lane.high.y);
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        const uint4 both = load_shared16(records + 8 * group * sizeof(float2));
        const std::uint32_t steps[] = {both.x, both.z}, x_sums[] = {both.y, both.w};
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const float step = __uint_as_float(steps[column]);
          const float x_sum = __uint_as_float(x_sums[column]);
          const std::int32_t* const hi = dots + 8 * group + column;
          float& low = of[16 * part + 4 * group + column];
          float& high = of[16 * part + 4 * group + 2 + column];
          low = fmaf(__fmul_rn(scale_low, step), static_cast<float>(hi[0] * 256 + hi[4]),
                     fmaf(of_low, x_sum, low));
          high = fmaf(__fmul_rn(lane.high.x, step), static_cast<float>(hi[2] * 256 + hi[6]),
                      fmaf(of_high, x_sum, high));
        }
      }
    }
    __device__ __forceinline__ void get(float (&v)[kRows / 2]) const {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) v[i] = of[i];
    }
  };
#endif
};

inline constexpr int kPlaneOperandWarps = 4;  // rows of a block, gridDim.x of these

// A warp has a segment of a row, band by band, as the kernel of a few rows prepares them.
// NOTE: the kernel after it reads nothing early but weights, so it may come at once.
template <bool kBoth>
__global__ void __launch_bounds__(32 * kPlaneOperandWarps)
    make_plane_operands(const __grid_constant__ OperandArgs args) {
  using Planes = typename BatchPlanes<kBoth>::Planes;
  const int rows = kPlaneOperandWarps * gridDim.x, lane = threadIdx.x % 32;
  const int row = kPlaneOperandWarps * blockIdx.x + warp_index(), segment = blockIdx.y;
  const int first = first_unit<kPlaneUnit>(args.bands, args.units, segment);
  const int end = first_unit<kPlaneUnit>(args.bands, args.units, segment + 1);
  const bool there = row < args.num_rows, aligned = args.x_stride % 4 == 0;
  const float* const from = args.x + static_cast<std::ptrdiff_t>(row) * args.x_stride;
  const std::size_t unit_bytes = operand_bytes(rows) + BatchPlanes<kBoth>::kRecordBytes(rows);
  // Of inputs 4 lane .. of a unit: the word of 16 t + 4 q of span lane / 16.
  const int t = lane % 16 / 4, q = lane % 4, step = lane / 16 * 2 + q / 2;
  std::byte* to = args.operands + first * unit_bytes + (step * rows / 8 + row / 8) * kGroupBytes +
                  q % 2 * kMatrixBytes + row % 8 * 16 + t * 4;
  auto* record =
      reinterpret_cast<float2*>(args.operands + first * unit_bytes + operand_bytes(rows)) + row;
  let_next_kernel_start();
  wait_for_previous_kernels();
  constexpr int kBatch = 4;  // whose loads are under way together
  float square = 0.0f;
  for (int unit = first; unit < end; unit += kBatch) {
    float4 x[kBatch] = {}, weights[kBatch];
    const int input = unit * kPlaneUnit + 4 * lane, stop = min(end * kPlaneUnit, args.cols);
    if (there) load_inputs(from, input, stop, aligned, x);
    if (args.norm != nullptr) load_inputs(args.norm, input, stop, aligned, weights);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (unit + i >= end) break;
      float4 v = x[i];
      if (args.norm != nullptr) {
        square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
        const float4 w = weights[i];
        v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      }
      const float max = greatest<32>(v);
      const PowerOfTwo power = activation_power(max);
      const ActivationBytes bytes = activation_bytes(v, power.scale);
      const int sum = __reduce_add_sync(~0u, bytes.sum);
      *reinterpret_cast<std::uint32_t*>(to) = bytes.hi;
      *reinterpret_cast<std::uint32_t*>(to + 2 * kMatrixBytes) = bytes.lo;
      const float inverse = max <= FLT_MAX ? power.inverse : NAN;
      if (lane == 0) *record = {inverse, static_cast<float>(sum) * inverse};
      to += unit_bytes;
      record = reinterpret_cast<float2*>(reinterpret_cast<std::byte*>(record) + unit_bytes);
    }
  }
  square = warp_sum(square);
  if (args.norm != nullptr && lane == 0) args.squares[segment * rows + row] = square;
}

}  // namespace quantspec::cuda
