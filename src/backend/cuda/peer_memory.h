// How ranks on GPUs reach each other's memory (ranks.h), whether they are threads of a process or
// processes of a machine. Within a process an address is good for all, once GPUs may access their
// peers. Another process opens the allocation that it lies in, by a handle (CUDA IPC), and finds it
// at an address of its own; so ranks show what they are going to tell others of.
//
// What was shown stays opened until a rank leaves. Its owner may give it back before: it then stays
// taken until the others have closed it, for which who leaves waits a moment; if they do not come
// to that, it stays taken until this process ends, and a warning says so where nothing failed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/ranks_kernel.h"
#include "comm/comm.h"

namespace quantspec::cuda {

class Device;

// Not thread-safe; the device's GPU is current in all of its functions, but the destructor. All but
// find() are called by all ranks at a time, and throw what the Communicator throws.
class PeerMemory {
 public:
  // Throws kDevice where GPUs cannot reach each other. REQUIRES: device and all outlive this.
  PeerMemory(Device& device, Communicator& all);
  // REQUIRES: nothing runs on the GPU that reaches others' memory.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // The most ranks on one GPU.
  int most_on_gpu() const { return most_on_gpu_; }
  // Whether all ranks are threads of one process; each is a process otherwise.
  bool in_one_process() const { return in_one_process_; }

  // Zeroed memory of each rank's GPU, by rank, which lives until the last rank has left.
  std::vector<std::shared_ptr<std::byte>> allocate_at_all(std::size_t bytes);
  // Of the host, by rank: all hosts reach them, and a rank's GPU its own.
  std::vector<std::shared_ptr<RankSigns>> make_signs();

  // From now on others find what lies in the allocations of these addresses; null is nothing.
  void show(std::span<const void* const> own);
  // Where this GPU reaches what `rank` has at `theirs`. REQUIRES: that showed it; or null.
  template <typename T>
  T* find(int rank, T* theirs) const {
    return static_cast<T*>(const_cast<void*>(find_any(rank, theirs)));
  }

 private:
  struct Place;  // where a rank is
  struct Shown;  // an allocation, as others are told of it
  struct Signs;  // of all ranks, in memory that processes share
  struct Opened {
    std::size_t bytes;
    std::byte* at;  // as this process finds it
  };

  bool is_here(int rank) const;
  void reach_gpu(int ordinal) const;
  Shown shown_of(const std::byte* own);
  void open_memory(int rank, const Shown& shown);
  const void* find_any(int rank, const void* theirs) const;
  std::shared_ptr<Signs> map_signs();
  bool others_have_closed() const;
  template <typename T>
  std::vector<std::shared_ptr<T>> told_here(std::shared_ptr<T> own);
  template <typename T>
  std::vector<T> told(const T& own);

  Device& device_;
  Communicator& all_;
  std::vector<Place> places_;  // by rank
  int most_on_gpu_ = 0;
  bool in_one_process_ = true;
  std::shared_ptr<Signs> signs_;                            // of several processes
  std::map<const std::byte*, std::size_t> shown_;           // this rank's, by base: bytes
  std::vector<std::map<const std::byte*, Opened>> opened_;  // by rank, and the base that it has
};

template <typename T>
std::vector<T> PeerMemory::told(const T& own) {
  std::vector<T> told(all_.size());
  all_.all_gather(std::as_writable_bytes(std::span(told)), std::as_bytes(std::span(&own, 1)));
  return told;
}

}  // namespace quantspec::cuda
