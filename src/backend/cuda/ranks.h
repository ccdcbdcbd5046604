// What ranks on GPUs tell each other while they compute a model together (model/share.h): sums of
// o and down, and logits; in prompts where they may read and write in each other's memory. Each has
// a thread of one process and a GPU; several may have one GPU, as tests do.
//
// One kernel of a rank writes what the others need to their memory, and takes what they wrote from
// its own. Each word says by itself that it has come: it is zero until then, and whoever takes it
// makes it zero again. So nothing is waited for but the words: no flag, no fence, one way across.
// There are places for two steps, by turns: who sends a step's words has taken all of the step
// before, and so whoever has those may send the next. Where a step's place is follows from a count
// in device memory, so that a graph can repeat it.
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

#include "backend/cuda/ranks_kernel.h"
#include "base/buffer.h"
#include "comm/comm.h"

namespace quantspec::cuda {

class Device;

// Not thread-safe; the device's GPU is current in all of its functions.
class Ranks {
 public:
  // All ranks make theirs at a time. Throws kDevice where they cannot reach each other's memory.
  // REQUIRES: device and all outlive this.
  Ranks(Device& device, Communicator& all,
        std::chrono::milliseconds patience = SharedRanks::kPatience);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return all_.rank(); }
  int size() const { return all_.size(); }

  // x += bias + the sum of all ranks' sums, each [rows, outputs], as a balanced tree over the ranks
  // and in the order in which one rank adds; bias: [outputs] or null. sums: 16-byte aligned, with
  // room to whole quads.
  void add_sums(const float* sums, const float* bias, int rows, int outputs, float* x);
  // all = the rows that the ranks have, side by side: [rows, size() * outputs] of [rows, outputs].
  // own: as sums.
  void gather(const float* own, int rows, int outputs, float* all);

  // GPUs meet: what follows in the streams begins when all have come here, and finds in other
  // ranks' memory what they wrote there before.
  void meet_on_gpus();

  // Hosts tell each other: whether it is so at all ranks; what each says, by rank, in whose order
  // pointers lead to memory that this GPU reaches; and that all have come.
  bool at_all(bool so);
  template <typename T>
  std::vector<T> told(const T& own);
  void meet();

  // Whether a graph may wait for other ranks' graphs: a GPU runs only some at a time.
  bool may_repeat() const { return most_on_gpu_ <= kFewRanks; }

  // Throws kDevice where a kernel gave up, or that of another rank. After a wait for the stream.
  void require_well() const;

 private:
  // Ranks on a GPU whose streams and graphs do not wait for each other. NOTE: of 8 ranks' graphs an
  // H200 ran 5; the other 3 began when those gave up.
  static constexpr int kFewRanks = 4;

  // What belongs to a rank and others reach; it lives until the last of them has left.
  struct Mailbox {
    int ordinal;   // of its GPU
    Buffer inbox;  // inbox_bytes()
    Buffer counts, signs;
  };

  void reach(int ordinal) const;
  template <typename F>
  void launch_together(const F& launch);
  void all_gather(std::span<std::byte> out, std::span<const std::byte> own);
  void leave() const;
  void require_queues() const;

  Device& device_;
  Communicator& all_;
  std::chrono::milliseconds patience_;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;  // by rank
  int most_on_gpu_ = 0;                              // ranks on a GPU
  RankPlaces places_{};
};

template <typename T>
std::vector<T> Ranks::told(const T& own) {
  std::vector<T> all(size());
  all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&own, 1)));
  return all;
}

}  // namespace quantspec::cuda
