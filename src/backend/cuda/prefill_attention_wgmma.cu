#include <cuda.h>

#include <algorithm>

#include "backend/cuda/prefill_attention.h"
#include "backend/cuda/prefill_softmax.cuh"
#include "backend/cuda/wgmma.cuh"
#include "base/error.h"

// Attention for the matrix units of compute capability 9.0, after FlashAttention-3
// (arXiv:2407.08608). A block has 64 query rows of one head per consumer warpgroup, which reads
// them itself; a producer warp brings K and V in blocks of 128 keys by tensor copies into rings of
// stages. A consumer asks for the scores of block j and for the output of block j - 1 at once, and
// does the softmax of j while the matrix units work on the latter; consumers ask in turn, so that
// one's softmax runs beside another's products.
namespace quantspec::cuda {

namespace {

constexpr int kWarpgroup = 128;
constexpr int kWarpgroupRows = 64;
constexpr int kKeys = 128;  // of one block of keys

template <int D>
struct Plan;
template <>
struct Plan<128> {
  static constexpr int kConsumers = 2, kStages = 2;
  static constexpr bool kSharedQueries = false;
};
template <>
struct Plan<64> {  // a third consumer leaves no registers for queries
  static constexpr int kConsumers = 3, kStages = 4;
  static constexpr bool kSharedQueries = true;
};

template <int D>
constexpr int kTileRows = Plan<D>::kConsumers* kWarpgroupRows;
template <int D>
constexpr int kThreads = (Plan<D>::kConsumers + 1) * kWarpgroup;

// Shared memory of a block. Matrices are [D / 64][rows][64], swizzled (wgmma.cuh).
template <int D>
struct Shared {
  __half keys[Plan<D>::kStages][kKeys * D];
  __half values[Plan<D>::kStages][kKeys * D];
  __half q[Plan<D>::kSharedQueries ? kTileRows<D> * D : 1];
  std::uint64_t keys_full[Plan<D>::kStages], keys_empty[Plan<D>::kStages];
  std::uint64_t values_full[Plan<D>::kStages], values_empty[Plan<D>::kStages];
};
constexpr int kSharedAlignment = 1024;  // of a swizzled matrix

// The tile of a block: heads of a section, from the longest tile to the shortest. A section's K and
// V fit in L2, where the blocks that run at a time share them.
struct Schedule {
  int num_tiles;
  int section_heads;
};
struct Work {
  int head;
  int tile;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Registers of a thread; those of all warpgroups are the multiprocessor's 65536 at most.
template <int D>
constexpr int kProducerRegisters = Plan<D>::kConsumers == 2 ? 24 : 32;
template <int D>
constexpr int kConsumerRegisters = Plan<D>::kConsumers == 2 ? 240 : 160;

__device__ Work work_of(const Schedule& schedule, int num_heads, int index) {
  const int section = index / (schedule.num_tiles * schedule.section_heads);
  const int first_head = section * schedule.section_heads;
  const int heads = min(schedule.section_heads, num_heads - first_head);
  const int i = index - first_head * schedule.num_tiles;
  return {first_head + i % heads, schedule.num_tiles - 1 - i / heads};
}

// Where block j lies in its ring, and the parity of the stage's j-th use.
template <int D>
struct Place {
  int stage;
  std::uint32_t parity;
  __device__ explicit Place(int j)
      : stage(j % Plan<D>::kStages), parity(j / Plan<D>::kStages & 1) {}
};

template <int D>
__device__ void init_barriers(Shared<D>& shared) {
  constexpr int kConsumerWarps = Plan<D>::kConsumers * kWarpgroup / 32;
  for (int s = 0; s < Plan<D>::kStages; ++s) {
    barrier_init(&shared.keys_full[s], 1);
    barrier_init(&shared.values_full[s], 1);
    barrier_init(&shared.keys_empty[s], kConsumerWarps);
    barrier_init(&shared.values_empty[s], kConsumerWarps);
  }
  barrier_init_fence();
}

// One thread: all copies of the block of threads.
template <int D>
__device__ void produce(const CUtensorMap& kv_map, int kv_head, int num_blocks, Shared<D>& shared) {
  constexpr std::uint32_t kBytes = kKeys * D * sizeof(__half);
  const auto copy = [&](int j, int which, __half(&ring)[Plan<D>::kStages][kKeys * D],
                        std::uint64_t* full, std::uint64_t* empty) {
    const Place<D> place(j);
    barrier_wait(&empty[place.stage], place.parity ^ 1);
    barrier_expect(&full[place.stage], kBytes);
    for (int x = 0; x < D; x += 64) {
      copy_tensor(&ring[place.stage][x * kKeys], kv_map, x, j * kKeys, 2 * kv_head + which,
                  &full[place.stage]);
    }
  };
  for (int j = 0; j <= num_blocks; ++j) {  // in the order of use
    if (j < num_blocks) copy(j, 0, shared.keys, shared.keys_full, shared.keys_empty);
    if (j > 0) copy(j - 1, 1, shared.values, shared.values_full, shared.values_empty);
  }
}

// The queries of a warp's 16 rows, scaled and rounded: A fragments of 16 columns each. Zeros in
// place of rows that there are not.
template <int D>
__device__ __forceinline__ void load_queries(const PrefillRows& rows, int head, int first_row,
                                             std::uint32_t (&q)[D / 4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + g + 8 * r;
    const bool valid = row < rows.num_rows;
    const std::size_t from = static_cast<std::size_t>(valid ? row : 0) * rows.num_heads + head;
    const auto* pairs = reinterpret_cast<const float2*>(rows.q + from * D) + t;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {  // columns 8 i..
      const float2 x = valid ? pairs[4 * i] : make_float2(0.0f, 0.0f);
      const __half2 pair = __floats2half2_rn(x.x * rows.q_factor, x.y * rows.q_factor);
      q[4 * (i / 2) + 2 * (i % 2) + r] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
}

// A consumer's queries, which give a product's A operand, of columns k..: a warp's in registers, so
// that products read nothing but K from shared memory, or the warpgroup's there.
template <int D, bool kShared = Plan<D>::kSharedQueries>
struct Queries {
  std::uint32_t fragments[D / 4];

  __device__ __forceinline__ Queries(const PrefillRows& rows, int head, int first_row, int,
                                     __half*) {
    load_queries<D>(rows, head, first_row, fragments);
  }
  __device__ __forceinline__ const std::uint32_t* operand(int k) const { return &fragments[k / 4]; }
};
template <int D>
struct Queries<D, true> {
  static_assert(D == 64);  // rows of one swizzled matrix
  __half* shared;          // the warpgroup's 64 rows

  __device__ __forceinline__ Queries(const PrefillRows& rows, int head, int first_row,
                                     int warpgroup, __half* of_block)
      : shared(of_block + warpgroup * kWarpgroupRows * D) {
    std::uint32_t fragments[D / 4];
    load_queries<D>(rows, head, first_row, fragments);
    const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        __half* row = shared + (16 * warp + 8 * r + g) * D;
        *reinterpret_cast<std::uint32_t*>(row + 8 * (i ^ g) + 2 * t) =
            fragments[4 * (i / 2) + 2 * (i % 2) + r];
      }
    }
    stores_to_products();
    barrier_sync(1 + Plan<D>::kConsumers + warpgroup, kWarpgroup);  // those before are turns
  }
  __device__ __forceinline__ std::uint64_t operand(int k) const {
    return swizzled_operand(shared + k);
  }
};

// s = q K^T of a warpgroup's rows, under way.
template <int D>
__device__ __forceinline__ void multiply_keys(const Queries<D>& q, const __half* keys,
                                              float (&s)[64]) {
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    const std::uint64_t b = swizzled_operand(keys + k / 64 * 64 * kKeys + k % 64);
    if (k == 0) {
      wgmma_rows<false>(s, q.operand(k), b);
    } else {
      wgmma_rows<true>(s, q.operand(k), b);
    }
  }
}

// o += p V, under way.
template <int D>
__device__ __forceinline__ void multiply_values(const std::uint32_t (&p)[32], const __half* values,
                                                float (&o)[D / 2]) {
  constexpr std::uint32_t kBlockBytes = 64 * kKeys * sizeof(__half);
#pragma unroll
  for (int k = 0; k < kKeys; k += 16) {
    wgmma_columns(o, &p[k / 4], swizzled_operand(values + 64 * k, kBlockBytes));
  }
}

// A warp of a consumer warpgroup.
template <int D>
struct Consumer {
  Shared<D>& shared;
  int warpgroup;      // of the consumers
  int first_visible;  // position of the warp's first row
  int num_blocks;
  Queries<D> q;
  RowSoftmax softmax;
  float o[D / 2] = {};
  std::uint32_t p[32];  // of the block before

  __device__ __forceinline__ void release(std::uint64_t& empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(&empty);
  }
  __device__ __forceinline__ void await_keys(int j) {
    if (j == num_blocks) return;
    const Place<D> place(j);
    barrier_wait(&shared.keys_full[place.stage], place.parity);
  }

  // Block 0: only scores.
  __device__ __forceinline__ void begin() {
    float s[64], factor[2];
    await_keys(0);
    products_begin();
    multiply_keys<D>(q, shared.keys[0], s);
    products_commit();
    products_wait<0>(s);
    release(shared.keys_empty[0]);
    if (first_visible < kKeys - 1) mask_later(s, 0, first_visible);
    softmax.update(s, factor);
    round_to_half(s, p);
    await_keys(1);
  }

  // Scores of block j, output of block j - 1. Masked: some row does not see all of block j.
  // REQUIRES: await_keys(j)
  template <bool Masked>
  __device__ __forceinline__ void step(int j) {
    const Place<D> now(j), before(j - 1);
    float s[64], factor[2];
    pair_wait(1 + warpgroup);
    products_begin();
    multiply_keys<D>(q, shared.keys[now.stage], s);
    products_commit();
    barrier_wait(&shared.values_full[before.stage], before.parity);
    products_begin();
    multiply_values<D>(p, shared.values[before.stage], o);
    products_commit();
    pass_turn(j);
    products_wait<1>(s);
    release(shared.keys_empty[now.stage]);
    if (Masked) mask_later(s, j * kKeys, first_visible);
    softmax.raise_max(0, s, factor);
    softmax.raise_max(1, s, factor);
    softmax.exponentiate(0, s, factor);
    // NOTE: ptxas moves a wait for products up, ahead of what should run beside them, but not out
    // of its basic block, and the loop in here begins another. Row 1 comes after the wait, so that
    // its powers run beside the rounding.
    await_keys(j + 1);
    products_wait<0>(o);
    release(shared.values_empty[before.stage]);
    rescale_seldom(o, factor);
    softmax.exponentiate(1, s, factor);
    round_to_half(s, p);
  }

  // The last block: only output.
  __device__ __forceinline__ void end() {
    const Place<D> last(num_blocks - 1);
    barrier_wait(&shared.values_full[last.stage], last.parity);
    products_begin();
    multiply_values<D>(p, shared.values[last.stage], o);
    products_commit();
    products_wait<0>(o);
    softmax.finish(o);
  }

  // Turns of blocks 1.. go round the warpgroups; the last begins by giving the first its turn.
  __device__ __forceinline__ void first_turn() {
    if (warpgroup == Plan<D>::kConsumers - 1 && num_blocks > 1) pair_arrive(1);
  }
  __device__ __forceinline__ void pass_turn(int j) {
    constexpr int kLast = Plan<D>::kConsumers - 1;
    if (warpgroup < kLast) {
      pair_arrive(2 + warpgroup);
    } else if (j + 1 < num_blocks) {
      pair_arrive(1);
    }
  }
};

template <int D>
__device__ __forceinline__ void consume(const PrefillRows& rows, Work work, int num_blocks,
                                        Shared<D>& shared) {
  const int warp = threadIdx.x / 32 - kWarpgroup / 32;  // of the consumers
  const int first_row = work.tile * kTileRows<D> + warp * 16;
  const int first_visible = rows.first_position + first_row;
  // Blocks that every row of the tile sees whole; the same for all warps of a warpgroup.
  const int num_unmasked =
      min(num_blocks, (rows.first_position + work.tile * kTileRows<D> + 1) / kKeys);
  const int warpgroup = warp / 4;
  Consumer<D> consumer{shared, warpgroup, first_visible, num_blocks,
                       Queries<D>(rows, work.head, first_row, warpgroup, shared.q)};
  consumer.first_turn();
  consumer.begin();
  int j = 1;
  for (; j < num_unmasked; ++j) consumer.template step<false>(j);
  for (; j < num_blocks; ++j) consumer.template step<true>(j);
  consumer.end();
  write_rows<D>(rows, work.head, first_row, consumer.o);
}

#endif

template <int D>
__global__ void __launch_bounds__(kThreads<D>, 1)
    attend(const __grid_constant__ CUtensorMap kv_map, const PrefillRows rows,
           const Schedule schedule) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte memory[];
  const std::uint32_t misaligned = shared_address(memory) % kSharedAlignment;
  auto& shared =
      *reinterpret_cast<Shared<D>*>(memory + (misaligned == 0 ? 0 : kSharedAlignment - misaligned));
  if (threadIdx.x == 0) init_barriers<D>(shared);
  __syncthreads();

  const Work work = work_of(schedule, rows.num_heads, blockIdx.x);
  const int num_keys =
      rows.first_position + min((work.tile + 1) * kTileRows<D>, rows.num_rows);  // of any row
  const int num_blocks = (num_keys + kKeys - 1) / kKeys;
  if (threadIdx.x < kWarpgroup) {
    give_registers_back<kProducerRegisters<D>>();
    if (threadIdx.x != 0) return;
    const int kv_head = work.head / (rows.num_heads / rows.num_kv_heads);
    produce<D>(kv_map, kv_head, num_blocks, shared);
  } else {
    take_registers<kConsumerRegisters<D>>();
    consume<D>(rows, work, num_blocks, shared);
  }
#else
  __trap();  // launched on 9.0 from a build that was told 90 and not 90a
#endif
}

// --- host ----------------------------------------------------------------------------------------

// A map of fp16 [z][y][x], strides in elements, read in swizzled boxes of 64 x box_y x box_z.
// Beyond the sizes come zeros.
CUtensorMap tensor_map(const __half* data, const cuuint64_t (&sizes)[3],
                       const cuuint64_t (&strides)[2], cuuint32_t box_y, cuuint32_t box_z) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  QUANTSPEC_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found));
  check(found == cudaDriverEntryPointSuccess, "a driver for 9.0 makes tensor maps");
  const cuuint64_t byte_strides[2] = {strides[0] * sizeof(__half), strides[1] * sizeof(__half)};
  const cuuint32_t box[3] = {64, box_y, box_z}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<__half*>(data), sizes, byte_strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ErrorKind::kDevice, "the GPU: error {} in cuTensorMapEncodeTiled",
         static_cast<int>(status));
  }
  return map;
}

// Whole groups of heads, about equally many in each section.
// NOTE: sections are worth 7 to 9% on an H200 (32 heads of 128, 32k keys), against all heads.
int section_heads(const Device& device, const PrefillRows& rows) {
  const std::size_t head_bytes =
      static_cast<std::size_t>(rows.num_keys()) * rows.head_dim * 2 * sizeof(__half);
  const auto most = static_cast<int>(std::clamp<std::size_t>(
      device.l2_bytes() / 2 / head_bytes, 1, static_cast<std::size_t>(rows.num_kv_heads)));
  const int sections = (rows.num_kv_heads + most - 1) / most;
  const int kv_heads = (rows.num_kv_heads + sections - 1) / sections;
  return kv_heads * (rows.num_heads / rows.num_kv_heads);
}

template <int D>
void launch(Device& device, const PrefillRows& rows) {
  constexpr int kBytes = sizeof(Shared<D>) + kSharedAlignment;
  device.kernels().allow_shared(attend<D>);
  const CUtensorMap kv_map = tensor_map(
      rows.kv,
      {D, static_cast<cuuint64_t>(rows.num_keys()), static_cast<cuuint64_t>(2 * rows.num_kv_heads)},
      {D, D * static_cast<cuuint64_t>(rows.capacity)}, kKeys, 1);
  const int num_tiles = (rows.num_rows + kTileRows<D> - 1) / kTileRows<D>;
  attend<D><<<num_tiles * rows.num_heads, kThreads<D>, kBytes, device.stream()>>>(
      kv_map, rows, {num_tiles, section_heads(device, rows)});
  require_launch("attend");
}

}  // namespace

bool wgmma_attends(const Device& device, int head_dim) {
  return device.capability() == 90 && (head_dim == 64 || head_dim == 128);
}

void attend_by_wgmma(Device& device, const PrefillRows& rows) {
  if (rows.head_dim == 64) return launch<64>(device, rows);
  launch<128>(device, rows);
}

}  // namespace quantspec::cuda
