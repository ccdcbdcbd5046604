// The GPU that a backend uses: its properties, the one stream on which all ops run in order, and
// the memory in which they work. Not thread-safe. Errors: kDevice, naming the call that failed (an
// error of a kernel shows at a later call), kOutOfMemory where memory could not be had.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/params.h"
#include "base/buffer.h"

namespace quantspec::cuda {

class PrefillGemm;

// Throws where `status` is not success; `call` is the text of what returned it.
void require(cudaError_t status, const char* call);
#define QUANTSPEC_CUDA(call) ::quantspec::cuda::require((call), #call)

// Zeroed memory on the device, 256-byte aligned.
Buffer allocate_on_device(std::size_t bytes);

// --- sequences of a pass -------------------------------------------------------------------------

// The most sequences of one launch; an op of more of them has several launches.
inline constexpr int kMaxSequences = 32;

// What changes of a sequence from pass to pass. It lies in device memory and kernels read it there,
// so that a launch can be repeated as it is: a grid depends on the shapes, never on these.
struct SequenceState {
  int first_row;
  int num_rows;
  int first_position;
  int first_full;  // as in KvView
  int num_pages;   // of its page table
  bool operator==(const SequenceState&) const = default;
};

// Where a sequence's K and V of one layer lie: its KvView.
struct SequenceKv {
  const SequenceState* state;  // device memory
  FullKv full;
  const PagePlanes* pages;  // [num_pages]
  const int* page_lists;    // [num_kv_heads, pages_listed]; null: all pages
  int pages_listed;
  FullKv gathered;
  int num_gathered;
  int max_pages;     // of page_mass
  float* page_mass;  // [num_kv_heads, max_pages] or null
};

// How a layer's view of a sequence differs from the state that follows from the position.
enum class View { kPages, kNoPages, kAllFull };
inline constexpr int kNumViews = 3;

// The sequences of a launch: a kernel's argument, by value.
struct SequenceBatch {
  int count;
  SequenceKv kv[kMaxSequences];
};

// Calls launch(first, count) for an op's sequences, by index, so that each launch has
// kMaxSequences at most.
template <typename Launch>
void for_launches(std::span<const SequenceRows> sequences, const Launch& launch) {
  const int size = static_cast<int>(sequences.size());
  for (int first = 0; first < size; first += kMaxSequences) {
    launch(first, std::min(kMaxSequences, size - first));
  }
}

// What those kernels of this build were compiled for that GPU 0 runs, as Device::capability(); 0:
// there are none (embed.cu).
int kernels_capability();

// --- the device ----------------------------------------------------------------------------------

// Memory between the kernels of an op. What an op leaves there is gone when another of the same
// kind begins; kCounters is zero at every op's begin, and left so.
enum class Scratch { kAttention, kCounters, kPrefill, kRounds, kWorkspace, kCount };

class Device {
 public:
  Device();  // GPU 0
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  // What its kernels were compiled for, 90: 9.0. Less than the GPU's where it runs code for an
  // older one: then its limits hold, whatever the GPU has.
  int capability() const { return capability_; }
  int num_sms() const { return num_sms_; }
  // The most dynamic shared memory of a block (cudaFuncSetAttribute).
  std::size_t max_shared_bytes() const { return max_shared_bytes_; }
  std::size_t l2_bytes() const { return l2_bytes_; }

  // At least so many bytes, 256-byte aligned. Grows (waiting for the stream) when more is wanted.
  std::byte* scratch(Scratch which, std::size_t bytes);

  // Copies in stream order. From the host small ones wait for nothing: they take their bytes along.
  // Larger ones, and those to the host, wait for the stream. REQUIRES: no capture is under way.
  void upload(void* to, const void* from, std::size_t bytes);
  void download(void* to, const void* from, std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);  // within device memory
  // `rows` rows of `bytes` each, adjacent on the host and `stride` bytes apart on the device.
  void upload_rows(void* to, std::size_t stride, const void* from, std::size_t bytes, int rows);
  void synchronize();

  // Begins a pass over rows of rounds: the states come from the rounds, on the device. This and
  // states() allocate where there are more sequences than there ever were.
  void begin_pass(std::span<const SequenceRows> sequences, int page_size);
  // The states of an op's sequences, one after the other; of rounds those of View::kPages. Unless
  // the rows are of rounds, they go to device memory, if they are not there from the layer before.
  // REQUIRES: all are of rounds, those that were given to begin_pass(), or none is.
  const SequenceState* states(std::span<const SequenceRows> sequences);
  // What a launch gets of them: those from `first` on. REQUIRES: 1 <= count <= kMaxSequences.
  SequenceBatch batch(std::span<const SequenceRows> sequences, int first, int count,
                      int num_kv_heads);

  // Kernels that begin early (ptx.cuh) read some things before they wait for those ahead: weights,
  // pages and lists of them, tokens older than the pass. Who writes such things calls
  // order_next_launch(), but for what begins every pass with ordinary launches (embed.cu); every
  // launch of a kernel that can begin early asks, once, whether it may.
  void order_next_launch() { next_is_ordered_ = true; }
  bool may_begin_early() { return !std::exchange(next_is_ordered_, false); }

  // Changes when device memory is given back, of whatever owner: what was captured before may point
  // there and is good for nothing.
  static int generation();

  // Null until a prefill makes it (prefill_gemm.h).
  std::shared_ptr<PrefillGemm>& prefill_gemm() { return prefill_gemm_; }

 private:
  // Makes room for the states of so many sequences.
  void reserve_states(std::size_t count);
  SequenceState* round_states(View view) {
    return round_states_.as<SequenceState>() + static_cast<std::size_t>(view) * room_;
  }
  // Memory of the host for a copy of so many bytes, of which no other copy is under way.
  // REQUIRES: at most kMostStaged.
  std::byte* stage(std::size_t bytes);

  cudaStream_t stream_ = nullptr;
  std::string name_;
  int capability_ = 0;
  bool next_is_ordered_ = false;
  int num_sms_ = 0;
  std::size_t max_shared_bytes_ = 0;
  std::size_t l2_bytes_ = 0;
  std::array<Buffer, static_cast<std::size_t>(Scratch::kCount)> scratch_;
  Buffer staging_;                      // pinned: copies from and to it run beside the host
  std::size_t staged_ = 0;              // bytes of it that copies under way may use
  std::size_t room_ = 0;                // sequences
  Buffer states_;                       // [room_] SequenceState that the host gave
  std::vector<SequenceState> given_;    // those that are there
  std::vector<SequenceState> to_give_;  // of the op at hand
  Buffer round_states_;                 // [kNumViews, room_] SequenceState of rounds
  std::shared_ptr<PrefillGemm> prefill_gemm_;
};

// After a launch: throws if it was refused.
inline void require_launch(const char* kernel) { require(cudaGetLastError(), kernel); }

}  // namespace quantspec::cuda
