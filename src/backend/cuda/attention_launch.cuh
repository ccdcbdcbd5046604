// Which kernel, with which splits, warps and shared memory: what launch_attention does.
#pragma once

#include <algorithm>
#include <bit>

#include "backend/cuda/attention_kernel.cuh"
#include "backend/cuda/attention_launch.h"

namespace quantspec::cuda {

// How the work of a sequence's kv head is divided. It decides bits, so it depends on the machine
// and on the shapes that every pass of a model has, and not on the number of columns.
template <class S>
struct AttentionSplit {
  static constexpr int kWidest = S::kHeadDim <= 128 ? 4 : 2;  // column tiles, by registers
  using Widest = AttentionShape<S::kHeadDim, S::kTokenTiles, kWidest, S::kPlanes>;
  using Narrowest = AttentionShape<S::kHeadDim, S::kTokenTiles, 1, S::kPlanes>;
  int splits;
  int warps;

  static AttentionSplit of(const Device& device, int num_kv_heads) {
    AttentionSplit split;
    split.splits = std::max(1, Narrowest::kCtas * device.num_sms() / num_kv_heads);
    split.warps = S::kMaxWarps;
    while (split.warps > 1 &&
           Widest::kSlotsOffset + split.warps * Widest::kSlots * Widest::kSlotBytes >
               static_cast<int>(device.max_shared_bytes())) {
      split.warps /= 2;
    }
    return split;
  }
};

// Scratch memory of a launch, one part after the other.
template <class S>
void allocate_scratch(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const std::size_t heads = static_cast<std::size_t>(args.batch.count) * args.shape.num_kv_heads;
  const std::size_t columns = heads * args.column_blocks * args.splits * S::kColumns;
  args.page_capacity = launch.wants_page_mass ? launch.num_pages : 0;
  const std::size_t chunks = (heads * args.page_capacity) << args.chunk_shift;
  const std::size_t page_sums = chunks * args.column_blocks * S::kColumns;
  std::byte* scratch =
      device.scratch(Scratch::kAttention, columns * S::kHeadDim * sizeof(float) +
                                              (columns + page_sums) * sizeof(float2));
  args.partials = reinterpret_cast<float*>(scratch);
  args.partial_sums = reinterpret_cast<float2*>(args.partials + columns * S::kHeadDim);
  args.page_sums = args.partial_sums + columns;
  args.arrivals = reinterpret_cast<int*>(device.scratch(Scratch::kCounters, heads * sizeof(int)));
}

template <class S>
void launch_shape(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const AttentionSplit<S> split = AttentionSplit<S>::of(device, args.shape.num_kv_heads);
  args.splits = split.splits;
  args.column_blocks = (launch.columns + S::kColumns - 1) / S::kColumns;
  args.chunk_shift = std::countr_zero(static_cast<unsigned>(args.shape.page_size)) -
                     std::countr_zero(static_cast<unsigned>(S::kChunkTokens));
  allocate_scratch<S>(device, launch);
  const int bytes = S::kSlotsOffset +
                    std::max({split.warps * S::kSlots * S::kSlotBytes, S::merge_bytes(split.warps),
                              (split.splits + 1) * S::kColumns * 8});
  static const bool ready = [&] {
    QUANTSPEC_CUDA(cudaFuncSetAttribute(attention_kernel<S>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(device.max_shared_bytes())));
    return true;
  }();
  static_cast<void>(ready);
  const dim3 grid(args.splits, args.shape.num_kv_heads, args.batch.count * args.column_blocks);
  attention_kernel<S><<<grid, 32 * split.warps, bytes, device.stream()>>>(args);
  require_launch("attention");
}

template <int kHeadDim, int kPlanes>
void launch_planes(Device& device, AttentionLaunch& launch) {
  const int tiles = (launch.columns + 7) / 8;
  constexpr int kWidest = AttentionSplit<AttentionShape<kHeadDim, 4, 1, kPlanes>>::kWidest;
  if (launch.args.shape.page_size < 64) {
    return launch_shape<AttentionShape<kHeadDim, 2, kWidest, kPlanes>>(device, launch);
  }
  if (tiles == 1) return launch_shape<AttentionShape<kHeadDim, 4, 1, kPlanes>>(device, launch);
  if (tiles == 2 || kWidest == 2) {
    return launch_shape<AttentionShape<kHeadDim, 4, 2, kPlanes>>(device, launch);
  }
  if constexpr (kWidest == 4) {
    launch_shape<AttentionShape<kHeadDim, 4, 4, kPlanes>>(device, launch);
  }
}

template <int kHeadDim>
void launch_attention(Device& device, AttentionLaunch& launch) {
  if (launch.read == KvRead::kUpper) {
    launch_planes<kHeadDim, 1>(device, launch);
  } else {
    launch_planes<kHeadDim, 2>(device, launch);
  }
}

}  // namespace quantspec::cuda
