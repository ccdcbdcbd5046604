// What ranks on GPUs tell each other while they compute a model together (model/share.h): sums of
// o and down, and logits; in prompts where they may read and write in each other's memory
// (peer_memory.h); and of a context that they share (context.h) queries, and what attention left.
// Each has a GPU, and is a thread of one process or a process of this machine; several may have one
// GPU, as tests do.
//
// Those who tell each other something are a circle: all ranks, one of each share of the weights,
// the ranks that share a context, or of these one of each share. Circles of the same ranks are one.
//
// One kernel of a rank writes what the others need to their memory, and takes what they wrote from
// its own. Each word says by itself that it has come: it is zero until then, and whoever takes it
// makes it zero again. So nothing is waited for but the words: no flag, no fence, one way across.
// There are places for two steps, by turns: who sends a step's words has taken all of the step
// before, and so whoever has those may send the next: every kernel sends a word to each at least,
// and begins when those before it have ended. Where a step's place is follows from a count in
// device memory, so that a graph can repeat it. Each group of ranks that tell each other something,
// as all, or those of a context, has places and a count of its own.
//
// A kernel that waits has to be told that nothing will come: each looks now and then whether a rank
// has left (~Ranks, also where it failed) or whether its patience is over. It then goes on with
// whatever is there, and so do all that follow, and the host throws when it next waits for the GPU.
// The kernels of all ranks are launched together: no thread begins what may wait for a GPU, as
// taking memory does, while a kernel runs there that waits for one not yet launched.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/peer_memory.h"
#include "backend/cuda/ranks_kernel.h"
#include "backend/params/kv.h"
#include "base/buffer.h"
#include "comm/comm.h"
#include "quant/quant.h"

namespace quantspec::cuda {

class Device;

// How so many ranks share a model.
struct RankSharing {
  int size = 1;
  RankGroups groups = {};

  // Shares of the weights, which groups.alike ranks that follow each other have in common.
  int shares() const { return size / groups.alike; }
  // Groups that share contexts, with other KV heads each; and the shares of one.
  int contexts() const { return size / groups.context; }
  int shares_of_context() const { return groups.context / groups.alike; }
};

// What the splits and teams of attention follow from, and so does what ranks tell each other.
struct GpuKind {
  int capability, num_sms, shared_bytes;
  bool operator==(const GpuKind&) const = default;
};
// Those of all ranks: throws kDevice where they differ.
void require_alike(std::span<const GpuKind> kinds);

// Not thread-safe; the device's GPU is current in all of its functions.
class Ranks {
 public:
  // All ranks make theirs at a time. Throws kDevice where they cannot reach each other's memory.
  // REQUIRES: device and all outlive this.
  Ranks(Device& device, Communicator& all, const RankGroups& groups = {},
        std::chrono::milliseconds patience = SharedRanks::kPatience);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // That each takes of its GPU's memory.
  static std::size_t bytes(const RankSharing& sharing);

  int rank() const { return all_.rank(); }
  int size() const { return sharing_.size; }
  const RankSharing& sharing() const { return sharing_; }

  int num_shares() const { return sharing_.shares(); }
  int share() const { return rank() / sharing_.groups.alike; }
  int num_contexts() const { return sharing_.contexts(); }
  int context_index() const { return rank() / sharing_.groups.context; }
  int shares_of_context() const { return sharing_.shares_of_context(); }
  int rank_of_context() const { return rank() % sharing_.groups.context; }
  // Whether these are the ranks of a cache of that shape.
  bool are_of(const KvShape& shape) const {
    return shape.context_ranks == sharing_.groups.context &&
           shape.context_rank == rank_of_context();
  }

  // x += bias + the sum of all shares' sums, each [rows, outputs], as a balanced tree over the
  // shares and in the order in which one rank adds; bias: [outputs] or null. sums: 16-byte aligned,
  // with room to whole quads. REQUIRES: there are several.
  void add_sums(const float* sums, const float* bias, int rows, int outputs, float* x);
  // all = the rows that the shares have, side by side: [rows, num_shares() * outputs] of [rows,
  // outputs]. own: as sums. REQUIRES: likewise.
  void gather(const float* own, int rows, int outputs, float* all);
  // The same of those that share a context: of shares_of_context(). REQUIRES: there are several.
  void gather_queries(const float* own, int rows, int outputs, float* all);
  // Between ranks that share a context.
  void give_partials(const RankPartials& partials);

  // GPUs meet: what follows in the streams begins when all have come here, and finds in other
  // ranks' memory what they wrote there before.
  void meet_on_gpus();

  // Hosts tell each other: whether it is so at all ranks; what each says, by rank; and that all
  // have come.
  bool at_all(bool so);
  template <typename T>
  std::vector<T> told(const T& own);
  // The same of some: one of each share, by share; one of each context; those of this one's.
  template <typename T>
  std::vector<T> told_by_shares(const T& own);
  template <typename T>
  std::vector<T> told_by_contexts(const T& own);
  // The same with pointers to memory of a GPU: value.for_pointers(f) calls f for each. They come
  // back as this GPU reaches what they point to.
  template <typename T>
  std::vector<T> reached_by_shares(T own);
  // Tables of the pages of each rank of the context, likewise; good until this is called again.
  // REQUIRES: all have as many.
  std::vector<const PagePlanes*> pages_of_context(std::span<const PagePlanes> own);
  void meet();

  // Whether a graph may wait for other ranks' graphs: a GPU runs only some at a time.
  bool may_repeat() const { return memory_.most_on_gpu() <= kMostRepeating; }

  // Throws kDevice where a kernel gave up, or that of another rank. After a wait for the stream.
  void require_well() const;

 private:
  // Ranks on a GPU: whose streams get by with the queues that there are, and whose graphs run at a
  // time. NOTE: of 8 ranks' graphs an H200 ran 5, and the other 3 when those gave up; of 4 ranks'
  // one ran all, and two others did not.
  static constexpr int kFewRanks = 4, kMostRepeating = 2;

  // Ranks that follow each other `step` apart.
  struct Members {
    int first, step, count;
    bool operator==(const Members&) const = default;
  };
  // Those to whom a rank tells something.
  struct Circles {
    Members all, shares, context, queries;
    Circles(int rank, const RankSharing& sharing);
    // Those of several, each once.
    std::vector<Members> distinct() const;
  };
  struct Circle {
    Members members;
    RankPlaces places;
  };
  void find_places();
  // REQUIRES: of several.
  const RankPlaces& places_of(const Members& members) const;

  template <typename T>
  static std::vector<T> some_of(const std::vector<T>& all, const Members& members);
  void show(std::span<const void* const> own);
  template <typename F>
  void launch_together(const F& launch);
  void all_gather(std::span<std::byte> out, std::span<const std::byte> own);
  // Calls f, in which hosts meet. Where it throws this rank leaves.
  template <typename F>
  void or_leave(const F& f);
  void leave() const;
  void require_queues() const;

  Device& device_;
  Communicator& all_;
  RankSharing sharing_;
  Circles own_;
  std::chrono::milliseconds patience_;
  PeerMemory memory_;
  // What belongs to a rank and others reach, by rank: of each circle inbox_bytes().
  std::vector<std::shared_ptr<RankSigns>> signs_;
  std::vector<std::shared_ptr<std::byte>> inboxes_;
  Buffer counts_;
  Buffer tables_;                // of processes: pages of a context, as this one reaches them
  std::vector<Circle> circles_;  // alike at all ranks; first of all
  RankPlaces places_{};          // of all
};

template <typename T>
std::vector<T> Ranks::told(const T& own) {
  std::vector<T> all(size());
  all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&own, 1)));
  return all;
}

template <typename T>
std::vector<T> Ranks::told_by_shares(const T& own) {
  return some_of(told(own), own_.shares);
}

template <typename T>
std::vector<T> Ranks::told_by_contexts(const T& own) {
  return some_of(told(own), Members{rank_of_context(), sharing_.groups.context, num_contexts()});
}

template <typename T>
std::vector<T> Ranks::reached_by_shares(T own) {
  std::vector<const void*> pointers;
  own.for_pointers([&](auto* pointer) { pointers.push_back(pointer); });
  show(pointers);
  std::vector<T> shares = told_by_shares(own);
  for (int i = 0; i < std::ssize(shares); ++i) {
    const int rank = own_.shares.first + i * own_.shares.step;
    shares[i].for_pointers([&](auto*& pointer) { pointer = memory_.find(rank, pointer); });
  }
  return shares;
}

template <typename T>
std::vector<T> Ranks::some_of(const std::vector<T>& all, const Members& members) {
  std::vector<T> some;
  for (int i = 0; i < members.count; ++i) some.push_back(all[members.first + i * members.step]);
  return some;
}

}  // namespace quantspec::cuda
