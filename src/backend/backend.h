// The backend: about fifteen coarse ops on plain data, one virtual call each. `reference` is the
// oracle (fp32, scalar, one equation one function); `cpu` and `cuda` are the fast ones. Every op of
// every backend is tested against the reference.
//
// Ops read and write the backend's memory: what allocate() gives, and what is said to be the
// host's. Unless the backend is known to work on the host, only upload() and download() reach it.
// Ops and copies take effect in the order of the calls.
//
// Thread-safety: one op at a time per backend object. Errors: kInvalidRequest for options that name
// what does not exist; internal checks otherwise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/params.h"
#include "base/buffer.h"

namespace quantspec {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;         // as in BackendOptions
  virtual std::string description() const = 0;  // for people: instruction set, threads
  // Throws kUnsupportedModel, naming what works, where ops have no such heads or pages.
  virtual void require_supported(const KvShape& /*shape*/) const {}

  // --- memory ---
  virtual Buffer allocate(std::size_t bytes) = 0;
  virtual std::size_t available_bytes() const = 0;  // that allocate() can still give
  // Copies from host memory, to host memory, within the backend's.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Waits for all that was called. Measurements need it; results come by download().
  virtual void synchronize() = 0;
  // Bytes of one layer's FullKv. Element size of full-precision K and V.
  virtual std::size_t full_kv_bytes(const KvShape& shape, int capacity) const = 0;

  // Bytes that the backend takes for itself in prefill, beyond what it is given to write to: for
  // matrices of up to this many inputs, and rows of that many floats between norm and output.
  virtual std::size_t scratch_bytes(int inputs, std::size_t row_floats) const = 0;
  // Bytes that prefill_attention() is given to unpack pages to, of prompts of up to so many tokens;
  // 0: it reads pages as they are.
  virtual std::size_t unpacked_bytes(const KvShape& shape, int tokens) const = 0;
  // Takes them now. On the host they are taken as they are needed, since that holds nothing up.
  virtual void reserve_scratch(int inputs, std::size_t row_floats) = 0;
  // Rows that prefill takes through an op at once: enough to keep a GEMM busy, few enough that the
  // activations beside x stay small.
  virtual int prefill_rows() const { return 512; }
  // Tokens of a prompt that read each other in full precision (section 4): a multiple of all page
  // sizes.
  virtual int prefill_chunk() const { return 1024; }

  // --- matrices ---
  // Bytes that place_matrix() fills; 0: matrices are read where the checkpoint is mapped.
  virtual std::size_t matrix_bytes(int rows, int cols, DType dtype) const = 0;
  // The matrix as ops read it: moved to `memory` from the host's, or as it was.
  virtual TensorView place_matrix(const TensorView& matrix, std::byte* memory) = 0;

  // --- draft weights ---
  // Bytes of the upper (with scales) and of the lower plane of a [rows, cols] matrix.
  struct PlaneBytes {
    std::size_t upper;
    std::size_t lower;
  };
  virtual PlaneBytes plane_bytes(int rows, int cols, int group = kWeightGroup) const = 0;
  // Quantizes `full` (section 4 of docs/design.md) into the backend's order, in groups of
  // kWeightGroup; `lower` may be null.
  virtual void make_planes(const TensorView& full, std::byte* upper, std::byte* lower) = 0;
  // The same from codes that were made elsewhere, in groups of 64 or 128 inputs.
  virtual void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) = 0;

  // --- one pass ---
  virtual void embed(const EmbedParams& params) = 0;
  virtual void qkv(const QkvParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void page_bounds(const PageBoundsParams& params) = 0;
  virtual void select_pages(const SelectPagesParams& params) = 0;
  virtual void prefill_attention(const PrefillAttentionParams& params) = 0;
  virtual void add_linear(const AddLinearParams& params) = 0;
  virtual void gate_up(const GateUpParams& params) = 0;
  virtual void head(const HeadParams& params) = 0;

  // --- rounds of lanes ---
  // So many lanes, or rows, of a round are to be taken to so many, the others empty: so that few
  // shapes come up where those are repeated. The number itself: any shape is as good.
  virtual int padded(int count) const = 0;
  // Whether run_round() repeats ops: those it is given then take all lanes of a batch, also where
  // they have no rows.
  virtual bool repeats_rounds() const = 0;
  // These are the lanes that ops of rounds name by index, until the next call.
  virtual void begin_batch(std::span<const RoundLane> lanes) = 0;
  // What the batch's lanes read, by layer: views(lane, verifies), asked for where the lane's key is
  // not what it was bound to last.
  using LaneViews = std::function<std::span<const KvView>(int lane, bool verifies)>;
  virtual void bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                          const LaneViews& views) = 0;
  virtual void propose(const ProposeParams& params) = 0;
  virtual void judge(const JudgeParams& params) = 0;
  // Issues a round's ops by calling `issue`, or, where ops were issued under the same key for a
  // batch of the same shape before, repeats them without a call. Returns whether it called.
  // REQUIRES: under equal keys, `issue` gives the same ops and memory for batches of equal shapes.
  virtual bool run_round(const RoundKey& key, const std::function<void()>& issue) = 0;
  // What holds all sequences up, and a warm engine does no more: how often memory of a device was
  // allocated; of rounds that can be repeated, how many were captured, and ran as they were issued.
  // Of the host: none.
  struct Counts {
    std::int64_t allocations = 0;
    std::int64_t captures = 0;
    std::int64_t issues = 0;
  };
  virtual Counts counts() const = 0;
  // Waits for what was called, and gives rounds as they stand, results[i] that of rounds[i]. Throws
  // kCorruptFile where logits of one were not numbers that one can choose by (some backends:
  // already where they choose).
  virtual void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) = 0;
  // One alone.
  Round end_round(const Round* round) {
    Round result;
    end_rounds({&round, 1}, {&result, 1});
    return result;
  }
  // When what was called before was done; seconds_between() is for marks before end_round().
  virtual void mark(Mark mark) = 0;
  virtual double seconds_between(Mark from, Mark to) = 0;

  // --- KV ---
  // Quantizes positions [first_position, first_position + pages.size() * page_size) of sources[i]
  // into layer first_layer + i of `pages`.
  virtual void quantize_pages(const KvShape& shape, int first_layer,
                              std::span<const FullKv> sources, int first_position,
                              std::span<const PagePlanes> pages) = 0;
  // Copies positions [first, first + count).
  virtual void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                            int count) = 0;

  // Copies, for every kv head, its `positions` ([num_kv_heads, n], host) of `source` to the slots
  // [first_slot, first_slot + n) of `target`.
  virtual void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                              std::span<const int> positions, int first_slot) = 0;

  // --- borders: host memory in canonical order (quant.h), for files, other backends and tests ---
  // Reads / writes K and V of a kv head at `count` positions from `first` on, as fp32: [count,
  // head_dim] each. What is written is rounded to the backend's full precision; reading leaves
  // values out where `values` is null. REQUIRES: count <= capacity
  virtual void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                            float* keys, float* values) const = 0;
  virtual void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                             const float* keys, const float* values) = 0;
  // One unit of a page, from / to canonical order.
  virtual void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page,
                           std::byte* upper, std::byte* lower) const = 0;
  virtual void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                           const std::byte* lower, PagePlanes page) = 0;
};

struct BackendOptions {
  std::string name =
      "auto";           // auto | cuda | cpu | reference; auto: cuda where it can run, else cpu
  int num_threads = 0;  // 0: physical cores
  // The GPU, by ordinal; nullopt: 0, where there is one. `auto` means cuda where it is given.
  std::optional<int> device = {};
};

// Throws kInvalidRequest naming the backends, instruction sets or devices that exist here.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// Why `auto` does not mean cuda here, where no device is given; empty: it does.
std::string cuda_unavailable();

// The instruction sets that the cpu backend can use on this machine, best last. The environment
// variable QUANTSPEC_ISA names one to force, for tests.
std::vector<std::string> cpu_instruction_sets();

}  // namespace quantspec
