// Pieces on their way to shared memory: every team has slots of its own, and copies ahead.
#pragma once

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

// Units of a team's bands, those of each plane that a warp of it copies, in shared memory, as
// registers are few: [plane, kCount].
template <class S, int kCount>
struct UnitTable {
  static constexpr int kOwnPlanes = S::kPlanes / S::kTeam;
  static_assert(kOwnPlanes * S::kTeam == S::kPlanes, "each warp copies some");
  static constexpr int kBytes = kOwnPlanes * kCount * sizeof(std::byte*);

  const std::byte** units;

  // Where the planes of a part have the unit, if it is a band. NOTE: from L2, as Work's state.
  __device__ static __forceinline__ ulonglong2 look_up(const AttentionArgs& args, const Work& work,
                                                       int part) {
    if (part >= work.num_bands) return {};
    const SequenceKv& kv = *work.kv;
    int page = part >> args.band_shift;
    if (kv.pages_listed > 0) page = __ldcg(kv.page_lists + work.kv_head * kv.pages_listed + page);
    ulonglong2 planes = __ldcg(reinterpret_cast<const ulonglong2*>(kv.pages) + page);
    const int unit = (args.layer * args.shape.num_kv_heads + work.kv_head) >>
                     args.context_shift;  // own_upper_offset()
    planes.x += static_cast<std::size_t>(unit) * args.shape.upper_unit_bytes();
    planes.y += static_cast<std::size_t>(unit) * args.shape.lower_unit_bytes();
    return planes;
  }
  __device__ __forceinline__ void put(int at, int first_plane, ulonglong2 planes) const {
#pragma unroll
    for (int i = 0; i < kOwnPlanes; ++i) {
      units[kCount * i + at] =
          reinterpret_cast<const std::byte*>(first_plane + i == 0 ? planes.x : planes.y);
    }
  }
};

// The pieces of a team's parts in the order in which it reads them: keys, then values, of each.
// kStays: when all pieces of a split are asked for, it goes on with another (attention_batch.cuh).
template <class S, bool kStays = false>
class PieceStream {
 public:
  static constexpr int kUnits = kStays ? 8 : 32;
  using Units = UnitTable<S, kUnits>;

  // `slots`: of this team.
  __device__ PieceStream(const AttentionArgs& args, const Work& work, std::byte* slots, Units units,
                         const Team<S>& team, FragmentLane lane)
      : args_(args),
        work_(&work),
        bands_(work.num_bands),
        parts_(work.num_parts),
        team_(team),
        slots_(slots),
        units_(units),
        lane_(lane),
        part_(work.first_part<S>(team.index)) {
    if (!kStays) find_units();
  }
  // Asks for the first pieces: where the kernels before this one write them, when those have ended.
  __device__ __forceinline__ void start() {
    static_assert(S::kSlots == 2, "the pieces of one part");
    if (own_tokens()) wait_for_previous_kernels();
    issue<kKeys, true>();
    issue<kValues, true>();
  }
  // Before the first next().
  __device__ __forceinline__ void begin() {
    if constexpr (S::kTeam > 1) meet();
  }

  // --- kStays ---
  // Goes on with another split when all pieces of its own are asked for, and starts anew where none
  // is under way. `units`: of the first bands.
  __device__ __forceinline__ void follow(const Work& next, Units units) {
    next_ = &next;
    next_units_ = units;
    pass_on();
    if (!asked_ && part_ < parts_) start();
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
    ahead.any = S::kCopiesAhead && part_ < bands_;
    if (!ahead.any) return ahead;
    if (kPiece == kKeys) look_up();
    ahead.to = afresh(static_cast<int>(slot_address<kPiece>() + 16 * lane_.index));
#pragma unroll
    for (int i = 0; i < kOwnPlanes; ++i) {
      ahead.from[i] = afresh(unit(i) + codes<kPiece>() + 16 * lane_.index);
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
    issue<kPiece, !(S::kCopiesAhead && (kAhead || !kStays))>();
  }

 private:
  // Warps of a team meet once between two pieces: the next one has come by then, too.
  __device__ __forceinline__ void meet() {
    wait_async_copies<0>();
    team_.sync();
  }

  static constexpr int kOwnPlanes = Units::kOwnPlanes;

  // Whether the part to copy has tokens of the launch's own rows.
  __device__ __forceinline__ bool own_tokens() const {
    const int slab = part_ - bands_ - work_->gathered_slabs;
    return (slab + 1) * S::kSlabTokens > work_->state.first_position - work_->state.first_full;
  }
  // !kCodes: a band's have been asked for (ahead).
  template <Piece kPiece, bool kCodes>
  __device__ __forceinline__ void issue() {
    if (part_ < bands_) {
      if (kCodes) copy_codes<kPiece>();
      copy_scales<kPiece>();
    } else if (part_ < parts_) {
      copy_slab<kPiece>();
    }
    if (kPiece == kValues) {
      asked_ = part_ < parts_;
      part_ += work_->part_stride;
      ++num_used_;
      pass_on();
    }
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
    return part_ & ((1 << args_.band_shift) - 1);
  }
  // Where they lie in a unit.
  template <Piece kPiece>
  __device__ __forceinline__ int codes() const {
    return kPiece * args_.shape.page_size * (S::kHeadDim / 2) + band_of_page() * S::kPlaneBytes;
  }
  template <Piece kPiece>
  __device__ __forceinline__ void copy_codes() {
    if (kPiece == kKeys) look_up();
#pragma unroll
    for (int i = 0; i < kOwnPlanes; ++i) {
      const int plane = team_.member + i;
      copy_block<S::kPlaneBytes>(slot_address<kPiece>() + plane * S::kPlaneBytes,
                                 unit(i) + codes<kPiece>(), lane_.index);
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
    const std::byte* scales = unit(0) + first;
#pragma unroll
    for (int at = 0; at < 2 * kBytes; at += 512) {
      const int mine = at + 16 * lane_.index;
      if (mine < 2 * kBytes) {
        copy_async16(slot_address<kPiece>() + S::kPlanes * S::kPlaneBytes + mine,
                     scales + mine + (mine < kBytes ? 0 : gap));
      }
    }
  }

  __device__ __forceinline__ void pass_on() {
    if constexpr (kStays) {
      if (part_ < parts_ || next_ == nullptr) return;
      work_ = next_;
      bands_ = work_->num_bands;
      parts_ = work_->num_parts;
      units_ = next_units_;
      next_ = nullptr;
      part_ = work_->first_part<S>(team_.index);
      num_used_ = 0;
    }
  }

  __device__ __forceinline__ void find_units() {
    __syncwarp();
    const int mine = part_ + lane_.index * work_->part_stride;
    if (lane_.index < kUnits && mine < bands_) {
      units_.put(lane_.index, team_.member, Units::look_up(args_, *work_, mine));
    }
    __syncwarp();
    num_used_ = 0;
  }
  // Before the unit of the part to copy is asked for.
  __device__ __forceinline__ void look_up() {
    if (num_used_ == kUnits) find_units();
  }
  __device__ __forceinline__ const std::byte* unit(int plane) const {
    return units_.units[kUnits * plane + num_used_];
  }

  template <Piece kPiece>
  __device__ __forceinline__ void copy_slab() const {
    const int slab = part_ - bands_;
    const SequenceKv& kv = *work_->kv;
    const bool gathered = slab < work_->gathered_slabs;
    const FullKv& full = gathered ? kv.gathered : kv.full;
    const int token =
        gathered ? slab * S::kSlabTokens
                 : work_->state.first_full + (slab - work_->gathered_slabs) * S::kSlabTokens;
    const std::byte* rows =
        full.data + 2 * full_kv_index(args_.shape, full.capacity, work_->kv_head, kPiece, 0);
    constexpr int kRowUnits = S::kHeadDim / 8;  // 16 bytes each
#pragma unroll 1
    for (int tile = team_.member; tile < S::kSlabTiles; tile += S::kTeam) {
      // 16 tokens from a multiple of 16 on lie side by side: capacities are multiples of 16.
      const int place = (token + 16 * tile) % full.capacity;
      const std::byte* from = rows + place * std::size_t(2 * S::kHeadDim);
      std::uint32_t to = slot_address<kPiece>() + 16 * tile * S::kRowBytes;
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
  const Work* work_;
  int bands_, parts_;  // its
  const Team<S>& team_;
  std::byte* slots_;
  Units units_;
  FragmentLane lane_;
  int part_;            // of the next piece to copy
  int num_used_ = 0;    // of the units looked up
  bool asked_ = false;  // pieces are under way, or being read
  const Work* next_ = nullptr;
  Units next_units_{};
};

}  // namespace quantspec::cuda
