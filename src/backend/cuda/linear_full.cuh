// Formats (linear_inputs.cuh) of matrices at full precision.
#pragma once

#include <type_traits>

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// --- full precision, 16 bits ---------------------------------------------------------------------

// Activations are A here, weights B. x is split into two parts of the weights' type, x = hi + lo to
// 16 bits and more; of activation row g they are rows g and g + 8 of A, whose sums meet in one
// lane. They are not prepared: a stage has those of its unit as they are, and each warp makes
// operands of them. That is done again for every pair of tiles, but nothing waits for it, and
// shared memory holds weights.
template <typename T>
struct FullFormat {
  static constexpr LinearSizes kSizes = kHalfSizes;
  static constexpr int kUnit = kSizes.unit;
  static constexpr int kTogether = kSizes.together;
  static constexpr int kStageUnits = kSizes.stage_units;
  static constexpr bool kPlanes = kSizes.planes;
  static constexpr bool kHalf = std::is_same_v<T, __half>;
  static constexpr bool kOfEachOp = true;
  static constexpr int kRowBytes = 2 * kUnit;  // of a stage; 8 pieces of 16 bytes
  static constexpr int kUnitStep = kRowBytes;
  static constexpr int kLowerStep = 0;
  static constexpr int kUnitBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = kSizes.stage;
  static_assert(kStageBytes == kTogether * kUnitBytes);
  static constexpr int kStreamedBytes = kSizes.streamed;  // 16 pieces
  static constexpr int max_rows(int tiles) { return tiles * 8; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][2][4];  // of 8 rows of the tile each

  // A stage is [row, piece], with pieces exchanged in odd rows so that 8 lanes that read two rows
  // meet different banks; then activation rows, and the norm's weights as a last one.
  __device__ static int piece_at(int row, int piece) {
    return row * kRowBytes + (piece ^ (row % 2 * 4)) * 16;
  }
  __device__ static int input_piece_at(int row, int piece) {
    return kStageBytes + row * kStreamedBytes + (piece ^ row % 2) * 16;
  }
  __device__ static int norm_at(const LinearArgs& args) {
    return kStageBytes + args.num_rows * kStreamedBytes;
  }

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    const int lane = threadIdx.x % 32;
    return {source.data + (static_cast<std::size_t>(tile) * kTileRows + lane / 8) * args.stride +
                unit * kRowBytes + lane % 8 * 16,
            nullptr};
  }
  __device__ static void load(const LinearArgs& args, WeightPlace& place, std::uint32_t stage) {
    const int lane = threadIdx.x % 32;
    const std::byte* from = place.data;
    stage += piece_at(lane / 8, lane % 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_stream16(stage + i * 4 * kRowBytes, from);
      from += 4 * args.stride;
    }
    place.data += kRowBytes;
  }

  // A lane copies a piece of every second activation row, of row lane / 16 and on.
  __device__ static const float* begin_inputs(const LinearArgs& args) {
    const int lane = threadIdx.x % 32;
    return row_of(args, lane / 16) + lane % 16 * 4;
  }
  // Those of a unit, and of the norm's weights if there are.
  template <int kTiles>
  __device__ static void load_inputs(const LinearArgs& args, const InputPlace& place, int unit,
                                     std::uint32_t stage) {
    if (!place.aligned || (unit + 1) * kUnit > args.cols) {
      return load_inputs_with_care(args, unit, stage);
    }
    const int lane = threadIdx.x % 32, first = lane / 16;
    const float* from = place.data + unit * kUnit;
    const std::uint32_t to = stage + input_piece_at(first, lane % 16);
#pragma unroll
    for (int i = 0; i < max_rows(kTiles); i += 2) {
      if (first + i < args.num_rows) copy_stream16(to + i * kStreamedBytes, from);
      from += 2 * args.x_stride;
    }
    if (place.normed && first == 0) {
      copy_stream16(stage + norm_at(args) + lane * 16, args.norm.weight + unit * kUnit + lane * 4);
    }
  }
  // Where rows are not aligned, or end within the unit.
  __device__ static __noinline__ void load_inputs_with_care(const LinearArgs& args, int unit,
                                                            std::uint32_t stage) {
    const int lane = threadIdx.x % 32, input = unit * kUnit + lane % 16 * 4;
    for (int row = lane / 16; row <= args.num_rows; row += 2) {
      const bool norm = row == args.num_rows;
      if (norm && args.norm.weight == nullptr) continue;
      float4 x[1];
      cuda::load_inputs(norm ? args.norm.weight : row_of(args, row), input, args.cols, false, x);
      const int to = norm ? norm_at(args) + lane % 16 * 16 : input_piece_at(row, lane % 16);
      *static_cast<float4*>(__cvta_shared_to_generic(stage + to)) = x[0];
    }
  }
  __device__ static const float* row_of(const LinearArgs& args, int row) {
    return args.x + static_cast<std::size_t>(args.first_row + row) * args.x_stride;
  }

  // What a lane makes operands of: rows 8 m + g.
  template <int kTiles>
  struct OperandPlaces {
    // Where in a stage its inputs are, 8 t .. 8 t + 3 of every 32; the next 4 are 16 bytes on or,
    // of odd rows, back. Rows beyond the last are the last.
    int inputs[kTiles];
    int norm;       // where its weights are
    bool normed;    // whether there are
    bool squaring;  // of the first tiles, in one warp of a segment
    float squares[kTiles];

    __device__ OperandPlaces(const LinearArgs& args, bool normed, bool first_of_segment)
        : normed(normed), squaring(normed && first_of_segment), squares{} {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        inputs[m] = input_piece_at(min(8 * m + g, args.num_rows - 1), 2 * t);
      }
      norm = (normed ? norm_at(args) : kStageBytes) + t * 32;
    }
    // Calls f(activation row, sum of the squares of its inputs of the segment), once.
    template <typename F>
    __device__ void for_each_square(const LinearArgs& args, const F& f) {
      if (!squaring) return;
      squaring = false;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const float square = warp_sum(squares[m], 4);
        const int row = 8 * m + threadIdx.x % 32 / 4;
        if (threadIdx.x % 4 == 0 && row < args.num_rows) f(row, square);
      }
    }
  };

  // The greatest magnitude of a row's inputs in the unit; a NaN is greater than infinity.
  __device__ static float greatest(const float4 (&x)[4]) {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (const float v : {x[i].x, x[i].y, x[i].z, x[i].w}) {
        most = max(most, __float_as_uint(v) & 0x7fffffff);
      }
    }
    for (int i = 1; i < 4; i *= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
    return __uint_as_float(most);
  }

  __device__ static void split(float a, float b, std::uint32_t& high, std::uint32_t& low) {
    if constexpr (kHalf) {
      const __half2 h = __floats2half2_rn(a, b);
      const __half2 l = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
      high = reinterpret_cast<const std::uint32_t&>(h);
      low = reinterpret_cast<const std::uint32_t&>(l);
    } else {
      const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
      high = reinterpret_cast<const std::uint32_t&>(h);
      const float high_a = __uint_as_float(high << 16), high_b = __uint_as_float(high & ~0xffffu);
      const __nv_bfloat162 l = __floats2bfloat162_rn(a - high_a, b - high_b);
      low = reinterpret_cast<const std::uint32_t&>(l);
    }
  }

  // Calls between() when the stage has been read.
  template <bool kNormed, int kTiles, typename F>
  __device__ static void multiply(OperandPlaces<kTiles>& lane, std::uint32_t stage,
                                  Sums<kTiles>& sums, const F& between) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Inputs 8 t .. 8 t + 7 of each half of the unit.
    const auto load = [](std::uint32_t place, std::uint32_t next, float4(&x)[4]) {
      x[0] = as_floats(load_shared16(place));
      x[1] = as_floats(load_shared16(next));
      x[2] = as_floats(load_shared16<kStreamedBytes / 2>(place));
      x[3] = as_floats(load_shared16<kStreamedBytes / 2>(next));
    };
    float4 x[kTiles][4], norm[4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      load(stage + lane.inputs[m], (stage + lane.inputs[m]) ^ 16, x[m]);
    }
    if constexpr (kNormed) load(stage + lane.norm, stage + lane.norm + 16, norm);
    uint4 b[2][2][2];  // half, tile, rows
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t place = stage + piece_at(g, 4 * half + t);
      b[half][0][0] = load_shared16(place);
      b[half][0][1] = load_shared16<8 * kRowBytes>(place);
      b[half][1][0] = load_shared16<kUnitBytes>(place);
      b[half][1][1] = load_shared16<kUnitBytes + 8 * kRowBytes>(place);
    }
    between();
    if (kNormed && lane.squaring) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const float4 v = x[m][i];
          float& square = lane.squares[m];
          square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
        }
      }
    }
    if (kNormed && lane.normed) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) {
        float4& v = x[i / 4][i % 4];
        const float4 w = norm[i % 4];
        v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      PowerOfTwo power{1.0f, 1.0f};
      if constexpr (kHalf) {
        power = scale_to_half(greatest(x[m]));
#pragma unroll
        for (float4& v : x[m]) {
          v = {v.x * power.scale, v.y * power.scale, v.z * power.scale, v.w * power.scale};
        }
      }
      float of_unit[2][2][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 16 inputs
        std::uint32_t a[4];
        split(x[m][i].x, x[m][i].y, a[0], a[1]);
        split(x[m][i].z, x[m][i].w, a[2], a[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int tile = j / 2, rows = j % 2;
          const uint4 weights = b[i / 2][tile][rows];
          float(&dots)[4] = kHalf ? of_unit[tile][rows] : sums[tile][m][rows];
          if (i % 2 == 0) {
            multiply(dots, a, weights.x, weights.y);
          } else {
            multiply(dots, a, weights.z, weights.w);
          }
        }
      }
      if constexpr (kHalf) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          float& sum = sums[i / 8][m][i / 4 % 2][i % 4];
          sum = fmaf(of_unit[i / 8][i / 4 % 2][i % 4], power.inverse, sum);
        }
      }
    }
  }
  __device__ static float4 as_floats(uint4 x) { return reinterpret_cast<const float4&>(x); }

  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    if constexpr (kHalf) {
      mma_f16(c, a, b0, b1);
    } else {
      mma_bf16(c, a, b0, b1);
    }
  }

  // Calls f(activation row, row of the tile, sum and that of the next).
  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args, const float (&sums)[kTiles][2][4],
                                      const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const int row = 8 * m + g;
      if (row >= args.num_rows) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float(&c)[4] = sums[m][i];
        f(row, 8 * i + 2 * t, float2{c[0] + c[2], c[1] + c[3]});
      }
    }
  }
};

// --- full precision, fp32 ------------------------------------------------------------------------

// For models that are kept so, small ones: on CUDA cores. A lane takes inputs 4 t .. 4 t + 3 of
// every 16 of rows g and g + 8; sums[n][0], [1] are of row g and activation rows 2 n, 2 n + 1.
struct Fp32Format {
  static constexpr LinearSizes kSizes = kFp32Sizes;
  static constexpr int kUnit = kSizes.unit;
  static constexpr int kTogether = kSizes.together;
  static constexpr int kStageUnits = kSizes.stage_units;
  static constexpr int kColumns = kSizes.columns;
  static constexpr int kInputBytes = kSizes.input;
  static constexpr bool kPlanes = kSizes.planes;
  static constexpr bool kOfEachOp = false;
  static constexpr int kRowBytes = 4 * kUnit;
  static constexpr int kUnitStep = kRowBytes;
  static constexpr int kLowerStep = 0;
  static constexpr int kUnitBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = kSizes.stage;
  static_assert(kStageBytes == kTogether * kUnitBytes);
  static constexpr int kStreamedBytes = kSizes.streamed;
  static constexpr int max_rows(int tiles) { return tiles * 2; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][4];

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    const int lane = threadIdx.x % 32;
    return {source.data + (static_cast<std::size_t>(tile) * kTileRows + lane / 8) * args.stride +
                unit * kRowBytes + lane % 8 * 16,
            nullptr};
  }
  __device__ static void load(const LinearArgs& args, WeightPlace& place, std::uint32_t stage) {
    stage += threadIdx.x % 32 * 16;
    for (int i = 0; i < kTileRows / 4; ++i) {
      copy_stream16(stage + i * 4 * kRowBytes, place.data + i * 4 * args.stride);
    }
    place.data += kRowBytes;
  }

  template <int kBatch>
  __device__ static void put(const Inputs& to, int row, int band, int count,
                             const float4 (&x)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (band + i) * kBandInputs + threadIdx.x % 32 * 4;
      if (i < count) *reinterpret_cast<float4*>(to.at<4>(input, row)) = x[i];
    }
  }

  // values[n]: of activation row 2 n, groups[n][1]: of the next.
  template <int kTiles>
  __device__ static LaneInputs<kTiles> lane_inputs(const LinearArgs&, const Inputs& inputs,
                                                   int first) {
    LaneInputs<kTiles> lane{};
    for (int n = 0; n < kTiles; ++n) {
      const int input = first + threadIdx.x % 4 * 4;
      lane.values[n] = shared_address(inputs.at<4>(input, min(2 * n, inputs.columns - 1)));
      lane.groups[n][1] = shared_address(inputs.at<4>(input, min(2 * n + 1, inputs.columns - 1)));
    }
    return lane;
  }

  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, std::uint32_t stage,
                                  Sums<kTiles>& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const auto dot = [](uint4 w, uint4 x, float sum) {
      sum = fmaf(__uint_as_float(w.x), __uint_as_float(x.x), sum);
      sum = fmaf(__uint_as_float(w.y), __uint_as_float(x.y), sum);
      sum = fmaf(__uint_as_float(w.z), __uint_as_float(x.z), sum);
      return fmaf(__uint_as_float(w.w), __uint_as_float(x.w), sum);
    };
#pragma unroll 1
    for (int i = 0; i < kRowBytes; i += 64) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const std::uint32_t place = stage + tile * kUnitBytes + g * kRowBytes + i + 16 * t;
        const uint4 low = load_shared16(place), high = load_shared16<8 * kRowBytes>(place);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint4 x = load_shared16(inputs.values[n] + unit * kRowBytes + i);
          const uint4 y = load_shared16(inputs.groups[n][1] + unit * kRowBytes + i);
          float(&c)[4] = sums[tile][n];
          c[0] = dot(low, x, c[0]);
          c[1] = dot(low, y, c[1]);
          c[2] = dot(high, x, c[2]);
          c[3] = dot(high, y, c[3]);
        }
      }
    }
  }

  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args, const float (&sums)[kTiles][4],
                                      const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = warp_sum(sums[n][i], 4);
        const int row = 2 * n + i % 2;
        if (t == 0 && row < args.num_rows) f(row, g + i / 2 * 8, sum);
      }
    }
  }
};

}  // namespace quantspec::cuda
