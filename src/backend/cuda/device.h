// The GPU that a backend uses: its properties, the one stream on which all ops run in order, and
// the memory in which they work. Not thread-safe, but any thread may use it for which its GPU is
// the current one (gpu.h), as it must be for the functions of ops.h. Errors: kDevice, naming the
// call that failed (an error of a kernel shows at a later call), kOutOfMemory where memory could
// not be had.
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

#include "backend/cuda/gpu.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/tuning.h"
#include "backend/params/kv.h"
#include "backend/params/order.h"
#include "backend/round_ops.h"
#include "base/buffer.h"
#include "base/token.h"
#include "quant/quant.h"

namespace quantspec::cuda {

class PrefillGemm;
class Ranks;

// --- sequences of a pass -------------------------------------------------------------------------
//
// All that differs between sequences lies in device memory, in tables that the kernels of an op
// take by index, so that a launch can be repeated as it is for other sequences: a grid depends on
// shapes, never on what tables hold; but for the choice of attention's kernel (attention.cu).

// The most sequences of a launch of attention, so that its scratch memory has a limit; an op of
// more of them has several launches.
inline constexpr int kLaunchSequences = 32;

// What changes of a sequence from pass to pass.
struct alignas(16) SequenceState {
  int first_row;
  int num_rows;  // 0: none of its other numbers count, nor what its SequenceKv says
  int first_position;
  int first_full;  // as in KvView, and pages before it; but where SequenceKv says otherwise
  int num_pages;
  int unused;
  const TokenId* tokens;  // by position
  bool operator==(const SequenceState&) const = default;
};

// Where a row belongs.
struct RowPlace {
  int sequence;  // negative: it is nobody's
  int position;
  bool operator==(const RowPlace&) const = default;
};

// Where a sequence's K and V of one layer lie: its KvView. A line of the cache, which changes only
// ahead of an ordinary launch.
struct alignas(128) SequenceKv {
  int num_gathered;
  int pages_listed;         // 0: all pages
  int max_pages;            // of page_mass and page_scores
  int all_full;             // KvView::all_full
  const PagePlanes* pages;  // null: none are read
  int* page_lists;          // [num_kv_heads, pages_listed] or null
  FullKv full;
  FullKv gathered;
  float* page_mass;    // [num_kv_heads, max_pages] or null
  float* page_scores;  // likewise
  bool operator==(const SequenceKv&) const = default;
};
SequenceKv sequence_kv(const KvView& view, int num_kv_heads);

// The sequences of an op, as kernels take them; of KV, those of a layer.
struct SequenceTables {
  const SequenceState* states;
  const RowPlace* rows;  // of the op's rows
  const SequenceKv* kv;
  int kv_stride;  // from sequence to sequence, in elements
  int count;

#if defined(__CUDACC__)
  __device__ const SequenceKv* of(int sequence) const {
    return kv + static_cast<std::ptrdiff_t>(sequence) * kv_stride;
  }
#endif
  SequenceTables from(int first, int num) const {
    return {states + first, rows, kv + static_cast<std::ptrdiff_t>(first) * kv_stride, kv_stride,
            num};
  }
};

// Calls launch(first, count) for an op's sequences, by index, so that each launch has
// kLaunchSequences at most.
template <typename Launch>
void for_launches(std::ptrdiff_t sequences, const Launch& launch) {
  const int size = static_cast<int>(sequences);
  for (int first = 0; first < size; first += kLaunchSequences) {
    launch(first, std::min(kLaunchSequences, size - first));
  }
}

// The lanes of a launch that chooses tokens.
struct LaneTable {
  const RoundLane* lanes;
  int count;
  int first_row;  // of the first lane's verification
  int vocab_size;
};

// 1, 2, 3, 4, 6, 8, 12, .., 64, 80, 96, 112, 128, 160, ..: so many lanes, and rows of several, a
// round is taken to. Of many rows each costs: products of 192 take nearly half more than of 160.
int padded(int count);
// The rows of verification that are taken to be there, of so many.
inline int padded_rows_of(int lanes, int rows) { return lanes == 1 ? rows : padded(rows); }

// What those kernels of this build were compiled for that the current GPU runs, as
// Device::capability(); 0: there are none (embed.cu).
int kernels_capability();

// --- the device ----------------------------------------------------------------------------------

// Memory between the kernels of an op. What an op leaves there is gone when another of the same
// kind begins; kCounters is zero at every op's begin, and left so.
enum class Scratch {
  kActivations,
  kAttention,
  kBatch,
  kCounters,
  kRounds,
  kWorkspace,
  kOfRank,
  kCount
};

class Device {
 public:
  // REQUIRES: unavailable(ordinal) says nothing
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Gpu& gpu() const { return gpu_; }
  cudaStream_t stream() const { return stream_; }
  Kernels& kernels() { return kernels_; }
  const std::string& name() const { return name_; }
  // What its kernels were compiled for, 90: 9.0. Less than the GPU's where it runs code for an
  // older one: then its limits hold, whatever the GPU has.
  int capability() const { return capability_; }
  int num_sms() const { return num_sms_; }
  // The most shared memory of a block.
  std::size_t max_shared_bytes() const { return max_shared_bytes_; }
  std::size_t l2_bytes() const { return l2_bytes_; }
  const Tuning& tuning() const { return tuning_; }

  // Zeroed memory, 256-byte aligned, which any thread may give back.
  Buffer allocate(std::size_t bytes) { return gpu_.allocate(bytes); }
  Buffer allocate_on_host(std::size_t bytes) { return gpu_.allocate_on_host(bytes); }
  // At least so many bytes, 256-byte aligned. Grows (waiting for the stream) when more is wanted.
  std::byte* scratch(Scratch which, std::size_t bytes);
  std::size_t scratch_bytes(Scratch which) const {
    return scratch_[static_cast<std::size_t>(which)].size();
  }
  // That it has taken of the GPU's memory for itself; and what it takes of that beside scratch
  // memory, for rounds of so many lanes and rows.
  std::size_t taken_bytes() const;
  static std::size_t table_bytes(int lanes, int rows, int num_layers);

  // Copies in stream order. From the host small ones wait for nothing: they take their bytes along.
  // Larger ones, and those to the host, wait for the stream. REQUIRES: no capture is under way.
  void upload(void* to, const void* from, std::size_t bytes);
  void download(void* to, const void* from, std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);  // within device and pinned memory
  // `rows` rows of `bytes` each, adjacent on the host and `stride` bytes apart on the device.
  void upload_rows(void* to, std::size_t stride, const void* from, std::size_t bytes, int rows);
  void synchronize();

  // As Backend::begin_batch and bind_lanes. They allocate where there are more lanes, or layers,
  // than there ever were.
  void begin_batch(std::span<const RoundLane> lanes);
  void bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                  const RoundOps::LaneViews& views);
  std::span<const RoundLane> lanes() const;
  LaneTable lane_table(int first, int count) const;
  // What the shape of launches follows from, of bound lanes that have rows: room for pages of those
  // that list some while drafting, and of those whose masses are wanted in verification.
  struct PageRoom {
    int listed = 0;
    int listing_layers = 0;  // of the lane that has most: a plan's layers list from some length on
    int with_mass = 0;
    bool operator==(const PageRoom&) const = default;
  };
  PageRoom page_room() const;

  // Begins a pass over rows of rounds: where they stand comes from the rounds, on the device.
  void begin_pass(const EmbedParams& params);
  // The sequences of an op. Of rounds: what begin_pass() and bind_lanes() left. Others go to device
  // memory, if they are not there from the op before. num_rows: of the op, 0: no table of rows is
  // wanted. num_kv_heads: 0: no table of KV is wanted. `uploaded`: is set where something was.
  SequenceTables tables(std::span<const SequenceRows> sequences, int num_rows, int num_kv_heads,
                        bool* uploaded = nullptr);

  // Changes when memory of this GPU is given back, of whatever owner: what was captured before may
  // point there and is good for nothing.
  int generation() const { return gpu_.frees(); }
  // How often memory of this GPU, or pinned for it, was allocated, by whomever.
  int allocations() const { return gpu_.allocations(); }

  // Those with whom sums and logits are shared (ranks.h); null: nobody. Who sets them takes them
  // back before they go.
  Ranks* ranks() const { return ranks_; }
  void set_ranks(Ranks* ranks) { ranks_ = ranks; }
  // Ranks::num_shares() and num_contexts(), 1 where nobody is.
  int num_shares() const;
  int num_contexts() const;

  // Null until a prefill makes it (prefill_gemm.h).
  std::shared_ptr<PrefillGemm>& prefill_gemm() { return prefill_gemm_; }

 private:
  // Memory of the host for a copy of so many bytes, of which no other copy is under way.
  // REQUIRES: at most kMostStaged.
  std::byte* stage(std::size_t bytes);

  Gpu& gpu_;
  Kernels kernels_;
  cudaStream_t stream_ = nullptr;
  std::string name_;
  int capability_ = 0;
  int num_sms_ = 0;
  std::size_t max_shared_bytes_ = 0;
  std::size_t l2_bytes_ = 0;
  Tuning tuning_;
  std::array<Buffer, static_cast<std::size_t>(Scratch::kCount)> scratch_;
  Buffer staging_;          // pinned: copies from and to it run beside the host
  std::size_t staged_ = 0;  // bytes of it that copies under way may use

  // What was uploaded to a table, so that it need not be again.
  template <typename T>
  struct Table {
    Buffer memory;
    std::vector<T> there;
    const T* data() const { return memory.as<const T>(); }
  };
  // At least so many bytes; what was there is lost where it grows.
  void grow(Buffer& buffer, std::size_t bytes);
  // Uploads what is not there; room for `least` at first.
  template <typename T>
  const T* put(Table<T>& table, const std::vector<T>& values, std::size_t least,
               bool* uploaded = nullptr);
  // Of lane_rows_, for a pass of so many.
  static std::size_t lane_rows_bytes(int rows);
  SequenceTables tables_of_lanes(std::span<const SequenceRows> sequences, int num_kv_heads);
  // Where the KV of a lane in a layer is among all lanes'.
  std::size_t lane_kv(int lane, bool verifies, int layer) const {
    return (std::size_t{2} * lane + verifies) * num_layers_ + layer;
  }
  void bind_lane(const KvShape& shape, int lane, bool verifies, std::span<const KvView> views);

  // Of rounds.
  std::vector<RoundLane> lanes_;
  Table<RoundLane> lane_table_;
  struct Bound;
  std::vector<Bound> bound_;   // what lanes are bound to
  int num_layers_ = 0;         // of what they are bound to
  Table<SequenceKv> lane_kv_;  // [lanes, drafts then verification, layers]
  Buffer lane_states_;         // [lanes] SequenceState of the pass
  Buffer lane_rows_;           // [rows] RowPlace
  // Of others.
  Table<SequenceState> states_;
  Table<RowPlace> rows_;
  Table<SequenceKv> kv_;
  std::vector<SequenceState> to_put_;
  std::vector<RowPlace> rows_to_put_;
  std::vector<SequenceKv> kv_to_put_;
  std::shared_ptr<PrefillGemm> prefill_gemm_;
  Ranks* ranks_ = nullptr;
};

// The launches of one op. Kernels that can begin early (ptx.cuh) read some things before they wait
// for those ahead, all of which OpOrder names. So the op's first launch stands to what is ahead as
// the op does; the others only follow the op's own, which write no such thing.
class OpLaunches {
 public:
  OpLaunches(Device& device, OpOrder order) : device_(device), order_(order) {}

  Device& device() const { return device_; }
  // Device::tables(). They are read early: what was uploaded must be there.
  SequenceTables tables(std::span<const SequenceRows> sequences, int num_rows, int num_kv_heads) {
    bool uploaded = false;
    const SequenceTables tables = device_.tables(sequences, num_rows, num_kv_heads, &uploaded);
    if (uploaded) order_ = OpOrder::kAfter;
    return tables;
  }
  // Of the next launch.
  OpOrder next() { return std::exchange(order_, OpOrder::kOverlaps); }

 private:
  Device& device_;
  OpOrder order_;
};

// How CUDA is told of it.
inline cudaLaunchAttribute launch_attribute(const Device& device, OpOrder order) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed =
      order == OpOrder::kOverlaps && device.tuning().overlaps != 0;
  return attribute;
}

// After a launch: throws if it was refused.
inline void require_launch(const char* kernel) { require(cudaGetLastError(), kernel); }

}  // namespace quantspec::cuda
