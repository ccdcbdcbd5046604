// Pieces on their way to shared memory: every team has slots of its own, and copies ahead.
#pragma once

#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/attention_team.cuh"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// kBytes consecutive bytes, a multiple of 16, to a shared_address(), by the lanes of a warp.
template <int kBytes>
__device__ __forceinline__ void copy_block(std::uint32_t to, const std::byte* from, int lane) {
  // NOTE: afresh, or ptxas makes an address of its own for every copy.
  to = afresh(static_cast<int>(to + 16 * lane));
  from = afresh(from + 16 * lane);
#pragma unroll
  for (int at = 0; at < kBytes; at += 512) {
    if (at + 512 <= kBytes || at + 16 * lane < kBytes) copy_async16(to + at, from + at);
  }
}

enum Piece { kKeys, kValues };  // of a part, and the slot of either

// The codes of the next part's piece, asked for while those of this one, in whose place they come,
// are read. A lane reads what it has copied itself, so it waits for no other.
template <class S>
struct CodesAhead {
  std::uint32_t to;                   // shared_address
  const std::byte* from[S::kPlanes];  // of each plane
  bool any;

  // The words of this channel tile are being loaded, those kBehind tiles before it are there.
  __device__ __forceinline__ void reading(int tile) const {
    if (tile >= kBehind) copy(tile - kBehind);
  }
  __device__ __forceinline__ void all_read() const {
#pragma unroll
    for (int tile = S::kChannelTiles - kBehind; tile < S::kChannelTiles; ++tile) copy(tile);
  }

 private:
  static constexpr int kBehind = 4;
  static_assert(kBehind <= S::kChannelTiles);
  __device__ __forceinline__ void copy(int tile) const {
    if constexpr (S::kCopiesAhead) {
      if (!any) return;
#pragma unroll
      for (int i = 0; i < S::kPlanes; ++i) {
        copy_stream16(to + i * S::kPlaneBytes + 512 * tile, from[i] + 512 * tile);
      }
    }
  }
};

// The pieces of a team's parts in the order in which it reads them: keys, then values, of each.
// Parts: which (attention_parts.cuh).
template <class S, class Parts = SplitParts<S>>
class PieceStream {
 public:
  // `slots`: of this team.
  __device__ PieceStream(const AttentionArgs& args, const Parts& parts, std::byte* slots,
                         const Team<S>& team, FragmentLane lane)
      : args_(args), parts_(parts), team_(team), slots_(slots), lane_(lane) {}
  // Asks for the first pieces: where the kernels before this one write them, when those have ended.
  __device__ __forceinline__ void start() {
    static_assert(S::kSlots == 2, "the pieces of one part");
    issue<kKeys, true, true>();
    issue<kValues, true, true>();
  }
  // Before the first next().
  __device__ __forceinline__ void begin() {
    if constexpr (S::kTeam > 1) meet();
  }

  // The next piece, waited for; it has keys or values, in turn.
  template <Piece kPiece>
  __device__ __forceinline__ const std::byte* next() {
    if constexpr (S::kTeam == 1) {
      wait_async_copies<S::kSlots - 1>();
      __syncwarp();
    }
    return slot<kPiece>();
  }
  // Of the piece that next() gave.
  template <Piece kPiece>
  __device__ __forceinline__ CodesAhead<S> ahead() {
    CodesAhead<S> ahead;
    ahead.any = S::kCopiesAhead && parts_.is_band();
    if (!ahead.any) return ahead;
    if (kPiece == kKeys) parts_.look_up();
    ahead.to = afresh(static_cast<int>(slot_address<kPiece>() + 16 * lane_.index));
#pragma unroll
    for (int i = 0; i < kOwnPlanes; ++i) {
      ahead.from[i] = afresh(parts_.unit(i) + codes<kPiece>() + 16 * lane_.index);
    }
    return ahead;
  }
  // The piece is read: its slot takes that of the next part, or, after a band (kAhead), what
  // ahead() left of it.
  template <Piece kPiece, bool kAhead>
  __device__ __forceinline__ void release() {
    if constexpr (S::kTeam == 1) {
      __syncwarp();
    } else {
      meet();
    }
    issue<kPiece, !(S::kCopiesAhead && (kAhead || !Parts::kSeveralSplits))>();
  }

 private:
  // Warps of a team meet once between two pieces: the next one has come by then, too.
  __device__ __forceinline__ void meet() {
    wait_async_copies<0>();
    team_.sync();
  }

  static constexpr int kOwnPlanes = UnitTable<S>::kOwnPlanes;

  // !kCodes: a band's have been asked for (ahead). kFirst: nothing waited for other kernels yet.
  template <Piece kPiece, bool kCodes, bool kFirst = false>
  __device__ __forceinline__ void issue() {
    if (parts_.is_band()) {
      if (kCodes) copy_codes<kPiece>();
      copy_scales<kPiece>();
    } else if (parts_.any()) {
      copy_slab<kPiece, kFirst>();
    }
    if (kPiece == kValues) parts_.advance();
    commit_async_copies();  // an empty group counts as well
  }

  template <Piece kPiece>
  __device__ __forceinline__ std::byte* slot() const {
    return slots_ + kPiece * S::kSlotBytes;
  }
  template <Piece kPiece>
  __device__ __forceinline__ std::uint32_t slot_address() const {
    return shared_address(slots_) + kPiece * S::kSlotBytes;
  }
  __device__ __forceinline__ int band_of_page() const {
    return parts_.part() & ((1 << args_.band_shift) - 1);
  }
  // Where they lie in a unit.
  template <Piece kPiece>
  __device__ __forceinline__ int codes() const {
    return kPiece * args_.shape.page_size * (S::kHeadDim / 2) + band_of_page() * S::kPlaneBytes;
  }
  template <Piece kPiece>
  __device__ __forceinline__ void copy_codes() {
    if (kPiece == kKeys) parts_.look_up();
#pragma unroll
    for (int i = 0; i < kOwnPlanes; ++i) {
      const int plane = team_.member + i;
      copy_block<S::kPlaneBytes>(slot_address<kPiece>() + plane * S::kPlaneBytes,
                                 parts_.unit(i) + codes<kPiece>(), lane_.index);
    }
  }
  // Scales, then offsets: of keys side by side, of values those of all the page between.
  template <Piece kPiece>
  __device__ __forceinline__ void copy_scales() const {
    if (team_.member != 0) return;  // they are in the upper plane's unit
    const int page_size = args_.shape.page_size;
    constexpr int kBytes = kPiece == kValues ? S::kValueScaleBytes : 2 * S::kHeadDim;
    const int gap = kPiece == kValues ? 2 * page_size * S::kValueGroups - kBytes : 0;
    const int first =
        page_size * S::kHeadDim + kPiece * (4 * S::kHeadDim + band_of_page() * kBytes);
    const std::byte* scales = parts_.unit(0) + first;
#pragma unroll
    for (int at = 0; at < 2 * kBytes; at += 512) {
      const int mine = at + 16 * lane_.index;
      if (mine < 2 * kBytes) {
        copy_async16(slot_address<kPiece>() + S::kPlanes * S::kPlaneBytes + mine,
                     scales + mine + (mine < kBytes ? 0 : gap));
      }
    }
  }

  template <Piece kPiece, bool kFirst>
  __device__ __forceinline__ void copy_slab() const {
    const Work& work = parts_.work();
    const int slab = parts_.part() - work.num_bands;
    const SequenceKv& kv = *work.kv;
    const bool gathered = slab < work.gathered_slabs;
    const FullKv& full = gathered ? kv.gathered : kv.full;
    const int token = gathered
                          ? slab * S::kSlabTokens
                          : work.state.first_full + (slab - work.gathered_slabs) * S::kSlabTokens;
    const std::byte* rows =
        full.data + 2 * full_kv_index(args_.shape, full.capacity, work.kv_head, kPiece, 0);
    constexpr int kRowUnits = S::kHeadDim / 8;  // 16 bytes each
#pragma unroll 1
    for (int tile = team_.member; tile < S::kSlabTiles; tile += S::kTeam) {
      // 16 tokens from a multiple of 16 on lie side by side: capacities are multiples of 16.
      const int place = (token + 16 * tile) % full.capacity;
      const std::byte* from = rows + place * std::size_t(2 * S::kHeadDim);
      std::uint32_t to = slot_address<kPiece>() + 16 * tile * S::kRowBytes;
      if (kFirst && parts_.own_tokens()) wait_for_previous_kernels();  // all else is ready
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
  Parts parts_;  // from the next one to copy on
  const Team<S>& team_;
  std::byte* slots_;
  FragmentLane lane_;
};

}  // namespace quantspec::cuda
