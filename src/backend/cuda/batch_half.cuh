// Weights of bf16 or fp16 for the kernel of batch_products.cuh, and activations beside them.
#pragma once

#include <iterator>
#include <span>

#include "backend/cuda/batch_items.cuh"
#include "backend/cuda/linear_full.cuh"

namespace quantspec::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp's ring of weights: all but what it multiplies is under way.
template <int kDepth>
class HalfWeights {
 public:
  using Full = FullFormat<__nv_bfloat16>;  // or __half: they lie alike

  __device__ HalfWeights(const BatchArgs& args, std::byte* ring)
      : args_(args),
        item_(blockIdx.x),
        ring_(shared_address(ring)),
        end_(ring_ + kDepth * Full::kUnitBytes),
        place_(ring_) {
    begin();
    for (int i = 0; i < kDepth; ++i) load();
  }
  // The next stage, to be given back before the one after it is asked for.
  __device__ std::uint32_t next() {
    wait_async_copies<kDepth - 1>();
    __syncwarp();
    return place_;
  }
  __device__ void give_back() {
    __syncwarp();
    load();
  }
  __device__ void finish() { wait_async_copies<0>(); }

 private:
  // Finds the next item that has units.
  __device__ void begin() {
    for (; units_ == 0 && item_ < args_.items; item_ += gridDim.x) {
      const BatchItem<Full::kUnit> item(args_, item_);
      units_ = item.end_unit - item.unit;
      const BatchTile at(args_, item.row_block * kBatchWarps + warp_index());
      const int lane = threadIdx.x % 32;
      from_ = args_.data[at.source] +
              static_cast<std::size_t>(at.tile * args_.tile_rows + lane / 8) * args_.stride +
              item.unit * Full::kRowBytes + lane % 8 * 16;
    }
  }
  __device__ void load() {
    if (units_ > 0) {
      const int lane = threadIdx.x % 32;
      const std::uint32_t to = place_ + Full::piece_at(lane / 8, lane % 8);
      const std::byte* const second = from_ + args_.second_half;
      copy_stream16(to, from_);
      copy_stream16(to + 4 * Full::kRowBytes, from_ + 4 * args_.stride);
      copy_stream16(to + 8 * Full::kRowBytes, second);
      copy_stream16(to + 12 * Full::kRowBytes, second + 4 * args_.stride);
      from_ += Full::kRowBytes;
      if (--units_ == 0) begin();
    }
    commit_async_copies();
    place_ += Full::kUnitBytes;
    if (place_ == end_) place_ = ring_;
  }

  const BatchArgs& args_;
  int item_;  // the next
  std::uint32_t ring_, end_, place_;
  int units_ = 0;  // left of the item
  const std::byte* from_ = nullptr;
};

#endif

inline constexpr int kHalfOperandWarps = 8;  // a unit each
template <typename T>
__global__ void make_half_operands(const __grid_constant__ OperandArgs args);

// The order of a row's sum is that of FullFormat: a product of 16 terms has those inputs in those
// places that it has there (lane 4 g + t has inputs 8 t .. 8 t + 7 of every 32), and hi and lo have
// sums of their own until a segment ends. Of fp16 a unit's products are added to those, times a
// power of two of the row and unit, which is behind the unit's operands.
template <typename T>
struct BatchHalf {
  using Full = FullFormat<T>;
  static constexpr bool kHalf = Full::kHalf;
  static constexpr int kUnit = Full::kUnit;
  static constexpr int kSteps = kUnit / 16;
  static constexpr int kUpper = 0, kLower = 0;
  static constexpr int kWeightBytes = Full::kUnitBytes;  // of a unit of a tile
  static constexpr int kAllKernelRows[] = {32, 48, 64, 80, 96, 128, 160};
  // Of fp16 up to 64: registers have a unit's products beside the sums.
  static constexpr std::span kKernelRows{kAllKernelRows, kHalf ? 3 : std::size(kAllKernelRows)};
  static constexpr int kTiles(int) { return 1; }  // of a warp
  // NOTE: measured on an H200 (docs/decisions/0018): at 64 rows 7B's gate and up take less with
  // four segments to an item, as 7 makes it, than with all eight, as 5 would.
  static constexpr int kProductTime(int rows) { return rows > 64 ? 8 : rows > 48 ? 7 : 5; }
  static constexpr int kDepth(int rows) { return rows > 32 ? 4 : 8; }  // stages of a warp's weights
  // Of a unit, a stage each.
  static constexpr int kParts(int rows) { return rows > 32 && !kHalf ? 2 : 1; }
  // Of operands, where left sums of so many levels have shared memory.
  static constexpr int kStagesBeside(int rows, int levels) {
    return (kBatchRingBytes - kBatchWarps * kDepth(rows) * kWeightBytes -
            left_sums_bytes(rows, kBatchWarps, levels)) /
           ((operand_bytes(rows, kSteps) + kRecordBytes(rows)) / kParts(rows));
  }
  // NOTE: measured on an H200, of bf16 (docs/decisions/0018): 80 rows take 11% less with 8 stages
  // and two levels than with 4 and three; 128 rows 18% more with 10 and none than with 6 and one.
  static constexpr int kSharedLevels(int rows) {
    int levels = kSumLevels;
    while (levels > 1 && kStagesBeside(rows, levels) < 6) --levels;
    return levels;
  }
  static constexpr int kStages(int rows) { return kStagesBeside(rows, kSharedLevels(rows)); }
  static constexpr int kRecordBytes(int rows) {  // of a unit, beside operands
    return kHalf ? rows * static_cast<int>(sizeof(float)) : 0;
  }
  static constexpr bool kHalvesTiles = true;  // of gate and up
  static constexpr bool kOwnRings = true;     // of weights

  static auto operand_kernel() { return make_half_operands<T>; }
  static constexpr int kOperandThreads = 32 * kHalfOperandWarps;
  static dim3 operand_grid(int rows, int bands) {
    const int units = divide_up(bands, kSegments) * (kBandInputs / kUnit);
    return dim3(rows / 8, kSegments, divide_up(units, kHalfOperandWarps));
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  template <int kRows>
  using Weights = HalfWeights<kDepth(kRows)>;

  // A lane's weights of half a unit.
  struct PartWeights {
    std::uint32_t a[2 * kSteps];

    __device__ __forceinline__ void load(std::uint32_t stage, int half) {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
      const std::uint32_t rows = stage + (Full::piece_at(g, t) ^ half * 64);
      const uint4 first = load_shared16(rows), second = load_shared16<8 * Full::kRowBytes>(rows);
      const std::uint32_t x[8] = {first.x, second.x, first.y, second.y,
                                  first.z, second.z, first.w, second.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] = x[i];
#pragma unroll
      for (std::uint32_t& x : a) asm volatile("" : "+r"(x));  // operands before products begin
    }
  };
  // A lane's sums of a segment: hi and lo of 8 rows, of the next 8, ..: each a C fragment.
  template <int kRows>
  struct Sums {
    static constexpr int kProducts = kRows > 128 ? 2 : 1;  // side by side
    static constexpr int kColumns = kRows / kProducts;     // rows of a product

    float of[kProducts][kColumns];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (auto& product : of) {
#pragma unroll
        for (float& sum : product) sum = 0.0f;
      }
    }
    // Adds so many units.
    template <typename Ring>
    __device__ __forceinline__ void add(int units, Weights<kRows>& weights, Ring& ring) {
      if (units == 0) return;
      if constexpr (kHalf) {
        add_scaled(units, weights, ring);
      } else {
        add_all(units, weights, ring);
      }
    }
    __device__ __forceinline__ void get(float (&v)[kRows / 2]) const {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const float* const hi = of[2 * i / kColumns] + 2 * i % kColumns / 8 * 8 + i % 4;
        v[i] = hi[0] + hi[4];
      }
    }

   private:
    // Weights of half a unit come to registers while products of the half before it are under way.
    template <typename Ring>
    __device__ __forceinline__ void add_all(int units, Weights<kRows>& weights, Ring& ring) {
      constexpr bool kApart = kParts(kRows) == 2;
      PartWeights first, second;
      std::uint32_t stage = weights.next();
      first.load(stage, 0);
      int under_way = -1;  // operands
#pragma unroll 1
      for (;;) {
        begin(first, ring.wait());
        products_wait<1>();
        if (under_way >= 0) ring.give_back(under_way);
        if constexpr (kApart) under_way = ring.advance();
        second.load(stage, 1);
        begin(second, kApart ? ring.wait() : ring.operands() + operand_bytes(kRows, kSteps) / 2);
        weights.give_back();
        products_wait<1>();
        if constexpr (kApart) ring.give_back(under_way);
        under_way = ring.advance();
        if (--units == 0) break;
        stage = weights.next();
        first.load(stage, 0);
      }
#pragma unroll
      for (auto& product : of) products_wait<0>(product);
      ring.give_back(under_way);
    }
    // Products of a unit, then their sums: two warpgroups take turns with the matrix units.
    template <typename Ring>
    __device__ __forceinline__ void add_scaled(int units, Weights<kRows>& weights, Ring& ring) {
      static_assert(kProducts == 1 && kParts(kRows) == 1);
      PartWeights first, second;
      float products[kColumns];
#pragma unroll 1
      for (; units > 0; --units) {
        const std::uint32_t stage = weights.next();
        first.load(stage, 0);
        second.load(stage, 1);
        weights.give_back();
        const std::uint32_t operands = ring.wait();
        products_begin();
        multiply<false>(products, first, operands, 0);
        multiply<true>(products, first, operands, 1);
        multiply<true>(products, second, operands, 2);
        multiply<true>(products, second, operands, 3);
        products_commit();
        products_wait<0>(products);
        const std::uint32_t records =
            operands + operand_bytes(kRows, kSteps) + threadIdx.x % 4 * 2 * sizeof(float);
#pragma unroll
        for (int group = 0; group < kRows / 8; ++group) {
          const uint2 inverse = load_shared8(records + 8 * group * sizeof(float));
#pragma unroll
          for (int i = 8 * group; i < 8 * group + 8; ++i) {
            const float factor = __uint_as_float(i % 2 == 0 ? inverse.x : inverse.y);
            of[0][i] = fmaf(products[i], factor, of[0][i]);
          }
        }
        loads_before_copies();
        ring.give_back(ring.advance());
      }
    }
    template <bool kAdd>
    __device__ __forceinline__ static void multiply(float (&products)[kColumns],
                                                    const PartWeights& part, std::uint32_t operands,
                                                    int step) {
      wgmma_fp16<kAdd>(products, part.a + step % 2 * 4, operand_of_step<kRows>(operands, step));
    }
    __device__ __forceinline__ void begin(const PartWeights& part, std::uint32_t operands) {
      products_begin();
#pragma unroll
      for (int i = 0; i < kSteps / 2; ++i) {
#pragma unroll
        for (int j = 0; j < kProducts; ++j) {
          wgmma_bf16<true>(of[j], part.a + 4 * i,
                           operand_of_step<kRows>(operands + j * (kColumns / 8 * kGroupBytes), i));
        }
      }
      products_commit();
    }
  };
#endif
};

// A lane's inputs of a unit.
__device__ __forceinline__ void load_unit(const float* row, int unit, int cols, bool aligned,
                                          float4 (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float4 part[1];
    load_inputs(row, unit * kHalfSizes.unit + i / 2 * 32 + threadIdx.x % 4 * 8 + i % 2 * 4, cols,
                aligned, part);
    x[i] = part[0];
  }
}

// A block has kHalfOperandWarps units of a segment of 8 rows. The first of a segment adds up
// squares, in the order of units. NOTE: the kernel after it reads nothing early but weights, so it
// may come at once.
template <typename T>
__global__ void __launch_bounds__(32 * kHalfOperandWarps)
    make_half_operands(const __grid_constant__ OperandArgs args) {
  using Format = BatchHalf<T>;
  constexpr int kUnit = Format::kUnit;
  __shared__ float4 shared[kHalfOperandWarps][4][32];
  const int lane = threadIdx.x % 32, warp = warp_index();
  const int groups = gridDim.x, row = 8 * blockIdx.x + lane / 4, segment = blockIdx.y;
  const int first = first_unit<kUnit>(args.bands, args.units, segment);
  const int end = first_unit<kUnit>(args.bands, args.units, segment + 1);
  const int own = first + kHalfOperandWarps * blockIdx.z + warp;
  const bool there = row < args.num_rows, normed = args.norm != nullptr;
  const bool aligned = args.x_stride % 4 == 0;
  const float* const from = args.x + static_cast<std::ptrdiff_t>(row) * args.x_stride;
  let_next_kernel_start();
  float4 x[4] = {}, weights[4];
  if (normed && own < end) load_unit(args.norm, own, args.cols, aligned, weights);
  wait_for_previous_kernels();
  if (there && own < end) load_unit(from, own, args.cols, aligned, x);
  if (normed && blockIdx.z == 0) {
    float square = 0.0f;
    float4 next[4] = {x[0], x[1], x[2], x[3]};
    for (int unit = own;;) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[warp][i][lane] = next[i];
      __syncthreads();
      const int left = end - unit;  // of warp 0
      for (int i = 0; warp == 0 && i < min(left, kHalfOperandWarps); ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 v = shared[i][j][lane];
          square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
        }
      }
      unit += kHalfOperandWarps;
      if (unit - warp >= end) break;
      if (there && unit < end) load_unit(from, unit, args.cols, aligned, next);
      __syncthreads();
    }
    square = warp_sum(square, 4);
    if (threadIdx.x < 32 && threadIdx.x % 4 == 0) {
      args.squares[segment * 8 * groups + row] = square;
    }
  }
  if (own >= end) return;
  const int operands = operand_bytes(8 * groups, Format::kSteps);
  std::byte* const of_unit =
      args.operands + static_cast<std::size_t>(own) * (operands + Format::kRecordBytes(8 * groups));
  std::byte* to = of_unit + blockIdx.x * kGroupBytes + lane * 4;
  if (normed) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float4& v = x[i];
      const float4 w = weights[i];
      v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
  }
  if constexpr (Format::kHalf) {
    const PowerOfTwo power = scale_to_half(Format::Full::greatest(x));
#pragma unroll
    for (float4& v : x) {
      v = {v.x * power.scale, v.y * power.scale, v.z * power.scale, v.w * power.scale};
    }
    if (lane % 4 == 0) reinterpret_cast<float*>(of_unit + operands)[row] = power.inverse;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 v = x[i];
    std::uint32_t high[2], low[2];
    Format::Full::split(v.x, v.y, high[0], low[0]);
    Format::Full::split(v.z, v.w, high[1], low[1]);
#pragma unroll
    for (int places = 0; places < 2; ++places) {
      std::byte* const matrix = to + places * kMatrixBytes;
      *reinterpret_cast<std::uint32_t*>(matrix) = high[places];
      *reinterpret_cast<std::uint32_t*>(matrix + 2 * kMatrixBytes) = low[places];
    }
    to += groups * kGroupBytes;
  }
}

}  // namespace quantspec::cuda
