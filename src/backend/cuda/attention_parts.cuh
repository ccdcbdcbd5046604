// Which parts a warp reads (attention_shape.cuh), in their order, and where their units are: those
// of a team of one split, or of the teams that it is of splits in a row.
#pragma once

#include "backend/cuda/attention_team.cuh"

namespace quantspec::cuda {

// Units of a team's bands, those of each plane that a warp of it copies, in shared memory, as
// registers are few: [plane, kCount].
template <class S>
struct UnitTable {
  static constexpr int kCount = 32;  // one of each lane
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
  __device__ __forceinline__ const std::byte* unit(int plane, int at) const {
    return units[kCount * plane + at];
  }
};

// Where a team is among its parts.
template <class S>
class TeamParts {
 public:
  using Units = UnitTable<S>;

  __device__ const Work& work() const { return *work_; }
  __device__ int part() const { return part_; }
  __device__ bool is_band() const { return part_ < bands_; }
  __device__ bool any() const { return part_ < end_; }
  // Whether the part has tokens of the launch's own rows.
  __device__ __forceinline__ bool own_tokens() const {
    const int slab = part_ - bands_ - work_->gathered_slabs;
    return (slab + 1) * S::kSlabTokens > work_->state.first_position - work_->state.first_full;
  }

 protected:
  __device__ TeamParts(const AttentionArgs& args, const Work& work, int first, Units units,
                       FragmentLane lane)
      : args_(args),
        work_(&work),
        part_(first),
        bands_(work.num_bands),
        end_(work.num_parts),
        units_(units),
        lane_(lane) {}

  const AttentionArgs& args_;
  const Work* work_;
  int part_, bands_, end_;
  Units units_;
  FragmentLane lane_;
};

// Of one split.
template <class S>
class SplitParts : public TeamParts<S> {
  using Base = TeamParts<S>;
  using Base::args_, Base::work_, Base::part_, Base::bands_, Base::units_, Base::lane_;

 public:
  static constexpr bool kSeveralSplits = false;
  using typename Base::Units;

  __device__ SplitParts(const AttentionArgs& args, const Work& work, Units units,
                        const Team<S>& team, FragmentLane lane)
      : Base(args, work, work.first_part<S>(team.index), units, lane), team_(team) {
    find_units();
  }
  __device__ __forceinline__ void advance() {
    part_ += work_->part_stride;
    ++num_used_;
  }
  // Before the unit of the part to copy is asked for.
  __device__ __forceinline__ void look_up() {
    if (num_used_ == Units::kCount) find_units();
  }
  __device__ __forceinline__ const std::byte* unit(int plane) const {
    return units_.unit(plane, num_used_);
  }

 private:
  __device__ __forceinline__ void find_units() {
    __syncwarp();
    const int mine = part_ + lane_.index * work_->part_stride;
    if (mine < bands_) {
      units_.put(lane_.index, team_.member, Units::look_up(args_, *work_, mine));
    }
    __syncwarp();
    num_used_ = 0;
  }

  const Team<S>& team_;
  int num_used_ = 0;  // of the units looked up
};

// Of a warp that is a team of each split in a row and then, where there are half as many warps, its
// second: all of one split before those of the next. `work`: of the first of them, up to the split
// `end`.
template <class S, int kWarps>
class TurnParts : public TeamParts<S> {
  using Base = TeamParts<S>;
  using Base::args_, Base::work_, Base::part_, Base::bands_, Base::end_, Base::units_, Base::lane_;

 public:
  static constexpr bool kSeveralSplits = true;
  using typename Base::Units;

  __device__ TurnParts(const AttentionArgs& args, const Work& work, int end, Units units, int warp,
                       FragmentLane lane)
      : Base(args, work, work.first_part<S>(warp), units, lane),
        warp_(warp),
        first_split_(work.split),
        num_turns_(kTurns * (end - work.split)),
        each_((work.num_parts + work.part_stride - 1) / work.part_stride) {
    find_part();
  }
  __device__ __forceinline__ void advance() {
    part_ += work_->part_stride;
    ++number_;
    find_part();
  }
  __device__ __forceinline__ void look_up() {
    if (number_ / Units::kCount == table_) return;
    table_ = number_ / Units::kCount;
    const int number = Units::kCount * table_ + lane_.index, turn = number / each_;
    const int part = first_part(turn) + (number - turn * each_) * work_->part_stride;
    __syncwarp();
    if (turn < num_turns_ && part < bands_) {
      units_.put(lane_.index, 0, Units::look_up(args_, *work_, part));
    }
    __syncwarp();
  }
  __device__ __forceinline__ const std::byte* unit(int plane) const {
    return units_.unit(plane, number_ % Units::kCount);
  }

 private:
  static constexpr int kTurns = S::kMaxTeams / kWarps;
  __device__ __forceinline__ int first_part(int turn) const {
    return work_->template first_part<S>(first_split_ + turn / kTurns,
                                         warp_ + turn % kTurns * kWarps);
  }
  // The first part of a turn that has one, if this turn has no more.
  __device__ __forceinline__ void find_part() {
    while (part_ >= end_ && ++turn_ < num_turns_) {
      part_ = first_part(turn_);
      number_ = turn_ * each_;
    }
  }

  int warp_, first_split_;
  int num_turns_;   // of the warp, in all splits
  int each_;        // parts of a turn, at most
  int turn_ = 0;    // of the next part to copy
  int number_ = 0;  // its own: places of units are for `each_` of each turn
  int table_ = -1;  // the units of numbers from kCount times this on are looked up
};

}  // namespace quantspec::cuda
