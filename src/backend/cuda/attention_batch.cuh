// Decode attention of a target's batch whose sequences have few columns each: the kernel of
// attention_kernel.cuh with CTAs that stay, one on a multiprocessor, and read split after split, so
// that copies are under way at all times, also while the results of a split are put together. A
// short context has little to read in each of its splits, and CTAs of their own would wait for most
// of their time.
//
// An *item* is a split of one sequence and kv head, whose columns are one block. Items are numbered
// by sequence, then head, then split; a CTA has items in a row, so many that all CTAs have about as
// much to do.
//
// A warp of its own, the *scout*, looks up what the next items are: Work, queries where they are
// others, and where the first units are. While the teams read item i, it brings item i + 2; so a
// team that has asked for all of its pieces of i goes on with those of i + 1. They meet twice for
// each item. A team adds up what it does in attention_kernel, in the same order, and merge_kernel
// merges the splits: bits are those of a sequence alone.
#pragma once

#include "backend/cuda/attention_kernel.cuh"

namespace quantspec::cuda {

// Shared memory of a CTA: of the items that are read, come next, and are looked up, what is known;
// as many queries; then TeamPartials' statistics, of every other item; slots; and the rows of
// TeamPartials, which lie where no copy comes to lie.
template <class S>
struct BatchRoom {
  using Stream = PieceStream<S, /*kStays=*/true>;
  // Of an item; none of them: its sequence is negative.
  struct Item {
    Work work;
    int queries;  // which
  };
  static_assert(S::kTeam == 1 && sizeof(Item) <= 128);
  static constexpr int kItems = 3;
  static constexpr int kItemBytes = 128 + S::kMaxTeams * Stream::Units::kBytes;
  static constexpr int kQueriesBytes = (S::kExponentsOffset + 127) / 128 * 128;
  static constexpr int kStatsOffset = kItems * (kItemBytes + kQueriesBytes);
  static constexpr int kSlotsOffset = (kStatsOffset + 2 * S::kStatBytes + 127) / 128 * 128;
  static constexpr int kTeamSlots = S::kSlots * S::kSlotBytes;
  static constexpr int bytes(int teams) {
    return kSlotsOffset + teams * kTeamSlots + S::merge_bytes(teams);
  }

  std::byte* shared;
  int teams;

  __device__ std::byte* place(int number) const { return shared + number % kItems * kItemBytes; }
  __device__ Item& item(int number) const { return *reinterpret_cast<Item*>(place(number)); }
  __device__ typename Stream::Units units(int number, int team) const {
    return {
        reinterpret_cast<const std::byte**>(place(number) + 128 + team * Stream::Units::kBytes)};
  }
  __device__ Queries<S> queries(int which) const {
    return Queries<S>(shared + kItems * kItemBytes + which * kQueriesBytes);
  }
  __device__ std::byte* slots(int team) const { return shared + kSlotsOffset + team * kTeamSlots; }
  __device__ TeamPartials<S> partials(int number) const {
    return {shared + kStatsOffset + number % 2 * S::kStatBytes, slots(teams), teams};
  }
};

// What is the scout's: the CTA's items.
template <class S>
class Scout {
 public:
  __device__ Scout(const AttentionArgs& args, const BatchRoom<S>& room) : args_(args), room_(room) {
    const int lane = lane_.index;
    work_ = Work::of<S>(args, min(lane, args.sequences.count - 1), room.teams);
    static_assert(kLaunchSequences <= 32, "a lane for each");
    const bool some = lane < args.sequences.count && work_.state.num_rows > 0;
    const int items = some ? args.shape.num_kv_heads * args.splits : 0;
    // What an item costs, times splits: its parts, and as much as so many for all else. NOTE: an
    // estimate (docs/decisions/0023-attention-of-batches.md).
    constexpr int kBeside = 6;
    const long long each = some ? work_.num_parts + kBeside * args.splits : 1;
    item_end_ = items;
    cost_end_ = items * each;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int before = __shfl_up_sync(~0u, item_end_, lanes);
      const long long costs = __shfl_up_sync(~0u, cost_end_, lanes);
      if (lane >= lanes) item_end_ += before, cost_end_ += costs;
    }
    item_ = first_item(blockIdx.x, items, each);
    end_ = first_item(blockIdx.x + 1, items, each);
    work_.sequence = -1;
  }

  // Brings the next item to its place. Returns whether there is one.
  __device__ bool bring(int number) {
    using Stream = typename BatchRoom<S>::Stream;
    typename BatchRoom<S>::Item& to = room_.item(number);
    if (item_ >= end_) {
      if (lane_.index == 0) to.work.sequence = -1;
      return false;
    }
    const bool another = work_.sequence < 0 || work_.split + 1 == args_.splits;
    if (another) {
      const int sequence = __popc(__ballot_sync(~0u, item_end_ <= item_));
      const int before = __shfl_sync(~0u, item_end_, max(sequence - 1, 0));
      const int at = item_ - (sequence > 0 ? before : 0), head = at / args_.splits;
      work_ = Work::of<S>(args_, sequence, room_.teams);
      work_.take<S>(args_, head, /*blocks=*/1, at - head * args_.splits);
      queries_ = queries_ == BatchRoom<S>::kItems - 1 ? 0 : queries_ + 1;
    } else {
      work_.place = ++work_.split;
    }
    ++item_;
    if (lane_.index == 0) to = {work_, queries_};
    constexpr int kUnits = Stream::kUnits, kEach = S::kMaxTeams * kUnits / 32;
    ulonglong2 units[kEach];  // they come while queries do
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane_.index + 32 * i;
      units[i] = Stream::Units::look_up(
          args_, work_, work_.first_part<S>(at / kUnits) + at % kUnits * work_.part_stride);
    }
    if (another) load_queries<S, 8>(args_, work_, room_.queries(queries_), 0, 1, lane_);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane_.index + 32 * i;
      room_.units(number, at / kUnits).put(at % kUnits, 0, units[i]);
    }
    return true;
  }

 private:
  // Of a CTA: the first whose begin is not before the CTA's share of all costs. `items`, `each`: of
  // this lane's sequence.
  __device__ int first_item(int cta, int items, long long each) const {
    const long long all = __shfl_sync(~0u, cost_end_, 31);
    const long long begin = all * cta / gridDim.x;
    const int sequence = __popc(__ballot_sync(~0u, cost_end_ <= begin));
    if (sequence >= 32) return __shfl_sync(~0u, item_end_, 31);
    const long long cost = __shfl_sync(~0u, cost_end_ - items * each, sequence);
    const long long own = __shfl_sync(~0u, each, sequence);
    const int first = __shfl_sync(~0u, item_end_ - items, sequence);
    return first + static_cast<int>((begin - cost + own - 1) / own);
  }

  const AttentionArgs& args_;
  const BatchRoom<S>& room_;
  const FragmentLane lane_;
  int item_end_;        // of the items of this lane's sequence and of those before it
  long long cost_end_;  // likewise
  int item_, end_;      // the next one to bring, and the CTA's end
  Work work_;           // of the last one brought; its sequence is negative: of none
  int queries_ = -1;    // likewise
};

// Grid: as many CTAs as a GPU has multiprocessors. Threads: of the teams, then of the scout.
template <class S>
__global__ void __launch_bounds__(32 * (S::kMaxTeams + 1), 1)
    attention_batch_kernel(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const BatchRoom<S> room{shared, static_cast<int>(blockDim.x) / 32 - 1};
  if (warp_index() == room.teams) {
    Scout<S> scout(args, room);
    bool more = scout.bring(0);
    // The end of this grid says that the kernels before it have ended, also where no CTA has work.
    if (!more) wait_for_previous_kernels();
    __syncthreads();
    if (!more) return;
    more = scout.bring(1);
#pragma unroll 1
    for (int number = 0;; ++number) {
      const bool last = !more;
      if (more) more = scout.bring(number + 2);
      __syncthreads();
      __syncthreads();
      if (last) return;
    }
  }
  const FragmentLane lane;
  const Team<S> team(nullptr);
  __syncthreads();
  wait_for_previous_kernels();  // takes no time: the scout has waited
  if (room.item(0).work.sequence < 0) return;
  typename BatchRoom<S>::Stream stream(args, room.item(0).work, room.slots(team.index),
                                       room.units(0, team.index), team, lane);
  stream.start();
#pragma unroll 1
  for (int number = 0;; ++number) {
    // Item 1 was not there when item 0 began.
    if (number == 1) stream.follow(room.item(1).work, room.units(1, team.index));
    if (number > 0 && room.item(number + 1).work.sequence >= 0) {
      stream.follow(room.item(number + 1).work, room.units(number + 1, team.index));
    }
    const Work& work = room.item(number).work;
    const TeamPartials<S> partials = room.partials(number);
    WarpSums<S> sums;
    read_split<S>(args, work, room.queries(room.item(number).queries), team, lane, stream, sums);
    store_exponents<S>(sums, team, lane, partials);
    const int live = work.live_columns<S>(args);
    const std::ptrdiff_t columns = work.partial<S>(args);
    __syncthreads();
    store_warp<S>(sums, team, live, lane, partials);
    const bool last = room.item(number + 1).work.sequence < 0;
    __syncthreads();  // the scout may take the item's place
    store_partial<S>(partials, live, args.partials + columns * S::kHeadDim,
                     args.partial_sums + columns, 32 * room.teams);
    if (last) return;
  }
}

}  // namespace quantspec::cuda
