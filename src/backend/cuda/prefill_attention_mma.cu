#include <algorithm>

#include "backend/cuda/prefill_attention.h"
#include "backend/cuda/prefill_softmax.cuh"
#include "backend/cuda/ptx.cuh"
#include "base/error.h"

// Attention in one pass over the keys (arXiv:2205.14135) with mma.sync, for every GPU from 8.0 on.
// A block has some query rows of one head, a warp 16 R of them; K and V come by cp.async in blocks
// of keys, one block ahead. Queries are scaled and rounded by a kernel ahead.
namespace quantspec::cuda {

namespace {

constexpr int kScaleThreads = 256;

// 4 elements a thread
__global__ void scale_queries(const float* q, float factor, int count, __half* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 x = reinterpret_cast<const float4*>(q)[i];
  auto* to = reinterpret_cast<__half2*>(out) + 2 * static_cast<std::size_t>(i);
  to[0] = __floats2half2_rn(x.x * factor, x.y * factor);
  to[1] = __floats2half2_rn(x.z * factor, x.w * factor);
}

// Warps: of a block of threads. R: of 16 rows each, in a warp. Keys: of one block of keys.
template <int D, int Warps, int R, int Keys>
struct Tile {
  static constexpr int kHeadDim = D, kRowTiles = R, kKeys = Keys;
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kRows = Warps * R * 16;
  // NOTE: an odd number of 16-byte units, so that the 8 rows of an ldmatrix lie in different banks.
  static constexpr int kStride = D + 8;
  static constexpr int kHalves = kKeys * kStride;  // of K or V
  // NOTE: with R = 1 queries stay in registers; more of them find no room there.
  static constexpr bool kSharedQueries = R > 1;
  static constexpr int kQueryHalves = kSharedQueries ? kRows * kStride : 0;
  static constexpr std::size_t kSharedBytes = (kQueryHalves + 4 * kHalves) * sizeof(__half);
};

// Asks for keys (and values) [first, first + kKeys) of one kv head, zeros from num_keys on.
// to: [K, V][kKeys][kStride]
template <typename T>
__device__ void copy_block(const PrefillRows& rows, const __half* kv, int first, __half* to) {
  constexpr int kCopies = T::kHeadDim / 8;  // of 16 bytes, in a row
  for (int i = threadIdx.x; i < 2 * T::kKeys * kCopies; i += T::kThreads) {
    const int row = i / kCopies, copy = i % kCopies;  // row: keys, then values
    const int which = row / T::kKeys, key = first + row % T::kKeys;
    const bool valid = key < rows.num_keys();
    const std::size_t slot = static_cast<std::size_t>(which) * rows.capacity + (valid ? key : 0);
    copy_async16(to + row * T::kStride + copy * 8, kv + slot * T::kHeadDim + copy * 8, valid);
  }
  commit_async_copies();
}

// Asks for a tile's queries, zeros from num_rows on. to: [kRows][kStride]
template <typename T>
__device__ void copy_queries(const PrefillRows& rows, const __half* q, int head, int first,
                             __half* to) {
  constexpr int kCopies = T::kHeadDim / 8;
  for (int i = threadIdx.x; i < T::kRows * kCopies; i += T::kThreads) {
    const int row = i / kCopies, copy = i % kCopies;
    const bool valid = first + row < rows.num_rows;
    const std::size_t from =
        static_cast<std::size_t>(valid ? first + row : 0) * rows.num_heads + head;
    copy_async16(to + row * T::kStride + copy * 8, q + from * T::kHeadDim + copy * 8, valid);
  }
}

// A warp's queries as A operands, of channels 16 k..: kept, or read again each time.
template <typename T, bool Shared = T::kSharedQueries>
struct Queries {
  static constexpr int kSteps = T::kHeadDim / 16;
  std::uint32_t a[kSteps][4];

  __device__ Queries(const PrefillRows& rows, const __half* q, int head, int first_row,
                     const __half*) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + g + 8 * r;
      const bool valid = row < rows.num_rows;
      const std::size_t from = static_cast<std::size_t>(valid ? row : 0) * rows.num_heads + head;
      const __half* pairs = q + from * T::kHeadDim + 2 * t;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        a[k][r] = valid ? *reinterpret_cast<const std::uint32_t*>(pairs + 16 * k) : 0;
        a[k][r + 2] = valid ? *reinterpret_cast<const std::uint32_t*>(pairs + 16 * k + 8) : 0;
      }
    }
  }
  __device__ void get(int, int k, std::uint32_t (&out)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = a[k][i];
  }
};
template <typename T>
struct Queries<T, true> {
  const __half* from;

  __device__ Queries(const PrefillRows&, const __half*, int, int, const __half* shared) {
    // Matrices of one ldmatrix: (rows 0-7, channels 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * T::kRowTiles + lane % 16;
    from = shared + row * T::kStride + lane / 16 * 8;
  }
  __device__ void get(int r, int k, std::uint32_t (&out)[4]) const {
    load_matrices(from + 16 * r * T::kStride + 16 * k, out);
  }
};

// The 4 sums of fragment i.
template <int N>
__device__ __forceinline__ float (&fragment(float (&x)[N], int i))[4] {
  return *reinterpret_cast<float(*)[4]>(&x[4 * i]);
}

// s = q K^T, for each row tile 16 rows x kKeys
template <typename T>
__device__ __forceinline__ void multiply_keys(const Queries<T>& q, const __half* keys,
                                              float (&s)[T::kRowTiles][T::kKeys / 2]) {
  // Matrices of one ldmatrix: (keys 0-7, channels 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
  const int lane = threadIdx.x % 32;
  const __half* from = keys + (lane / 16 * 8 + lane % 8) * T::kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < T::kHeadDim / 16; ++k) {
    std::uint32_t a[T::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < T::kRowTiles; ++r) q.get(r, k, a[r]);
#pragma unroll
    for (int n = 0; n < T::kKeys / 16; ++n) {
      std::uint32_t b[4];
      load_matrices(from + 16 * n * T::kStride + 16 * k, b);
#pragma unroll
      for (int r = 0; r < T::kRowTiles; ++r) {
        mma_f16(fragment(s[r], 2 * n), a[r], b[0], b[1]);
        mma_f16(fragment(s[r], 2 * n + 1), a[r], b[2], b[3]);
      }
    }
  }
}

// o += p V, for each row tile 16 rows x head_dim
template <typename T>
__device__ __forceinline__ void multiply_values(
    const std::uint32_t (&p)[T::kRowTiles][T::kKeys / 4], const __half* values,
    float (&o)[T::kRowTiles][T::kHeadDim / 2]) {
  // Matrices: (keys 0-7, channels 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15), each transposed.
  const int lane = threadIdx.x % 32;
  const __half* from = values + lane % 16 * T::kStride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < T::kKeys / 16; ++k) {
#pragma unroll
    for (int n = 0; n < T::kHeadDim / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(from + 16 * k * T::kStride + 16 * n, b);
#pragma unroll
      for (int r = 0; r < T::kRowTiles; ++r) {
        const std::uint32_t a[4] = {p[r][4 * k], p[r][4 * k + 1], p[r][4 * k + 2], p[r][4 * k + 3]};
        mma_f16(fragment(o[r], 2 * n), a, b[0], b[1]);
        mma_f16(fragment(o[r], 2 * n + 1), a, b[2], b[3]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads)
    attend_by_mma(PrefillRows rows, const __half* scaled) {
  constexpr int kKeys = T::kKeys, kHeadDim = T::kHeadDim;
  // Queries, if they lie here, then [2 stages][K, V][kKeys][kStride].
  extern __shared__ __align__(16) __half shared[];
  __half* stages = shared + T::kQueryHalves;
  const int head = blockIdx.x;
  const int tile = gridDim.y - 1 - blockIdx.y;  // the longest first
  const int first_row = tile * T::kRows + threadIdx.x / 32 * 16 * T::kRowTiles;
  const int num_keys =
      rows.first_position + min((tile + 1) * T::kRows, rows.num_rows);  // of any row
  const int num_blocks = (num_keys + kKeys - 1) / kKeys;
  const int kv_head = head / (rows.num_heads / rows.num_kv_heads);
  const __half* kv = rows.kv + static_cast<std::size_t>(kv_head) * 2 * rows.capacity * kHeadDim;

  if (T::kSharedQueries) copy_queries<T>(rows, scaled, head, tile * T::kRows, shared);
  copy_block<T>(rows, kv, 0, stages);
  const Queries<T> q(rows, scaled, head, first_row, shared);
  float o[T::kRowTiles][kHeadDim / 2] = {};
  RowSoftmax softmax[T::kRowTiles];
  for (int j = 0; j < num_blocks; ++j) {
    wait_async_copies<0>();
    __syncthreads();  // block j is there; nobody reads block j - 1 any more
    const __half* block = stages + j % 2 * 2 * T::kHalves;
    if (j + 1 < num_blocks) {
      copy_block<T>(rows, kv, (j + 1) * kKeys, stages + (j + 1) % 2 * 2 * T::kHalves);
    }
    float s[T::kRowTiles][kKeys / 2] = {};
    multiply_keys<T>(q, block, s);
    std::uint32_t p[T::kRowTiles][kKeys / 4];
#pragma unroll
    for (int r = 0; r < T::kRowTiles; ++r) {
      const int first_visible = rows.first_position + first_row + 16 * r;
      if ((j + 1) * kKeys > first_visible + 1) mask_later(s[r], j * kKeys, first_visible);
      float factor[2];
      softmax[r].update(s[r], factor);
      rescale(o[r], factor);
      round_to_half(s[r], p[r]);
    }
    multiply_values<T>(p, block + T::kHalves, o);
  }
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r) {
    softmax[r].finish(o[r]);
    write_rows<kHeadDim>(rows, head, first_row + 16 * r, o[r]);
  }
}

template <typename T>
void launch(Device& device, const PrefillRows& rows) {
  const std::size_t count =
      static_cast<std::size_t>(rows.num_rows) * rows.num_heads * rows.head_dim;
  auto* q =
      reinterpret_cast<__half*>(device.scratch(Scratch::kActivations, count * sizeof(__half)));
  const int quads = static_cast<int>(count / 4);
  scale_queries<<<(quads + kScaleThreads - 1) / kScaleThreads, kScaleThreads, 0, device.stream()>>>(
      rows.q, rows.q_factor, quads, q);
  require_launch("scale_queries");
  device.kernels().allow_shared(attend_by_mma<T>);
  const dim3 grid(rows.num_heads, (rows.num_rows + T::kRows - 1) / T::kRows);
  attend_by_mma<T><<<grid, T::kThreads, T::kSharedBytes, device.stream()>>>(rows, q);
  require_launch("attend_by_mma");
}

// NOTE: on an H200, against 8 warps of 16 rows each: 259 and not 181 TFLOP/s at head_dim 64, 297
// and not 260 at 128, for a warp reads K and V once for 32 rows. At 256 there are no registers for
// that.
template <int D>
using SmallHeadTile = Tile<D, 4, 2, 64>;

}  // namespace

void attend_by_mma(Device& device, const PrefillRows& rows) {
  switch (rows.head_dim) {
    case 64:
      return launch<SmallHeadTile<64>>(device, rows);
    case 80:
      return launch<SmallHeadTile<80>>(device, rows);
    case 96:
      return launch<SmallHeadTile<96>>(device, rows);
    case 128:  // 8.6 and 8.9 have not the shared memory of 8.0
      if (SmallHeadTile<128>::kSharedBytes > device.max_shared_bytes()) {
        return launch<Tile<128, 4, 2, 32>>(device, rows);
      }
      return launch<SmallHeadTile<128>>(device, rows);
    case 256:
      return launch<Tile<256, 8, 1, 32>>(device, rows);
  }
  check(false, "head_dim is supported");
}

}  // namespace quantspec::cuda
