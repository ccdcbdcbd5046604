// Pieces on their way to shared memory: every warp has a ring of slots of its own, and copies
// ahead.
#pragma once

#include "backend/cuda/attention_shape.cuh"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// kBytes consecutive bytes, a multiple of 16, by the lanes of a warp.
template <int kBytes>
__device__ __forceinline__ void copy_block(std::byte* to, const std::byte* from, int lane) {
  to += 16 * lane;
  from += 16 * lane;
#pragma unroll
  for (int at = 0; at < kBytes; at += 512) {
    if (at + 512 <= kBytes || at + 16 * lane < kBytes) copy_async16(to + at, from + at);
  }
}

// The pieces of a warp's parts in the order in which it reads them: keys, then values, of each.
template <class S>
class PieceStream {
 public:
  __device__ PieceStream(const AttentionArgs& args, const Work& work, std::byte* slots, Lane lane)
      : args_(args), work_(work), slots_(slots), lane_(lane), part_(work.first_part) {
    find_units();
  }
  // Asks for the first pieces, then waits for the kernels before this one: the other way round
  // where those write the pieces.
  __device__ __forceinline__ void start() {
    static_assert(S::kSlots == 2, "the pieces of one part");
    if (own_tokens()) wait_for_previous_kernels();
#pragma unroll 1
    for (int i = 0; i < S::kSlots; ++i) issue();
    wait_for_previous_kernels();
  }

  // Waits for the next piece.
  __device__ __forceinline__ const std::byte* next() {
    wait_async_copies<S::kSlots - 1>();
    __syncwarp();
    return slots_ + slot_ * S::kSlotBytes;
  }
  // The piece is read: its slot takes the next one that is not under way.
  __device__ __forceinline__ void release() {
    __syncwarp();
    issue();
  }

 private:
  // Whether the part to copy has tokens of the launch's own rows.
  __device__ __forceinline__ bool own_tokens() const {
    const int slab = part_ - work_.num_chunks - work_.gathered_slabs;
    return (slab + 1) * S::kSlabTokens > work_.state.first_position - work_.state.first_full;
  }
  __device__ __forceinline__ void issue() {
    if (part_ < work_.num_parts) {
      std::byte* slot = slots_ + slot_ * S::kSlotBytes;
      if (part_ < work_.num_chunks) {
        issue_chunk(slot);
      } else {
        issue_slab(slot, part_ - work_.num_chunks);
      }
      if (values_) part_ += work_.part_stride;
      values_ = !values_;
    }
    commit_async_copies();  // an empty group counts as well
    slot_ = (slot_ + 1) % S::kSlots;
  }

  __device__ __forceinline__ void issue_chunk(std::byte* slot) {
    if (!values_) next_chunk();
    const KvShape& shape = args_.shape;
    const int planes = values_ ? shape.page_size * (S::kHeadDim / 2) : 0;
    copy_block<S::kPlaneBytes>(slot, upper_ + planes, lane_.index);
    if constexpr (S::kPlanes == 2) {
      copy_block<S::kPlaneBytes>(slot + S::kPlaneBytes, lower_ + planes, lane_.index);
    }
    // Scales, then offsets: of keys side by side, of values those of all the page between.
    constexpr int kKeyScales = 2 * S::kHeadDim, kValueScales = S::kValueScaleBytes;
    const std::byte* scales = values_ ? value_scales_ : key_scales_;
    const int bytes = values_ ? kValueScales : kKeyScales;
    const int gap = values_ ? 2 * shape.page_size * S::kValueGroups - kValueScales : 0;
#pragma unroll
    for (int at = 0; at < 2 * max(kKeyScales, kValueScales); at += 512) {
      const int mine = at + 16 * lane_.index;
      if (mine < 2 * bytes) {
        copy_async16(slot + S::kPlanes * S::kPlaneBytes + mine,
                     scales + mine + (mine < bytes ? 0 : gap));
      }
    }
  }

  // Each lane looks up the unit of one of the warp's next 32 chunks.
  __device__ __forceinline__ void find_units() {
    const int mine = part_ + lane_.index * work_.part_stride;
    if (mine < work_.num_chunks) {
      const SequenceKv& kv = args_.batch.kv[work_.sequence];
      int page = mine >> args_.chunk_shift;
      // NOTE: from L2, as Work's state.
      if (kv.page_lists != nullptr) {
        page = __ldcg(kv.page_lists + work_.kv_head * kv.pages_listed + page);
      }
      const auto* pages = reinterpret_cast<const ulonglong2*>(kv.pages);
      const ulonglong2 planes = __ldcg(pages + page);
      found_upper_ = reinterpret_cast<const std::byte*>(planes.x) +
                     args_.shape.upper_offset(args_.layer, work_.kv_head);
      found_lower_ = reinterpret_cast<const std::byte*>(planes.y) +
                     args_.shape.lower_offset(args_.layer, work_.kv_head);
    }
    found_ = 0;
  }
  __device__ __forceinline__ void next_chunk() {
    if (found_ == 32) find_units();
    const std::byte* upper = shuffle(found_upper_, found_);
    const int chunk = part_ & ((1 << args_.chunk_shift) - 1);
    upper_ = upper + chunk * S::kPlaneBytes;
    if constexpr (S::kPlanes == 2) lower_ = shuffle(found_lower_, found_) + chunk * S::kPlaneBytes;
    key_scales_ = upper + args_.shape.page_size * S::kHeadDim;
    value_scales_ = key_scales_ + 4 * S::kHeadDim + chunk * S::kValueScaleBytes;
    ++found_;
  }
  __device__ static const std::byte* shuffle(const std::byte* pointer, int lane) {
    return reinterpret_cast<const std::byte*>(
        __shfl_sync(~0u, reinterpret_cast<unsigned long long>(pointer), lane));
  }

  __device__ __forceinline__ void issue_slab(std::byte* slot, int slab) {
    const SequenceKv& kv = args_.batch.kv[work_.sequence];
    const bool gathered = slab < work_.gathered_slabs;
    const FullKv& full = gathered ? kv.gathered : kv.full;
    int token = gathered ? slab * S::kSlabTokens
                         : work_.state.first_full + (slab - work_.gathered_slabs) * S::kSlabTokens;
    const std::byte* rows =
        full.data + 2 * full_kv_index(args_.shape, full.capacity, work_.kv_head, values_, 0);
    constexpr int kRowUnits = S::kHeadDim / 8;  // 16 bytes each
#pragma unroll 1
    for (int tile = 0; tile < S::kSlabTiles; ++tile, token += 16) {
      // 16 tokens from a multiple of 16 on lie side by side: capacities are multiples of 16.
      const std::byte* from = rows + (token % full.capacity) * std::size_t(2 * S::kHeadDim);
      std::byte* to = slot + 16 * tile * S::kRowBytes;
      if constexpr (32 % kRowUnits == 0) {
        from += 16 * lane_.index;
        to += lane_.index / kRowUnits * S::kRowBytes + lane_.index % kRowUnits * 16;
#pragma unroll
        for (int row = 0; row < 16; row += 32 / kRowUnits) {
          copy_async16(to + row * S::kRowBytes, from + row * (2 * S::kHeadDim));
        }
      } else {
#pragma unroll 2
        for (int k = 0; k < kRowUnits / 2; ++k) {
          const int mine = lane_.index + 32 * k;
          const int row = mine / kRowUnits, column = mine % kRowUnits;
          copy_async16(to + row * S::kRowBytes + column * 16, from + mine * 16);
        }
      }
    }
  }

  const AttentionArgs& args_;
  const Work& work_;
  std::byte* slots_;
  Lane lane_;
  int slot_ = 0;         // of the piece that is read next, and so of the one to copy
  int part_;             // of the next piece to copy
  bool values_ = false;  // whether that is its values
  int found_ = 0;        // units used of those looked up
  const std::byte* found_upper_ = nullptr;
  const std::byte* found_lower_ = nullptr;
  // Of the chunk to copy: keys in both planes, scales of the unit's keys and of the chunk's values.
  const std::byte* upper_ = nullptr;
  const std::byte* lower_ = nullptr;
  const std::byte* key_scales_ = nullptr;
  const std::byte* value_scales_ = nullptr;
};

}  // namespace quantspec::cuda
